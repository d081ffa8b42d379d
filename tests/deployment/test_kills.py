"""kill -9 of each of the processes while a device is at a named point: the run ends well.

FL_APP_ALL_KILLS=1 python -m pytest -m slow tests/deployment/test_kills.py runs all nine.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import read_outcome
from tests.deployment.federation import Federation, start_federation
from tests.deployment.pausing_supernode import POINTS

pytestmark = [pytest.mark.slow, pytest.mark.deployment]

KILLED = ("supernode", "superlink", "serverapp")
IN_CI = {("supernode", "after"), ("superlink", "sent"), ("serverapp", "before")}
SETTINGS = ("num_clients=2", "num_rounds=3", "min_replies=1", "round_timeout=240")


@pytest.fixture(scope="module")
def pair() -> Iterator[Federation]:
    with start_federation(2, "allow-seeded=true") as started:
        yield started


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("killed", KILLED)
def test_a_run_survives_kills(pair: Federation, tmp_path: Path, killed: str, point: str) -> None:
    if (killed, point) not in IN_CI and not os.environ.get("FL_APP_ALL_KILLS"):
        pytest.skip("one of three in CI; FL_APP_ALL_KILLS=1 runs all nine")
    pause, folder = tmp_path / "pause", tmp_path / "run"
    pause.mkdir()
    device = pair.devices[1]
    pair.kill_device(device)
    pair.bring_back(device, lambda: pair.start_pausing_device(device, pause, point))
    launcher = pair.start_run(*SETTINGS, folder=folder)
    pair.wait_until((pause / "reached").exists, "the device is at the point")
    if killed == "supernode":
        pair.kill_device(device)
        pair.bring_back(device, lambda: pair.start_device(device))
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
        assert code == 1, output + errors + pair.describe()
        assert f"resume={folder}" in errors
        pair.wait_for_devices(2)
        code, output, errors = pair.finish(pair.start_run(folder=folder, resume=True))
        assert code == 0, output + errors + pair.describe()
    outcome = read_outcome(folder)
    assert [row["round"] for row in outcome.rows] == [0, 1, 2, 3]
    assert outcome.summary["num_rounds"] == 3
    if killed == "supernode":
        # The reply that had left before the SuperNode was killed counts.
        assert outcome.rows[1]["num_replies"] == (2 if point == "sent" else 1)
    else:
        assert all(row["num_replies"] == 2 for row in outcome.rows[1:])
