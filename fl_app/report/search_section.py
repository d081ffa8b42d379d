"""The page's account of a search: the best points, and differences paired by seed and agent."""

from __future__ import annotations

from collections.abc import Sequence

from fl_app.report.formats import format_count, format_number
from fl_app.report.markup import Markup, element, join, table
from fl_app.report.matched_searches import compare_searches
from fl_app.report.run_folder import RunFolder
from fl_app.report.search_record import BestPoint
from fl_app.report.search_tables import (
    PAIRED_HEADERS,
    describe_noise_share,
    explain_paired,
    list_paired,
    write_value,
)

_OPEN_UP_TO = 12  # rows that do not push the rest of the page away
_MOST_ROWS = 1000


def write_best_points(run: RunFolder) -> Markup:
    """Lay out the best point of the last broadcast, and those of the agents.

    Parameters
    ----------
    run : RunFolder
        Any run.

    Returns
    -------
    Markup
        A heading and two tables; nothing for training and before there is a point.
    """
    best = run.search.best if run.search else None
    if best is None:
        return Markup()
    names = list(best.space.names)
    parts = [element("h2", "Best points")]
    if best.shared is not None:
        row = [
            f"Last broadcast (round {best.shared.release_round})",
            write_value(best.shared.value),
        ]
        parts.append(
            table(["Shared", "Value", *names], [[*row, *_list_values(best.shared, names)]])
        )
        if note := _judge_noise(best.shared):
            parts.append(element("p", note, class_="soft"))
    else:
        parts.append(element("p", "Nothing was broadcast.", class_="soft"))
    if not best.agents:
        note = "The agents' own best points stay on their devices."
        return join([*parts, element("p", note, class_="soft")])
    rows = [
        [
            *(each.agent, write_value(each.value), *_list_values(each, names)),
            *(each.failures, each.outside),
        ]
        for each in best.agents[:_MOST_ROWS]
    ]
    agents = table(["Agent", "Value", *names, "Failed evaluations", "Values outside"], rows)
    if len(best.agents) > _OPEN_UP_TO:
        count = format_count(len(best.agents))
        agents = element("details", element("summary", f"Best point of {count} agents"), agents)
    parts.append(agents)
    if len(best.agents) > _MOST_ROWS:
        more = format_count(len(best.agents) - _MOST_ROWS)
        parts.append(element("p", f"{more} more agents are in best_point.json.", class_="soft"))
    return join(parts)


def _judge_noise(shared: BestPoint) -> str:
    """Say how much of the broadcast is noise; nothing where it has none."""
    said = describe_noise_share(shared.noise_share, shared.mostly_noise)
    if shared.signal_to_noise is not None:
        measured = format_number(shared.signal_to_noise)
        said.append(f"measured, its signal is {measured} times the noise")
    return "; ".join(["The last broadcast: " + said[0], *said[1:]]) + "." if said else ""


def _list_values(best: BestPoint, names: Sequence[str]) -> list[str]:
    return [_write(best.point[name]) for name in names]


def _write(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def write_paired(runs: Sequence[RunFolder]) -> Markup:
    """Lay out the differences between searches that differ in one setting and share seeds.

    Parameters
    ----------
    runs : sequence of RunFolder
        The runs of the page.

    Returns
    -------
    Markup
        A heading, a table and how it is to be read; nothing where there is no search.
    """
    searches = [run for run in runs if run.search]
    if len(searches) < 2:
        return Markup()
    heading = element("h2", "Paired differences of the best value")
    comparisons = compare_searches(searches)
    if not comparisons:
        why = (
            "No two of these searches can be paired: that takes seeded runs of one objective that "
            "share a seed and differ in one setting."
        )
        return join([heading, element("p", why, class_="soft")])
    rows = list_paired(comparisons)
    notes = [element("p", line, class_="soft small") for line in explain_paired(comparisons)]
    return join([heading, table(PAIRED_HEADERS, rows, text=2), *notes])
