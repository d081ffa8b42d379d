"""What is said of searches in tables, on the terminal and on the page alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fl_app.report.formats import MISSING, format_count, format_number, format_share
from fl_app.report.matched_searches import HARM, ITERATIONS, MOST_COMPARISONS, Comparison
from fl_app.report.paired_differences import LEVEL, MeanEstimate

PAIRED_HEADERS = (
    *("A", "B", "Iteration", "A − B", f"{LEVEL:.0%} interval", "Interval", "Pairs", "Seeds"),
    "A harmed",
)
_TEXT_COLUMNS = 2


def list_search_facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say what a search has found, as names and values."""
    get = summary.get
    multiplier = get("noise_multiplier")
    noise = describe_noise_share(get("noise_share"), bool(get("mostly_noise")))
    releases = format_count(get("num_releases"))
    if multiplier is not None and get("num_releases") != 0:
        releases += f" (noise multiplier {format_number(multiplier)})"
    return [
        ("Objective", str(get("objective") or MISSING)),
        ("Control", str(get("control") or MISSING)),
        ("Best value", f"{write_value(get('best_value_mean'))} (mean over agents)"),
        ("Worst agent", write_value(get("best_value_worst"))),
        ("Simple regret", f"{write_value(get('simple_regret_mean'))} (mean over agents)"),
        ("Releases", releases),
        *(("Shared point", text) for text in noise),
    ]


def describe_noise_share(share: float | None, mostly_noise: bool) -> list[str]:
    """Say, in a line, how much of a release is noise; none where there is no noise."""
    if share is None:
        return []
    text = f"noise {format_number(share)} times the largest signal that there can be"
    return [f"mostly noise ({text})" if mostly_noise else text]


def write_value(value: float | None) -> str:
    """Write a value of the objective; a dash for ``None``."""
    return format_number(value, 5)


def list_paired(comparisons: Sequence[Comparison]) -> Iterator[list[str]]:
    """Write paired differences, a row an iteration under `PAIRED_HEADERS`."""
    for each in comparisons[:MOST_COMPARISONS]:
        last = max(each.estimates)
        for index, (iteration, estimate) in enumerate(each.estimates.items()):
            yield [
                *((each.first, each.second) if index == 0 else ("", "")),
                str(iteration),
                f"{estimate.mean:+.3g}",
                _write_interval(estimate),
                _judge_interval(estimate),
                str(estimate.num_values),
                str(each.num_seeds),
                format_share(each.harmed) if iteration == last else "",
            ]


def _write_interval(estimate: MeanEstimate) -> str:
    if estimate.low is None or estimate.high is None:
        return MISSING
    return f"[{estimate.low:+.3g}, {estimate.high:+.3g}]"


def _judge_interval(estimate: MeanEstimate) -> str:
    if estimate.low is None or estimate.high is None:
        return MISSING
    return "above 0" if estimate.low > 0 else "below 0" if estimate.high < 0 else "holds 0"


def explain_paired(comparisons: Sequence[Comparison]) -> list[str]:
    """Say how the paired differences are to be read; nothing if there are none."""
    if not comparisons:
        return []
    iterations = ", ".join(map(str, ITERATIONS))
    widths = [each.tolerance for each in comparisons]
    tolerances = (min(widths), max(widths))
    lines = [
        "A − B: best value so far of A minus that of B, mean over pairs of the same seed and "
        f"agent, at iterations {iterations} and the last that all have reached; above 0, A is "
        f"better. Each {LEVEL:.0%} interval holds for itself, not all of them at once.",
        "Harmed: share of pairs in which B ends better by more than "
        f"{HARM:.0%} of the range of all values found "
        f"({' to '.join(dict.fromkeys(f'{end:.3g}' for end in tolerances))}).",
    ]
    if any(each.num_seeds > 1 for each in comparisons):
        lines.append("Intervals are clustered by seed (Student's t, seeds - 1 degrees of freedom).")
    if any(each.num_seeds == 1 for each in comparisons):
        lines.append(
            "One seed: each agent is taken for independent; the interval says nothing of other "
            "seeds, and is too narrow for them."
        )
    if len(comparisons) > MOST_COMPARISONS:
        lines.append(f"{len(comparisons) - MOST_COMPARISONS} more comparisons are left out.")
    return lines


def paired_table(comparisons: Sequence[Comparison]) -> Group | None:
    """Lay out paired differences for the terminal.

    Parameters
    ----------
    comparisons : sequence of Comparison
        What `fl_app.report.matched_searches.compare_searches` returned.

    Returns
    -------
    rich.console.Group or None
        A table, and how it is to be read; None if there is none.
    """
    if not comparisons:
        return None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(PAIRED_HEADERS):
        is_text = index < _TEXT_COLUMNS
        table.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text)
    for row in list_paired(comparisons):
        table.add_row(*map(Text, row))
    return Group(table, *map(Text, explain_paired(comparisons)))
