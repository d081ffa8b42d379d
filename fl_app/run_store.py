"""What a run leaves behind: its folder, written as the run goes on."""

import fcntl
import json
import math
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.errors import RunError
from fl_app.model_arrays import save_model

FORMAT_VERSION = 1
METRICS_FILE, SUMMARY_FILE, PRIVACY_FILE = "metrics.jsonl", "summary.json", "privacy.json"
CONFIG_FILE, MODEL_FILE, LOG_FILE = "config.yaml", "model.safetensors", "run.log"
REPORT_FILE, PLOTS_FOLDER, LOCK_FILE = "report.html", "plots", ".lock"
_PACKAGES = ("private-fl-app", "flwr", "torch", "numpy", "dp-accounting")


class RunStore:
    """The folder of one run.

    Parameters
    ----------
    folder : Path
        Created if missing. An earlier run's files of the same names are replaced.

    Raises
    ------
    RunError
        If the folder cannot be created or written, or another run is writing to it, before the
        first round.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().resolve()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / LOCK_FILE).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # What an earlier run left must not stand beside the results of this one.
            for name in (SUMMARY_FILE, PRIVACY_FILE, MODEL_FILE, REPORT_FILE, LOG_FILE):
                (self.folder / name).unlink(missing_ok=True)
            for plot in (self.folder / PLOTS_FOLDER).glob("*.png"):
                plot.unlink()
            (self.folder / METRICS_FILE).write_text("")
        except BlockingIOError:
            raise RunError(f"another run is writing to {self.folder}") from None
        except OSError as error:
            raise RunError(f"cannot write to {self.folder}: {error.strerror}") from None

    def close(self) -> None:
        """Let other runs write to the folder."""
        (self.folder / LOCK_FILE).unlink(missing_ok=True)
        self._lock.close()

    def write_config(self, text: str) -> None:
        """Write config.yaml, the run's whole configuration."""
        self._write(CONFIG_FILE, text)

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Append one round to metrics.jsonl; numbers that are not finite become null."""
        line = json.dumps({key: _finite(value) for key, value in row.items()}, allow_nan=False)
        try:
            with (self.folder / METRICS_FILE).open("a") as file:
                file.write(line + "\n")
        except OSError as error:
            raise RunError(f"cannot write to {self.folder}: {error.strerror}") from None

    def write_privacy(self, guarantees: list[dict[str, Any]]) -> None:
        """Write privacy.json."""
        self._write_json(PRIVACY_FILE, {"guarantees": guarantees})

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json."""
        self._write_json(SUMMARY_FILE, {key: _finite(value) for key, value in summary.items()})

    def write_model(self, arrays: dict[str, NDArray[np.generic]], metadata: dict[str, str]) -> None:
        """Write model.safetensors."""
        try:
            save_model(self.folder / MODEL_FILE, arrays, metadata)
        except OSError as error:
            raise RunError(f"cannot write to {self.folder}: {error.strerror}") from None

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        whole = {"format_version": FORMAT_VERSION, **content}
        self._write(name, json.dumps(whole, indent=2, allow_nan=False) + "\n")

    def _write(self, name: str, text: str) -> None:
        """Write a file, all or nothing: a reader never sees half of it."""
        target = self.folder / name
        temporary = target.with_name(f".{name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, target)
        except OSError as error:
            raise RunError(f"cannot write to {self.folder}: {error.strerror}") from None


def list_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
