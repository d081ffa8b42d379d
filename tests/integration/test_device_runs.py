"""Whole runs on devices: what leaves them, what their ledgers say, and over several runs."""

import json
import math
from pathlib import Path

import pytest
from flwr.app import Context, Message

from fl_app.allow_list import ALLOWED
from fl_app.cli import main
from fl_app.device_state import FolderState
from fl_app.engines.in_process import run_in_process
from fl_app.errors import RunError
from fl_app.run_name import read_name
from fl_app.server_app import app as server_app
from strategies.mechanisms.accounting import GaussianReleases, bound_epsilon
from tests.conftest import read_outcome
from tests.fl_app.devices import (
    ALL,
    CLIENTS,
    FEDPAQ,
    METHODS,
    NISS,
    ROUNDS,
    SEARCH,
    Device,
    policy_refused,
    run_on_devices,
)
from tests.integration.saying_devices import make_devices


@pytest.mark.parametrize("name", METHODS)
def test_a_run_on_devices(tmp_path: Path, name: str) -> None:
    """Before a reply is seen, its release is in the ledger; nothing else is in any reply."""
    # Zeroed is not exchanged: 4 is 9.2 there.
    most = 10.0 if name == "dp_fts_de" else 4.0
    devices = make_devices(tmp_path, allowed_strategies=ALL, max_epsilon=most, max_delta=1e-5)
    left: list[int] = [0] * CLIENTS

    def watch(number: int, message: Message, reply: Message) -> None:
        assert not reply.has_error()
        kinds = {ALLOWED[record, key] for record, values in reply.content.items() for key in values}
        assert kinds <= {"public", "noised"}
        left[number] += "arrays" in reply.content
        assert left[number] <= len(devices[number].releases)

    outcome = run_on_devices(tmp_path / "run", devices, *METHODS[name], watch=watch)
    count = 1 if name == "dp_fts_de" else ROUNDS
    assert left == [count] * CLIENTS
    for device in devices:
        assert [each.method for each in device.releases] == [name] * count
        (spent,) = device.spent
        assert 3.0 < spent.declared_epsilon <= 4.0
        assert spent.declared_epsilon <= spent.epsilon <= most
        assert spent.delta == 1e-5
        assert spent.noise_at == ("server" if name == "dp_fts_de" else "client")
    assert outcome.guarantees[0]["valid"] or name == "niss"


@pytest.mark.parametrize("overrides", [FEDPAQ, NISS], ids=["dp_fedpaq", "niss"])
def test_a_new_run_counts_what_earlier_runs_released(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    devices = make_devices(tmp_path, max_epsilon=9)
    for run in (1, 2):
        run_on_devices(tmp_path / f"run{run}", devices, *overrides, run=run)
    before = [device.releases for device in devices]
    third: list[Message] = []
    try:
        run_on_devices(
            tmp_path / "run3",
            devices,
            *overrides,
            run=3,
            watch=lambda _, message, reply: third.append(reply),
        )
        assert overrides == NISS  # whose clients may add noise of their own, for what is left
    except RunError:
        assert overrides == FEDPAQ
        assert all(policy_refused(reply) for reply in third)
        assert [device.releases for device in devices] == before
    for device in devices:
        assert 6.0 < math.fsum(each.epsilon for each in device.spent) <= 9.0


def test_with_one_limit_reached_the_others_go_on(tmp_path: Path) -> None:
    devices = make_devices(tmp_path, max_epsilon=9)
    devices[2] = Device(tmp_path / "strict", 2, max_epsilon=3.999)
    outcome = run_on_devices(tmp_path / "run", devices, *FEDPAQ)
    assert [row["num_replies"] for row in outcome.rows[1:]] == [CLIENTS - 1] * ROUNDS
    assert devices[2].releases == []
    assert all(policy_refused(reply) for reply in devices[2].replies)


def test_a_search_has_as_many_agents_as_its_settings_say(tmp_path: Path) -> None:
    devices = [*make_devices(tmp_path, allowed_strategies=ALL), Device(tmp_path / "more", CLIENTS)]
    for device in devices:
        device.node_config["num-partitions"] = CLIENTS + 1
    chosen = (*SEARCH, f"num_clients={CLIENTS}", "engine=deployment")
    outcome = run_on_devices(tmp_path / "run", devices, *chosen)
    assert [row["num_replies"] for row in outcome.rows[1:]] == [CLIENTS] * ROUNDS
    assert "claims number 4, the run has 0 to 3" in (tmp_path / "run" / "run.log").read_text()


def test_an_agent_that_is_silent_keeps_its_number(tmp_path: Path) -> None:
    """Flower's own command names no number of clients: the devices say how many there are."""
    devices: list[Device] = [
        Device(tmp_path / f"{number}", number, allowed_strategies=ALL) for number in range(CLIENTS)
    ]
    devices[1].node_config["max-epsilon"] = "much"
    words = (*SEARCH, "engine=deployment", "num_rounds=2", "randomness=secret")

    def answer(message: Message, context: Context) -> Message:
        return devices[int(context.node_config["partition-id"])].ask(message, 1, context.run_config)

    folder = tmp_path / "run"
    run_config = {"overrides": " ".join(words), "output-dir": str(folder)}
    run_in_process(server_app, answer, CLIENTS, run_config)  # type: ignore[arg-type]
    outcome = read_outcome(folder)
    assert [row["num_replies"] for row in outcome.rows[1:]] == [CLIENTS - 1] * 2
    assert outcome.summary["num_clients"] == CLIENTS


def test_devices_that_do_not_say_who_they_are_are_left_out(tmp_path: Path) -> None:
    devices = [*make_devices(tmp_path), Device(tmp_path / "strange", 3), Device(tmp_path / "x", 7)]
    devices[1].node_config["max-epsilon"] = "much"
    outcome = run_on_devices(
        tmp_path / "run", devices, *FEDPAQ, f"num_clients={CLIENTS - 1}", "engine=deployment"
    )
    assert [row["num_replies"] for row in outcome.rows[1:]] == [CLIENTS - 1] * ROUNDS
    assert outcome.summary["num_clients"] == CLIENTS - 1
    log = (tmp_path / "run" / "run.log").read_text()
    for what in ("refused by the device's policy (why", "claims number 3, as another"):
        assert f"is left out: {what}" in log
    assert devices[4].releases == devices[5].releases == devices[1].releases == []


def test_without_a_plan_each_release_is_counted_as_it_comes(tmp_path: Path) -> None:
    """Of a given noise multiplier nobody knows the total before the end."""
    run = ("strategy.target_epsilon=null", "strategy.noise_multiplier=2", "num_rounds=7")
    devices = make_devices(tmp_path, max_epsilon=5)
    reason = rf"every client of round 6 .* error \(refused by the device's policy: {CLIENTS}\)"
    with pytest.raises(RunError, match=reason):
        run_on_devices(tmp_path / "run", devices, *run)
    for device in devices:
        assert len(device.releases) == 5
        assert device.spent[0].epsilon <= 5.0
    # Before data are read, nobody knows how many records hide one: no sampling is counted.
    for count in (5, 6):
        counted = GaussianReleases(2.0, count, "record", "replace_one", "none", 1.0)
        assert (bound_epsilon(counted, 1e-5).epsilon <= 5.0) == (count == 5)


def test_with_seeds_allowed_the_model_is_the_simulation_s(tmp_path: Path, run) -> None:  # type: ignore[no-untyped-def]
    devices = make_devices(tmp_path, allow_seeded=True)
    expected = run(f"num_clients={CLIENTS}", f"num_rounds={ROUNDS}", *FEDPAQ)
    found = run_on_devices(tmp_path / "run", devices, *FEDPAQ, "randomness=seeded")
    assert found.sha256 == expected.sha256
    assert expected.rows[-1]["train_loss"] is not None
    assert [row["train_loss"] for row in found.rows] == [None] * len(found.rows)
    # Noise that the server can draw again hides nothing.
    assert all(each.epsilon == math.inf for device in devices for each in device.spent)
    text = "".join(path.read_text() for path in (tmp_path / "run").glob("*.json*"))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())
    assert str(tmp_path / "0") not in text


