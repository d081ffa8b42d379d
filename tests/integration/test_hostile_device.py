"""A server that asks a device for more than its policy: nothing beyond it leaves, or is charged."""

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fl_app.allow_list import UNANSWERED
from fl_app.client_app import SETTINGS_KEY
from fl_app.config import compose_settings
from fl_app.data import load_dataset
from fl_app.device_ledger import lock_device
from fl_app.device_state import FolderState, connect_state
from fl_app.engines.flower_internals import deliver, identify_process
from fl_app.model_arrays import to_arrays
from fl_app.models import build_model
from fl_app.registry import build_strategy
from fl_app.settings import RunSettings
from strategies.device_state import LedgerEntry
from strategies.dp_fedpaq import DpFedPaqParameters
from strategies.dp_fedpaq import client as fedpaq_client
from strategies.dp_fedpaq.messages import PARAMETERS_KEY, REFUSED, model_record, request_config
from tests.fl_app.devices import CLIENTS, FEDPAQ, Device, policy_refused

HONEST = ("num_rounds=3", *FEDPAQ)


@pytest.fixture(autouse=True)
def _identity() -> None:
    identify_process(1)


@cache
def settings(*overrides: str) -> RunSettings:
    return compose_settings([f"num_clients={CLIENTS}", "randomness=secret", *overrides])


def request(
    chosen: RunSettings, server_round: int = 1, *, uploads: int = 3, shift: float = 0.0, **lies: Any
) -> Message:
    """Return DP-FedPaq's request of a server that plans so many uploads of each client."""
    given = build_strategy(chosen).parameters
    assert isinstance(given, DpFedPaqParameters)
    given = dataclasses.replace(given, **{"num_participations": uploads, **lies})
    dataset = load_dataset(settings().data, CLIENTS, chosen.seed)
    model = build_model(chosen.model, dataset.feature_shape, dataset.num_classes, chosen.seed)
    arrays = {name: value + shift for name, value in to_arrays(model).items()}
    config = request_config(server_round, given, ConfigRecord({SETTINGS_KEY: chosen.to_json()}))
    content = RecordDict({"arrays": model_record(arrays), "config": config})
    return deliver(Message(content, 7, "train", group_id=str(server_round)))


