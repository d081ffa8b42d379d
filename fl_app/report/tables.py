"""Tables for the terminal: one run's summary, and the jobs of a sweep."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fl_app.report.formats import (
    MISSING,
    format_bytes,
    format_count,
    format_delta,
    format_duration,
    format_epsilon,
    format_number,
    format_share,
)
from fl_app.report.guarantees import (
    NOTHING_SHARED,
    SEEDED_NOTICE,
    Guarantee,
    Status,
    describe_adversary,
    describe_protection,
    explain_failures,
    is_seeded,
    judge_guarantee,
    list_shown,
    shares_nothing,
)
from fl_app.report.run_folder import is_search
from fl_app.report.search_tables import list_search_facts, write_value

__all__ = [
    "format_delta",
    "format_epsilon",
    "print_tables",
    "summary_table",
    "sweep_table",
]

_WIDTH_IN_FILES = 160  # a table in a log is not wrapped at the usual 80 columns
_STYLES = {
    Status.HOLDS: "green",
    Status.SEEDED: "yellow",
    Status.INVALID: "bold red",
    Status.NONE: "bold red",
}

# The columns of results: whether they are of searches, of training, or (None) of both.
_RESULTS = {
    **dict.fromkeys(("Test accuracy", "Test loss"), False),
    **dict.fromkeys(("Best value", "Worst agent", "Simple regret", "Releases"), True),
    **dict.fromkeys(("ε", "δ", "Uplink")),
    "Bits/parameter": False,
    "Time": None,
}


def print_tables(content: RenderableType, stream: IO[str] | None = None) -> None:
    """Print tables, in colour on a terminal and as plain text anywhere else.

    Parameters
    ----------
    content : rich renderable
        What `summary_table` or `sweep_table` returned.
    stream : text stream, optional
        Where to print; standard output by default.
    """
    stream = stream or sys.stdout
    if stream.isatty():
        Console(file=stream, highlight=False).print(content)
    else:
        plain = Console(
            file=stream, highlight=False, color_system=None, width=_WIDTH_IN_FILES, soft_wrap=False
        )
        plain.print(content)


def summary_table(
    summary: Mapping[str, Any], privacy: Sequence[Guarantee] | None = None
) -> RenderableType:
    """Lay out one finished run: what it reached, what it sent, and who is protected from whom.

    Parameters
    ----------
    summary : mapping
        The content of ``summary.json``.
    privacy : sequence of mapping, optional
        The guarantees of ``privacy.json``.

    Returns
    -------
    rich renderable
        A group of two tables, and lines that say what does not hold and why.
    """
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="dim")
    facts.add_column()
    for name, value in _list_facts(summary):
        facts.add_row(name, Text(value))
    parts: list[RenderableType] = [facts, Text()]
    guarantees = list_shown(summary, privacy)
    is_alone = shares_nothing(summary)
    if guarantees:
        parts.append(_guarantee_table(guarantees, is_search(summary)))
    if is_alone:
        parts.append(Text(NOTHING_SHARED))
    elif not guarantees:
        parts.append(Text(Status.NONE.value, style=_STYLES[Status.NONE]))
    # One reason may concern several adversaries: say it once.
    reasons = explain_failures(guarantees)
    is_said = any(reason.startswith(SEEDED_NOTICE.partition(":")[0]) for reason in reasons)
    if is_seeded(summary, guarantees) and not is_said and not is_alone:
        parts.append(Text(f"! {SEEDED_NOTICE}", style=_STYLES[Status.SEEDED]))
    parts += [Text(f"! {reason}") for reason in reasons]
    if summary.get("left_out"):
        parts.append(Text(f"{MISSING} {summary['left_out']}"))
    if summary.get("kept"):
        parts.append(Text(f"! {summary['kept']}"))
    return Group(*parts)


def _list_facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    get = summary.get
    mode = f" ({get('mode')} mode)" if get("mode") else ""
    uplink = format_bytes(get("uplink_bytes_total"))
    bits = get("uplink_bits_per_parameter")
    if bits is not None:
        uplink += f" ({format_number(bits)} bits per parameter and update)"
    return [
        ("Strategy", f"{get('strategy') or MISSING}{mode}"),
        (
            "Rounds",
            f"{format_count(get('num_rounds'))} with {format_count(get('num_clients'))} clients",
        ),
        *([] if is_search(summary) else [("Parameters", format_count(get("num_parameters")))]),
        ("Randomness", f"{get('randomness') or MISSING}, seed {get('seed', MISSING)}"),
        ("Engine", str(get("engine") or MISSING)),
        *_list_noise(summary),
        *(list_search_facts(summary) if is_search(summary) else _list_accuracy(summary)),
        ("Uplink", uplink),
        ("Time", format_duration(get("wall_seconds"))),
    ]


def _list_accuracy(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("Test accuracy", format_share(summary.get("test_accuracy"))),
        ("Test loss", format_number(summary.get("test_loss"))),
    ]


def _list_noise(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say how large the noise is, and which bound it follows; nothing where there is none."""
    kind, std = summary.get("sensitivity"), summary.get("noise_std")
    if kind is None or std is None:
        return []
    return [("Noise", f"standard deviation {format_number(std)} a coordinate (bound: {kind})")]


