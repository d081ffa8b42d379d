"""How a run ended, as its ServerApp says it: a file, for a launcher in another process."""

import json
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """The end of a run: `failure` is the reason in one line, None if it completed."""

    failure: str | None


def write_outcome(file: Path, outcome: Outcome) -> None:
    """Write the outcome, all or nothing."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps({"failure": outcome.failure}), encoding="utf-8")
    os.replace(temporary, file)


def read_outcome(file: Path) -> Outcome | None:
    """Return the outcome; None while there is none."""
    try:
        return Outcome(json.loads(file.read_text(encoding="utf-8"))["failure"])
    except FileNotFoundError:
        return None
