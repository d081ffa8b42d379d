"""kill -9 of each of the processes while a device is at a named point: the run ends well.

FL_APP_ALL_KILLS=1 python -m pytest -m slow tests/deployment/test_kills.py runs all nine.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fl_app.device_ledger import Release, list_releases
from fl_app.device_state import STATE_FILE
from tests.conftest import read_outcome
from tests.deployment.federation import Device, Federation, start_federation
from tests.deployment.pausing_supernode import POINTS, TRAFFIC

pytestmark = [pytest.mark.slow, pytest.mark.deployment]

KILLED = ("supernode", "superlink", "serverapp")
IN_CI = {("supernode", "after"), ("superlink", "sent"), ("serverapp", "before")}
SETTINGS = ("num_clients=2", "num_rounds=3", "min_replies=1", "round_timeout=240")


class Watched:
    """A device of which each upload is written down, and what its ledger holds."""

    def __init__(self, federation: Federation, device: Device, folder: Path) -> None:
        self._federation, self._device, self._folder = federation, device, folder
        self._starts = 0
        self.begin()

    def begin(self) -> None:
        """Look at what comes from here on."""
        self._seen, self._before = len(self._traffic()), len(self._releases())

    def _releases(self) -> list[Release]:
        folder = self._device.folder / "state"
        return list_releases(folder) if (folder / STATE_FILE).exists() else []

    def _traffic(self) -> list[list[str]]:
        files = [self._folder / f"{number}" / TRAFFIC for number in range(self._starts)]
        found = [file.read_text() for file in files if file.exists()]
        return [line.split() for text in found for line in text.splitlines()]

    def restart(self, point: str = "never") -> Path:
        """Kill the device and start it again; return the folder of its pauses."""
        pause = self._folder / f"{self._starts}"
        pause.mkdir(parents=True)
        self._starts += 1
        self.kill()
        self._federation.bring_back(
            self._device,
            lambda: self._federation.start_pausing_device(self._device, pause, point),
        )
        return pause

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._federation.kill_device(self._device)

    def keep_up(self) -> None:
        """Start it again if it has ended, as a service manager does."""
        assert self._device.process is not None
        if self._device.process.poll() is not None:
            self.restart()

    def check_ledger(self, least: int, crashes: int) -> None:
        """At no time is there less in the ledger than had left, or more than one a crash more."""
        lines = self._traffic()[self._seen :]
        left: set[str] = set()
        for _, upload, charged in lines:
            left.add(upload)
            assert int(charged) - self._before >= len(left), lines
        assert len(left) >= least, lines
        assert 0 <= len(self._releases()) - self._before - len(left) <= crashes, lines


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
        assert code == 1, output + errors + pair.describe()
        assert f"resume={folder}" in errors

        def all_up() -> bool:
            for each in watched:
                each.keep_up()
            return pair.num_online() == 2

        pair.wait_until(all_up, "both devices are connected")
        code, output, errors = pair.finish(pair.start_run(folder=folder, resume=True))
        assert code == 0, output + errors + pair.describe()
    outcome = read_outcome(folder)
    assert [row["round"] for row in outcome.rows] == [0, 1, 2, 3]
    assert outcome.summary["num_rounds"] == 3
    if killed == "supernode":
        # The reply that had left before the SuperNode was killed counts.
        assert outcome.rows[1]["num_replies"] == (2 if point == "sent" else 1)
    else:
        # A round that the killed SuperLink cut off may lack a reply; the resumed ones do not.
        assert [row["num_replies"] for row in outcome.rows[-2:]] == [2, 2]
    # The run goes on while the device is away.
    least = (1 if point == "sent" else 0) if killed == "supernode" else 2
    device.check_ledger(least, crashes=1)
    other.check_ledger(2, crashes=killed != "supernode")
