"""All figures of a page: the charts of training, those of searches, and a search's picture."""

from __future__ import annotations

from collections.abc import Sequence

from fl_app.report.charts import Chart, list_charts
from fl_app.report.run_folder import RunFolder
from fl_app.report.search_arms import Arm, group_arms
from fl_app.report.search_charts import list_search_charts
from fl_app.report.search_picture import SearchPicture, picture_search


def place_runs(runs: Sequence[RunFolder]) -> list[int]:
    """Return the colour of each run: searches that differ only in their seed share theirs."""
    if not all(run.search for run in runs):
        return list(range(len(runs)))
    arms = group_arms(runs)
    return [
        next(i for i, arm in enumerate(arms) if any(each is run for each in arm.runs))
        for run in runs
    ]


def list_figures(runs: Sequence[RunFolder], labels: Sequence[str]) -> list[Chart | SearchPicture]:
    """Choose the figures for which these runs have values.

    Parameters
    ----------
    runs : sequence of RunFolder
        One, or several to compare.
    labels : sequence of str
        Their names, in the same order.

    Returns
    -------
    list of Chart or SearchPicture
        For searches, runs that differ only in their seed share a curve.
    """
    arms = group_arms(runs)
    if not all(run.search for run in runs):
        # Beside training every search keeps its own colour.
        found = [(place, run) for place, run in enumerate(runs) if run.search]
        alone = [Arm(labels[place], {}, (run,)) for place, run in found]
        places = [place for place, _ in found]
        searches = list_search_charts(alone, places) if alone else []
        return [*list_charts(runs, labels), *searches]
    firsts = [arm.runs[0] for arm in arms]
    charts = list_charts(firsts, labels if len(runs) == 1 else [arm.label for arm in arms])
    picture = picture_search(runs[0]) if len(runs) == 1 else None
    return [*list_search_charts(arms), *charts, *([picture] if picture else [])]
