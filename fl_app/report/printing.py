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
    if beside := published_table([(str(n), each) for n, (_, each) in enumerate(results)]):
        print_tables(beside)
    _print_pairs([run for _, run in jobs if run is not None])


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
