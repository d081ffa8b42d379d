"""Whole runs on devices with data of their own, of which the server has none."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from scipy import io

from fl_app.config import compose_settings
from fl_app.data import DataSettings
from fl_app.device_state import FolderState, list_entries
from fl_app.engines.flower_internals import deliver, identify_process
from fl_app.errors import ConfigError
from fl_app.objectives import load_objective
from fl_app.objectives.landmine import FILE as LANDMINE_FILE
from fl_app.objectives.local_training import LocalTraining
from fl_app.run_inputs import check_data
from fl_app.search_task import read_search_space
from fl_app.settings import RunSettings
from tests.fl_app import test_heart_disease
from tests.fl_app.devices import CLIENTS, FEDPAQ, Device, record_requests, run_on_devices
from tests.fl_app.test_own_records import ROWS, Rows, write_heart_disease, write_mnist

DEPLOYED = ("engine=deployment", "engine.superlink=link")
SEARCH = (
    *DEPLOYED,
    *("strategy=dp_fts_de", "strategy.target_epsilon=4", "strategy.num_random_features=8"),
    *("strategy.num_initial=1", "strategy.release_rounds=[1]"),
)
LOCAL = (*SEARCH, "objective=local_training", "model=softmax_regression")
OWN_CODE = f"{__name__}:prefer_own_number"

Write = Callable[[Path, int], Mapping[str, Any]]


def prefer_own_number(point: dict[str, float], agent: int) -> float:
    return 1.0 - abs(point["x"] - agent / 10)


def make_devices(folder: Path, write: Write, **policy: object) -> list[Device]:
    devices = []
    for number in range(CLIENTS):
        data = folder / f"data{number}"
        data.mkdir()
        own = {"data_path": str(data), "data": json.dumps(write(data, number))}
        devices.append(Device(folder / f"{number}", number, **{**own, **policy}))
    return devices


def observed(device: Device) -> list[float]:
    (run,) = {each.run for each in list_entries(device.folder)}
    state = FolderState(device.folder, run, int(device.node_config["partition-id"]))
    return [each.value for each in state.read_observations()]


def of_size(number: int) -> Rows:
    """Each device has as many records as no other."""
    return ROWS * (3 + number)


def test_a_model_is_trained_on_what_the_devices_have(tmp_path: Path) -> None:
    """The server's own copy is another: its test set counts, and its sizes are nobody's."""
    public = tmp_path / "public"
    public.mkdir()
    for name in test_heart_disease.FILES:
        lines = [test_heart_disease.make_line(30 + row) for row in range(20)]
        (public / name).write_text("\n".join(lines))
    devices = make_devices(
        tmp_path, lambda folder, number: write_heart_disease(folder, of_size(number))
    )
    server = (*DEPLOYED, *FEDPAQ, "data=heart_disease", f"data.root={public}")
    sizes: dict[int, float] = {}

    def watch(number: int, message: Message, reply: Message) -> None:
        if message.metadata.message_type.startswith("query"):
            return
        assert "arrays" in reply.content
        released = json.loads(devices[number].releases[-1].description)
        sizes[number] = released["noise_multiplier"]

    # No four hospitals here could be five clients.
    outcome = run_on_devices(
        tmp_path / "run", devices, *server, "strategy.batch_size=4", watch=watch
    )
    assert [row["num_replies"] for row in outcome.rows[1:]] == [CLIENTS] * 2
    assert outcome.rows[-1]["test_accuracy"] is not None
    # Fewer records, more noise: each calibrates with its own number.
    assert [sizes[number] for number in range(CLIENTS)] == sorted(sizes.values(), reverse=True)
    assert len(set(sizes.values())) == CLIENTS


def test_local_models_are_tuned_on_devices_and_the_server_has_no_data(tmp_path: Path) -> None:
    devices = make_devices(
        tmp_path,
        lambda folder, number: write_mnist(folder, of_size(number)),
        allowed_strategies="dp_fts_de",
    )
    run_on_devices(tmp_path / "run", devices, *LOCAL, "data=mnist", "data.root=/nowhere")
    for device in devices:
        values = observed(device)
        assert len(values) == 2
        assert max(values) > 0.0


@pytest.mark.parametrize("count", [1, 2])
def test_a_landmine_field_is_the_device_s_own_or_the_one_of_its_number(
    tmp_path: Path, count: int
) -> None:
    """Alone in its file, a field is the device's; in a shared file each has its own."""
    fields = CLIENTS if count > 1 else 1

    def write(folder: Path, number: int) -> dict[str, str]:
        cells = {key: np.empty((1, fields), dtype=object) for key in ("feature", "label")}
        for place in range(fields):
            rng = np.random.default_rng(place if fields > 1 else number)
            labels = np.arange(400) % 2  # so many that no two areas are equal by chance
            cells["feature"][0, place] = rng.normal(size=(400, 9)) + labels[:, None]
            cells["label"][0, place] = labels[:, None]
        io.savemat(folder / LANDMINE_FILE, cells)
        return {"name": "landmine"}

    devices = make_devices(tmp_path, write, allowed_strategies="dp_fts_de")
    run_on_devices(tmp_path / "run", devices, *SEARCH, "objective=landmine")
    first = [observed(device) for device in devices]
    assert all(max(values) > 0.5 for values in first)
    assert len({tuple(values) for values in first}) == CLIENTS


