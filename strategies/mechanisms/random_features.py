"""Random Fourier features of the squared exponential kernel.

The kernel is k(x, x') = v exp(-|x - x'|^2 / (2 l^2)). With s_m ~ N(0, I / l^2) and
b_m ~ U[0, 2 pi], cos(s_m . x + b_m) cos(s_m . x' + b_m) has mean k(x, x') / (2 v), so that

    phi(x) = sqrt(2 v / M) (cos(s_1 . x + b_1), ..., cos(s_M . x + b_M))

has inner products that tend to k as M grows, with errors of order v / sqrt(M).

References
----------
Rahimi, Recht: Random features for large-scale kernel machines, NeurIPS 2007. Scaling phi to unit
length follows the program of Dai, Low, Jaillet: Differentially private federated Bayesian
optimization with distributed exploration, NeurIPS 2021.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.mechanisms.cosine import cosines_of_turns
from strategies.mechanisms.finite_arrays import finite_matrix, finite_vector
from strategies.mechanisms.parameter_checks import ParameterError, check_integer, check_number
from strategies.mechanisms.rng import Stream

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RandomFeatures:
    """Random Fourier features, fixed once drawn.

    Agents can only add up their weights if they have the same features, so these come from a
    stream that everybody can open: they are public, and no noise may be drawn from that stream.

    Attributes
    ----------
    frequencies : ndarray of float64, shape (M, D)
        s_m, in radians per unit of x.
    phases : ndarray of float64, shape (M,)
        b_m, in radians.
    lengthscales : ndarray of float64, shape (D,)
        l > 0 of each axis, in the unit of x.
    outputscale : float
        v > 0, the kernel at distance zero.
    unit_length : bool
        Whether |phi(x)|^2 = v exactly at each x (the default, for what agents share) instead of on
        average. For one feature, phi is then +-sqrt(v).
    """

    frequencies: Floats
    phases: Floats
    lengthscales: Floats
    outputscale: float
    unit_length: bool = True

    def __post_init__(self) -> None:
        num_features, num_dimensions = finite_matrix("frequencies", self.frequencies).shape
        check_integer("num_random_features", num_features, 1)
        finite_vector("phases", self.phases, num_features)
        lengthscales = finite_vector("lengthscales", self.lengthscales, num_dimensions)
        if lengthscales.min() <= 0.0:
            raise ParameterError("lengthscales", "a number <= 0", "numbers > 0")
        check_number("outputscale", self.outputscale, positive=True)

    @property
    def num_features(self) -> int:
        """M."""
        return len(self.frequencies)

    @property
    def num_dimensions(self) -> int:
        """D."""
        return int(self.frequencies.shape[1])

    def values(self, points: Floats) -> Floats:
        """Return phi, shape (n, M), at points of shape (n, D)."""
        cosines = cosines_of_turns(self._turns(points))
        cosines *= self._scales(cosines)[:, None]
        return cosines

    def gradients(self, points: Floats) -> Floats:
        """Return d phi_m / d x_d, shape (n, M, D), at points of shape (n, D)."""
        turns = self._turns(points)
        cosines = cosines_of_turns(turns)
        scales = self._scales(cosines)[:, None, None]
        slopes = -cosines_of_turns(turns - 0.25)[:, :, None] * self.frequencies
        if self.unit_length:
            norms = np.linalg.norm(cosines, axis=1)[:, None]
            directions = cosines / norms
            along = np.einsum("nm,nmd->nd", directions, slopes)
            slopes -= directions[:, :, None] * along[:, None, :]
        return np.asarray(scales * slopes)

    def combine(self, points: Floats, weights: Floats) -> tuple[Floats, Floats]:
        """Return phi(x)^T w and its gradient in x, shapes (n,) and (n, D), for w of shape (M,)."""
        turns = self._turns(points)
        cosines = cosines_of_turns(turns)
        sums = cosines @ weights
        scales = self._scales(cosines)
        turns -= 0.25
        slopes = cosines_of_turns(turns)
        if self.unit_length:
            # The length of phi depends on x too: what points along phi has no slope.
            cosines *= (sums * scales**2 / self.outputscale)[:, None]
            slopes *= weights - cosines
        else:
            slopes *= weights
        return scales * sums, -scales[:, None] * (slopes @ self.frequencies)

    def _turns(self, points: Floats) -> Floats:
        """Return the angles of the cosines, shape (n, M), in turns."""
        points = finite_matrix("points", points, self.num_dimensions)
        turns = points @ (self.frequencies.T / (2.0 * math.pi))
        turns += self.phases / (2.0 * math.pi)
        return np.asarray(turns)

    def _scales(self, cosines: Floats) -> Floats:
        """Return the factor, shape (n,), from cosines to features."""
        if not self.unit_length:
            return np.full(len(cosines), math.sqrt(2.0 * self.outputscale / self.num_features))
        squares = np.einsum("nm,nm->n", cosines, cosines)
        return np.asarray(np.sqrt(self.outputscale / squares))


def draw_random_features(
    num_features: int,
    num_dimensions: int,
    lengthscale: float | Floats,
    stream: Stream,
    *,
    outputscale: float = 1.0,
    unit_length: bool = True,
) -> RandomFeatures:
    """Draw s_m ~ N(0, I / l^2) and b_m ~ U[0, 2 pi).

    Parameters
    ----------
    num_features : int
        M >= 1.
    num_dimensions : int
        D >= 1.
    lengthscale : float or ndarray of float64, shape (D,)
        l > 0, one for all axes or one each.
    stream : Stream
        The same stream gives the same features, whoever draws them.
    outputscale : float
        v > 0.
    unit_length : bool
        See `RandomFeatures`.

    Raises
    ------
    ParameterError
        If a parameter is not allowed.
    """
    check_integer("num_random_features", num_features, 1)
    check_integer("num_dimensions", num_dimensions, 1)
    if np.ndim(lengthscale) == 0:
        check_number("lengthscale", lengthscale, positive=True)
    lengthscales = np.ones(num_dimensions) * lengthscale
    normal = stream.standard_normal(num_features * num_dimensions)
    frequencies = normal.reshape(num_features, num_dimensions) / lengthscales
    phases = 2.0 * math.pi * stream.uniform(num_features)
    return RandomFeatures(frequencies, phases, lengthscales, outputscale, unit_length)
