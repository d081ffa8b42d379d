"""Without clipping, noise and quantiser the product is FedAvg: a plain loop's, and Flower's."""

from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fl_app.config import compose_settings
from fl_app.data import load_dataset
from fl_app.engines.in_process import InProcessGrid
from fl_app.local_training import StepSettings, train_steps
from fl_app.model_arrays import to_arrays
from fl_app.model_files import load_model_file, sha256_of_arrays
from fl_app.models import build_model
from strategies.dp_fedpaq.messages import model_record
from strategies.mechanisms.rng import Randomness
from strategies.mechanisms.sampling import shuffle_epochs
from tests.conftest import Outcome

ROUNDS, CLIENTS, SEED = 3, 5, 7
COMMON = (f"num_rounds={ROUNDS}", f"num_clients={CLIENTS}", f"seed={SEED}")
PLAIN = (
    "strategy.target_epsilon=null",
    "strategy.noise_multiplier=0",
    "strategy.clipping_norm=null",
    "strategy.quantizer=none",
    "strategy.num_levels=null",
    "strategy.feature_norm=null",
    "strategy.learning_rate=0.5",
    "strategy.local_steps=null",
    "strategy.local_epochs=1",
)


class PlainFederation:
    """FedAvg's local work, with the draws that a seeded run makes."""

    def __init__(self, model: str) -> None:
        settings = compose_settings([*COMMON, "strategy=fedavg", f"model={model}"])
        self.strategy = settings.strategy
        self.dataset = load_dataset(settings.data, CLIENTS, SEED)
        self.model = build_model(
            settings.model, self.dataset.feature_shape, self.dataset.num_classes, SEED
        )
        self.initial = to_arrays(self.model)

    def train(self, arrays: dict[str, np.ndarray], round_: int, client: int) -> dict:
        records = self.dataset.partition(client)
        stream = Randomness("seeded", SEED).stream("records", round_, client)
        batches = shuffle_epochs(len(records), self.strategy.batch_size, 1, stream)
        steps = StepSettings(learning_rate=self.strategy.learning_rate)
        trained, _ = train_steps(
            self.model, arrays, records, batches, steps, batch_divisor=self.strategy.batch_size
        )
        return trained


@pytest.mark.parametrize("model", ["softmax_regression", "mlp", "cnn"])
def test_bit_for_bit_the_plain_loop(run: Callable[..., Outcome], model: str) -> None:
    plain = PlainFederation(model)
    arrays = plain.initial
    for round_ in range(1, ROUNDS + 1):
        mean: dict[str, np.ndarray] = {}
        for name, array in arrays.items():
            mean[name] = np.zeros(array.shape)
        for client in range(CLIENTS):
            trained = plain.train(arrays, round_, client)
            for name in mean:
                # What travels is the update in float32.
                update = trained[name].astype(float) - arrays[name].astype(float)
                mean[name] = mean[name] + update.astype(np.float32).astype(float)
        arrays = {
            name: (arrays[name].astype(float) + mean[name] / CLIENTS).astype(arrays[name].dtype)
            for name in arrays
        }
    ours = run(*COMMON, "strategy=fedavg", f"model={model}")
    assert load_model_file(ours.folder / "model.safetensors").keys() == arrays.keys()
    assert ours.sha256 == sha256_of_arrays(arrays)


def test_the_private_method_without_its_parts_is_fedavg_bit_for_bit(
    run: Callable[..., Outcome],
) -> None:
    fedavg = run(*COMMON, "strategy=fedavg")
    reduced = run(*COMMON, "strategy=dp_fedpaq", *PLAIN)
    assert reduced.sha256 == fedavg.sha256
    private = run(*COMMON, "strategy=dp_fedpaq")
    assert private.sha256 != fedavg.sha256


# The last bits of two averages differ, and from the second round on a ReLU may tip over them: only
# the smooth model is compared over several rounds.
@pytest.mark.parametrize(
    ("model", "rounds"), [("softmax_regression", ROUNDS), ("mlp", 1), ("cnn", 1)]
)
def test_within_1e_6_of_flowers_fedavg(
    run: Callable[..., Outcome], model: str, rounds: int
) -> None:
    plain = PlainFederation(model)
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = {n: a.numpy() for n, a in message.content["arrays"].items()}
        round_ = int(message.content["config"]["server-round"])
        trained = plain.train(arrays, round_, int(context.node_config["partition-id"]))
        content = RecordDict(
            {
                "arrays": model_record(trained),
                "metrics": MetricRecord({"num-examples": 1}),  # equal weights
            }
        )
        return Message(content, reply_to=message)

    grid = InProcessGrid(app, CLIENTS, {})
    flower = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    result = flower.start(
        grid, model_record(plain.initial), num_rounds=rounds, train_config=ConfigRecord()
    )
    outcome = run(*COMMON, f"num_rounds={rounds}", "strategy=fedavg", f"model={model}")
    ours = load_model_file(outcome.folder / "model.safetensors")
    for name, array in result.arrays.items():
        assert np.abs(array.numpy() - ours[name]).max() < 1e-6
        assert np.abs(array.numpy() - plain.initial[name]).max() > 1e-3
