"""Bayesian linear regression on features: what an agent learns, as a vector it can send.

With features Phi (n, M), observations y, prior w ~ N(0, I) and noise N(0, lambda):

    Sigma = Phi^T Phi + lambda I,   nu = Sigma^-1 Phi^T y,   w | y ~ N(nu, lambda Sigma^-1) .

References
----------
Rasmussen, Williams: Gaussian processes for machine learning, 2006, Section 2.1. The dual form of
the draw is Matheron's rule: Wilson et al., Efficiently sampling functions from Gaussian process
posteriors, ICML 2020.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular

from strategies.mechanisms.cholesky import FactorizationError, factor_with_ridge, solve_factored
from strategies.mechanisms.finite_arrays import finite_matrix, finite_vector
from strategies.mechanisms.parameter_checks import check_number
from strategies.mechanisms.rng import Stream

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LinearPosterior:
    """N(nu, lambda Sigma^-1), factored.

    Attributes
    ----------
    mean : ndarray of float64, shape (M,)
        nu.
    features : ndarray of float64, shape (n, M)
        Phi.
    regularizer : float
        lambda > 0.
    factor : ndarray of float64
        Lower Cholesky factor: of Sigma, shape (M, M), if M <= n, else of Phi Phi^T + lambda I,
        shape (n, n).
    """

    mean: Floats
    features: Floats
    regularizer: float
    factor: Floats

    def draw(self, stream: Stream) -> Floats:
        """Draw omega ~ N(nu, lambda Sigma^-1).

        Parameters
        ----------
        stream : Stream
            The agent's own source of randomness.

        Returns
        -------
        ndarray of float64, shape (M,)
        """
        n, num_features = self.features.shape
        if num_features <= n:
            normal = stream.standard_normal(num_features)
            spread = solve_triangular(self.factor, normal, lower=True, trans="T")
            return np.asarray(self.mean + math.sqrt(self.regularizer) * spread)
        # A draw from the prior, with the part that noisy observations of it would explain taken
        # out; its covariance is I - Phi^T (Phi Phi^T + lambda I)^-1 Phi = lambda Sigma^-1.
        prior = stream.standard_normal(num_features)
        noise = math.sqrt(self.regularizer) * stream.standard_normal(n)
        explained = solve_factored(self.factor, self.features @ prior + noise)
        return np.asarray(self.mean + prior - self.features.T @ explained)


def fit_linear_posterior(
    features: ArrayLike, observations: ArrayLike, regularizer: float
) -> LinearPosterior:
    """Condition the weights on observations, by one Cholesky factorisation.

    O(n M min(n, M)): with more features than observations the dual form is used,
    nu = Phi^T (Phi Phi^T + lambda I)^-1 y.

    Parameters
    ----------
    features : array_like, shape (n, M)
        Phi, one row a queried point; n = 0 gives the prior.
    observations : array_like, shape (n,)
        y.
    regularizer : float
        lambda > 0, the variance of an observation's noise beside a prior variance of 1.

    Raises
    ------
    ParameterError
        If shapes do not fit, a number is not finite or lambda is not allowed.
    FactorizationError
        If lambda is so small beside Phi Phi^T that the factor would be rounding errors only, or
        a number overflows.
    """
    check_number("regularizer", regularizer, positive=True)
    phi = finite_matrix("features", features)
    n, num_features = phi.shape
    y = finite_vector("observations", observations, n)
    with np.errstate(over="ignore", invalid="ignore"):
        if num_features <= n:
            factor = factor_with_ridge(phi.T @ phi, regularizer)
            mean = solve_factored(factor, phi.T @ y)
        else:
            factor = factor_with_ridge(phi @ phi.T, regularizer)
            mean = phi.T @ solve_factored(factor, y)
    if not np.isfinite(mean).all():
        raise FactorizationError("the posterior mean exceeds the range of float64")
    return LinearPosterior(mean, phi, regularizer, factor)
