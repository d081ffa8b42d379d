"""engine.workers=2 in process: the same results, and one command to whoever stops it."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fl_app.config import compose_settings
from fl_app.hydra_jobs import execute
from tests.conftest import Outcome, read_outcome
from tests.fl_app.ended import after_rounds
from tests.integration.launcher import Launcher, new_launcher, read_summary
from tests.integration.searches import SEARCH, read_search

TWO = "engine.workers=2"
# A cohort that changes, replies that are lost and replies that come late.
TRAINED = (
    *("num_rounds=3", "num_clients=6", "seed=5", "num_sampled_clients=4"),
    *("faults.loss_rate=0.2", "faults.late_rate=0.1", "faults.seed=2"),
)
NISS = ("strategy=niss", "num_rounds=3", "num_clients=5", "faults.drop_after_ready=0.1")


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    one = new_launcher()
    yield one
    one.close()


def is_worker(words: list[str]) -> bool:
    return any("worker_process" in word for word in words)


@pytest.mark.parametrize(
    "words", [TRAINED, pytest.param(NISS, marks=pytest.mark.slow)], ids=["dp_fedpaq", "niss"]
)
def test_the_model_does_not_depend_on_the_number_of_workers(
    run: Callable[..., Outcome], tmp_path: Path, words: tuple[str, ...]
) -> None:
    expected = run(*words)
    execute(compose_settings([*words, TWO]), tmp_path, show_summary=False)
    found = read_outcome(tmp_path)
    assert found.sha256 == expected.sha256
    rows = [[{**row, "seconds": None} for row in each.rows] for each in (found, expected)]
    assert rows[0] == rows[1]
    assert found.guarantees == expected.guarantees


@pytest.mark.slow
def test_a_search_does_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    for number in ("1", "2"):
        words = [*SEARCH, f"engine.workers={number}"]
        execute(compose_settings(words), tmp_path / number, show_summary=False)
    found, expected = (read_search(tmp_path / number) for number in ("2", "1"))
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_round_and_the_run_goes_on(
    run: Callable[..., Outcome], launcher: Launcher, number: signal.Signals
) -> None:
    words = ("num_rounds=60", "num_clients=4", "strategy.batch_size=4", "strategy=fedpaq")
    metrics = launcher.folder / "out" / "metrics.jsonl"
    launcher.start("run", *words, TWO, "hydra.run.dir=out")
    launcher.wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, 180)
    launcher.signal(number)
    code, output, errors = launcher.finish()
    assert code == 1
    assert errors.splitlines() == [
        "WARNING stopping after this round (Ctrl-C again stops at once)",
        f"fl-app: interrupted; fl-app run resume={launcher.folder / 'out'} goes on",
    ]
    assert "Test accuracy" in output
    launcher.assert_nothing_is_left()
    assert 2 <= read_summary(launcher.folder / "out")["num_rounds"] < 60
    code, _, errors = launcher.run("run", "resume=out")
    assert (code, errors) == (0, "")
    assert read_outcome(launcher.folder / "out").sha256 == run(*words).sha256


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_run_in_one_line(launcher: Launcher) -> None:
    metrics = launcher.folder / "out" / "metrics.jsonl"
    launcher.start("run", "num_rounds=100000", "num_clients=4", TWO, "hydra.run.dir=out")
    launcher.wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, 180)
    for process, words in launcher.processes().items():
        if is_worker(words):
            os.kill(process, signal.SIGKILL)
            break
    code, output, errors = launcher.finish()
    assert (code, after_rounds(output)) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("fl-app: a worker process has died (signal SIGKILL")
    launcher.assert_nothing_is_left()
    assert "Traceback" in Path(launcher.folder, "out", "run.log").read_text()


@pytest.mark.slow
def test_a_failing_evaluation_is_logged_by_the_launcher(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = [
        *("strategy=dp_fts_de", "num_rounds=3", "strategy.num_initial=2", "objective=user"),
        *("objective.path=tests.fl_app.failing_objective:raises", "objective.num_agents=3"),
        "objective.search_space=[{name: x, kind: float, low: 0, high: 1}]",
    ]
    execute(compose_settings([*words, TWO]), tmp_path, show_summary=False)
    assert "round 1: evaluations failed on 1 clients" in caplog.text
    log = Path(tmp_path, "run.log").read_text()
    assert "fl_app.evaluation_log: client 1: evaluation 1 failed: ValueError (traceback in" in log
    assert log.count("ValueError: my secret") == 1
