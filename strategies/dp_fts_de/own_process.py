"""An agent's own Gaussian process: fitted to all it has seen, on top of what others have.

The broadcast g serves as a prior mean, m(x) = c (g(x) - mean of g over own points), with the
c >= 0 that generalised least squares gives on the agent's own values: c = 0 where g does not help.
It is a function of what was released, and costs no privacy.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from strategies.dp_fts_de.shared_function import CenteredFunction, SharedFunction
from strategies.mechanisms.cholesky import solve_factored
from strategies.mechanisms.gaussian_process import GaussianProcess, SquaredExponential, condition
from strategies.mechanisms.marginal_likelihood import fit_gaussian_process

Floats = NDArray[np.float64]


def standardize(values: Floats) -> Floats:
    """Return values minus their mean, over their standard deviation (over 1 if that is 0)."""
    centered = values - values.mean()
    # In units of the largest first: squares of tiny numbers underflow.
    largest = float(np.abs(centered).max(initial=0.0))
    if largest <= 1e-12 * float(np.abs(values).max(initial=0.0)):
        return np.zeros(values.shape)  # equal up to rounding
    scaled = centered / largest
    return np.asarray(scaled / scaled.std())


def fit_own_process(
    points: Floats, values: Floats, fit_every: int, shared: SharedFunction | None = None
) -> GaussianProcess:
    """Fit hyper-parameters by marginal likelihood and condition on all observations.

    Parameters
    ----------
    points : ndarray of float64, shape (n, D)
        Queried points, n >= 1.
    values : ndarray of float64, shape (n,)
        What was observed, standardised where the run says so.
    fit_every : int
        Hyper-parameters are those of the first `fit_every`, 2 `fit_every`, ... observations.
    shared : SharedFunction or None
        g; None: prior mean zero.

    Raises
    ------
    FactorizationError
        If no hyper-parameters lead to a likelihood.
    """
    fitted = len(values) - len(values) % fit_every or len(values)
    old_points, old_values = points[:fitted], values[:fitted]
    kernel, noise = _fit_kernel(old_points, old_values)
    if shared is None:
        return condition(kernel, noise, points, values)
    guess = shared.values(points)
    early = guess[:fitted] - guess[:fitted].mean()
    factor = _fit_factor(kernel, noise, old_points, old_values, early)
    if factor > 0.0:
        # What the others know need not be explained by the agent's own kernel.
        kernel, noise = _fit_kernel(old_points, old_values - factor * early)
    center = float(guess.mean())
    factor = _fit_factor(kernel, noise, points, values, guess - center)
    mean = CenteredFunction(shared, factor, center)
    return condition(kernel, noise, points, values, mean if factor > 0.0 else None)


def _fit_factor(
    kernel: SquaredExponential, noise: float, points: Floats, values: Floats, guess: Floats
) -> float:
    """Return the c >= 0 under which values - c guess is most likely."""
    factor = condition(kernel, noise, points, values).factor
    weight = float(guess @ solve_factored(factor, guess))
    return max(0.0, float(guess @ solve_factored(factor, values)) / weight) if weight > 0.0 else 0.0


def _fit_kernel(points: Floats, values: Floats) -> tuple[SquaredExponential, float]:
    lengthscales, outputscale, noise = _search(points.tobytes(), points.shape[1], values.tobytes())
    return SquaredExponential(np.array(lengthscales), outputscale), noise


# With `fit_every` above 1 the same observations are fitted in several rounds.
@lru_cache(maxsize=256)
def _search(points: bytes, dimension: int, values: bytes) -> tuple[tuple[float, ...], float, float]:
    found = fit_gaussian_process(
        np.frombuffer(points).reshape(-1, dimension), np.frombuffer(values)
    )
    return tuple(found.kernel.lengthscales), found.kernel.outputscale, found.noise_variance
