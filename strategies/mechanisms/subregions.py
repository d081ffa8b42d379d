"""Sub-regions of the search space: equal boxes of [0, 1]^D, and who explores which.

References
----------
Dai, Low, Jaillet: Differentially private federated Bayesian optimization with distributed
exploration, NeurIPS 2021, Section 3.2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.mechanisms.finite_arrays import unit_cube_points
from strategies.mechanisms.parameter_checks import ParameterError, check_integer
from strategies.mechanisms.rng import Stream

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Subregions:
    """P equal boxes that cover [0, 1]^D without overlap.

    A box holds its lower edges; the upper edges belong to the next box, and those of the cube to
    the last. Boxes are numbered from 0, the last axis fastest.

    Attributes
    ----------
    cells : tuple of int
        Number of boxes along each axis, powers of 2; P is their product.

    Raises
    ------
    ParameterError
        If there is no axis, or a number is not a power of 2.
    """

    cells: tuple[int, ...]

    def __post_init__(self) -> None:
        check_integer("num_dimensions", len(self.cells), 1)
        for number in self.cells:
            _check_power_of_two("cells", number)

    @property
    def num_subregions(self) -> int:
        """P."""
        return math.prod(self.cells)

    @property
    def num_dimensions(self) -> int:
        """D."""
        return len(self.cells)

    def locate(self, points: ArrayLike) -> Integers:
        """Return the box of each point, shape (n,), for points of shape (n, D) in [0, 1]^D."""
        x = unit_cube_points("points", points, self.num_dimensions)
        counts = np.array(self.cells)
        # Exact: the counts are powers of two.
        places = np.minimum((x * counts).astype(np.int64), counts - 1)
        return np.asarray(np.ravel_multi_index(tuple(places.T), self.cells), dtype=np.int64)

    def bounds(self, index: int) -> tuple[Floats, Floats]:
        """Return the lower and the upper corner of box `index`, shape (D,) each."""
        check_integer("index", index, 0)
        if index >= self.num_subregions:
            raise ParameterError("index", index, f"below {self.num_subregions}")
        counts = np.array(self.cells, dtype=np.float64)
        corner = np.array(np.unravel_index(index, self.cells), dtype=np.float64)
        return corner / counts, (corner + 1.0) / counts

    def draw_points(self, index: int, num_points: int, stream: Stream) -> Floats:
        """Draw points uniformly in box `index`, its upper edges excluded.

        Parameters
        ----------
        index : int
            0 <= index < P.
        num_points : int
            n >= 0.
        stream : Stream
            The agent's own source of randomness.

        Returns
        -------
        ndarray of float64, shape (n, D)
        """
        check_integer("num_points", num_points, 0)
        lower, upper = self.bounds(index)
        uniform = stream.uniform(num_points * self.num_dimensions)
        points = lower + uniform.reshape(num_points, self.num_dimensions) * (upper - lower)
        # The largest uniform numbers would otherwise round up to the next box.
        return np.asarray(np.minimum(points, np.nextafter(upper, 0.0)))


def split_domain(
    num_subregions: int, num_dimensions: int, splittable: Sequence[bool] | None = None
) -> Subregions:
    """Halve the longest axis again and again until there are P boxes.

    Parameters
    ----------
    num_subregions : int
        P, a power of 2.
    num_dimensions : int
        D >= 1.
    splittable : sequence of bool, length D, or None
        Whether an axis is real-valued; axes of choices are never split, for nothing is near
        anything on them. None means all.

    Returns
    -------
    Subregions
        For D = 2, P = 4: 2 by 2. Of equally long axes the first is halved.

    Raises
    ------
    ParameterError
        If P is no power of 2, or there is no axis to split.
    """
    _check_power_of_two("num_subregions", num_subregions)
    check_integer("num_dimensions", num_dimensions, 1)
    allowed = [True] * num_dimensions if splittable is None else list(splittable)
    if len(allowed) != num_dimensions:
        raise ParameterError("splittable", f"length {len(allowed)}", f"length {num_dimensions}")
    axes = [axis for axis in range(num_dimensions) if allowed[axis]]
    if num_subregions > 1 and not axes:
        raise ParameterError("num_subregions", num_subregions, "1 where no axis is real-valued")
    cells = [1] * num_dimensions
    while math.prod(cells) < num_subregions:
        cells[min(axes, key=lambda axis: cells[axis])] *= 2
    return Subregions(tuple(cells))


def assign_agents(num_agents: int, num_subregions: int) -> Integers:
    """Return the box of each agent, n mod P, shape (num_agents,)."""
    check_integer("num_agents", num_agents, 1)
    check_integer("num_subregions", num_subregions, 1)
    return np.arange(num_agents, dtype=np.int64) % num_subregions


def _check_power_of_two(key: str, value: int) -> None:
    check_integer(key, value, 1)
    if value & (value - 1):
        raise ParameterError(key, value, "a power of 2")
