"""What a run shows while it lasts, read off its folder, so that it serves every engine.

On a terminal, one live line; in a file or a pipe, a line for each round.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fl_app.report.formats import format_bytes, format_epsilon
from fl_app.run_files import METRICS_FILE

THREAD = "fl-app progress"
POLL_SECONDS = 0.2
TAIL_BYTES = 1 << 16  # holds more than one line
MOST_LINES = 100  # of more rounds, every second, third, ... has a line

Show = Callable[[dict[str, Any]], None]


@contextmanager
def show_progress(
    folder: Path, num_rounds: int, console: Console, *, lines: bool = True, resume: bool = False
) -> Iterator[Callable[[str], None]]:
    """Show the rounds of the run that writes to `folder`.

    Parameters
    ----------
    folder : Path
    num_rounds : int
    console : Console
    lines : bool
        Whether there is a line a round where the console is no terminal.
    resume : bool
        Whether the run in the folder goes on.

    Yields
    ------
    callable
        Shows a line of something else, until the next round.
    """
    if console.is_terminal:
        with _live_line(num_rounds, console) as (show, tell), _followed(folder, show):
            yield tell
    elif lines:
        last = _read_rows(folder / METRICS_FILE)[-1:] if resume else []
        printed = _PlainLines(num_rounds, console, last[0]["round"] if last else -1)
        with _followed(folder, printed.show):
            yield printed.tell
    else:
        yield lambda text: None


class _PlainLines:
    """A line for each round after `last`."""

    def __init__(self, num_rounds: int, console: Console, last: int) -> None:
        self._num_rounds, self._console, self._last = num_rounds, console, last
        self._step = -(-num_rounds // MOST_LINES)

    def show(self, row: dict[str, Any]) -> None:
        """Print the round, unless it was printed before."""
        number = row["round"]
        if number <= self._last:
            return
        self._last = number
        if number % self._step == 0 or number == self._num_rounds:
            self.tell(f"round {number}/{self._num_rounds}  {_count_replies(row)}{_describe(row)}")

    def tell(self, text: str) -> None:
        """Print a line; whoever reads the other end of a pipe sees it at once."""
        # If nobody reads any more, that is for whoever prints the results.
        with suppress(OSError):
            print(text, file=self._console.file, flush=True)


@contextmanager
def _live_line(num_rounds: int, console: Console) -> Iterator[tuple[Show, Callable[[str], None]]]:
    """Show a line that changes; yield how to show a round, and another text."""
    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=num_rounds)

        def show(row: dict[str, Any]) -> None:
            progress.update(task, completed=row["round"], description=_describe(row))

        yield show, lambda text: progress.update(task, description=escape(text))


@contextmanager
def _followed(folder: Path, show: Show) -> Iterator[None]:
    """Show each round that is written to a folder, once or more, in their order."""
    file = folder / METRICS_FILE
    # An earlier run may have left its rounds in the same folder.
    seen = _stamp(file)
    stop = threading.Event()

    def follow() -> None:
        nonlocal seen
        last = False
        while not last:
            last = stop.wait(POLL_SECONDS)
            if (now := _stamp(file)) != seen:
                seen = now
                for row in _read_rows(file):
                    show(row)

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


def _read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the last lines that were written in full."""
    try:
        with file.open("rb") as stream:
            begin = max(0, file.stat().st_size - TAIL_BYTES)
            stream.seek(begin)
            lines = stream.read().split(b"\n")[:-1]
    except OSError:
        return []
    # The first one may be the end of a line only.
    return [json.loads(line) for line in lines[begin > 0 :]]


def _count_replies(row: dict[str, Any]) -> str:
    """Say how many clients answered; nothing before the first round, or where it is secret."""
    replies, sampled = row.get("num_replies"), row.get("num_sampled")
    if replies is None or sampled == 0:
        return ""
    return f"{replies} of {sampled} replies  " if sampled is not None else f"{replies} replies  "


def _describe(row: dict[str, Any]) -> str:
    parts = []
    if row["test_accuracy"] is not None:
        parts.append(f"accuracy {row['test_accuracy']:.4f}")
    if row["test_loss"] is not None:
        parts.append(f"loss {row['test_loss']:.4f}")
    if row.get("best_value_mean") is not None:
        parts.append(f"best value {row['best_value_mean']:.5g}")
    if count := row.get("num_releases"):
        parts.append(f"{count} release{'s' if count > 1 else ''} so far")
    if row["uplink_bytes"] is not None:
        parts.append(f"up {format_bytes(row['uplink_bytes'])}")
    parts.append(f"epsilon {format_epsilon(row['epsilon'])}")
    return "  ".join(parts)
