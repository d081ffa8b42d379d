"""A device of which each upload is written down, and what its ledger held when it left."""

import contextlib
from pathlib import Path

from fl_app.device_ledger import Release, list_releases
from fl_app.device_state import STATE_FILE
from tests.deployment.federation import Device, Federation
from tests.deployment.pausing_supernode import TRAFFIC


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
