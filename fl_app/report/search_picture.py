"""What a picture of a search shows: queries, sub-regions and the last broadcast over the space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_app.report.run_folder import RunFolder
from fl_app.report.search_record import BestPoints, SharedFunction
from fl_app.search_space import Axis, ChoiceAxis

Floats = NDArray[np.float64]
_MOST_QUERIES = 1500  # more would hide each other, and make the page large
_MOST_TICKS = 5
_LONGEST_TICK = 12


@dataclass(frozen=True)
class PictureAxis:
    """An axis of the picture: its name, and what is written where along the unit interval."""

    label: str
    ticks: tuple[float, ...]
    tick_labels: tuple[str, ...]


@dataclass(frozen=True)
class SearchPicture:
    """A search over one or two axes, in the unit cube.

    Attributes
    ----------
    name, title : str
        The stem of the file name, and the words above.
    axes : tuple of PictureAxis
        One or two.
    points : ndarray of float64, shape (n, D)
        Queries, or a random sample of them.
    values : ndarray of float64, shape (n,)
        What they found; NaN where nothing.
    iterations : ndarray of int64, shape (n,)
        0 for initial points.
    is_shared : ndarray of bool, shape (n,)
        Whether a query was the maximum of a broadcast.
    best, best_values : ndarray of float64, shape (m, D) and (m,)
        The agents' best points.
    shared : SharedFunction or None
        The last broadcast.
    shared_best : ndarray of float64, shape (D,), or None
        Its maximum.
    """

    name: str
    title: str
    axes: tuple[PictureAxis, ...]
    points: Floats
    values: Floats
    iterations: NDArray[np.int64]
    is_shared: NDArray[np.bool_]
    best: Floats
    best_values: Floats
    shared: SharedFunction | None
    shared_best: Floats | None


def picture_search(run: RunFolder) -> SearchPicture | None:
    """Choose what a picture of a search shows.

    Parameters
    ----------
    run : RunFolder
        Any run.

    Returns
    -------
    SearchPicture or None
        ``None`` for training, for a space of more than two axes, and without queries and
        broadcast.
    """
    if run.search is None:
        return None
    queries, best, shared = run.search.queries, run.search.best, run.search.shared
    points = np.empty((0, 0)) if queries is None else queries.points
    dimension = points.shape[1] or (len(shared.axes) if shared else 0)
    axes = _name_axes(best, shared, dimension)
    if dimension not in (1, 2) or len(axes) != dimension:
        return None
    if shared is not None and len(shared.axes) != dimension:
        shared = None
    found = np.empty(0) if queries is None else queries.values
    chosen = np.arange(found.size)
    if found.size > _MOST_QUERIES:
        chosen = np.sort(np.random.default_rng(0).choice(chosen, _MOST_QUERIES, replace=False))
    title = "The search"
    if chosen.size < found.size:
        title += f" ({chosen.size} of {found.size} queries, drawn at random)"
    tops = [each for each in best.agents if each.value is not None] if best else []
    known = best.shared if best else None
    return SearchPicture(
        name="search",
        title=title,
        axes=axes,
        points=points[chosen] if found.size else np.empty((0, dimension)),
        values=found[chosen],
        iterations=queries.rounds[chosen] - 1 if queries else np.empty(0, dtype=np.int64),
        is_shared=queries.is_shared[chosen] if queries else np.empty(0, dtype=bool),
        best=np.array([each.place for each in tops]).reshape(len(tops), dimension),
        best_values=np.array([each.value for each in tops], dtype=np.float64),
        shared=shared,
        shared_best=known.place if known is not None else None,
    )


def _name_axes(
    best: BestPoints | None, shared: SharedFunction | None, dimension: int
) -> tuple[PictureAxis, ...]:
    if best is not None:
        return tuple(_label_axis(axis) for axis in best.space.axes)
    names = shared.axes if shared else [f"axis {number + 1}" for number in range(dimension)]
    ticks = (0.0, 0.25, 0.5, 0.75, 1.0)
    words = tuple(f"{each:g}" for each in ticks)
    return tuple(PictureAxis(f"{name} (unit cube)", ticks, words) for name in names)


def _label_axis(axis: Axis) -> PictureAxis:
    if isinstance(axis, ChoiceAxis):
        step = -(-len(axis.values) // _MOST_TICKS)
        chosen = axis.values[::step]
        words = [str(each) for each in chosen]
        words = [f"{each[: _LONGEST_TICK - 1]}…" if len(each) > 12 else each for each in words]
        return PictureAxis(axis.name, tuple(axis.to_unit(each) for each in chosen), tuple(words))
    ticks = tuple(float(each) for each in np.linspace(0.0, 1.0, _MOST_TICKS))
    words = [f"{axis.from_unit(each):.3g}" for each in ticks]
    scale = " (log scale)" if axis.kind.startswith("log_") else ""
    return PictureAxis(axis.name + scale, ticks, tuple(words))
