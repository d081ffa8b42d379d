"""kill -9 of a device of NISS: the others' round survives it, and its ledger has what left.

FL_APP_ALL_KILLS=1 python -m pytest -m slow tests/deployment/test_niss_kills.py runs all three.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import read_outcome
from tests.deployment.federation import Federation, start_federation
from tests.deployment.watched_device import Watched

pytestmark = [pytest.mark.slow, pytest.mark.deployment]

DEVICES = 4
SETTINGS = (
    *("strategy=niss", f"num_clients={DEVICES}", "num_rounds=3", "round_timeout=240"),
    *("strategy.min_ready=3", "strategy.expected_dropouts=1", "strategy.max_dropouts=1"),
)


@pytest.fixture(scope="module")
def four() -> Iterator[Federation]:
    with start_federation(DEVICES) as started:
        yield started


@pytest.mark.parametrize("point", ["before", "after", "sent"])
def test_a_round_of_nisss_survives_a_killed_device(
    four: Federation, tmp_path: Path, point: str
) -> None:
    if point != "after" and not os.environ.get("FL_APP_ALL_KILLS"):
        pytest.skip("one of three in CI; FL_APP_ALL_KILLS=1 runs all three")
    watched = [Watched(four, each, tmp_path / each.folder.name) for each in four.devices]
    for each in watched[1:]:
        each.restart()
    pause = watched[0].restart(point)
    launcher = four.start_run(*SETTINGS, folder=tmp_path / "run")
    four.wait_until((pause / "reached").exists, "the device is at the point")
    watched[0].restart()
    code, output, errors = four.finish(launcher)
    assert code == 0, output + errors + four.describe()
    outcome = read_outcome(tmp_path / "run")
    rows = outcome.rows[1:]
    assert [row["round"] for row in rows] == [1, 2, 3]
    # Before it said that it is ready, nobody masks towards it; after it, its masks stay in the sum.
    assert [row["num_dropped_after_ready"] for row in rows] == [int(point == "after"), 0, 0]
    # It is let in again when the SuperLink has noticed that it had gone, in a round or two.
    replies = [row["num_replies"] for row in rows]
    assert replies[0] == (4 if point == "sent" else 3)
    assert set(replies[1:]) <= {3, 4}
    watched[0].check_ledger(sum(replies) - 9, crashes=1)
    for each in watched[1:]:
        each.check_ledger(3, crashes=0)
