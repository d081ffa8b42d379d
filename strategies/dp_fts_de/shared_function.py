"""The broadcast as a function on the unit cube: x -> phi(x)^T w^(i[x]), i[x] the box of x."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.mechanisms.acquisition import maximize
from strategies.mechanisms.finite_arrays import finite_matrix
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.rng import Stream
from strategies.mechanisms.smooth_functions import FeatureMap, LinearFunction, SmoothFunction
from strategies.mechanisms.subregions import Subregions

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SharedFunction:
    """Smooth within each box; it may jump between two.

    Attributes
    ----------
    features : FeatureMap
        phi.
    vectors : ndarray of float64, shape (P, M)
        w^(i), finite.
    boxes : Subregions
        The P boxes.

    Raises
    ------
    ParameterError
        If the vectors have another shape or are not finite.
    """

    features: FeatureMap
    vectors: Floats
    boxes: Subregions

    def __post_init__(self) -> None:
        finite_matrix("broadcast", self.vectors, self.features.num_features)
        if len(self.vectors) != self.boxes.num_subregions:
            raise ParameterError(
                "broadcast", f"{len(self.vectors)} vectors", f"{self.boxes.num_subregions}"
            )

    def values(self, points: Floats) -> Floats:
        """Return the values, shape (n,), at points of shape (n, D) in the unit cube."""
        values = np.zeros(len(points))
        for box, there in self._split(points):
            values[there] = LinearFunction(self.features, self.vectors[box]).values(points[there])
        return values

    def values_and_gradients(self, points: Floats) -> tuple[Floats, Floats]:
        """Return the values, shape (n,), and the gradients within the boxes, shape (n, D)."""
        values, gradients = np.zeros(len(points)), np.zeros(points.shape)
        for box, there in self._split(points):
            values[there], gradients[there] = self.features.combine(
                points[there], self.vectors[box]
            )
        return values, gradients

    def _split(self, points: Floats) -> list[tuple[int, NDArray[np.bool_] | slice]]:
        """Return the boxes that hold some of the points, and which."""
        if self.boxes.num_subregions == 1:
            return [(0, slice(None))]
        places = self.boxes.locate(points)
        return [(int(box), places == box) for box in np.unique(places)]

    def maximize(
        self, stream: Stream, *, num_candidates: int = 1000, num_starts: int = 20
    ) -> Floats:
        """Return where the function is largest on the unit cube, shape (D,).

        Each box is searched by itself, with its share of the random points and ascents, for an
        ascent cannot cross from one to another. Of equal values the first box's wins.
        """
        best, largest = np.zeros(self.boxes.num_dimensions), -math.inf
        share = self.boxes.num_subregions
        for box, weights in enumerate(self.vectors):
            lower, upper = self.boxes.bounds(box)
            found = maximize(
                _Stretched(LinearFunction(self.features, weights), lower, upper - lower),
                self.boxes.num_dimensions,
                stream,
                num_candidates=math.ceil(num_candidates / share),
                num_starts=math.ceil(num_starts / share),
            )
            if found.value > largest:
                inside = np.where(upper < 1.0, np.nextafter(upper, 0.0), 1.0)
                best = np.minimum(lower + found.point * (upper - lower), inside)
                largest = found.value
        return best


@dataclass(frozen=True, eq=False)
class CenteredFunction:
    """x -> factor (f(x) - center)."""

    function: SmoothFunction
    factor: float
    center: float

    def values(self, points: Floats) -> Floats:
        """Return the values, shape (n,), at points of shape (n, D)."""
        return self.factor * (self.function.values(points) - self.center)

    def values_and_gradients(self, points: Floats) -> tuple[Floats, Floats]:
        """Return the values, shape (n,), and the gradients, shape (n, D)."""
        values, gradients = self.function.values_and_gradients(points)
        return self.factor * (values - self.center), self.factor * gradients


@dataclass(frozen=True, eq=False)
class _Stretched:
    """u -> f(lower + width u): a box of f as a unit cube."""

    function: SmoothFunction
    lower: Floats
    width: Floats

    def values(self, points: Floats) -> Floats:
        return self.function.values(self.lower + points * self.width)

    def values_and_gradients(self, points: Floats) -> tuple[Floats, Floats]:
        values, gradients = self.function.values_and_gradients(self.lower + points * self.width)
        return values, gradients * self.width
