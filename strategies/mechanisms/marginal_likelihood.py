"""Hyper-parameters of a Gaussian process by maximal marginal likelihood.

ln p(y) = -(r^T K^-1 r + ln det K + n ln 2 pi) / 2 with r = y - m(X) and K = k(X, X) + s^2 I;
d ln p / d theta = tr((a a^T - K^-1) dK/dtheta) / 2 with a = K^-1 r.

The likeliest v has a closed form (`profile_likelihood`), so only lengthscales and the ratio
g = s^2 / v are searched for: on a grid, and by L-BFGS-B from its peaks.

References
----------
Rasmussen, Williams: Gaussian processes for machine learning, 2006, Section 5.4.1.
"""

import math
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize

from strategies.mechanisms.cholesky import FactorizationError
from strategies.mechanisms.finite_arrays import finite_matrix, finite_vector
from strategies.mechanisms.gaussian_process import GaussianProcess, SquaredExponential, condition
from strategies.mechanisms.parameter_checks import ParameterError, check_number
from strategies.mechanisms.profile_likelihood import (
    ProfileLikelihood,
    axis_distances,
    evaluate_likelihood,
)
from strategies.mechanisms.smooth_functions import SmoothFunction

Floats = NDArray[np.float64]

# A grid of lengthscales, from wiggly to smooth, and of ratios g, from clean to noise alone. Where
# queries have gathered, peaks are sharp, the more so for short lengthscales and little noise.
_LENGTHSCALES = (0.025, 0.035, 0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4, 0.8, 1.6)
_RATIOS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
_MOST_CLIMBS = 4
_NEAR_EDGE = 0.01


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
    found = evaluate_likelihood(
        axis_distances(points),
        residuals,
        kernel.lengthscales,
        noise_variance / kernel.outputscale,
        (kernel.outputscale, kernel.outputscale),
    )
    if len(residuals) == 0:
        return found.value, np.zeros(kernel.num_dimensions + 2)
    *spread, noise = found.slopes()
    # g falls as v grows and s^2 stays.
    return found.value, np.array([*spread, found.outputscale_slope - noise, noise])


def fit_gaussian_process(
    points: ArrayLike,
    observations: ArrayLike,
    *,
    prior_mean: SmoothFunction | None = None,
    bounds: FitBounds | None = None,
    per_axis: bool = False,
) -> GaussianProcess:
    """Fit lengthscale, outputscale and noise, and condition on the same observations.

    Parameters
    ----------
    points : array_like, shape (n, D)
        X, n >= 0.
    observations : array_like, shape (n,)
        y.
    prior_mean : SmoothFunction or None
        m; None is zero, so y should be centred.
    bounds, per_axis
        As in `fit_kernel`.

    Raises
    ------
    ParameterError
        If shapes do not fit or a number is not finite.
    FactorizationError
        If no hyper-parameters lead to a likelihood.
    """
    x = finite_matrix("points", points)
    y = finite_vector("observations", observations, len(x))
    residuals = y
    if prior_mean is not None:
        residuals = y - finite_vector("prior_mean", prior_mean.values(x), len(x))
    kernel, noise_variance = fit_kernel(x, residuals, bounds=bounds, per_axis=per_axis)
    return condition(kernel, noise_variance, x, y, prior_mean)


def fit_kernel(
    points: ArrayLike,
    residuals: ArrayLike,
    *,
    trend: ArrayLike | None = None,
    bounds: FitBounds | None = None,
    per_axis: bool = False,
) -> tuple[SquaredExponential, float]:
    """Fit lengthscale, outputscale and noise by L-BFGS-B from the peaks of a grid.

    Deterministic; of equal likelihoods the first in the grid wins. Without observations the answer
    is a prior of lengthscale 0.1, outputscale 1 and noise 1e-3, as far as the bounds allow.

    Parameters
    ----------
    points : array_like, shape (n, D)
        X, n >= 0.
    residuals : array_like, shape (n,)
        r = y - m(X).
    trend : array_like, shape (n,), or None
        h: the likelihood is that of r - c h with the likeliest c >= 0, which is
        h^T K^-1 r / h^T K^-1 h where that is positive.
    bounds : FitBounds or None
        None takes the defaults, which suit points of the unit cube.
    per_axis : bool
        Whether each axis has a lengthscale of its own; by default one for all.

    Returns
    -------
    kernel : SquaredExponential
    noise_variance : float

    Raises
    ------
    ParameterError
        If shapes do not fit or a number is not finite.
    FactorizationError
        If no hyper-parameters lead to a likelihood.
    """
    x = finite_matrix("points", points)
    r = finite_vector("residuals", residuals, len(x))
    # In units of their size, so that bounds and tolerances mean the same for any y.
    largest = float(np.max(np.abs(r), initial=0.0))
    unit = largest * math.sqrt(float(np.mean((r / largest) ** 2))) if largest else 1.0
    # One lengthscale for all axes needs only the sum over the axes.
    distances = axis_distances(x)
    if not per_axis:
        distances = distances.sum(axis=0, keepdims=True)
    h = None if trend is None else _scale_trend(trend, len(x))
    search = _Search(distances, r / unit, h, bounds or FitBounds())
    lengthscales, outputscale, noise_variance = search.run()
    scale = unit * unit
    kernel = SquaredExponential(np.ones(x.shape[1]) * lengthscales, scale * outputscale)
    return kernel, scale * noise_variance