def test_a_user_s_own_objective_runs_on_devices_that_allow_it(tmp_path: Path) -> None:
    devices = [
        Device(
            tmp_path / f"{number}", number, allowed_strategies="dp_fts_de", allowed_code=OWN_CODE
        )
        for number in range(CLIENTS)
    ]
    axis = "objective.search_space=[{name: x, kind: float, low: 0, high: 1}]"
    mine = ("objective=user", f"objective.path={OWN_CODE}", f"objective.num_agents={CLIENTS}", axis)
    run_on_devices(tmp_path / "run", devices, *SEARCH, *mine)
    for number, device in enumerate(devices):
        state = FolderState(device.folder, "1", number)
        for each in state.read_observations():
            assert each.value == pytest.approx(1.0 - abs(each.point[0] - number / 10))


def settings(*overrides: str) -> RunSettings:
    return compose_settings([f"num_clients={CLIENTS}", "randomness=secret", *overrides])


@pytest.mark.parametrize(
    "objective",
    [
        ("objective=landmine",),
        ("objective=local_training", "data=har_geotec", "model=mlp"),
        (
            *("objective=user", "objective.path=not.here:function", "objective.num_agents=4"),
            "objective.search_space=[{name: x, kind: float, low: 0, high: 1}]",
        ),
    ],
    ids=["landmine", "local_training", "user"],
)
def test_the_server_of_devices_needs_the_axes_alone(objective: tuple[str, ...]) -> None:
    chosen = settings(*SEARCH, *objective)
    assert chosen.objective is not None
    assert read_search_space(chosen) == chosen.objective.space()
    check_data(chosen)
    with pytest.raises(ValueError, match=r"objective|data"):
        read_search_space(settings(*SEARCH[2:], *objective))


def test_as_many_devices_as_agents_are_needed() -> None:
    chosen = settings(*SEARCH, "objective=synthetic", "objective.num_agents=5")
    with pytest.raises(ConfigError) as refused:
        read_search_space(chosen)
    assert refused.value.key == "num_clients"


def ask_all(folder: Path, rows: Rows, *overrides: str) -> list[str]:
    """Return how a device with these records answers each request of a search."""
    requests = record_search(*overrides)
    (folder / "data").mkdir(parents=True)
    own = json.dumps(write_mnist(folder / "data", rows))
    device = Device(
        folder / "s", data_path=str(folder / "data"), data=own, allowed_strategies="dp_fts_de"
    )
    replies = [device.ask(message) for message in requests]
    return ["error" if reply.has_error() else str(sorted(reply.content)) for reply in replies]


