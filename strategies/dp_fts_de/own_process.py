"""An agent's own Gaussian process: fitted to all it has seen, on top of what others have.

The broadcast g serves as a prior mean, m(x) = c (g(x) - mean of g over own points), with the
c >= 0 that generalised least squares gives on the agent's own values: c = 0 where g does not help.
Hyper-parameters and c are those under which the values are likeliest together: what the others know
need not be explained by the agent's own kernel. It is a function of what was released, and costs no
privacy.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from strategies.dp_fts_de.shared_function import CenteredFunction, SharedFunction
from strategies.mechanisms.cholesky import solve_factored
from strategies.mechanisms.gaussian_process import GaussianProcess, SquaredExponential, condition
from strategies.mechanisms.marginal_likelihood import fit_kernel

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
    points: Floats,
    values: Floats,
    fit_every: int,
    shared: SharedFunction | None = None,
    *,
    standardized: bool = False,
) -> GaussianProcess:
    """Fit hyper-parameters by marginal likelihood and condition on all observations.

    Parameters
    ----------
    points : ndarray of float64, shape (n, D)
        Queried points, n >= 1.
    values : ndarray of float64, shape (n,)
        What was observed.
    fit_every : int
        Hyper-parameters are those of the first `fit_every`, 2 `fit_every`, ... observations.
    shared : SharedFunction or None
        g; None: prior mean zero.
    standardized : bool
        Whether the process is that of the values minus their mean, over their standard deviation.

    Raises
    ------
    FactorizationError
        If no hyper-parameters lead to a likelihood.
    """
    fitted = len(values) - len(values) % fit_every or len(values)
    observed = standardize(values) if standardized else values
    # The first observations in units of their own, and g there alone: the same to the last bit in
    # all rounds that fit them.
    early = standardize(values[:fitted]) if standardized else values[:fitted]
    trend = None if shared is None else _center(shared.values(points[:fitted]))
    kernel, noise = _fit_kernel(points[:fitted], early, trend)
    if standardized and fitted < len(values):
        unit = float(observed[:fitted].var()) or 1.0
        kernel, noise = replace(kernel, outputscale=unit * kernel.outputscale), unit * noise
    process = condition(kernel, noise, points, observed)
    if shared is None:
        return process
    guess = shared.values(points)
    return _add_mean(process, shared, float(guess.mean()), _center(guess))


def _center(values: Floats) -> Floats:
    return np.asarray(values - values.mean())


def _add_mean(
    process: GaussianProcess, shared: SharedFunction, center: float, guess: Floats
) -> GaussianProcess:
    """Give a process the prior mean c (g - center) with the likeliest c >= 0."""
    solved = solve_factored(process.factor, guess)
    common, weight = float(solved @ process.residuals), float(solved @ guess)
    if not (common > 0.0 and weight > 0.0):
        return process
    mean = CenteredFunction(shared, common / weight, center)
    residuals = process.residuals - mean.factor * guess
    return replace(process, residuals=residuals, prior_mean=mean)


def _fit_kernel(
    points: Floats, values: Floats, trend: Floats | None
) -> tuple[SquaredExponential, float]:
    lengthscales, outputscale, noise = _search(
        points.tobytes(),
        points.shape[1],
        values.tobytes(),
        None if trend is None else trend.tobytes(),
    )
    return SquaredExponential(np.array(lengthscales), outputscale), noise


# With `fit_every` above 1 the same observations are fitted in several rounds.
@lru_cache(maxsize=2048)
def _search(
    points: bytes, dimension: int, values: bytes, trend: bytes | None
) -> tuple[tuple[float, ...], float, float]:
    kernel, noise = fit_kernel(
        np.frombuffer(points).reshape(-1, dimension),
        np.frombuffer(values),
        trend=None if trend is None else np.frombuffer(trend),
    )
    return tuple(kernel.lengthscales), kernel.outputscale, noise
