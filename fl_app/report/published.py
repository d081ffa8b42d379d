"""A run's results beside published ones, as rows for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fl_app.report.formats import MISSING, format_count
from fl_app.report.paired_differences import LEVEL, estimate_mean

PUBLISHED_HEADERS = ("Quantity", "Round", "Published", "Ours", "Difference")
_WORDS = {
    "global_train_loss": "Loss on all training records",
    "test_accuracy": "Test accuracy",
    "search_error": "1 − best value, mean over agents",
}


def list_published(summary: Mapping[str, Any] | None) -> list[list[str]]:
    """Write the published results that a run has a value beside, under `PUBLISHED_HEADERS`."""
    return [
        [
            _WORDS.get(str(each.get("quantity")), str(each.get("quantity"))),
            format_count(each.get("round")),
            *(_write(each.get(key)) for key in ("published", "ours")),
            _write(each.get("difference"), "+"),
        ]
        for each in _read_published(summary)
        if each.get("ours") is not None
    ]


def explain_missing(summaries: Sequence[Mapping[str, Any] | None]) -> str:
    """Say of which published results no run has a value; nothing if there are none."""
    every = [each for summary in summaries for each in _read_published(summary)]
    known = {_identify(each) for each in every if each.get("ours") is not None}
    missing = [each for each in every if _identify(each) not in known]
    rounds = dict.fromkeys(format_count(each.get("round")) for each in missing)
    if not rounds:
        return ""
    beside = ", too" if known else ""
    return f"Published{beside}, without a value of ours: round {', '.join(rounds)}."


def _read_published(summary: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    return (summary or {}).get("published") or []


def _identify(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(map(row.get, ("quantity", "round", "published")))


def published_table(
    runs: Sequence[tuple[str, Mapping[str, Any] | None]],
) -> RenderableType | None:
    """Lay out the results of runs beside published ones.

    Parameters
    ----------
    runs : sequence of (label, summary)
        `label` tells the runs apart where there are several; runs of one label differ in their
        seed. `summary` is the content of ``summary.json``, or None.

    Returns
    -------
    rich renderable or None
        A line for each published value and label: of several runs the mean, with its confidence
        interval; and one for those that no run has a value beside. None if nothing was published.
    """
    groups: dict[str, list[Mapping[str, Any] | None]] = {}
    for label, summary in runs:
        groups.setdefault(label, []).append(summary)
    lines = [(label, row) for label, group in groups.items() for row in _list_group(group)]
    missing = explain_missing([summary for _, summary in runs])
    if not lines:
        return Text(missing) if missing else None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    names = ("Job",) if len(runs) > 1 else ()
    for name in (*names, *PUBLISHED_HEADERS):
        table.add_column(name, justify="left" if name == "Quantity" else "right", no_wrap=True)
    for label, row in lines:
        table.add_row(*map(Text, ((label,) if names else ()) + tuple(row)))
    if len(groups) < len(runs):
        table.caption = Text(
            f"Ours is the mean over seeds, ± half its {LEVEL:.0%} interval (Student's t); what was "
            "published has an error of its own."
        )
        table.caption_justify = "left"
    return Group(table, Text(missing)) if missing else table


def _list_group(group: Sequence[Mapping[str, Any] | None]) -> list[list[str]]:
    """Write the mean over runs that differ in their seed."""
    if len(group) == 1:
        return list_published(group[0])
    found: dict[tuple[Any, ...], list[float]] = {}
    for summary in group:
        for each in _read_published(summary):
            if each.get("ours") is not None:
                found.setdefault(_identify(each), []).append(each["ours"])
    rows = []
    for (quantity, at, published), values in found.items():
        estimate = estimate_mean(values)
        difference = None if published is None else estimate.mean - published
        mean = {"quantity": quantity, "round": at, "published": published, "ours": estimate.mean}
        (row,) = list_published({"published": [{**mean, "difference": difference}]})
        if estimate.half_width is not None:
            row[-1] += f" ± {estimate.half_width:.4f}"
        rows.append(row)
    return rows


def _write(value: float | None, sign: str = "") -> str:
    return MISSING if value is None else f"{value:{sign}.4f}"
