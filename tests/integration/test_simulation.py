"""engine=simulation: the same model bit for bit, and nothing left behind however it ends."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fl_app.device_state import list_entries
from tests.conftest import Outcome, read_outcome
from tests.fl_app.ended import after_rounds
from tests.integration.launcher import Launcher, new_launcher, read_summary
from tests.integration.searches import SEARCH, read_search

pytestmark = pytest.mark.slow

SIMULATION = "engine=simulation"
COMMON = ("num_rounds=3", "num_clients=6", "seed=5")
FEDAVG = ("strategy=fedavg", *COMMON)
# A cohort that changes, replies that are lost and replies that come late.
PRIVATE = (
    *("strategy=dp_fedpaq", *COMMON, "num_sampled_clients=4"),
    *("faults.loss_rate=0.2", "faults.late_rate=0.1", "faults.seed=2"),
)
# Where Flower's local SuperLink listens by default.
DEFAULT_PORT = 39091
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
ENDLESS = "num_rounds=100000"


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    one = new_launcher()
    yield one
    one.close()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("overrides", [FEDAVG, PRIVATE], ids=["fedavg", "dp_fedpaq"])
def test_the_model_is_the_in_process_engine_s_bit_for_bit(
    run: Callable[..., Outcome], launcher: Launcher, overrides: tuple[str, ...], workers: int
) -> None:
    expected = run(*overrides)
    code, output, errors = launcher.run(
        *("run", *overrides, SIMULATION, f"engine.workers={workers}", "hydra.run.dir=out")
    )
    assert (code, errors) == (0, "")
    summary = read_summary(launcher.folder / "out")
    assert summary["model_sha256"] == expected.sha256
    assert summary["engine"] == "simulation"
    same = ("num_sampled", "num_replies", "num_failures", "epsilon", "uplink_bytes", "train_loss")
    rows = Path(launcher.folder, "out", "metrics.jsonl").read_text().splitlines()
    assert [{k: row[k] for k in same} for row in map(json.loads, rows)] == [
        {k: row[k] for k in same} for row in expected.rows
    ]
    assert "simulation" in output
    for word in ("Ray", "ray::", "INFO", "flwr", "WARNING", "SuperLink"):
        assert word not in output
    assert "FLWR" not in (launcher.folder / "out" / "run.log").read_text()
    launcher.assert_nothing_is_left()
    launcher.assert_nothing_is_installed()


@pytest.fixture
def default_port() -> Iterator[socket.socket | None]:
    """Occupy the port of a SuperLink of the user's own."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            yield None  # a real one runs, which is as good
            return
        listener.listen()
        listener.setblocking(False)
        yield listener


def test_the_user_s_own_surroundings_are_neither_used_nor_touched(
    launcher: Launcher, default_port: socket.socket | None
) -> None:
    place = launcher.folder / "a folder with spaces"
    temporary = place / "temporary files"
    home = launcher.folder / "flower home"
    for folder in (place, temporary, home):
        folder.mkdir()
    sentinel = '[superlink]\ndefault = "mine"\n\n[superlink.mine]\naddress = "127.0.0.1:1"\n'
    (home / "config.toml").write_text(sentinel)
    environment = {
        "FLWR_HOME": str(home),
        "TMPDIR": str(temporary),
        "RAY_ADDRESS": "127.0.0.1:1",
        "http_proxy": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "all_proxy": "http://127.0.0.1:9",
    }
    words = ("num_rounds=1", "num_clients=2", SIMULATION, "hydra.run.dir=my run")
    code, _, errors = launcher.run("run", *words, cwd=place, environment=environment)
    assert (code, errors) == (0, "")
    assert read_summary(place / "my run")["num_rounds"] == 1
    assert [file.name for file in home.rglob("*")] == ["config.toml"]
    assert (home / "config.toml").read_text() == sentinel
    assert list(temporary.iterdir()) == []
    launcher.assert_nothing_is_left()
    launcher.assert_nothing_is_installed()
    if default_port is not None:
        with pytest.raises(BlockingIOError):
            default_port.accept()


def test_a_failing_run_gives_its_own_reason_and_exit_code_1(launcher: Launcher) -> None:
    words = (*COMMON, SIMULATION, "strategy.batch_size=1000", "hydra.run.dir=out")
    code, output, errors = launcher.run("run", *words)
    assert (code, after_rounds(output)) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("fl-app: all 6 clients of round 1 sit out: ")
    assert not (launcher.folder / "out" / "summary.json").exists()
    log = (launcher.folder / "out" / "run.log").read_text()
    assert "Traceback" in log
    assert "Starting Flower Simulation" in log
    launcher.assert_nothing_is_left()


