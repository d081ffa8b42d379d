"""A run that is killed at any moment goes on to the model and the rows of one that was not."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fl_app import cli
from fl_app.device_state import list_entries
from tests.conftest import Outcome, read_outcome
from tests.integration.searches import SEARCH, read_search

# Everything that must survive: a cohort that changes, replies that are lost or late, and clients
# whose participations are used up before the run is over.
OVERRIDES = (
    *("num_rounds=40", "num_clients=8", "num_sampled_clients=4", "seed=7"),
    *("strategy.max_participations=12", "strategy.batch_size=4"),
    *("faults.loss_rate=0.15", "faults.late_rate=0.2", "faults.seed=3"),
    *("train_loss_every=2", "published.rounds=[2,40]", "published.global_train_loss=[2.0,1.0]"),
)
ROUNDS = 40


class Command:
    """`fl-app` in a fork of this process, which has imported everything: it can be killed soon."""

    def __init__(self, *words: str, folder: Path) -> None:
        self.output = folder / "output"
        self.code: int | None = None
        self.number = os.fork()
        if self.number == 0:
            code = 70
            try:
                os.chdir(folder)
                written = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(written, 1)
                os.dup2(written, 2)
                sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
                cli.main(["run", *words])
            except SystemExit as end:
                code = int(end.code or 0)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    def poll(self) -> int | None:
        if self.code is None:
            number, status = os.waitpid(self.number, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if number else None
        return self.code

    def kill(self) -> int:
        """Kill it, unless it has ended; return its exit code."""
        if self.poll() is None:
            os.kill(self.number, signal.SIGKILL)
        return self.finish()

    def finish(self) -> int:
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.number, 0)[1])
        return self.code


def without_time(rows: list[dict]) -> list[dict]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def assert_same(outcome: Outcome, expected: Outcome) -> None:
    assert without_time(outcome.rows) == without_time(expected.rows)
    assert outcome.sha256 == expected.sha256
    apart = ("wall_seconds", "engine")
    assert {k: v for k, v in outcome.summary.items() if k not in apart} == {
        k: v for k, v in expected.summary.items() if k not in apart
    }
    assert outcome.guarantees == expected.guarantees


@pytest.fixture
def undisturbed(run: Callable[..., Outcome]) -> Outcome:
    expected = run(*OVERRIDES)
    assert sum(row["num_failures"] for row in expected.rows) > 10
    assert sum(row["num_ineligible"] for row in expected.rows) > 10  # the cap binds
    entries = list_entries(expected.folder / "checkpoint")
    assert {each.entry.participations for each in entries} == {12}
    return expected


def has_rows(folder: Path, count: int) -> bool:
    metrics = folder / "metrics.jsonl"
    return metrics.exists() and metrics.read_bytes().count(b"\n") >= count


def kill_once(draw: random.Random, folder: Path, words: tuple[str, ...]) -> bool:
    """Start the command and kill it at a moment drawn at random; return whether it was killed.

    The moment is a number of rows, and a little time after it that falls anywhere in a round.
    """
    before = (folder / "metrics.jsonl").read_bytes().count(b"\n") if folder.exists() else 0
    after_rows, extra = before + draw.randrange(1, 8), draw.random() * 0.03
    command = Command(*words, folder=folder.parent)
    deadline = time.monotonic() + 120
    while not has_rows(folder, after_rows) and command.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(extra)
    return command.kill() == -signal.SIGKILL


def kill_and_resume(
    draw: random.Random, folder: Path, kills: int, overrides: tuple[str, ...] = OVERRIDES
) -> int:
    """Return how often the run was killed before it was left to end."""
    killed = 0
    words: tuple[str, ...] = (*overrides, f"hydra.run.dir={folder.name}")
    for _ in range(kills):
        killed += kill_once(draw, folder, words)
        words = (f"resume={folder.name}",)
    last = Command(*words, folder=folder.parent)
    assert last.finish() == 0, last.output.read_text()
    return killed


def new_seed() -> int:
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed of the moments:", seed)
    return seed


@pytest.mark.slow
def test_a_run_killed_three_times(undisturbed: Outcome, tmp_path: Path) -> None:
    killed = kill_and_resume(random.Random(new_seed()), tmp_path / "run", 3)
    assert killed > 0
    outcome = read_outcome(tmp_path / "run")
    assert_same(outcome, undisturbed)
    assert not list((tmp_path / "run").rglob(".*"))
    ledgers = [list_entries(each.folder / "checkpoint") for each in (outcome, undisturbed)]
    assert ledgers[0] == ledgers[1]


@pytest.mark.slow
def test_a_run_killed_ten_times(undisturbed: Outcome, tmp_path: Path) -> None:
    draw = random.Random(new_seed())
    killed = 0
    for number in range(2):
        killed += kill_and_resume(draw, tmp_path / str(number), 5)
        assert_same(read_outcome(tmp_path / str(number)), undisturbed)
    assert killed >= 5


@pytest.fixture
def searched(tmp_path: Path) -> dict[str, object]:
    command = Command(*SEARCH, "hydra.run.dir=whole", folder=tmp_path)
    assert command.finish() == 0, command.output.read_text()
    return read_search(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_search_killed_three_times(
    searched: dict[str, object], tmp_path: Path, workers: int
) -> None:
    """No observation is lost or made twice, and the workers of a killed run do no harm."""
    overrides = (*SEARCH, f"engine.workers={workers}")
    killed = kill_and_resume(random.Random(new_seed()), tmp_path / "run", 3, overrides)
    assert killed > 0
    assert read_search(tmp_path / "run") == searched
