"""A seeded run of NISS that is killed at any moment ends as if nothing had happened."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from fl_app.device_state import list_entries
from tests.conftest import Outcome, read_outcome
from tests.integration.test_resume import assert_same, kill_and_resume, new_seed

# Everything that must survive: a changing cohort, lost and late replies, clients that vanish,
# rounds that are tried again, and participations that are used up before the run is over.
SEEDED = (
    *("strategy=niss", "num_rounds=25", "num_clients=8", "num_sampled_clients=5", "seed=7"),
    *("strategy.max_participations=14", "strategy.batch_size=4", "strategy.min_ready=3"),
    *("faults.loss_rate=0.06", "faults.late_rate=0.06", "faults.drop_after_ready=0.1"),
    *("faults.seed=3", "strategy.max_dropouts=1"),
)


def assert_seeded(run: Callable[..., Outcome], folder: Path, kills: int) -> None:
    expected = run(*SEEDED)
    assert sum((row["num_attempts"] or 1) - 1 for row in expected.rows) > 3
    assert sum(row["num_ineligible"] for row in expected.rows) > 0
    assert kill_and_resume(random.Random(new_seed()), folder, kills, SEEDED) > 0
    outcome = read_outcome(folder)
    assert_same(outcome, expected)
    ledgers = [list_entries(each.folder / "checkpoint") for each in (outcome, expected)]
    assert ledgers[0] == ledgers[1]


@pytest.mark.slow
def test_a_seeded_run_killed_once_ends_as_if_nothing_had_happened(
    run: Callable[..., Outcome], tmp_path: Path
) -> None:
    assert_seeded(run, tmp_path / "run", 1)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_a_seeded_run_killed_six_times(
    run: Callable[..., Outcome], tmp_path: Path, number: int
) -> None:
    assert_seeded(run, tmp_path / "run", 6)