def test_a_worker_that_dies_ends_the_run(launcher: Launcher) -> None:
    """As when the system's memory is used up; Flower alone would go on without it."""
    launcher.start("run", ENDLESS, "num_clients=4", SIMULATION, "hydra.run.dir=out")
    launcher.wait_until(lambda: count_rows(launcher) > 2, 180)
    # Neither Flower nor Ray asks who calls: nobody on another machine may.
    assert launcher.listening_addresses() <= LOOPBACK
    assert launcher.listening_addresses()
    for number, words in launcher.processes().items():
        if "ray::ClientAppActor" in " ".join(words):
            os.kill(number, signal.SIGKILL)
    code, output, errors = launcher.finish()
    assert (code, after_rounds(output)) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("fl-app: a worker of Flower's simulation has died")
    launcher.assert_nothing_is_left()
    # With a new worker the run goes on.
    before = count_rows(launcher)
    launcher.start("run", "resume=out")
    launcher.wait_until(lambda: count_rows(launcher) > before + 2, 180)
    launcher.signal(signal.SIGINT)
    assert launcher.finish()[0] == 1
    rows = read_outcome(launcher.folder / "out").rows
    assert [row["round"] for row in rows] == list(range(len(rows)))


def count_rows(launcher: Launcher) -> int:
    metrics = launcher.folder / "out" / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_in_the_middle_leaves_nothing(launcher: Launcher, number: signal.Signals) -> None:
    launcher.start("run", ENDLESS, "num_clients=4", SIMULATION, "hydra.run.dir=out")
    launcher.wait_until(lambda: count_rows(launcher) > 2, 180)
    assert any("ray::" in " ".join(words) for words in launcher.processes().values())
    launcher.signal(number)
    # Nobody is there to say anything; the guardian needs a moment.
    code, output, _ = launcher.finish()
    assert (code, after_rounds(output)) == (-number, "")
    launcher.assert_nothing_is_left(seconds=20)
    # What was written is whole.
    metrics = (launcher.folder / "out" / "metrics.jsonl").read_text()
    assert all(line.endswith("}") for line in metrics.splitlines())


def test_ctrl_c_stops_after_the_round_and_the_run_goes_on_in_process(
    run: Callable[..., Outcome], launcher: Launcher
) -> None:
    words = ("num_rounds=60", "num_clients=4", "strategy.batch_size=4", "strategy=fedpaq")
    launcher.start("run", *words, SIMULATION, "hydra.run.dir=out")
    launcher.wait_until(lambda: count_rows(launcher) > 2, 180)
    launcher.signal(signal.SIGINT)
    code, output, errors = launcher.finish()
    assert code == 1
    assert errors.splitlines() == [
        "WARNING stopping after this round (Ctrl-C again stops at once)",
        f"fl-app: interrupted; fl-app run resume={launcher.folder / 'out'} goes on",
    ]
    assert "Test accuracy" in output
    launcher.assert_nothing_is_left()
    summary = read_summary(launcher.folder / "out")
    assert summary["interrupted"]
    assert 2 <= summary["num_rounds"] == count_rows(launcher) - 1 < 60
    code, _, errors = launcher.run("run", "resume=out", "engine=in_process")
    assert (code, errors) == (0, "")
    assert_same(launcher.folder / "out", run(*words))


def test_a_second_ctrl_c_ends_at_once(launcher: Launcher) -> None:
    words = ("num_rounds=100000", "num_clients=4", "strategy.learning_rate=1e-9")
    launcher.start("run", *words, SIMULATION, "hydra.run.dir=out")
    launcher.wait_for_command("flwr-simulation")
    # Before the first round, which no worker is there for yet.
    launcher.signal(signal.SIGINT)
    launcher.wait_until(lambda: any(launcher.folder.rglob("fl-app-*/stop")))
    launcher.signal(signal.SIGINT)
    code, output, errors = launcher.finish()
    assert (code, after_rounds(output), errors.splitlines()[-1]) == (1, "", "fl-app: interrupted")
    launcher.assert_nothing_is_left()


