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

POLL_SECONDS = 0.2


@contextmanager
def show_progress(folder: Path, num_rounds: int, console: Console) -> Iterator[None]:
    """Show the rounds of the run that writes to `folder`; nothing when not on a terminal."""
    if not console.is_terminal:
        yield
        return
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
            position, last = 0, False
            while not last:
                last = stop.wait(POLL_SECONDS)
                rows, position = _read_rows(folder / METRICS_FILE, position)
                if rows:
                    progress.update(
                        task, completed=rows[-1]["round"], description=_describe(rows[-1])
                    )

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _read_rows(file: Path, position: int) -> tuple[list[dict[str, Any]], int]:
    """Return the complete lines after `position`, and the position behind them."""
    try:
        with file.open("rb") as stream:
            stream.seek(position)
            text = stream.read()
    except OSError:
        return [], position
    complete = text[: text.rfind(b"\n") + 1]
    return [json.loads(line) for line in complete.splitlines()], position + len(complete)


def _describe(row: dict[str, Any]) -> str:
    parts = []
    if row["test_accuracy"] is not None:
        parts.append(f"accuracy {row['test_accuracy']:.4f}")
    if row["test_loss"] is not None:
        parts.append(f"loss {row['test_loss']:.4f}")
    parts.append(f"up {format_bytes(row['uplink_bytes'])}")
    parts.append(f"epsilon {format_epsilon(row['epsilon'])}")
    return "  ".join(parts)
