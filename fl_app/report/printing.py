"""Print what is known of several runs: the jobs of a sweep, or searches to compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from fl_app.report.formats import format_duration
from fl_app.report.matched_searches import compare_searches
from fl_app.report.published import published_table
from fl_app.report.run_folder import RunFolder
from fl_app.report.run_labels import label_runs, name_objectives
from fl_app.report.search_tables import paired_table
from fl_app.report.tables import print_tables, summary_table, sweep_table


@dataclass(frozen=True)
class SweepJob:
    """What a job of a sweep has come to.

    Attributes
    ----------
    overrides : sequence of str
        As typed, each ``key=value``.
    run : RunFolder or None
        None if it left no results.
    num_rounds : int or None
        That were planned.
    is_failed : bool
    """

    overrides: Sequence[str]
    run: RunFolder | None
    num_rounds: int | None = None
    is_failed: bool = False

    @property
    def summary(self) -> Mapping[str, Any] | None:
        """The run's results."""
        return self.run.summary if self.run else None

    @property
    def is_finished(self) -> bool:
        """Whether the run has reached its end."""
        if self.summary is None or not self.summary.get("interrupted"):
            return self.summary is not None
        return self.num_rounds is not None and (self.summary["num_rounds"] or 0) >= self.num_rounds

    def describe(self) -> str:
        """Say how it ended, in a few words."""
        if self.is_failed:
            return "failed"
        summary = self.summary or {}
        rounds, seconds = summary.get("num_rounds"), summary.get("wall_seconds")
        if not self.is_finished:
            return "stopped" if rounds is None else f"{rounds} of {self.num_rounds} rounds"
        return f"{rounds} rounds" + (f" in {format_duration(seconds)}" if seconds else "")


def print_sweep(jobs: Sequence[SweepJob], total: int | None = None) -> None:
    """Print the results of a sweep, beside published ones and pair by pair where that applies.

    Parameters
    ----------
    jobs : sequence of SweepJob
        Those that have begun.
    total : int, optional
        Of all; None: as many.
    """
    total = len(jobs) if total is None else total
    finished = [(number, job) for number, job in enumerate(jobs) if job.is_finished]
    results = [job.summary if job.is_finished else job.describe() for job in jobs]
    overrides = [job.overrides for job in jobs]
    print_tables(sweep_table(list(zip(overrides, results, strict=True))))
    if words := _describe_rest(jobs, total):
        print_tables(Text(words))
    labels = _number_jobs(overrides)
    if beside := published_table([(labels[number], job.summary) for number, job in finished]):
        print_tables(beside)
    _print_pairs([job.run for _, job in finished if job.run is not None])


def _describe_rest(jobs: Sequence[SweepJob], total: int) -> str:
    """Say which jobs of a sweep have no results; nothing if all have."""
    unfinished = [
        number for number, job in enumerate(jobs) if not (job.is_finished or job.is_failed)
    ]
    kinds = {
        "failed": [number for number, job in enumerate(jobs) if job.is_failed],
        "unfinished": unfinished,
        "not begun": list(range(len(jobs), total)),
    }
    words = [f"{write_numbers(which)} {name}" for name, which in kinds.items() if which]
    if not words:
        return ""
    count = sum(job.is_finished for job in jobs)
    text = f"{count} of {total} jobs finished; {', '.join(words)}."
    return f"{text} What follows compares the finished ones alone." if count > 1 else text


def _number_jobs(jobs: Sequence[Sequence[str]]) -> list[str]:
    """Return the number of each job; of those that differ in their seed alone, all numbers."""
    groups: dict[frozenset[str], list[int]] = {}
    settings = [
        frozenset(word for word in overrides if not word.startswith("seed=")) for overrides in jobs
    ]
    for number, each in enumerate(settings):
        groups.setdefault(each, []).append(number)
    return [write_numbers(groups[each]) for each in settings]


def write_numbers(numbers: Sequence[int]) -> str:
    """Write the numbers of jobs, which are in their order."""
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
        named = zip(label_runs(runs), name_objectives(runs), runs, strict=True)
        rows = [([f"run={label}", *words], run.summary or {}) for label, words, run in named]
        print_tables(sweep_table(rows))
        _print_pairs(runs)
    elif runs[0].summary is not None:
        print_tables(summary_table(runs[0].summary, runs[0].privacy))


def _print_pairs(runs: Sequence[RunFolder]) -> None:
    if pairs := paired_table(compare_searches(runs)):
        print_tables(pairs)
