"""A live line for each round, read off the run's folder, so that it serves every engine."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fl_app.report.formats import format_bytes, format_epsilon
from fl_app.run_store import METRICS_FILE

THREAD = "fl-app progress"
POLL_SECONDS = 0.2
TAIL_BYTES = 1 << 16  # holds more than one line


@contextmanager
def show_progress(folder: Path, num_rounds: int, console: Console) -> Iterator[None]:
    """Show the rounds of the run that writes to `folder`; nothing when not on a terminal."""
    if not console.is_terminal:
        yield
        return
    file = folder / METRICS_FILE
    # An earlier run may have left its rounds in the same folder.
    before = _stamp(file)
    stop = threading.Event()
    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=num_rounds)

        def follow() -> None:
            last = False
            while not last:
                last = stop.wait(POLL_SECONDS)
                row = _read_last_row(file) if _stamp(file) != before else None
                if row is not None:
                    progress.update(task, completed=row["round"], description=_describe(row))

        thread = threading.Thread(target=follow, name=THREAD, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _read_last_row(file: Path) -> dict[str, Any] | None:
    """Return the last line that was written in full, or None."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - TAIL_BYTES))
            lines = stream.read().split(b"\n")[:-1]
    except OSError:
        return None
    if not lines:
        return None
    row: dict[str, Any] = json.loads(lines[-1])
    return row


def _describe(row: dict[str, Any]) -> str:
    parts = []
    if row["test_accuracy"] is not None:
        parts.append(f"accuracy {row['test_accuracy']:.4f}")
    if row["test_loss"] is not None:
        parts.append(f"loss {row['test_loss']:.4f}")
    if row.get("best_value_mean") is not None:
        parts.append(f"best value {row['best_value_mean']:.5g}")
    if row.get("num_releases") is not None:
        parts.append(f"releases {row['num_releases']}")
    if row["uplink_bytes"] is not None:
        parts.append(f"up {format_bytes(row['uplink_bytes'])}")
    parts.append(f"epsilon {format_epsilon(row['epsilon'])}")
    return "  ".join(parts)
