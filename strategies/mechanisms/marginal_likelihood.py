"""Hyper-parameters of a Gaussian process by maximal marginal likelihood.

ln p(y) = -(r^T K^-1 r + ln det K + n ln 2 pi) / 2 with r = y - m(X) and K = k(X, X) + s^2 I;
d ln p / d theta = tr((a a^T - K^-1) dK/dtheta) / 2 with a = K^-1 r.

References
----------
Rasmussen, Williams: Gaussian processes for machine learning, 2006, Section 5.4.1.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize

from strategies.mechanisms.cholesky import FactorizationError, factor_with_ridge, solve_factored
from strategies.mechanisms.finite_arrays import finite_matrix, finite_vector
from strategies.mechanisms.gaussian_process import GaussianProcess, SquaredExponential, condition
from strategies.mechanisms.parameter_checks import ParameterError, check_number
from strategies.mechanisms.smooth_functions import SmoothFunction

Floats = NDArray[np.float64]

# Lengthscale, and noise beside an outputscale of 1: smooth or wiggly, clean or noisy.
_STARTS = ((0.1, 1e-3), (0.3, 1e-3), (1.0, 1e-3), (0.1, 0.3), (0.3, 0.3), (1.0, 0.3))


@dataclass(frozen=True)
class FitBounds:
    """Where hyper-parameters are looked for; they keep few observations from extreme answers.

    Attributes
    ----------
    lengthscale : tuple of float
        Of l, in the unit of x.
    outputscale, noise_variance : tuple of float
        Of v and s^2, in units of the mean square of y - m(X) (1 if that is 0).

    Raises
    ------
    ParameterError
        If a pair is not 0 < lower <= upper.
    """

    lengthscale: tuple[float, float] = (0.02, 5.0)
    outputscale: tuple[float, float] = (0.05, 20.0)
    noise_variance: tuple[float, float] = (1e-6, 1.0)

    def __post_init__(self) -> None:
        for key in ("lengthscale", "outputscale", "noise_variance"):
            lower, upper = getattr(self, key)
            check_number(f"bounds.{key}", lower, positive=True)
            check_number(f"bounds.{key}", upper, positive=True)
            if lower > upper:
                raise ParameterError(f"bounds.{key}", (lower, upper), "lower <= upper")


def log_marginal_likelihood(
    kernel: SquaredExponential, noise_variance: float, points: Floats, residuals: Floats
) -> tuple[float, Floats]:
    """Return ln p(y) and its gradient in the logarithms of the hyper-parameters.

    Parameters
    ----------
    kernel : SquaredExponential
        k, on D axes.
    noise_variance : float
        s^2 > 0.
    points : ndarray of float64, shape (n, D)
        X, finite.
    residuals : ndarray of float64, shape (n,)
        r, finite.

    Returns
    -------
    float
        In nats.
    ndarray of float64, shape (D + 2,)
        In ln l_1, ..., ln l_D, ln v, ln s^2; for one common lengthscale add up the first D.

    Raises
    ------
    FactorizationError
        If K is not positive definite within float64.
    """
    gram = kernel.covariance(points, points)
    factor = factor_with_ridge(gram, noise_variance)
    solved = solve_factored(factor, residuals)
    log_det = 2.0 * float(np.log(np.diag(factor)).sum())
    n = len(residuals)
    value = -0.5 * (float(residuals @ solved) + log_det + n * math.log(2.0 * math.pi))
    if n == 0:
        return value, np.zeros(kernel.num_dimensions + 2)
    lower, _ = dpotri(factor, lower=1)
    inverse = np.tril(lower) + np.tril(lower, -1).T
    slopes = np.outer(solved, solved) - inverse
    weighted = slopes * gram
    sums = weighted.sum(axis=1)
    scaled = points / kernel.lengthscales
    # sum_ij w_ij (x_i - x_j)^2 for a symmetric w.
    spread = 2.0 * (sums @ scaled**2 - np.einsum("id,id->d", scaled, weighted @ scaled))
    noise = noise_variance * np.trace(slopes)
    return value, 0.5 * np.array([*spread, sums.sum(), noise])


def fit_gaussian_process(
    points: ArrayLike,
    observations: ArrayLike,
    *,
    prior_mean: SmoothFunction | None = None,
    bounds: FitBounds | None = None,
    per_axis: bool = False,
) -> GaussianProcess:
    """Fit lengthscale, outputscale and noise by L-BFGS-B from six fixed starts, and condition.

    Deterministic; of equal likelihoods the first start's wins. Without observations the answer is
    the prior of the first start.

    Parameters
    ----------
    points : array_like, shape (n, D)
        X, n >= 0.
    observations : array_like, shape (n,)
        y.
    prior_mean : SmoothFunction or None
        m; None is zero, so y should be centred.
    bounds : FitBounds or None
        None takes the defaults, which suit points of the unit cube.
    per_axis : bool
        Whether each axis has a lengthscale of its own; by default one for all.

    Raises
    ------
    ParameterError
        If shapes do not fit or a number is not finite.
    FactorizationError
        If no start leads to a likelihood.
    """
    x = finite_matrix("points", points)
    y = finite_vector("observations", observations, len(x))
    residuals = y
    if prior_mean is not None:
        residuals = y - finite_vector("prior_mean", prior_mean.values(x), len(x))
    limits = bounds or FitBounds()
    # In units of their size, so that bounds and tolerances mean the same for any y.
    largest = float(np.max(np.abs(residuals), initial=0.0))
    unit = largest * math.sqrt(float(np.mean((residuals / largest) ** 2))) if largest else 1.0
    num_lengthscales = x.shape[1] if per_axis else 1
    box = np.log(
        [limits.lengthscale] * num_lengthscales + [limits.outputscale, limits.noise_variance]
    )
    best = _search(x, residuals / unit, box, num_lengthscales)
    lengthscales = np.ones(x.shape[1]) * np.exp(best[:num_lengthscales])
    scale = unit * unit
    kernel = SquaredExponential(lengthscales, scale * math.exp(best[-2]))
    return condition(kernel, scale * math.exp(best[-1]), x, y, prior_mean)


def _search(x: Floats, residuals: Floats, box: Floats, num_lengthscales: int) -> Floats:
    """Return the logarithms of the most likely hyper-parameters, shape (num_lengthscales + 2,)."""

    def loss(logs: Floats) -> tuple[float, Floats]:
        lengthscales = np.ones(x.shape[1]) * np.exp(logs[:num_lengthscales])
        kernel = SquaredExponential(lengthscales, math.exp(logs[-2]))
        value, slopes = log_marginal_likelihood(kernel, math.exp(logs[-1]), x, residuals)
        if num_lengthscales == 1:
            slopes = np.array([slopes[:-2].sum(), slopes[-2], slopes[-1]])
        return -value, -slopes

    best: Floats | None = None
    least = math.inf
    for lengthscale, noise in _STARTS:
        start = np.log([lengthscale] * num_lengthscales + [1.0, noise])
        start = np.clip(start, box[:, 0], box[:, 1])
        if len(x) == 0:
            return start
        try:
            found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=box)
        except FactorizationError:
            continue
        if found.fun < least:
            best, least = np.clip(found.x, box[:, 0], box[:, 1]), float(found.fun)
    if best is None:
        raise FactorizationError("no hyper-parameters within the bounds have a likelihood")
    return best