def test_a_killed_run_goes_on_and_on_another_engine(
    run: Callable[..., Outcome], launcher: Launcher
) -> None:
    """Killed in process, then on two workers, then ended on one."""
    words = (*PRIVATE[:1], "num_rounds=40", *PRIVATE[2:], "strategy.max_participations=12")
    out = launcher.folder / "out"
    command: tuple[str, ...] = (*words, "hydra.run.dir=out")
    for engine in (("engine=in_process",), (SIMULATION, "engine.workers=2")):
        wanted = count_rows(launcher) + 3
        launcher.start("run", *command, *engine)
        launcher.wait_until(lambda wanted=wanted: count_rows(launcher) > wanted, 180)
        launcher.signal(signal.SIGKILL)
        launcher.finish()
        launcher.assert_nothing_is_left(seconds=20)
        assert not (out / "summary.json").exists()
        command = ("resume=out",)
    code, _, errors = launcher.run("run", "resume=out", SIMULATION)
    assert (code, [line for line in errors.splitlines() if "dropped" not in line]) == (0, [])
    expected = run(*words)
    assert_same(out, expected)
    ledgers = [list_entries(each / "checkpoint") for each in (out, expected.folder)]
    assert ledgers[0] == ledgers[1]
    # A finished run is not started again.
    code, output, _ = launcher.run("run", "resume=out", SIMULATION)
    assert (code, output) == (0, f"{out.resolve()}: the run is finished, and stays as it is\n")


def assert_same(folder: Path, expected: Outcome) -> None:
    found = read_outcome(folder)
    assert found.sha256 == expected.sha256
    rows = [[{**row, "seconds": None} for row in each.rows] for each in (found, expected)]
    assert rows[0] == rows[1]
    assert found.guarantees == expected.guarantees


def test_a_quorum_and_a_time_out(run: Callable[..., Outcome], launcher: Launcher) -> None:
    lossy = (*FEDAVG, "faults.loss_rate=0.5", "faults.seed=1", "min_replies=3")
    code, _, errors = launcher.run("run", *lossy, SIMULATION, "hydra.run.dir=out")
    assert code == 0, errors
    expected = run(*lossy)
    assert_same(launcher.folder / "out", expected)
    replies = [row["num_replies"] for row in expected.rows[1:]]
    assert min(replies) < 3 <= max(replies)
    # No worker answers within a millisecond.
    words = (*FEDAVG, "round_timeout=0.001", SIMULATION, "hydra.run.dir=late")
    code, output, errors = launcher.run("run", *words)
    assert (code, after_rounds(output)) == (1, "")
    assert errors.splitlines()[-1].startswith("fl-app: no valid upload in 3 rounds")


@pytest.mark.parametrize("command", ["guardian.py", "flower-superlink", "flwr-simulation"])
def test_a_signal_at_the_start_leaves_nothing(launcher: Launcher, command: str) -> None:
    launcher.start("run", ENDLESS, "num_clients=4", SIMULATION, "hydra.run.dir=out")
    launcher.wait_for_command(command)
    launcher.signal(signal.SIGTERM)
    assert launcher.finish()[0] == -signal.SIGTERM
    launcher.assert_nothing_is_left(seconds=20)


def test_a_killed_search_goes_on_and_on_other_engines(launcher: Launcher) -> None:
    """Killed in two workers of the in-process engine, then in Flower's, and ended there."""
    out = launcher.folder / "out"
    command: tuple[str, ...] = (*SEARCH, "hydra.run.dir=out")
    for engine in ("engine=in_process", SIMULATION):
        wanted = count_rows(launcher) + 2
        launcher.start("run", *command, engine, "engine.workers=2")
        launcher.wait_until(lambda wanted=wanted: count_rows(launcher) > wanted, 180)
        launcher.signal(signal.SIGKILL)
        launcher.finish()
        launcher.assert_nothing_is_left(seconds=20)
        assert not (out / "summary.json").exists()
        command = ("resume=out",)
    code, output, errors = launcher.run("run", "resume=out", SIMULATION, "engine.workers=2")
    assert code == 0, errors
    assert "Best value" in output
    code, _, errors = launcher.run("run", *SEARCH, "hydra.run.dir=whole")
    assert code == 0, errors
    assert read_search(out) == read_search(launcher.folder / "whole")
    assert read_summary(out)["engine"] == "simulation"
    launcher.assert_nothing_is_left()
