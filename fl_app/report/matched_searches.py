"""Find searches that differ in one setting and share seeds, and compare them pair by pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_app.report.paired_differences import MeanEstimate, estimate_mean, share_harmed
from fl_app.report.run_folder import RunFolder
from fl_app.report.search_arms import Arm, BestSoFar, group_arms, read_seed, track_best

ITERATIONS = (5, 10, 20, 40, 60)
HARM = 0.01  # of the values' range
MOST_COMPARISONS = 24
_CONTROL = "strategy.control"
_STRATEGY = "strategy"
_STRATEGY_NAMES = ("strategy.label", "strategy.name", "strategy.mode")
# Other functions to maximise: nothing is paired across these.
_OBJECTIVE = ("objective.", "data.", "model.")
_AGENTS = "num_clients"


@dataclass(frozen=True)
class Comparison:
    """Best values of one configuration minus those of another, paired by seed and agent.

    Attributes
    ----------
    setting : str
        In which they differ: a dotted key, or ``strategy`` for the choice of a strategy file.
    first, second : str
        The labels of the two; differences are first minus second, and higher values are better.
    estimates : dict
        Iteration -> mean difference with its interval. The last is the last iteration that all
        paired runs have reached.
    num_seeds : int
        Seeds that both have. With one, each agent is a cluster, and nothing is said of others.
    harmed : float or None
        Share of pairs in which the second ends better than the first by more than `tolerance`.
    tolerance : float
        `HARM` of the range of all values that the paired runs found.
    """

    setting: str
    first: str
    second: str
    estimates: dict[int, MeanEstimate]
    num_seeds: int
    harmed: float | None
    tolerance: float


def compare_searches(runs: Sequence[RunFolder]) -> list[Comparison]:
    """Compare all searches that can be paired.

    Parameters
    ----------
    runs : sequence of RunFolder
        Any runs; those without queries are passed over.

    Returns
    -------
    list of Comparison
        Of each group that differs in one setting, the first configuration (under
        ``strategy.control`` the one without control) minus each of the others.
    """
    arms = group_arms([run for run in runs if run.search and run.search.queries is not None])
    tracks = {
        id(run): best for arm in arms for run in arm.runs if (best := track_best(run)) is not None
    }
    found = (
        _compare(setting, first, second, tracks) for setting, first, second in _match_arms(arms)
    )
    return [each for each in found if each is not None]


def _match_arms(arms: Sequence[Arm]) -> Iterator[tuple[str, Arm, Arm]]:
    """Yield pairs of arms that differ in one setting, the reference first."""
    known = [arm for arm in arms if arm.settings]
    keys = dict.fromkeys(key for arm in known for key in arm.settings)
    for key in keys:
        if key.startswith(_OBJECTIVE) or key == _AGENTS:
            continue
        groups: dict[frozenset[tuple[str, str]], list[Arm]] = {}
        for arm in known:
            rest = frozenset(item for item in arm.settings.items() if item[0] != key)
            groups.setdefault(rest, []).append(arm)
        for group in groups.values():
            if key == _CONTROL:
                group.sort(key=lambda arm: arm.settings.get(_CONTROL) != "none")
            yield from ((key, group[0], other) for other in group[1:])
    yield from _match_strategies(known)


def _match_strategies(arms: Sequence[Arm]) -> Iterator[tuple[str, Arm, Arm]]:
    """Yield pairs of arms of two strategy files, which differ in several keys of `strategy`."""
    reference = _name_strategy(arms[0]) if arms else ()
    for arm in arms:
        if _name_strategy(arm) != reference:
            continue
        nearest: dict[tuple[str | None, ...], tuple[int, Arm]] = {}
        for other in arms:
            differing = _find_differing(arm, other)
            name = _name_strategy(other)
            inside = all(key.startswith(f"{_STRATEGY}.") for key in differing)
            if name == reference or len(differing) < 2 or not inside:
                continue
            # Beside another setting that was swept, the nearest is the one with the same value.
            if name not in nearest or len(differing) < nearest[name][0]:
                nearest[name] = (len(differing), other)
        yield from ((_STRATEGY, arm, other) for _, other in nearest.values())


def _name_strategy(arm: Arm) -> tuple[str | None, ...]:
    return tuple(arm.settings.get(key) for key in _STRATEGY_NAMES)


def _find_differing(first: Arm, second: Arm) -> list[str]:
    keys = {**first.settings, **second.settings}
    return [key for key in keys if first.settings.get(key) != second.settings.get(key)]


def _compare(
    setting: str, first: Arm, second: Arm, tracks: dict[int, BestSoFar]
) -> Comparison | None:
    ours, theirs = _index_seeds(first, tracks), _index_seeds(second, tracks)
    seeds = [seed for seed in ours if seed in theirs]
    if not seeds:
        return None
    pairs = [(ours[seed], theirs[seed]) for seed in seeds]
    every = [best for pair in pairs for best in pair]
    last = min(best.iterations[-1] for best in every)
    estimates = {}
    top, bottom = max(best.highest for best in every), min(best.lowest for best in every)
    tolerance = HARM * top - HARM * bottom  # the range itself may exceed all floats
    for iteration in [*(each for each in ITERATIONS if each < last), last]:
        differences, clusters = _pair(pairs, iteration)
        try:
            estimates[iteration] = estimate_mean(differences, clusters if len(seeds) > 1 else None)
        except ValueError:  # no pair yet, or numbers whose squares no float holds
            continue
    if not estimates:
        return None
    return Comparison(
        setting=setting,
        first=first.label,
        second=second.label,
        estimates=estimates,
        num_seeds=len(seeds),
        harmed=share_harmed(_pair(pairs, last)[0], tolerance),
        tolerance=tolerance,
    )


def _index_seeds(arm: Arm, tracks: dict[int, BestSoFar]) -> dict[str, BestSoFar]:
    """Map each seed to what the first run that has it found."""
    found: dict[str, BestSoFar] = {}
    for run in arm.runs:
        seed = read_seed(run)
        if seed is not None and id(run) in tracks:
            found.setdefault(seed, tracks[id(run)])
    return found


def _pair(
    pairs: Sequence[tuple[BestSoFar, BestSoFar]], iteration: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the differences of the agents that both runs of a seed know, and their seeds."""
    differences, clusters = [], []
    for place, (ours, theirs) in enumerate(pairs):
        _, mine, others = np.intersect1d(ours.agents, theirs.agents, return_indices=True)
        with np.errstate(over="ignore"):
            each = _values_at(ours, iteration)[mine] - _values_at(theirs, iteration)[others]
        each = each[~np.isnan(each)]
        differences.append(each)
        clusters.append(np.full(each.size, place))
    return np.concatenate(differences), np.concatenate(clusters)


def _values_at(best: BestSoFar, iteration: int) -> NDArray[np.float64]:
    column = int(np.searchsorted(best.iterations, iteration, side="right")) - 1
    if column < 0:
        return np.full(len(best.agents), np.nan)
    return np.asarray(best.values[:, column])