def test_nisss_keys_end_with_its_last_round_and_the_next_run(tmp_path: Path) -> None:
    """Private keys of a run that is over lie in no file of a device; its ledger stays."""
    devices = make_devices(tmp_path)

    def keys(device: Device, run: str) -> list[bytes]:
        state = FolderState(device.folder, run, int(device.node_config["partition-id"]))
        return [key for name in ("exchange", "run-tag") if (key := state.read_key(f"niss.{name}"))]

    run_on_devices(tmp_path / "run1", devices, *NISS, run=1)
    name = read_name(tmp_path / "run1" / "checkpoint")
    assert name is not None
    first = [keys(device, name) for device in devices]
    assert [len(each) for each in first] == [2] * CLIENTS
    run_on_devices(tmp_path / "run2", devices, *FEDPAQ, run=2)
    for device, secrets in zip(devices, first, strict=True):
        assert keys(device, name) == []
        for file in device.folder.iterdir():
            content = file.read_bytes()
            assert not any(secret in content for secret in secrets)
        assert len(device.releases) == 2 * ROUNDS


def test_the_ledger_of_a_device_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = make_devices(tmp_path)
    run_on_devices(tmp_path / "run1", devices, *FEDPAQ, run=71)
    run_on_devices(tmp_path / "run2", devices, *NISS, run=72)
    names = [str(read_name(tmp_path / run / "checkpoint")) for run in ("run1", "run2")]

    def ledger(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["ledger", "--state-dir", *words])
        printed = capsys.readouterr()
        assert ended.value.code == (2 if printed.err else 0)
        return printed.out + printed.err

    shown = ledger(str(devices[0].folder), "max-epsilon=9", "max-delta=1e-4")
    lines = [line.split() for line in shown.splitlines() if line.strip()]
    rows = {line[0]: line for line in lines}
    assert rows[names[0]][1:5] == ["0", "dp_fedpaq", "record", "replace_one"]
    assert rows[names[1]][1:5] == ["0", "niss", "record", "replace_one"]
    parts = [float(rows[name][-2]) for name in names]
    total = float(rows["all"][-2])
    assert math.isclose(total, sum(parts), abs_tol=0.02)
    # NISS aims at 4, too, which without trust lists is not what is left of a device's own noise.
    assert 3.5 < parts[0] <= 4.01 < 7.0 < parts[1] < 8.0
    assert (rows["all"][-3], float(rows["all"][-1])) == ("4", 2e-5)
    assert rows["allowed"][-2:] == ["9", "0.0001"]
    assert "allowed" not in ledger(str(devices[0].folder))
    assert "max-epsilon: '0'; allowed: a number > 0" in ledger(
        str(devices[0].folder), "max-epsilon=0"
    )
    assert "allowed: max-epsilon=..., max-delta=..." in ledger(str(devices[0].folder), "epsilon=3")
    assert f"a folder with {tmp_path / 'devices.sqlite'}" in ledger(str(tmp_path))
