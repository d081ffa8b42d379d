"""Exact Gaussian process regression with the squared exponential kernel.

Given y = f(X) + N(0, s^2 I) and f ~ GP(m, k), with K = k(X, X) + s^2 I:

    mu(x)      = m(x) + k(x, X) K^-1 (y - m(X))
    sigma^2(x) = k(x, x) - k(x, X) K^-1 k(X, x)
    f~(x)      = m(x) + f0(x) + k(x, X) K^-1 (y - m(X) - f0(X) - e),  f0 ~ GP(0, k), e ~ N(0, s^2 I)

f~ is a draw from the posterior (Matheron's rule). With f0 from random Fourier features it is a
fixed differentiable function, and the data enter it by the exact kernel: far away from them it has
the error of the features, at them none.

References
----------
Rasmussen, Williams: Gaussian processes for machine learning, 2006, Chapter 2. Wilson, Borovitskiy,
Terenin, Mostowsky, Deisenroth: Efficiently sampling functions from Gaussian process posteriors,
ICML 2020.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist

from strategies.mechanisms.cholesky import factor_with_ridge, solve_factored
from strategies.mechanisms.finite_arrays import finite_matrix, finite_vector
from strategies.mechanisms.parameter_checks import ParameterError, check_number
from strategies.mechanisms.random_features import draw_random_features
from strategies.mechanisms.rng import Stream
from strategies.mechanisms.smooth_functions import LinearFunction, SmoothFunction

Floats = NDArray[np.float64]

JITTER = 1e-9
"""The least noise variance that is counted, as a share of v: keeps K positive definite with
duplicate points and noise 0, and moves a posterior by less than 1e-9 v where it was well defined.
"""


@dataclass(frozen=True, eq=False)
class SquaredExponential:
    """k(x, x') = v exp(-sum_d (x_d - x'_d)^2 / (2 l_d^2)).

    Attributes
    ----------
    lengthscales : ndarray of float64, shape (D,)
        l_d > 0, in the unit of x; all equal for an isotropic kernel.
    outputscale : float
        v > 0, in the squared unit of y.

    Raises
    ------
    ParameterError
        If a number is not finite and positive.
    """

    lengthscales: Floats
    outputscale: float

    def __post_init__(self) -> None:
        lengthscales = finite_vector("lengthscales", self.lengthscales)
        if lengthscales.size == 0 or lengthscales.min() <= 0.0:
            raise ParameterError("lengthscales", "none, or one <= 0", "one or more, > 0")
        check_number("outputscale", self.outputscale, positive=True)

    @property
    def num_dimensions(self) -> int:
        """D."""
        return self.lengthscales.size

    def covariance(self, points: Floats, others: Floats) -> Floats:
        """Return k, shape (n, m), between points (n, D) and others (m, D)."""
        kernel = cdist(points / self.lengthscales, others / self.lengthscales, "sqeuclidean")
        kernel *= -0.5
        np.exp(kernel, out=kernel)
        kernel *= self.outputscale
        return np.asarray(kernel)

    def combine_slopes(self, points: Floats, others: Floats, weights: Floats) -> Floats:
        """Return sum_j w_ij d k(x_i, x'_j) / d x_i, shape (n, D).

        Parameters
        ----------
        points : ndarray of float64, shape (n, D)
            x_i.
        others : ndarray of float64, shape (m, D)
            x'_j.
        weights : ndarray of float64, shape (n, m)
            w_ij times k(x_i, x'_j): the callers have the kernel at hand.
        """
        shifts = weights @ others - weights.sum(axis=1)[:, None] * points
        return np.asarray(shifts / self.lengthscales**2)


@dataclass(frozen=True, eq=False)
class PosteriorFunction:
    """x -> m(x) + f0(x) + k(x, X) c: a posterior mean (without f0) or a posterior draw.

    Attributes
    ----------
    kernel : SquaredExponential
        k.
    points : ndarray of float64, shape (n, D)
        X.
    coefficients : ndarray of float64, shape (n,)
        c.
    terms : tuple of SmoothFunction
        m and f0, where there are any.
    """

    kernel: SquaredExponential
    points: Floats
    coefficients: Floats
    terms: tuple[SmoothFunction, ...]

    def values(self, points: Floats) -> Floats:
        """Return the values, shape (n,), at points of shape (n, D)."""
        points = finite_matrix("points", points, self.kernel.num_dimensions)
        values = self.kernel.covariance(points, self.points) @ self.coefficients
        for term in self.terms:
            values = values + term.values(points)
        return np.asarray(values)

    def values_and_gradients(self, points: Floats) -> tuple[Floats, Floats]:
        """Return the values, shape (n,), and the gradients, shape (n, D)."""
        points = finite_matrix("points", points, self.kernel.num_dimensions)
        weighted = self.kernel.covariance(points, self.points) * self.coefficients
        values = weighted.sum(axis=1)
        gradients = self.kernel.combine_slopes(points, self.points, weighted)
        for term in self.terms:
            more_values, more_gradients = term.values_and_gradients(points)
            values, gradients = values + more_values, gradients + more_gradients
        return values, gradients


@dataclass(frozen=True, eq=False)
class GaussianProcess:
    """A Gaussian process conditioned on observations (see `condition`).

    Attributes
    ----------
    kernel : SquaredExponential
        k, with outputscale v.
    noise_variance : float
        s^2 as it is counted, at least `JITTER` v.
    points : ndarray of float64, shape (n, D)
        X.
    residuals : ndarray of float64, shape (n,)
        y - m(X).
    prior_mean : SmoothFunction or None
        m; None is zero.
    factor : ndarray of float64, shape (n, n)
        Lower Cholesky factor of K.
    """

    kernel: SquaredExponential
    noise_variance: float
    points: Floats
    residuals: Floats
    prior_mean: SmoothFunction | None
    factor: Floats

    def mean_function(self) -> PosteriorFunction:
        """Return mu."""
        coefficients = solve_factored(self.factor, self.residuals)
        return PosteriorFunction(self.kernel, self.points, coefficients, self._terms())

    def variance(self, points: ArrayLike) -> Floats:
        """Return sigma^2 of f (without the noise), shape (n,), in [0, v]."""
        x = finite_matrix("points", points, self.kernel.num_dimensions)
        cross = self.kernel.covariance(x, self.points)
        return self._variance(cross, solve_factored(self.factor, cross.T).T)

    def variance_and_gradients(self, points: ArrayLike) -> tuple[Floats, Floats]:
        """Return sigma^2, shape (n,), and its gradient in x, shape (n, D)."""
        x = finite_matrix("points", points, self.kernel.num_dimensions)
        cross = self.kernel.covariance(x, self.points)
        solved = solve_factored(self.factor, cross.T).T
        gradients = self.kernel.combine_slopes(x, self.points, -2.0 * solved * cross)
        return self._variance(cross, solved), gradients

    def covariance(self, points: ArrayLike) -> Floats:
        """Return the posterior covariance of f between all points, shape (n, n)."""
        x = finite_matrix("points", points, self.kernel.num_dimensions)
        cross = self.kernel.covariance(x, self.points)
        explained = cross @ solve_factored(self.factor, cross.T)
        return np.asarray(self.kernel.covariance(x, x) - explained)

    def draw_function(self, stream: Stream, num_waves: int = 250) -> PosteriorFunction:
        """Draw a function from the posterior.

        Over the draws, mean and covariance are exactly those of the posterior, for any number of
        waves; it is the law of one draw that is Gaussian only in the limit.

        Parameters
        ----------
        stream : Stream
            The agent's own source of randomness.
        num_waves : int
            Frequencies of f0, >= 1, drawn anew for each function. A wave a cos(s x) + b sin(s x)
            with a, b ~ N(0, 1) is computed as one cosine, of amplitude sqrt(a^2 + b^2) and a
            uniform phase; pairs approximate the kernel better than twice as many cosines with
            normal amplitudes [1]_.

        References
        ----------
        .. [1] Sutherland, Schneider: On the error of random Fourier features, UAI 2015.
        """
        features = draw_random_features(
            num_waves,
            self.kernel.num_dimensions,
            self.kernel.lengthscales,
            stream,
            outputscale=self.kernel.outputscale,
            unit_length=False,
        )
        squares = np.square(stream.standard_normal(2 * num_waves)).reshape(2, num_waves)
        # The features have the factor sqrt(2 / M) of cosines with normal amplitudes.
        prior = LinearFunction(features, np.sqrt(squares.mean(axis=0)))
        noise = math.sqrt(self.noise_variance) * stream.standard_normal(len(self.points))
        gaps = self.residuals - prior.values(self.points) - noise
        coefficients = solve_factored(self.factor, gaps)
        return PosteriorFunction(self.kernel, self.points, coefficients, (*self._terms(), prior))

    def _terms(self) -> tuple[SmoothFunction, ...]:
        return () if self.prior_mean is None else (self.prior_mean,)

    def _variance(self, cross: Floats, solved: Floats) -> Floats:
        explained = np.einsum("nj,nj->n", cross, solved)
        # Rounding may take it a little below zero at a point without noise.
        return np.asarray(np.maximum(self.kernel.outputscale - explained, 0.0))


def condition(
    kernel: SquaredExponential,
    noise_variance: float,
    points: ArrayLike,
    observations: ArrayLike,
    prior_mean: SmoothFunction | None = None,
) -> GaussianProcess:
    """Condition a Gaussian process on observations.

    Parameters
    ----------
    kernel : SquaredExponential
        k.
    noise_variance : float
        s^2 >= 0, in the squared unit of y; counted as at least `JITTER` v.
    points : array_like, shape (n, D)
        X, duplicates allowed; n = 0 gives the prior.
    observations : array_like, shape (n,)
        y.
    prior_mean : SmoothFunction or None
        m; None is zero.

    Raises
    ------
    ParameterError
        If shapes do not fit or a number is not finite or not allowed.
    FactorizationError
        If K is too ill-conditioned for float64 all the same: without noise, beyond 1000 points.
    """
    check_number("noise_variance", noise_variance, positive=False)
    x = finite_matrix("points", points, kernel.num_dimensions)
    residuals = finite_vector("observations", observations, len(x))
    if prior_mean is not None:
        residuals = residuals - finite_vector("prior_mean", prior_mean.values(x), len(x))
    counted = max(noise_variance, JITTER * kernel.outputscale)
    factor = factor_with_ridge(kernel.covariance(x, x), counted)
    return GaussianProcess(kernel, counted, x, residuals, prior_mean, factor)