def record_search(*overrides: str) -> list[Message]:
    """Return round 1's request of a search over local models."""
    from flwr.app import ConfigRecord, RecordDict

    from fl_app.search_task import planned_parameters
    from strategies.dp_fts_de.messages import broadcast_record

    identify_process(1)
    chosen = settings(*SEARCH, *overrides)
    config = {
        **{"settings": chosen.to_json(), "server-round": 1, "agent": 0, "upload": True},
        "dp-fts-de": planned_parameters(chosen).to_json(),
    }
    content = RecordDict({"config": ConfigRecord(config), "arrays": broadcast_record(None)})
    return [deliver(Message(content, 7, "train", group_id="1"))]


@pytest.mark.parametrize("holdout", ["random", "last"])
def test_no_answer_of_a_search_tells_how_many_records_there_are(
    tmp_path: Path, holdout: str
) -> None:
    """A share of nearly all, held out, leaves nothing to train on below a number of records."""
    words = (*LOCAL[len(SEARCH) :], "objective.validation_fraction=0.999")
    words = (*words, f"objective.holdout={holdout}", "data=mnist")
    answers = {
        size: ask_all(tmp_path / f"{size}", (ROWS * 100)[:size], *words) for size in (0, 1, 2, 600)
    }
    assert answers[600] == [str(["arrays", "config"])] or "error" not in answers[600]
    assert len({tuple(each) for each in answers.values()}) == 1


def test_a_device_holds_out_records_of_its_own_choice(tmp_path: Path) -> None:
    """They do not follow from the run's seed, and each is one of all."""
    write_mnist(tmp_path, ROWS * 5)
    data = DataSettings("mnist", str(tmp_path), 1.0, 0.0)
    chosen = settings(*LOCAL, "data=mnist")
    assert chosen.objective is not None
    found = []
    for seed in (0, 1):
        objective = load_objective(chosen.objective, seed, data, chosen.model, is_own=True)
        assert isinstance(objective, LocalTraining)
        assert objective.num_agents == 1
        kept, held_out = objective.records(0)
        assert (len(kept), len(held_out)) == (42, 18)
        found.append(held_out.features)
    assert np.array_equal(*found)
    few = replace(chosen.objective, num_agents=3)  # type: ignore[call-arg]
    assert load_objective(few, 0, data, chosen.model, is_own=True).num_agents == 1


def test_a_group_cannot_be_counted(tmp_path: Path) -> None:
    """Whatever column a server calls a group, the device's number of records is all there is."""
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    from tests.integration.test_hostile_device import request

    identify_process(1)
    table = datasets.Dataset.from_dict(
        {"x": [float(row) for row in range(20)], "y": [0, 1] * 10, "hiv": [0] * 17 + [1] * 3}
    )
    datasets.DatasetDict(train=table).save_to_disk(str(tmp_path / "data"))
    own = json.dumps({"name": "hugging_face", "features": "x", "label": "y", "classes": [0, 1]})
    device = Device(tmp_path / "s", data_path=str(tmp_path / "data"), data=own)
    model = {"linear.weight": np.zeros((2, 1), "f4"), "linear.bias": np.zeros(2, "f4")}

    def sits_out(run: int, size: int, *data: str) -> bool:
        chosen = settings(*FEDPAQ, *data, f"strategy.batch_size={size}", "strategy.local_steps=1")
        message = request(chosen, uploads=2)
        from strategies.dp_fedpaq.messages import model_record

        message.content["arrays"] = model_record(model)
        reply = device.ask(message, run)
        assert not reply.has_error()
        return "arrays" not in reply.content

    grouped = ("data=hugging_face", "data.root=/x", "data.features=x", "data.label=y")
    asked = (*grouped, "data.group=hiv", "data.partition.kind=natural_id")
    for run, data in enumerate(((), grouped, asked)):
        assert sits_out(2 * run, 21, *data)
        assert not sits_out(2 * run + 1, 20, *data)


def test_requests_for_data_that_come_with_the_code_stay_as_they_were(tmp_path: Path) -> None:
    requests = record_requests(tmp_path, *FEDPAQ)
    device = Device(tmp_path / "s")
    assert all("arrays" in device.ask(message).content for message in requests)
