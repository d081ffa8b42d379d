"""Functions with gradients, evaluated at many points at once: what is drawn and maximised."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from strategies.mechanisms.finite_arrays import finite_vector

Floats = NDArray[np.float64]

# Numbers in a matrix of features: so many stay in a processor's cache, and need no new memory.
_PIECE = 2**14


class SmoothFunction(Protocol):
    """A differentiable function on R^D."""

    def values(self, points: Floats) -> Floats:
        """Return the values, shape (n,), at points of shape (n, D)."""

    def values_and_gradients(self, points: Floats) -> tuple[Floats, Floats]:
        """Return the values, shape (n,), and the gradients, shape (n, D)."""


class FeatureMap(Protocol):
    """A map phi from R^D to R^M; its inner products approximate a kernel."""

    @property
    def num_features(self) -> int:
        """M."""

    @property
    def num_dimensions(self) -> int:
        """D."""

    def values(self, points: Floats) -> Floats:
        """Return phi, shape (n, M), at points of shape (n, D)."""

    def gradients(self, points: Floats) -> Floats:
        """Return d phi_m / d x_d, shape (n, M, D)."""

    def combine(self, points: Floats, weights: Floats) -> tuple[Floats, Floats]:
        """Return phi(x)^T w and its gradient in x, shapes (n,) and (n, D), for w of shape (M,)."""


@dataclass(frozen=True, eq=False)
class LinearFunction:
    """x -> phi(x)^T w.

    Attributes
    ----------
    features : FeatureMap
        phi, with M features.
    weights : ndarray of float64, shape (M,)
        w, finite.

    Raises
    ------
    ParameterError
        If the weights have another shape or are not finite.
    """

    features: FeatureMap
    weights: Floats

    def __post_init__(self) -> None:
        finite_vector("weights", self.weights, self.features.num_features)

    def values(self, points: Floats) -> Floats:
        """Return the values, shape (n,), at points of shape (n, D)."""
        size = max(1, _PIECE // self.features.num_features)
        pieces = [points[start : start + size] for start in range(0, max(1, len(points)), size)]
        return np.concatenate([self.features.values(piece) @ self.weights for piece in pieces])

    def values_and_gradients(self, points: Floats) -> tuple[Floats, Floats]:
        """Return the values, shape (n,), and the gradients, shape (n, D)."""
        return self.features.combine(points, self.weights)