def _scale_trend(trend: ArrayLike, size: int) -> Floats:
    """Return h in units of its largest number: only its direction counts."""
    h = finite_vector("trend", trend, size)
    largest = float(np.max(np.abs(h), initial=0.0))
    return h / largest if largest else h


@dataclass(frozen=True, eq=False)
class _Search:
    """The search for k lengthscales and the ratio g, with the likeliest v for each.

    `distances` are squared, shape (k, n, n): along each axis, or all axes together.
    """

    distances: Floats
    residuals: Floats
    trend: Floats | None
    bounds: FitBounds

    def run(self) -> tuple[Floats, float, float]:
        """Return lengthscales, shape (k,), outputscale and noise variance."""
        box = self._box()
        if len(self.residuals) == 0:
            prior = np.log([0.1] * len(self.distances) + [1e-3])
            return self._complete(np.clip(prior, box[:, 0], box[:, 1]), 1.0)
        ends: list[tuple[float, Floats]] = []
        for start in self._find_peaks(box):
            with suppress(FactorizationError):
                ends.append(self._climb(start, box))
        if not ends:
            raise FactorizationError("no hyper-parameters within the bounds have a likelihood")
        _, best = min(ends, key=lambda end: end[0])
        return self._complete(best, self._evaluate(best).outputscale)

    def _climb(self, start: Floats, box: Floats) -> tuple[float, Floats]:
        """Return the least loss on the way from a start, and where."""
        found = minimize(self._loss, start, jac=True, method="L-BFGS-B", bounds=box)
        scales, noises = self.bounds.outputscale, self.bounds.noise_variance
        for edge in np.log(np.divide(noises, scales)):
            # Where v and s^2 are both at a bound, slopes jump; along the edge they do not.
            if abs(found.x[-1] - edge) < _NEAR_EDGE:
                along = np.vstack([box[:-1], [edge, edge]])
                start = np.array([*found.x[:-1], edge])
                again = minimize(self._loss, start, jac=True, method="L-BFGS-B", bounds=along)
                found = min(found, again, key=lambda each: float(each.fun))
        return float(found.fun), np.clip(found.x, box[:, 0], box[:, 1])

    def _box(self) -> Floats:
        """Return the bounds of ln l_1, ..., ln l_k and ln g, shape (k + 1, 2)."""
        scales, noises = self.bounds.outputscale, self.bounds.noise_variance
        ratios = (noises[0] / scales[1], noises[1] / scales[0])
        return np.asarray(np.log([self.bounds.lengthscale] * len(self.distances) + [ratios]))

    def _find_peaks(self, box: Floats) -> list[Floats]:
        """Return the points of the grid that none of their neighbours surpasses, the best first."""
        grid = [np.unique(np.clip(np.log(_LENGTHSCALES), *box[0]))]
        grid.append(np.unique(np.clip(np.log(_RATIOS), *box[-1])))
        values = np.full((len(grid[0]), len(grid[1])), -math.inf)
        for row, lengthscale in enumerate(grid[0]):
            correlations = None
            for column, ratio in enumerate(grid[1]):
                logs = np.array([lengthscale] * len(self.distances) + [ratio])
                with suppress(FactorizationError):
                    found = self._evaluate(logs, correlations)
                    values[row, column], correlations = found.value, found.correlations
        peaks = [
            (values[row, column], row, column)
            for row, column in np.ndindex(values.shape)
            if values[row, column] > -math.inf
            and values[row, column]
            >= values[max(0, row - 1) : row + 2, max(0, column - 1) : column + 2].max()
        ]
        peaks.sort(key=lambda peak: -peak[0])
        return [
            np.array([grid[0][row]] * len(self.distances) + [grid[1][column]])
            for _, row, column in peaks[:_MOST_CLIMBS]
        ]

    def _evaluate(self, logs: Floats, correlations: Floats | None = None) -> ProfileLikelihood:
        ratio = math.exp(logs[-1])
        return evaluate_likelihood(
            self.distances,
            self.residuals,
            np.exp(logs[:-1]),
            ratio,
            self._outputscales(ratio),
            trend=self.trend,
            correlations=correlations,
        )

    def _outputscales(self, ratio: float) -> tuple[float, float]:
        """Return the bounds of v under which v and s^2 = g v keep theirs."""
        scales, noises = self.bounds.outputscale, self.bounds.noise_variance
        return max(scales[0], noises[0] / ratio), min(scales[1], noises[1] / ratio)

    def _loss(self, logs: Floats) -> tuple[float, Floats]:
        found = self._evaluate(logs)
        slopes = found.slopes()
        # Where the noise variance is at its bound, v moves against g; elsewhere v is at its own
        # bound, or its slope vanishes.
        if found.outputscale not in self.bounds.outputscale:
            slopes[-1] -= found.outputscale_slope
        return -found.value, -slopes

    def _complete(self, logs: Floats, outputscale: float) -> tuple[Floats, float, float]:
        noise = math.exp(logs[-1]) * outputscale
        return (
            np.exp(logs[:-1]),
            min(max(outputscale, self.bounds.outputscale[0]), self.bounds.outputscale[1]),
            min(max(noise, self.bounds.noise_variance[0]), self.bounds.noise_variance[1]),
        )
