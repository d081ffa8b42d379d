"""kill -9 of each of the processes while a device is at a named point: the run ends well.

FL_APP_ALL_KILLS=1 python -m pytest -m slow tests/deployment/test_kills.py runs all nine.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import read_outcome
from tests.deployment.federation import Federation, start_federation
from tests.deployment.watched_device import Watched

pytestmark = [pytest.mark.slow, pytest.mark.deployment]

POINTS = ("before", "after", "sent")
KILLED = ("supernode", "superlink", "serverapp")
IN_CI = {("supernode", "after"), ("superlink", "sent"), ("serverapp", "before")}
SETTINGS = ("num_clients=2", "num_rounds=3", "min_replies=1", "round_timeout=240")


@pytest.fixture(scope="module")
def pair() -> Iterator[Federation]:
    with start_federation(2, "allow-seeded=true") as started:
        yield started


@pytest.fixture(scope="module")
def watched(pair: Federation, tmp_path_factory: pytest.TempPathFactory) -> list[Watched]:
    folder = tmp_path_factory.mktemp("traffic")
    found = [Watched(pair, each, folder / each.folder.name) for each in pair.devices]
    found[0].restart()
    return found


def test_a_reply_that_stops_half_way_does_not_outlast_the_round(
    pair: Federation, watched: list[Watched], tmp_path: Path
) -> None:
    """Its device is killed while it sends; the SuperLink has announced the reply to the server."""
    folder, (other, device) = tmp_path / "run", watched
    other.begin()
    device.begin()
    pause = device.restart("sending")
    settings = ("num_clients=2", "num_rounds=1", "min_replies=1", "round_timeout=30")
    launcher = pair.start_run(*settings, folder=folder)
    pair.wait_until((pause / "reached").exists, "the device is at the point")
    device.kill()
    code, output, errors = pair.finish(launcher)
    assert code == 0, output + errors + pair.describe()
    (row,) = read_outcome(folder).rows[1:]
    assert row["num_replies"] == 1
    # Flower's own grid waits for the rest for three minutes.
    assert row["seconds"] < 90
    device.restart()
    device.check_ledger(1, crashes=1)
    other.check_ledger(1, crashes=0)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("killed", KILLED)
def test_a_run_survives_kills(
    pair: Federation, watched: list[Watched], tmp_path: Path, killed: str, point: str
) -> None:
    if (killed, point) not in IN_CI and not os.environ.get("FL_APP_ALL_KILLS"):
        pytest.skip("one of three in CI; FL_APP_ALL_KILLS=1 runs all nine")
    folder, (other, device) = tmp_path / "run", watched
    other.begin()
    device.begin()
    pause = device.restart(point)
    launcher = pair.start_run(*SETTINGS, folder=folder)
    pair.wait_until((pause / "reached").exists, "the device is at the point")
    if killed == "supernode":
        device.restart()
    elif killed == "superlink":
        pair.kill("flower-superlink")
        pair.start_superlink()
    else:
        pair.kill("flwr-serverapp")
    (pause / "go on").touch()
    code, output, errors = pair.finish(launcher)
    if killed == "supernode":
        # The others' replies are enough.
        assert code == 0, output + errors + pair.describe()
    else:

        def all_up() -> bool:
            for each in watched:
                each.keep_up()
            return pair.num_online() == 2

        pair.wait_until(all_up, "both devices are connected")
    # A ServerApp whose SuperLink dies between two of its requests goes on with the next SuperLink.
    resumes = killed == "serverapp" or (killed == "superlink" and code != 0)
    num_before = 0
    if resumes:
        assert code == 1, output + errors + pair.describe()
        assert f"resume={folder}" in errors
        if (folder / "metrics.jsonl").exists():
            num_before = len((folder / "metrics.jsonl").read_text().splitlines())
        code, output, errors = pair.finish(pair.start_run(folder=folder, resume=True))
        assert code == 0, output + errors + pair.describe()
    outcome = read_outcome(folder)
    assert [row["round"] for row in outcome.rows] == [0, 1, 2, 3]
    assert outcome.summary["num_rounds"] == 3
    if killed == "supernode":
        # The reply that had left before the SuperNode was killed counts.
        assert outcome.rows[1]["num_replies"] == (2 if point == "sent" else 1)
    elif resumes:
        # The round that was cut off may lack a reply; the resumed ones do not.
        resumed = outcome.rows[max(1, num_before) :]
        assert [row["num_replies"] for row in resumed] == [2] * len(resumed)
    # The run goes on while the device is away.
    device.check_ledger(2 if resumes else int(point == "sent"), crashes=1)
    other.check_ledger(1 if killed == "superlink" else 2, crashes=killed != "supernode")
