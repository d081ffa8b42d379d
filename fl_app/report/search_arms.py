"""Searches that differ in nothing but their seed, and what their agents have found by when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_app.report.paired_differences import MeanEstimate, estimate_mean
from fl_app.report.run_folder import RunFolder
from fl_app.report.run_labels import label_runs, list_effective, list_settings

_SEED = "seed"


@dataclass(frozen=True)
class BestSoFar:
    """The best value of each agent by the end of each iteration.

    Attributes
    ----------
    iterations : tuple of int
        Rising; 0 is the initial points, iteration t is round t + 1.
    agents : tuple of int
        Those that have answered, rising.
    values : ndarray of float64, shape (len(agents), len(iterations))
        NaN while an agent has no value yet.
    lowest, highest : float
        The range of all values found, not of the best ones only.
    """

    iterations: tuple[int, ...]
    agents: tuple[int, ...]
    values: NDArray[np.float64]
    lowest: float
    highest: float


@dataclass(frozen=True)
class Arm:
    """Runs of one configuration over different seeds.

    Attributes
    ----------
    label : str
        Its name.
    settings : dict
        The configuration without the seed: dotted key -> value as written.
    runs : tuple of RunFolder
        At least one.
    """

    label: str
    settings: dict[str, str]
    runs: tuple[RunFolder, ...]


def read_seed(run: RunFolder) -> str | None:
    """Return the seed of a run, as written; ``None`` if it is not recorded."""
    seed = list_settings(run.config_text).get(_SEED)
    recorded = (run.summary or {}).get("seed")
    return seed if seed is not None or recorded is None else str(recorded)


def group_arms(runs: Sequence[RunFolder]) -> list[Arm]:
    """Put runs together that differ in nothing but their seed.

    Parameters
    ----------
    runs : sequence of RunFolder
        In the order in which they shall appear.

    Returns
    -------
    list of Arm
        In the order of their first runs. A run without a configuration stays alone.
    """
    groups: dict[object, list[RunFolder]] = {}
    for index, run in enumerate(runs):
        settings = _list_settings(run)
        key = frozenset(settings.items()) if settings else index
        groups.setdefault(key, []).append(run)
    labels = label_runs([each[0] for each in groups.values()]) if groups else []
    return [
        Arm(label, _list_settings(each[0]), tuple(each))
        for label, each in zip(labels, groups.values(), strict=True)
    ]


def _list_settings(run: RunFolder) -> dict[str, str]:
    settings = list_effective(run.config_text)
    return {key: value for key, value in settings.items() if key != _SEED}


def track_best(run: RunFolder) -> BestSoFar | None:
    """Follow the best value of each agent.

    Parameters
    ----------
    run : RunFolder
        A search.

    Returns
    -------
    BestSoFar or None
        For the rounds of its metrics; ``None`` if no queries were left.
    """
    queries = run.search.queries if run.search else None
    rounds = np.array([row["round"] for row in run.metrics if row["round"] > 0], dtype=np.int64)
    if queries is None or rounds.size == 0:
        return None
    # Queries may be a round ahead of the metrics of a running search.
    known = np.isfinite(queries.values) & (queries.rounds <= rounds[-1])
    agents, rows = np.unique(queries.agents[known], return_inverse=True)
    if agents.size == 0:
        return None
    columns = np.searchsorted(rounds, queries.rounds[known])
    best = np.full((agents.size, rounds.size), -np.inf)
    np.maximum.at(best, (rows, columns), queries.values[known])
    best = np.maximum.accumulate(best, axis=1)
    best[np.isneginf(best)] = np.nan
    return BestSoFar(
        iterations=tuple(int(each) - 1 for each in rounds),
        agents=tuple(int(each) for each in agents),
        values=best,
        lowest=float(queries.values[known].min()),
        highest=float(queries.values[known].max()),
    )


def average_best(arm: Arm) -> dict[int, MeanEstimate]:
    """Average the best value so far over the agents of all runs of an arm.

    Parameters
    ----------
    arm : Arm
        Runs with queries.

    Returns
    -------
    dict
        Iteration -> estimate, for the iterations that every run with queries has reached and in
        which somebody has a value. Clustered by seed if there are several, else over the agents.
    """
    tracks = [(read_seed(run), best) for run in arm.runs if (best := track_best(run)) is not None]
    if not tracks:
        return {}
    shared = set.intersection(*(set(best.iterations) for _, best in tracks))
    seeds = list(dict.fromkeys(seed for seed, _ in tracks))
    estimates = {}
    for iteration in sorted(shared):
        columns = [best.values[:, best.iterations.index(iteration)] for _, best in tracks]
        values = np.concatenate(columns)
        places = [seeds.index(seed) for seed, _ in tracks]
        clusters = np.repeat(places, [len(each) for each in columns])
        known = np.isfinite(values)
        try:
            estimates[iteration] = estimate_mean(
                values[known], clusters[known] if len(seeds) > 1 else None
            )
        except ValueError:  # nobody has a value yet, or no float holds its square
            continue
    return estimates
