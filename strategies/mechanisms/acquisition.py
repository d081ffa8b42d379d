"""The next query: where a function on the unit cube is largest.

Random points are compared first; the best are then climbed from by L-BFGS-B within [0, 1]^D. All
climbs are one optimisation: the sum of the function over S points, whose gradient falls apart into
S blocks, so that each step evaluates all of them at once. It goes on until it is clear which climb
leads highest; that one is finished alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize

from strategies.mechanisms.finite_arrays import finite_vector, unit_cube_points
from strategies.mechanisms.parameter_checks import ParameterError, check_integer, check_number
from strategies.mechanisms.rng import Stream
from strategies.mechanisms.smooth_functions import SmoothFunction

Floats = NDArray[np.float64]

# The least progress of a step, over the spread of the random points' values.
_ROUGH, _FINE = 1e-5, 1e-12


@dataclass(frozen=True, eq=False)
class Maximum:
    """Where a function is largest, as far as it was looked for.

    Attributes
    ----------
    point : ndarray of float64, shape (D,)
        In [0, 1]^D.
    value : float
        The function there.
    """

    point: Floats
    value: float


def maximize(
    function: SmoothFunction,
    num_dimensions: int,
    stream: Stream,
    *,
    num_candidates: int = 1000,
    num_starts: int = 20,
) -> Maximum:
    """Maximise a function over [0, 1]^D, edges included.

    A function of the stream and the arguments only. The value is at least that of each random
    point. Of equal values the point drawn first wins.

    Parameters
    ----------
    function : SmoothFunction
        Finite on the cube.
    num_dimensions : int
        D >= 1.
    stream : Stream
        Draws the random points.
    num_candidates : int
        Random points, >= 1.
    num_starts : int
        How many of them are climbed from, >= 0; at most all.

    Raises
    ------
    ParameterError
        If a parameter is not allowed, or the function gives a value that is not finite.
    """
    check_integer("num_candidates", num_candidates, 1)
    check_integer("num_starts", num_starts, 0)
    points = draw_points(num_candidates, num_dimensions, stream)
    values = finite_vector("function", function.values(points), num_candidates)
    order = np.argsort(-values, kind="stable")
    # In units of their spread, so that tolerances mean the same for any function.
    spread = float(values[order[0]] - values[order[-1]])
    order = order[: max(1, num_starts)]
    points, values = points[order], values[order]
    if num_starts > 0:
        for tolerance in (_ROUGH, _FINE):
            ends = _climb(function, points, values, spread or 1.0, tolerance)
            points, values = _keep_better(function, points, values, ends)
            first = int(np.argmax(values))
            points, values = points[first : first + 1], values[first : first + 1]
    return Maximum(points[0], float(values[0]))


def draw_points(num_points: int, num_dimensions: int, stream: Stream) -> Floats:
    """Draw points uniformly on [0, 1)^D, shape (num_points, D)."""
    check_integer("num_points", num_points, 0)
    check_integer("num_dimensions", num_dimensions, 1)
    return stream.uniform(num_points * num_dimensions).reshape(num_points, num_dimensions)


def replace_repeat(
    point: ArrayLike, history: ArrayLike, stream: Stream, *, tolerance: float = 1e-6
) -> Floats:
    """Return the point, or a random one if it was queried before.

    Parameters
    ----------
    point : array_like, shape (D,)
        The next query, in [0, 1]^D.
    history : array_like, shape (n, D)
        Earlier queries, n >= 0. On axes that are rounded (integers, choices), both must be given
        as rounded.
    stream : Stream
        Draws the replacement; untouched if there is none.
    tolerance : float
        Two queries are the same if no coordinate differs by more, >= 0.

    Returns
    -------
    ndarray of float64, shape (D,)

    Raises
    ------
    ParameterError
        If shapes do not fit, or a coordinate is outside [0, 1].
    """
    check_number("tolerance", tolerance, positive=False)
    single = unit_cube_points("point", np.atleast_2d(np.asarray(point)))
    if len(single) != 1:
        raise ParameterError("point", f"{len(single)} points", "one point")
    earlier = unit_cube_points("history", history, single.shape[1])
    if (np.abs(earlier - single).max(axis=1, initial=0.0) <= tolerance).any():
        return stream.uniform(single.size)
    return np.array(single[0])


def _climb(
    function: SmoothFunction, starts: Floats, heights: Floats, spread: float, tolerance: float
) -> Floats:
    """Return the end points, shape (S, D), of a joint ascent from all starts."""
    height = float(heights.sum())

    def loss(flat: Floats) -> tuple[float, Floats]:
        values, gradients = function.values_and_gradients(flat.reshape(starts.shape))
        return (height - float(values.sum())) / spread, gradients.ravel() / -spread

    found = minimize(
        loss,
        starts.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * starts.size,
        options={"maxiter": 100, "ftol": tolerance, "gtol": 1e-8},
    )
    return np.asarray(np.clip(found.x, 0.0, 1.0).reshape(starts.shape))


def _keep_better(
    function: SmoothFunction, points: Floats, values: Floats, ends: Floats
) -> tuple[Floats, Floats]:
    """Return the ends and their values, or the start where its end is no better."""
    end_values = finite_vector("function", function.values(ends), len(ends))
    better = end_values > values
    return np.where(better[:, None], ends, points), np.where(better, end_values, values)