def uploaded(reply: Message) -> bytes | None:
    if not reply.has_content() or "arrays" not in reply.content:
        return None
    return bytes(reply.content["arrays"]["update"].data)  # type: ignore[union-attr]


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path / "state", max_epsilon=4.5, max_delta=1e-4)


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked, data are not read."""

    def read(*_: object) -> None:
        raise AssertionError("data were read")

    monkeypatch.setattr("fl_app.local_task.load_dataset", read)
    monkeypatch.setattr("fl_app.local_task.load_own_dataset", read)
    monkeypatch.setattr("fl_app.search_task.load_objective", read)


HOSTILE: dict[str, tuple[str, ...]] = {
    "zero noise": ("strategy.target_epsilon=null", "strategy.noise_multiplier=0"),
    "too little noise": ("strategy.target_epsilon=null", "strategy.noise_multiplier=0.2"),
    "epsilon too large": ("strategy.target_epsilon=4.6",),
    "delta too large": ("strategy.target_delta=2e-4",),
    "seeded": ("randomness=seeded",),
    "noise at the server": ("strategy.noise_at=server",),
    "no clipping, no noise": (
        *("strategy.target_epsilon=null", "strategy.noise_multiplier=0"),
        "strategy.clipping_norm=null",
    ),
    "files elsewhere": ("data=mnist", "data.root=/etc"),
    "code of the server's": ("model=user", "model.path=os:system"),
    "data by code": ("data=user", "data.path=shutil:rmtree", "data.root=/"),
    "a download": ("data=hugging_face", "data.root=some/name", "data.download=true"),
}


@pytest.mark.parametrize("overrides", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.usefixtures("no_data")
def test_a_run_beyond_the_policy_is_refused_before_data_are_read(
    device: Device, overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[object] = []
    monkeypatch.setattr("os.system", ran.append)
    monkeypatch.setattr("shutil.rmtree", ran.append)
    chosen = settings(*HONEST, *overrides)
    message = request(settings(*HONEST))
    config = message.content["config"]
    config[SETTINGS_KEY] = chosen.to_json()  # type: ignore[index]
    if "data=user" not in overrides and "model=user" not in overrides:
        given = dataclasses.replace(build_strategy(chosen).parameters, num_participations=3)  # type: ignore[type-var]
        config[PARAMETERS_KEY] = given.to_json()  # type: ignore[index,union-attr]
    assert policy_refused(device.ask(message))
    assert device.releases == []
    assert ran == []


@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize("strategy", ["niss", "dp_fts_de"])
def test_another_strategy_is_refused(tmp_path: Path, strategy: str) -> None:
    device = Device(tmp_path / "state", allowed_strategies="dp_fedpaq")
    objective = ("objective=synthetic", f"objective.num_agents={CLIENTS}")
    chosen = settings(f"strategy={strategy}", *(objective if strategy == "dp_fts_de" else ()))
    message = request(settings(*HONEST))
    message.content["config"][SETTINGS_KEY] = chosen.to_json()  # type: ignore[index]
    assert policy_refused(device.ask(message))
    assert device.releases == []


@pytest.mark.usefixtures("no_data")
def test_a_unit_that_is_too_small_is_refused(tmp_path: Path) -> None:
    device = Device(tmp_path / "state", unit="client")
    assert policy_refused(device.ask(request(settings(*HONEST))))


@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize("engine", ["simulation", "in_process"])
def test_what_the_server_says_of_its_engine_does_not_matter(device: Device, engine: str) -> None:
    seeded = settings(*HONEST, f"engine={engine}", "randomness=seeded")
    assert policy_refused(device.ask(request(seeded)))
    bare = Device(device.folder)
    del bare.node_config["state-dir"]
    assert policy_refused(bare.ask(request(settings(*HONEST, f"engine={engine}"))))


@pytest.mark.slow
def test_a_thousand_rounds_more(device: Device) -> None:
    """Of one run, of the same run begun anew on the server, and of new runs."""
    chosen, left = settings(*HONEST), []
    for server_round in range(1, 41):
        left.append(uploaded(device.ask(request(chosen, server_round))))
    assert [each is not None for each in left] == [True] * 3 + [False] * 37
    # With a state of its own that is fresh, the server asks for round 1 of the same run again.
    again = device.ask(request(chosen, 1, shift=0.5))
    assert (again.error.code, uploaded(again)) == (REFUSED, None)
    # More rounds of it, at the same target, are other parameters.
    more = device.ask(request(chosen, 41, uploads=1000))
    assert more.error.code == REFUSED
    message = request(chosen)
    for run in range(2, 1002):
        assert policy_refused(device.ask(message, run=run))
    assert len(device.releases) == 3
    (spent,) = device.spent
    assert 3.5 < spent.epsilon <= 4.0


def test_the_same_round_twice(device: Device) -> None:
    chosen = settings(*HONEST)
    first = uploaded(device.ask(request(chosen)))
    assert first is not None
    assert uploaded(device.ask(request(chosen))) == first
    other = device.ask(request(chosen, shift=0.5))
    assert other.error.code == REFUSED
    assert len(device.releases) == 1


def test_another_method_under_the_same_run_s_name_is_another_run(device: Device) -> None:
    assert uploaded(device.ask(request(settings(*HONEST)))) is not None
    chosen = settings("strategy=niss", "strategy.min_ready=3", "strategy.target_epsilon=4")
    message = request(settings(*HONEST))
    message.content["config"][SETTINGS_KEY] = chosen.to_json()  # type: ignore[index]
    device.ask(message)
    state = FolderState(device.folder, "1", 0)
    assert state.read_entry("niss") == LedgerEntry("niss")
    assert len(device.releases) == 1


def test_a_server_cannot_name_the_folder(device: Device, tmp_path: Path) -> None:
    other = tmp_path / "other"
    query = Message(
        RecordDict({"config": ConfigRecord({"state-dir": str(other)})}), 7, "query.partition"
    )
    told = device.ask(deliver(query), run_config={"state-dir": str(other)})
    assert dict(told.content["config"]) == {"partition-id": 0, "num-partitions": CLIENTS}
    assert uploaded(device.ask(request(settings(*HONEST)), run_config={"state-dir": str(other)}))
    assert not other.exists()
    assert len(device.releases) == 1


def test_a_policy_that_cannot_be_read_answers_nothing(device: Device) -> None:
    device.node_config["max-epsilon"] = "much"
    assert policy_refused(device.ask(request(settings(*HONEST))))
    assert policy_refused(device.ask(deliver(Message(RecordDict(), 7, "query.partition"))))


def test_a_withdrawn_device_takes_part_in_nothing(device: Device) -> None:
    assert uploaded(device.ask(request(settings(*HONEST)))) is not None
    device.node_config["allowed-strategies"] = ""
    assert policy_refused(device.ask(request(settings(*HONEST), 2)))
    assert policy_refused(device.ask(request(settings(*HONEST))))
    assert len(device.releases) == 1


def test_the_least_noise_is_the_owner_s(tmp_path: Path) -> None:
    """Of a target, the noise is known once the number of records is, which is public then."""
    chosen = settings(*HONEST)
    assert uploaded(Device(tmp_path / "lax", min_noise_multiplier=0.3).ask(request(chosen)))
    strict = Device(tmp_path / "strict", min_noise_multiplier=30)
    assert policy_refused(strict.ask(request(chosen)))
    given = settings(
        "strategy.target_epsilon=null", "strategy.noise_multiplier=1.5", "num_rounds=3"
    )
    for least, allowed in ((1.5, True), (1.500001, False)):
        device = Device(tmp_path / f"{least}", min_noise_multiplier=least)
        assert (uploaded(device.ask(request(given))) is not None) == allowed


def test_budgets_outlive_a_changed_number_and_end_with_the_folder(device: Device) -> None:
    assert uploaded(device.ask(request(settings(*HONEST)))) is not None
    device.node_config["partition-id"] = 3
    # One device, whichever number it has: its first run was charged once, 4 more do not fit.
    assert policy_refused(device.ask(request(settings(*HONEST))))


class KilledError(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("write", [1, 2, 3])
@pytest.mark.parametrize("after", [False, True])
def test_killed_between_the_ledger_and_the_reply(
    device: Device, monkeypatch: pytest.MonkeyPatch, write: int, after: bool
) -> None:
    """At each write: never is there less in the ledger than what was computed, or one more."""
    computed: list[int] = []
    local_round: Callable[..., bytes] = fedpaq_client.local_round

    def counted(*given: Any) -> bytes:
        computed.append(1)
        assert len(device.releases) >= len(computed)
        return local_round(*given)

    monkeypatch.setattr(fedpaq_client, "local_round", counted)
    keep = FolderState.write_entry
    count = [0]

    def killed(state: FolderState, entry: LedgerEntry) -> None:
        count[0] += 1
        if count[0] == write and not after:
            raise KilledError
        keep(state, entry)
        if count[0] == write:
            raise KilledError

    monkeypatch.setattr(FolderState, "write_entry", killed)
    with pytest.raises(KilledError):
        device.ask(request(settings(*HONEST)))
    monkeypatch.setattr(FolderState, "write_entry", keep)
    before = len(device.releases)
    assert before == (1 if (write, after) >= (2, True) else 0)
    again = device.ask(request(settings(*HONEST)))
    # What was charged and is not there any more is not drawn anew.
    assert (uploaded(again) is not None) == (before == 0 or (write, after) == (3, True))
    assert len(device.releases) == 1
    for server_round in (2, 3, 4):
        device.ask(request(settings(*HONEST), server_round))
    assert len(device.releases) == 3
    assert len(computed) <= 3


def test_on_a_full_disk_nothing_is_begun(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    assert uploaded(device.ask(request(settings(*HONEST)))) is not None
    with monkeypatch.context() as patched:
        full = SimpleNamespace(free=2**24 - 1)
        patched.setattr("fl_app.device_ledger.shutil.disk_usage", lambda _: full)
        reply = device.ask(request(settings(*HONEST), 2))
        assert (reply.error.code, len(device.releases)) == (UNANSWERED, 1)
    assert uploaded(device.ask(request(settings(*HONEST), 2))) is not None


def test_what_cannot_be_written_does_not_leave(device: Device) -> None:
    """The charge still fits, the upload does not: it was spent, and nobody got it."""
    large = settings(*HONEST, "model=mlp")
    with lock_device(device.folder):
        connection = connect_state(device.folder, "FULL")
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
    for server_round in (1, 2, 3, 4):
        assert uploaded(device.ask(request(large, server_round))) is None
    assert [each.server_round for each in device.releases] == [1, 2, 3]
    connection.execute("PRAGMA max_page_count = 1073741823")
    assert uploaded(device.ask(request(large, 5))) is None
    assert policy_refused(device.ask(request(large), run=2))


def test_without_its_folder_a_device_answers_nothing(device: Device) -> None:
    assert uploaded(device.ask(request(settings(*HONEST)))) is not None
    device.folder.rename(device.folder.with_name("away"))
    reply = device.ask(request(settings(*HONEST), 2))
    assert (reply.error.code, uploaded(reply)) == (UNANSWERED, None)
    assert not device.folder.exists()


def test_the_twin_without_a_policy_would_have_answered(device: Device) -> None:
    """What is refused above is refused by the policy, and by nothing else."""
    lax = Device(device.folder.with_name("lax"), min_noise_multiplier=0)
    for name in ("zero noise", "too little noise", "epsilon too large", "delta too large"):
        run = list(HOSTILE).index(name) + 1
        chosen = settings(*HONEST, *HOSTILE[name])
        assert uploaded(lax.ask(request(chosen), run=run)) is not None, name
    assert math.inf in {each.epsilon for each in lax.spent}
