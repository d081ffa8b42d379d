"""The jobs of a sweep: what each has come to, which are left, and how the whole goes on."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fl_app.config import RESUME, parse_override
from fl_app.errors import ConfigError

if TYPE_CHECKING:
    from fl_app.begun_run import BegunRun
    from fl_app.report.printing import SweepJob
    from fl_app.settings import RunSettings

SWEEP_DIR = "hydra.sweep.dir"
_SWEEP_FILE = "multirun.yaml"
# Hydra's own escapes, in words without quotes.
_ESCAPED = re.compile(r"\\([\\()\[\]{}:=, \t])")
# The job that is going on, for whoever shows warnings: also those of other threads.
_going_on: list[int] = []


def take_resumed(overrides: list[str]) -> list[str]:
    """Turn ``resume=FOLDER`` of a sweep into the folder that Hydra is to use.

    Parameters
    ----------
    overrides : list of str
        Of the sweep that was stopped, and ``resume=FOLDER`` with its folder.

    Returns
    -------
    list of str
        The same if none is resumed.

    Raises
    ------
    ConfigError
        If it is no sweep's folder, or another folder is named beside it.
    """
    from fl_app.named_code import quote_text
    from fl_app.run_files import CONFIG_FILE

    words = [word for word in overrides if word.lstrip("+").startswith(f"{RESUME}=")]
    given = parse_override(words[-1]).value() if words else None
    if given is None:
        return overrides
    folder = Path(str(given)).expanduser()
    if isinstance(given, bool) or not given or not folder.is_dir():
        raise ConfigError(RESUME, given, "the folder of the sweep that was stopped")
    if (folder / CONFIG_FILE).exists():
        raise ConfigError(RESUME, given, "the folder of a sweep (one run goes on without -m)")
    # Hydra's own, of every sweep.
    if not (folder / _SWEEP_FILE).is_file():
        raise ConfigError(RESUME, given, f"the folder of a sweep, with its {_SWEEP_FILE}")
    rest = [word for word in overrides if word not in words]
    if any(word.lstrip("+").startswith(f"{SWEEP_DIR}=") for word in rest):
        raise ConfigError(SWEEP_DIR, str(given), f"the folder of {RESUME}: leave it out")
    return [*rest, f"{SWEEP_DIR}={quote_text(str(folder.absolute()))}"]


class OtherSettingsError(ConfigError):
    """A job's folder holds a run of other settings."""


def find_begun(folder: Path, settings: RunSettings) -> BegunRun | None:
    """Return the run that a job has left in its folder; None if it has not begun.

    Raises
    ------
    OtherSettingsError
        If the run has other settings.
    ConfigError
        If its files are damaged.
    """
    from fl_app.begun_run import BegunRun
    from fl_app.checkpoint import digest_settings
    from fl_app.run_config import read_run_settings
    from fl_app.run_files import CONFIG_FILE

    file = folder / CONFIG_FILE
    if not file.exists():
        return None
    if digest_settings(read_run_settings(file.read_text(encoding="utf-8"))) != digest_settings(
        settings
    ):
        raise OtherSettingsError(
            RESUME, str(folder), "the folder of this job: the run in it has other settings"
        )
    begun = BegunRun(folder.resolve(), settings)
    if not begun.is_finished:
        begun.read_checkpoint()  # what is damaged is said before anything is changed
    return begun


def write_again(words: Sequence[str], folder: Path) -> str:
    """Return the arguments of ``fl-app run`` with which a sweep goes on, as typed in a shell."""
    from fl_app.named_code import quote_text

    apart = (f"{RESUME}=", f"{SWEEP_DIR}=")
    kept = [word for word in words if not word.lstrip("+").startswith(apart)]
    return shlex.join(["-m", *kept, f"{RESUME}={quote_text(str(folder))}"])


def show_overrides(overrides: Sequence[str]) -> list[str]:
    """Return a job's overrides as they were typed, without Hydra's escapes and its own keys."""
    own = (word for word in overrides if not word.lstrip("+").startswith("hydra."))
    return [word if set(word) & set("'\"") else _ESCAPED.sub(r"\1", word) for word in own]


def current_job() -> int | None:
    """Return the number of the job that is going on; None outside a sweep."""
    return _going_on[-1] if _going_on else None


@contextmanager
def told_job(number: int, jobs: Sequence[Sequence[str]]) -> Iterator[list[SweepJob]]:
    """Say in a file or a pipe that a job begins and what it came to; warnings get its number.

    Parameters
    ----------
    number : int
        From 0.
    jobs : sequence of sequence of str
        The overrides of all jobs: what all have is not said.

    Yields
    ------
    list of SweepJob
        To which the caller adds what the job came to.
    """
    found: list[SweepJob] = []
    own = [word for word in jobs[number] if not all(word in each for each in jobs)]
    _tell(f"job {number} ({number + 1} of {len(jobs)}): {' '.join(own)}".removesuffix(": "))
    _going_on.append(number)
    try:
        yield found
    finally:
        _going_on.pop()
        for job in found:
            _tell(f"job {number}: {job.describe()}")


def _tell(text: str) -> None:
    """Print a line, at once; nothing on a terminal, where a live line is shown."""
    if not sys.stdout.isatty():
        # If nobody reads any more, that is for whoever prints the results.
        with suppress(OSError):
            print(text, flush=True)
