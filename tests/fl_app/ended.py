"""How a command line ended."""

import re
from pathlib import Path
from typing import NamedTuple

FILES = {"config.yaml", "metrics.jsonl", "summary.json", "privacy.json", "model.safetensors"}
EXTRAS = {"checkpoint", "plots", "report.html", "run.log"}


class Ended(NamedTuple):
    """Exit code, standard output and standard error."""

    code: int
    output: str
    errors: str


def list_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def after_rounds(output: str) -> str:
    """Return what a run has printed after the lines of its rounds."""
    lines = output.splitlines(keepends=True)
    while lines and re.match(r"round \d+/\d+  ", lines[0]):
        del lines[0]
    return "".join(lines)


def assert_refused(ended: Ended, code: int, start: str = "") -> str:
    """Check for one line on stderr, and nothing on stdout but rounds; return the line."""
    assert ended.code == code
    assert after_rounds(ended.output) == ""
    (line,) = ended.errors.splitlines()
    assert line.startswith(f"fl-app: {start}")
    return line