def _guarantee_table(guarantees: Sequence[Guarantee], of_search: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("Against", "Protected"):
        table.add_column(name)
    for name in ("ε", "δ"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Status", no_wrap=True)
    for guarantee in guarantees:
        status = judge_guarantee(guarantee)
        table.add_row(
            Text(describe_adversary(guarantee, of_search)),
            Text(describe_protection(guarantee, of_search)),
            format_epsilon(guarantee.get("epsilon")),
            format_delta(guarantee.get("delta")),
            Text(status.value, style=_STYLES[status]),
        )
    return table


def sweep_table(
    jobs: Sequence[tuple[Sequence[str], Mapping[str, Any] | str | None]],
) -> Table:
    """Lay out the jobs of a sweep, one line each.

    Parameters
    ----------
    jobs : sequence of (overrides, summary)
        `overrides` are Hydra's, each ``key=value``; `summary` is the content of the job's
        ``summary.json``, a text that stands in its place, or ``None`` if the job failed.

    Returns
    -------
    rich.table.Table
        A column for each key that is overridden and not the same in all jobs (for all keys, where
        the jobs differ in none), then the results: of training, of searches, or of both where both
        were swept.
    """
    settings = [_split_overrides(overrides) for overrides, _ in jobs]
    known = [None if isinstance(summary, str) else summary for _, summary in jobs]
    keys = _choose_keys(settings)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Job", justify="right")
    for key in keys:
        table.add_column(Text(key))
    kinds = {is_search(summary) for summary in known if summary is not None} or {False}
    columns = [name for name, kind in _RESULTS.items() if kind is None or kind in kinds]
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for number, (values, (_, given)) in enumerate(zip(settings, jobs, strict=True)):
        chosen = [Text(values.get(key, "")) for key in keys]
        found = _list_results(known[number])
        instead = Text(given if isinstance(given, str) else "failed", style="bold red")
        cells = [found[name] for name in columns] if found else [instead]
        table.add_row(str(number), *chosen, *cells)
    if any(is_seeded(each, None) and not shares_nothing(each) for each in known):
        table.caption = Text(f"At least one {SEEDED_NOTICE}")
        table.caption_justify = "left"
    return table


def _choose_keys(settings: Sequence[Mapping[str, str]]) -> list[str]:
    keys = list(dict.fromkeys(key for each in settings for key in each))
    return [key for key in keys if len({each.get(key) for each in settings}) > 1] or keys


def _split_overrides(overrides: Sequence[str]) -> dict[str, str]:
    parts = (override.partition("=") for override in overrides)
    return {key: value if separator else "yes" for key, separator, value in parts}


def _list_results(summary: Mapping[str, Any] | None) -> dict[str, Text]:
    """Write each of `_RESULTS`; nothing for a job that failed."""
    if summary is None:
        return {}
    epsilon = summary.get("epsilon")
    style = _STYLES[Status.NONE] if epsilon is None else ""
    return {
        "Test accuracy": Text(format_share(summary.get("test_accuracy"))),
        "Test loss": Text(format_number(summary.get("test_loss"))),
        "Best value": Text(write_value(summary.get("best_value_mean"))),
        "Worst agent": Text(write_value(summary.get("best_value_worst"))),
        "Simple regret": Text(write_value(summary.get("simple_regret_mean"))),
        "Releases": Text(format_count(summary.get("num_releases"))),
        "ε": Text(format_epsilon(epsilon), style=style),
        "δ": Text(format_delta(summary.get("delta")), style=style),
        "Uplink": Text(format_bytes(summary.get("uplink_bytes_total"))),
        "Bits/parameter": Text(format_number(summary.get("uplink_bits_per_parameter"))),
        "Time": Text(format_duration(summary.get("wall_seconds"))),
    }
