"""The likelihood of a Gaussian process with what has a closed form at its likeliest value.

With K = v A, A = R + g I of correlations R and the ratio g = s^2 / v of noise to outputscale,

    ln p(r) = -(r^T A^-1 r / v + n ln v + ln det A + n ln 2 pi) / 2

is largest at v = r^T A^-1 r / n. Under a mean c h it is that of r - c h, largest at
c = h^T A^-1 r / h^T A^-1 h. Slopes in the rest are as if both were fixed.

References
----------
Rasmussen, Williams: Gaussian processes for machine learning, 2006, Sections 2.7 and 5.4.1.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotri

from strategies.mechanisms.cholesky import factor_with_ridge, solve_factored

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ProfileLikelihood:
    """ln p(r - c h) at one choice of k lengthscales and g.

    Attributes
    ----------
    distances : ndarray of float64, shape (k, n, n)
        Squared distances, along each axis or all axes together.
    lengthscales : ndarray of float64, shape (k,)
        l > 0.
    ratio : float
        g > 0.
    outputscale : float
        v, the likeliest within its bounds.
    correlations, factor : ndarray of float64, shape (n, n)
        R, and the lower Cholesky factor of A.
    solved : ndarray of float64, shape (n,)
        A^-1 (r - c h).
    value : float
        In nats.
    outputscale_slope : float
        In ln v; zero where v is not at a bound.
    """

    distances: Floats
    lengthscales: Floats
    ratio: float
    outputscale: float
    correlations: Floats
    factor: Floats
    solved: Floats
    value: float
    outputscale_slope: float

    def slopes(self) -> Floats:
        """Return the slopes in ln l_1, ..., ln l_k and ln g for a fixed v, shape (k + 1,)."""
        # Zero above the diagonal, like the factor.
        inverse, _ = dpotri(self.factor, lower=1)
        weights = np.outer(self.solved, self.solved / self.outputscale)
        # Distances are symmetric and zero on the diagonal: the lower half counts twice.
        weights -= inverse
        weights -= inverse
        weights *= self.correlations
        spread = self.distances.reshape(len(self.distances), -1) @ weights.ravel()
        trace = float(self.solved @ self.solved) / self.outputscale - float(inverse.trace())
        return np.array([*(0.5 * spread / self.lengthscales**2), 0.5 * self.ratio * trace])


def axis_distances(points: Floats) -> Floats:
    """Return squared distances along each axis, shape (D, n, n)."""
    columns = np.ascontiguousarray(points.T)
    return np.asarray(np.square(columns[:, :, None] - columns[:, None, :]))


def evaluate_likelihood(
    distances: Floats,
    residuals: Floats,
    lengthscales: Floats,
    ratio: float,
    outputscales: tuple[float, float],
    *,
    trend: Floats | None = None,
    correlations: Floats | None = None,
) -> ProfileLikelihood:
    """Evaluate ln p at the likeliest outputscale and, with a trend, at the likeliest c >= 0.

    Parameters
    ----------
    distances : ndarray of float64, shape (k, n, n)
        Squared distances, along each axis or all axes together.
    residuals : ndarray of float64, shape (n,)
        r.
    lengthscales : ndarray of float64, shape (k,)
        l > 0.
    ratio : float
        g > 0.
    outputscales : tuple of float
        Bounds of v > 0.
    trend : ndarray of float64, shape (n,), or None
        h.
    correlations : ndarray of float64, shape (n, n), or None
        R, where it is known from another g.

    Raises
    ------
    FactorizationError
        If A is not positive definite within float64.
    """
    n = len(residuals)
    if correlations is None:
        exponents = (-0.5 / lengthscales**2) @ distances.reshape(len(distances), -1)
        correlations = np.exp(exponents, out=exponents).reshape(n, n)
    factor = factor_with_ridge(correlations, ratio)
    solved = solve_factored(factor, residuals)
    square = float(residuals @ solved)
    if trend is not None:
        solved_trend = solve_factored(factor, trend)
        common, weight = float(trend @ solved), float(trend @ solved_trend)
        if common > 0.0 and weight > 0.0:
            solved = solved - common / weight * solved_trend
            # Zero but for rounding where the trend explains everything.
            square = max(0.0, square - common / weight * common)
    lower, upper = outputscales
    outputscale = min(max(square / max(1, n), lower), upper)
    scaled = square / outputscale
    log_det = 2.0 * float(np.log(factor.diagonal()).sum())
    return ProfileLikelihood(
        distances,
        lengthscales,
        ratio,
        outputscale,
        correlations,
        factor,
        solved,
        -0.5 * (scaled + log_det + n * math.log(2.0 * math.pi * outputscale)),
        0.5 * (scaled - n),
    )
