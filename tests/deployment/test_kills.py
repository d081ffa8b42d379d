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

    def keep_up() -> bool:
        """Start again what has ended, as a service manager does: a SuperNode that cannot send."""
        for each in watched:
            each.keep_up()
        return True

    pair.wait_until(lambda: keep_up() and launcher.poll() is not None, "the run has ended")
    code, output, errors = pair.finish(launcher)
    if killed == "supernode":
        # The others' replies are enough.
        assert code == 0, output + errors + pair.describe()
    else:
        pair.wait_until(lambda: keep_up() and pair.num_online() == 2, "both devices are connected")
    # A ServerApp whose SuperLink dies between two of its requests goes on with the next SuperLink.
    resumes = killed == "serverapp" or (killed == "superlink" and code != 0)
    resumed = 0
    if resumes:
        assert code == 1, output + errors + pair.describe()
        assert f"resume={folder}" in errors
        rows = folder / "metrics.jsonl"
        resumed = 3 - max(0, len(rows.read_text().splitlines()) - 1) if rows.exists() else 3
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
        assert [row["num_replies"] for row in outcome.rows[4 - resumed :]] == [2] * resumed
    # The run goes on while a device is away.
    device.check_ledger(max(resumed, int(point == "sent")), crashes=1)
    other.check_ledger(2 if killed == "supernode" else resumed, crashes=killed != "supernode")
