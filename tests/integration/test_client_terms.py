"""The application's client: it holds the server to the parameters that the settings stand for."""

import dataclasses
import json

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fl_app.client_app import SETTINGS_KEY, app
from fl_app.config import compose_settings
from fl_app.data import load_dataset
from fl_app.engines.flower_internals import deliver, identify_process
from fl_app.local_training import StepSettings, train_steps
from fl_app.model_arrays import to_arrays
from fl_app.models import build_model
from fl_app.registry import build_strategy
from fl_app.settings import RunSettings
from strategies.dp_fedpaq import DpFedPaqParameters
from strategies.dp_fedpaq.messages import model_record, parse_reply, request_config


@pytest.fixture(autouse=True)
def _identity() -> None:
    identify_process(1)


def settings(*overrides: str) -> RunSettings:
    return compose_settings(["randomness=secret", *overrides])


def parameters(chosen: RunSettings, **changes: object) -> DpFedPaqParameters:
    given = build_strategy(chosen).parameters
    return dataclasses.replace(given, **{"num_participations": 20, **changes})  # type: ignore[arg-type]


def request(
    chosen: RunSettings, given: DpFedPaqParameters, server_round: int = 1, text: str | None = None
) -> Message:
    dataset = load_dataset(chosen.data, 10, chosen.seed)
    model = build_model(chosen.model, dataset.feature_shape, dataset.num_classes, chosen.seed)
    config = request_config(
        server_round, given, ConfigRecord({SETTINGS_KEY: text or chosen.to_json()})
    )
    content = RecordDict({"arrays": model_record(to_arrays(model)), "config": config})
    return deliver(Message(content, 7, "train", group_id=str(server_round)))


def node() -> Context:
    return Context(
        1, 7, {"partition-id": 3, "num-partitions": 10, "simulated": True}, RecordDict(), {}
    )


def test_an_honest_request_is_answered() -> None:
    chosen = settings()
    reply = app(request(chosen, parameters(chosen)), node())
    assert parse_reply(reply).upload is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": 0.0, "target_epsilon": None},
        {"target_epsilon": 80.0},
        {"clipping_norm": 40.0},
        {"randomness": "seeded"},
        {"accountant": "closed_form"},
        {"learning_rate": 0.1},
        {"batch_size": 8},
    ],
)
def test_parameters_that_the_settings_do_not_stand_for_are_refused(
    changes: dict[str, object],
) -> None:
    chosen = settings()
    reply = app(request(chosen, parameters(chosen, **changes)), node())
    assert reply.error.reason == "parameters refused by the client"


@pytest.mark.parametrize("changes", [{"feature_norm": 1e-150}, {"has_bias": False}])
def test_a_sensitivity_declared_for_another_training_is_refused(
    changes: dict[str, object],
) -> None:
    chosen = settings()
    honest = parameters(chosen)
    assert honest.training is not None
    lied = dataclasses.replace(honest, training=dataclasses.replace(honest.training, **changes))
    reply = app(request(chosen, lied), node())
    assert reply.error.reason == "parameters refused by the client"


@pytest.mark.parametrize(
    "other", ["data.scale=0.001", "seed=1", "model.hidden=3", "data.partition.kind=dirichlet"]
)
def test_settings_cannot_change_within_a_run(other: str) -> None:
    context, chosen = node(), settings()
    assert app(request(chosen, parameters(chosen)), context).has_content()
    changed = settings(other)
    given = dataclasses.replace(parameters(changed), seed=chosen.seed)
    reply = app(request(changed, given, 2), context)
    assert reply.has_error()


@pytest.mark.parametrize("text", ["", "{}", "not json", '{"format_version": 99}'])
def test_malformed_settings_are_an_error_without_a_text_of_their_own(text: str) -> None:
    chosen = settings()
    message = request(chosen, parameters(chosen))
    message.content["config"][SETTINGS_KEY] = text
    reply = app(message, node())
    assert reply.error.reason == "the client could not answer"


def test_a_missing_file_is_not_told_to_the_server() -> None:
    chosen = settings()
    values = json.loads(chosen.to_json())
    values["data"].update(name="mnist", root="/no/such/folder")
    lied = RunSettings.from_json(json.dumps(values))
    reply = app(request(chosen, parameters(lied), text=lied.to_json()), node())
    assert reply.has_error()
    assert "folder" not in reply.error.reason


@pytest.mark.parametrize("entry", [0.1, 900.0])
@pytest.mark.parametrize("rate", [1e-17, 1e-15, 3e-13])
def test_rounding_is_within_the_sensitivity(entry: float, rate: float) -> None:
    """At tiny steps one record tips many parameters over half a last bit at once."""
    chosen = settings("strategy.local_steps=1", f"strategy.learning_rate={rate}")
    dataset = load_dataset(chosen.data, 10, 0)
    model = build_model(chosen.model, dataset.feature_shape, dataset.num_classes, 0)
    arrays = {name: np.full_like(a, entry) for name, a in to_arrays(model).items()}
    records = dataset.partition(0)
    steps = StepSettings(learning_rate=rate, feature_norm=2.5, float64=True)
    batches, updates = [np.arange(16)], []
    for label in (0, 1):
        labels = records.labels.copy()
        labels[0] = label
        changed = dataclasses.replace(records, labels=labels)
        trained, _ = train_steps(model, arrays, changed, batches, steps, batch_divisor=16)
        updates.append(np.concatenate([trained[name].ravel() for name in sorted(trained)]))
    distance = float(np.linalg.norm(updates[0] - updates[1]))
    assert distance <= parameters(chosen).sensitivity_in_round(1).value
