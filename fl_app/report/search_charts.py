"""Choose what to draw of searches: best values, regrets, and what the broadcasts were worth."""

from __future__ import annotations

from collections.abc import Sequence

from fl_app.report.charts import Chart, Curve, spans_decades
from fl_app.report.run_folder import RunFolder
from fl_app.report.search_arms import Arm, average_best

_ITERATION = "Iteration (0: initial points)"
_BEST = "Best value so far (higher is better)"


def list_search_charts(arms: Sequence[Arm], places: Sequence[int] | None = None) -> list[Chart]:
    """Choose the charts for which these searches have values.

    Parameters
    ----------
    arms : sequence of Arm
        One of one run for a page about that run, else what is to be compared.
    places : sequence of int, optional
        The colour of each; 0, 1, ... by default.

    Returns
    -------
    list of Chart
        Best value so far, simple and cumulative regret against iterations, and for a single run
        the signal-to-noise ratio and the sharing gain of its releases; those without a single
        known value are left out.
    """
    if len(arms) == 1 and len(arms[0].runs) == 1:
        charts = _list_single(arms[0])
    else:
        charts = _list_compared(arms, range(len(arms)) if places is None else places)
    return [chart for chart in charts if chart.curves]


def _list_single(arm: Arm) -> list[Chart]:
    run = arm.runs[0]
    simple = _trace_pair(run, "simple_regret")
    release = _trace(0, "release", [run], "signal_to_noise", first=0)
    gain = _trace(0, "release", [run], "sharing_gain", first=0)
    best = [*_trace_best(0, arm), *_trace(1, "worst agent", [run], "best_value_worst")]
    return [
        Chart("best_by_iteration", "Best value so far", _ITERATION, _BEST, best),
        Chart(
            "simple_regret_by_iteration",
            "Simple regret",
            _ITERATION,
            "Maximum − best value so far",
            simple,
            log_y=spans_decades(simple),
            reference=None if spans_decades(simple) else 0.0,
        ),
        Chart(
            "cumulative_regret_by_iteration",
            "Cumulative regret: sum over all queries so far",
            _ITERATION,
            "Cumulative regret",
            _trace_pair(run, "cumulative_regret"),
        ),
        Chart(
            "signal_by_release",
            "Signal-to-noise ratio of each release",
            "Round",
            "Signal / noise (line: 1)",
            release,
            log_y=spans_decades(release),
            from_zero=not spans_decades(release),
            reference=1.0,
        ),
        Chart(
            "sharing_gain_by_release",
            "Sharing gain of each release",
            "Round",
            "Sharing gain (line: 0)",
            gain,
            reference=0.0,
        ),
    ]


def _list_compared(arms: Sequence[Arm], places: Sequence[int]) -> list[Chart]:
    pairs = list(zip(places, arms, strict=True))

    def trace(key: str) -> list[Curve]:
        return [curve for place, arm in pairs for curve in _trace(place, arm.label, arm.runs, key)]

    best = [curve for place, arm in pairs for curve in _trace_best(place, arm, arm.label)]
    simple = trace("simple_regret_mean")
    return [
        Chart(
            "best_by_iteration",
            "Best value so far: mean over agents, 95% interval",
            _ITERATION,
            _BEST,
            best,
        ),
        Chart(
            "worst_by_iteration",
            "Best value so far of the worst agent",
            _ITERATION,
            _BEST,
            trace("best_value_worst"),
        ),
        Chart(
            "simple_regret_by_iteration",
            "Simple regret: mean over agents",
            _ITERATION,
            "Maximum − best value so far",
            simple,
            log_y=spans_decades(simple),
        ),
        Chart(
            "cumulative_regret_by_iteration",
            "Cumulative regret: mean over agents",
            _ITERATION,
            "Cumulative regret",
            trace("cumulative_regret_mean"),
        ),
    ]


def _trace_best(place: int, arm: Arm, label: str | None = None) -> list[Curve]:
    """Trace the mean over agents with its band; without queries, the mean that was recorded."""
    estimates = average_best(arm)
    if not estimates:
        return _trace(place, label or "mean over agents", arm.runs, "best_value_mean")
    every = list(estimates.values())
    ends = [(each.low, each.high) for each in every]
    low, high = ([end for end in side if end is not None] for side in zip(*ends, strict=True))
    banded = len(low) == len(every)
    name = f"mean of {every[-1].num_values} agents" + (", with 95% interval" if banded else "")
    x, y = [float(each) for each in estimates], [each.mean for each in every]
    return [Curve(place, label or name, x, y, low=low * banded, high=high * banded)]


def _trace_pair(run: RunFolder, key: str) -> list[Curve]:
    mean = _trace(0, "mean over agents", [run], f"{key}_mean")
    return [*mean, *_trace(1, "worst agent", [run], f"{key}_worst")]


def _trace(
    place: int, label: str, runs: Sequence[RunFolder], key: str, first: int = 1
) -> list[Curve]:
    """Trace the mean over runs of what their metrics hold, where all of them hold it.

    Round `first` is drawn at zero.
    """
    known = [
        {row["round"] - first: row[key] for row in run.metrics if row.get(key) is not None}
        for run in runs
    ]
    shared = [at for at in sorted(set.intersection(*map(set, known))) if at >= 0]
    # Divided first: a sum of large numbers would be infinite.
    y = [sum(each[at] / len(known) for each in known) for at in shared]
    return [Curve(place, label, [float(at) for at in shared], y)] if shared else []
