"""Print what is known of several runs: the jobs of a sweep, or searches to compare."""

from __future__ import annotations

from collections.abc import Sequence

from fl_app.report.matched_searches import compare_searches
from fl_app.report.published import published_table
from fl_app.report.run_folder import RunFolder
from fl_app.report.run_labels import label_runs
from fl_app.report.search_tables import paired_table
from fl_app.report.tables import print_tables, summary_table, sweep_table


def print_sweep(jobs: Sequence[tuple[Sequence[str], RunFolder | None]]) -> None:
    """Print the results of a sweep, beside published ones and pair by pair where that applies.

    Parameters
    ----------
    jobs : sequence of (overrides, run)
        `overrides` are Hydra's, each ``key=value``; the run is ``None`` if the job failed.
    """
    results = [(overrides, run.summary if run else None) for overrides, run in jobs]
    print_tables(sweep_table(results))
    labels = _number_jobs([overrides for overrides, _ in jobs])
    if beside := published_table(
        [(label, summary) for label, (_, summary) in zip(labels, results, strict=True)]
    ):
        print_tables(beside)
    _print_pairs([run for _, run in jobs if run is not None])


def _number_jobs(jobs: Sequence[Sequence[str]]) -> list[str]:
    """Return the number of each job; of those that differ in their seed alone, all numbers."""
    groups: dict[frozenset[str], list[int]] = {}
    settings = [
        frozenset(word for word in overrides if not word.startswith("seed=")) for overrides in jobs
    ]
    for number, each in enumerate(settings):
        groups.setdefault(each, []).append(number)
    return [_write_numbers(groups[each]) for each in settings]


def _write_numbers(numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 1 and last - first == len(numbers) - 1:
        return f"{first}–{last}"
    return ", ".join(map(str, numbers))


def print_searches(runs: Sequence[RunFolder]) -> None:
    """Print what searches have found; nothing of runs that train a model.

    Parameters
    ----------
    runs : sequence of RunFolder
        At least one.
    """
    if not all(run.search for run in runs):
        return
    if len(runs) > 1:
        named = zip(label_runs(runs), runs, strict=True)
        print_tables(sweep_table([([f"run={label}"], run.summary or {}) for label, run in named]))
        _print_pairs(runs)
    elif runs[0].summary is not None:
        print_tables(summary_table(runs[0].summary, runs[0].privacy))


def _print_pairs(runs: Sequence[RunFolder]) -> None:
    if pairs := paired_table(compare_searches(runs)):
        print_tables(pairs)
