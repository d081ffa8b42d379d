"""What a run leaves behind: its folder, written as the run goes on."""

import fcntl
import json
import math
import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.asked_clients import ASKED_FILE
from fl_app.checkpoint import CHECKPOINT_FILE, Checkpoint, write_checkpoint
from fl_app.device_state import STATE_FILE, has_entries
from fl_app.errors import RunError
from fl_app.model_files import save_model
from fl_app.run_files import (
    BEST_POINT_FILE,
    CHECKPOINT_FOLDER,
    CLIENT_LOG,
    CONFIG_FILE,
    LOCK_FILE,
    LOG_FILE,
    METRICS_FILE,
    MODEL_FILE,
    PLOTS_FOLDER,
    PRIVACY_FILE,
    QUERIES_FILE,
    REPORT_FILE,
    SHARED_FUNCTION_FILE,
    SUMMARY_FILE,
)
from fl_app.run_name import NAME_FILE

FORMAT_VERSION = 1
_SEARCH_FILES = (BEST_POINT_FILE, SHARED_FUNCTION_FILE)
_PACKAGES = ("private-fl-app", "flwr", "torch", "numpy", "dp-accounting")


class RunStore:
    """The folder of one run.

    Parameters
    ----------
    folder : Path
        Created if missing.
    resume : bool
        Whether the run in the folder goes on: all files stay as they are until `rewind`.
        Otherwise an earlier run's files of the same names are removed.

    Raises
    ------
    RunError
        If the folder cannot be created or written, or another run is writing to it, before the
        first round.
    """

    def __init__(self, folder: Path, resume: bool = False) -> None:
        self.folder = folder.expanduser().resolve()
        self.checkpoints = self.folder / CHECKPOINT_FOLDER
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / LOCK_FILE).open("w")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"another run is writing to {self.folder}") from None
            if not resume:
                if has_entries(self.checkpoints) and not (self.folder / SUMMARY_FILE).exists():
                    self.close()
                    raise RunError(
                        f"{self.folder} holds a run that was stopped: resume={self.folder}, or "
                        "another folder for a new run"
                    )
                self._refuse_what_would_be_lost()
                # What an earlier run left must not stand beside the results of this one; nobody
                # may take half of it for a run that can go on.
                (self.folder / CONFIG_FILE).unlink(missing_ok=True)
                for file in (self.folder / PRIVACY_FILE, self.folder / LOG_FILE):
                    file.unlink(missing_ok=True)
                for name in (CHECKPOINT_FILE, ASKED_FILE, NAME_FILE, CLIENT_LOG, f"{STATE_FILE}*"):
                    _unlink(self.checkpoints, name)
                self.rewind(0, 0)

    def _refuse_what_would_be_lost(self) -> None:
        """Raise RunError if a new run would remove the only record of a release, or others' files.

        Of a finished run with seeded randomness nothing is lost: it can be computed again.
        """
        names = (CONFIG_FILE, SUMMARY_FILE, PRIVACY_FILE, REPORT_FILE, *_SEARCH_FILES)
        found = [name for name in names if (self.folder / name).exists()]
        plots = self.folder.glob(f"{PLOTS_FOLDER}/*.png")
        found += [str(each.relative_to(self.folder)) for each in plots]
        if found and not (self.folder / METRICS_FILE).exists():
            self.close()
            raise RunError(
                f"{self.folder} is no run's folder, and holds {found[0]}, which a run would "
                "replace: choose another folder"
            )
        if _is_secret(self.folder / SUMMARY_FILE):
            self.close()
            raise RunError(
                f"{self.folder} holds a finished run with secret randomness, and with it the only "
                "record of what it has spent of its clients' privacy: choose another folder, or "
                "remove it yourself"
            )

    def rewind(self, metrics_bytes: int, queries_bytes: int) -> None:
        """Take rows back to those of a checkpoint, and remove what comes after the last round.

        Parameters
        ----------
        metrics_bytes, queries_bytes : int
            How many bytes of each file are kept, at most as many as there are.
        """
        with self._writing():
            for name in (SUMMARY_FILE, MODEL_FILE, REPORT_FILE, *_SEARCH_FILES):
                (self.folder / name).unlink(missing_ok=True)
            _unlink(self.folder / PLOTS_FOLDER, "*.png")
            # Of processes that were killed while they wrote.
            for name in (CONFIG_FILE, SUMMARY_FILE, PRIVACY_FILE, MODEL_FILE, *_SEARCH_FILES):
                _unlink(self.folder, f".{name}.*.tmp")
            for name in (CHECKPOINT_FILE, ASKED_FILE, NAME_FILE, STATE_FILE):
                _unlink(self.checkpoints, f".{name}.*.tmp*")
            with (self.folder / METRICS_FILE).open("ab") as file:
                file.truncate(metrics_bytes)
            if queries_bytes == 0:
                (self.folder / QUERIES_FILE).unlink(missing_ok=True)
            else:
                os.truncate(self.folder / QUERIES_FILE, queries_bytes)

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
        self._append(METRICS_FILE, line + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return what metrics.jsonl holds, those of earlier rounds of a resumed run too."""
        with self._writing():
            lines = (self.folder / METRICS_FILE).read_text().splitlines()
        return [json.loads(line) for line in lines]

    def append_queries(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append what agents queried in a round to queries.jsonl (seeded runs only)."""
        lines = [json.dumps(row, allow_nan=False) + "\n" for row in rows]
        self._append(QUERIES_FILE, "".join(lines))

    def read_queries(self) -> list[dict[str, Any]]:
        """Return what queries.jsonl holds, of a resumed run what its checkpoint knows of."""
        file = self.folder / QUERIES_FILE
        with self._writing():
            lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines]

    def measure(self, name: str) -> int:
        """Return the length of a file that rows are appended to, which have reached the disk."""
        file = self.folder / name
        with self._writing():
            if not file.exists():
                return 0
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
                return opened.seek(0, os.SEEK_END)

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint."""
        with self._writing():
            self.checkpoints.mkdir(mode=0o700, exist_ok=True)
            write_checkpoint(self.checkpoints, checkpoint)

    def write_privacy(self, guarantees: list[dict[str, Any]]) -> None:
        """Write privacy.json."""
        self._write_json(PRIVACY_FILE, {"guarantees": guarantees})

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json."""
        self._write_json(SUMMARY_FILE, {key: _finite(value) for key, value in summary.items()})

    def write_best_point(self, content: dict[str, Any]) -> None:
        """Write best_point.json."""
        self._write_json(BEST_POINT_FILE, content)

    def write_shared_function(self, content: dict[str, Any]) -> None:
        """Write shared_function.json."""
        self._write_json(SHARED_FUNCTION_FILE, content)

    def write_model(self, arrays: dict[str, NDArray[np.generic]], metadata: dict[str, str]) -> None:
        """Write model.safetensors."""
        with self._writing():
            save_model(self.folder / MODEL_FILE, arrays, metadata)

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        whole = {"format_version": FORMAT_VERSION, **content}
        self._write(name, json.dumps(whole, indent=2, allow_nan=False) + "\n")

    def _append(self, name: str, text: str) -> None:
        with self._writing(), (self.folder / name).open("a") as file:
            file.write(text)

    def _write(self, name: str, text: str) -> None:
        """Write a file, all or nothing: a reader never sees half of it."""
        target = self.folder / name
        temporary = target.with_name(f".{name}.{os.getpid()}.tmp")
        with self._writing():
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, target)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"cannot write to {self.folder}: {error.strerror}") from None


def _is_secret(summary: Path) -> bool:
    """Return whether a finished run's summary says that its randomness was secret."""
    try:
        found = json.loads(summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("randomness") == "secret"


def _unlink(folder: Path, *patterns: str) -> None:
    for pattern in patterns:
        for file in folder.glob(pattern):
            file.unlink()


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
