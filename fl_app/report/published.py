"""A run's results beside published ones, as rows for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fl_app.report.formats import MISSING, format_count

PUBLISHED_HEADERS = ("Quantity", "Round", "Published", "Ours", "Difference")
_WORDS = {"global_train_loss": "Loss on all training records", "test_accuracy": "Test accuracy"}


def list_published(summary: Mapping[str, Any] | None) -> list[list[str]]:
    """Write what a summary says of published results, a row each under `PUBLISHED_HEADERS`."""
    return [
        [
            _WORDS.get(str(each.get("quantity")), str(each.get("quantity"))),
            format_count(each.get("round")),
            *(_write(each.get(key)) for key in ("published", "ours")),
            _write(each.get("difference"), "+"),
        ]
        for each in (summary or {}).get("published") or []
    ]


def published_table(runs: Sequence[tuple[str, Mapping[str, Any] | None]]) -> Table | None:
    """Lay out the results of runs beside published ones.

    Parameters
    ----------
    runs : sequence of (label, summary)
        `label` tells the runs apart where there are several; `summary` is the content of
        ``summary.json``, or None.

    Returns
    -------
    rich.table.Table or None
        A line for each published value; None if there is none.
    """
    lines = [(label, row) for label, summary in runs for row in list_published(summary)]
    if not lines:
        return None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    names = ("Job",) if len(runs) > 1 else ()
    for name in (*names, *PUBLISHED_HEADERS):
        table.add_column(name, justify="left" if name == "Quantity" else "right", no_wrap=True)
    for label, row in lines:
        table.add_row(*map(Text, ((label,) if names else ()) + tuple(row)))
    return table


def _write(value: float | None, sign: str = "") -> str:
    return MISSING if value is None else f"{value:{sign}.4f}"
