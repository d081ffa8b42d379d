"""What a run on a SuperLink tells its launcher, which may be on another machine.

Flower carries nothing back but the log of the ServerApp, so the ServerApp prints what it writes to
the run's folder, a record in each line. A folder that both sides see is written at once.
"""

import json
import logging
import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fl_app.run_files import (
    BEST_POINT_FILE,
    METRICS_FILE,
    PRIVACY_FILE,
    SHARED_FUNCTION_FILE,
    SUMMARY_FILE,
)
from fl_app.run_store import RunStore

PREFIX = "fl-app-record: "
MARK_FILE = ".submitted"
FOLDER, OUTCOME, WARNING, PROGRESS = "folder", "outcome", "warning", "progress"
_KINDS = (FOLDER, OUTCOME, WARNING, PROGRESS)
_ROUND = re.compile(r"\bround \d+")
# No name that the log brings is used as a file's unless it is one of these. The configuration is
# none of them: the launcher knows it, and another one would be read as its own.
FILES = (
    *(METRICS_FILE, PRIVACY_FILE, SUMMARY_FILE),
    *(BEST_POINT_FILE, SHARED_FUNCTION_FILE),
)


class Record(NamedTuple):
    """A line of the ServerApp's for the launcher.

    Attributes
    ----------
    kind : str
        ``folder`` (the text is the run's folder where the ServerApp runs), ``outcome`` (why the
        run failed, empty if it is complete), ``warning`` or ``progress`` (a line for whoever
        started the run), or one of `FILES` (what was written or appended).
    text : str
    """

    kind: str
    text: str


def print_record(kind: str, text: str) -> None:
    """Print a record, as a line that nothing else printed can divide."""
    sys.stdout.write(f"{PREFIX}{json.dumps({'kind': kind, 'text': text})}\n")
    sys.stdout.flush()


def read_record(line: str) -> Record | None:
    """Return the record in a line of the log; None if it holds none."""
    _, found, text = line.partition(PREFIX)
    if not found:
        return None
    try:
        values = json.loads(text)
        record = Record(values["kind"], values["text"])
    except (ValueError, KeyError, TypeError):
        return None
    known = record.kind in (*_KINDS, *FILES) and isinstance(record.text, str)
    return record if known else None


def print_progress(text: str) -> None:
    """Print a line for whoever started the run."""
    print_record(PROGRESS, text)


@contextmanager
def told_warnings() -> Iterator[None]:
    """Print the warnings of this application as records, too: each once, whatever its round."""
    shown: set[str] = set()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if (kind := _ROUND.sub("", text)) not in shown:
                shown.add(kind)
                print_record(WARNING, text)

    handler = Told(logging.WARNING)
    ours = [logging.getLogger(name) for name in ("fl_app", "strategies")]
    for logger in ours:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in ours:
            logger.removeHandler(handler)


class ToldStore(RunStore):
    """A run's folder whose results are printed as records as well."""

    def _append(self, name: str, text: str) -> None:
        super()._append(name, text)
        _tell(name, text)

    def _write(self, name: str, text: str) -> None:
        super()._write(name, text)
        _tell(name, text)


class RebuiltStore(RunStore):
    """The launcher's folder of a run whose own folder is on another machine."""

    def take(self, record: Record) -> None:
        """Write or append what a record of one of `FILES` holds."""
        if record.kind == METRICS_FILE:
            self._append(record.kind, record.text)
        elif record.kind in FILES:
            self._write(record.kind, record.text)


def _tell(name: str, text: str) -> None:
    if name in FILES:
        print_record(name, text)


def mark_folder(folder: Path) -> str:
    """Leave a random word in a folder; return it."""
    mark = secrets.token_hex(16)
    (folder / MARK_FILE).write_text(mark, encoding="utf-8")
    return mark


def is_marked(folder: Path, mark: str) -> bool:
    """Return whether a path leads to the folder in which the word was left, and can be written."""
    try:
        return (folder / MARK_FILE).read_text(encoding="utf-8") == mark and os.access(
            folder, os.W_OK
        )
    except (OSError, UnicodeDecodeError):
        return False
