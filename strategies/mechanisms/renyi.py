"""Renyi accounting of repeated Gaussian releases: looser than privacy loss, by other means.

A Renyi divergence of order ``alpha`` adds up over adaptive releases [1]_, and the sum gives epsilon
[4]_. The curves of one release are those of `dp_accounting`'s Renyi accountant, computed by
quadrature: in milliseconds instead of up to half a second, at small orders, too, where its series
for Poisson samples does not converge, and at large ones, where its differences for fixed-size
samples cancel. Its shortcut to ``epsilon = 0`` at tiny divergences is left out: with it epsilon
jumps, and no noise meets some targets.

References
----------
.. [1] I. Mironov, "Renyi differential privacy", CSF 2017, Proposition 1, arXiv:1702.07476.
.. [2] I. Mironov, K. Talwar and L. Zhang, "Renyi differential privacy of the sampled Gaussian
   mechanism", 2019, Theorem 4, arXiv:1908.10530.
.. [3] Y.-X. Wang, B. Balle and S. Kasiviswanathan, "Subsampled Renyi differential privacy and
   analytical moments accountant", AISTATS 2019, Theorem 27 and Corollary 10, arXiv:1808.00087.
.. [4] C. L. Canonne, G. Kamath and T. Steinke, "The discrete Gaussian for differential privacy",
   NeurIPS 2020, Proposition 12, arXiv:2004.00010.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from strategies.mechanisms.closed_form import require_releases

Array = NDArray[np.float64]

# Small orders serve large epsilons, large ones small epsilons.
_ORDERS: Array = np.concatenate(
    [
        [1.02, 1.03, 1.05, 1.07],
        np.arange(11, 110) / 10.0,
        np.arange(11, 64),
        np.round(64.0 * 2.0 ** (np.arange(37) / 4.0)),
    ]
)
# Fixed-size samples: the largest order, and the largest whose moments are computed one by one.
_MOST_ORDER, _MOST_MOMENT = 4096, 256
# With less noise than this the integrands are two bumps far apart.
_LEAST_NOISE = 0.05
# Covers the rounding error of a quadrature.
_ROUNDING = 1e-12


def unsampled_renyi_epsilon(noise_multiplier: float, num_releases: int, delta: float) -> float:
    """Compute epsilon from the Renyi divergence ``alpha / (2 z^2)`` of a Gaussian release.

    Parameters
    ----------
    noise_multiplier : float
        ``z``, noise standard deviation over the L2 sensitivity under the relation meant; at least
        0. Without noise the answer is infinite.
    num_releases : int
        ``T``, at least 0; releases may depend on earlier ones. None cost nothing.
    delta : float
        In (0, 1).

    Returns
    -------
    float
        ``epsilon >= 0``, an upper bound; for targets of 0.01 and more the orders reach far enough.

    Raises
    ------
    ValueError
        If an argument is not finite or out of its range.
    """
    z, _, num_releases, delta = require_releases(noise_multiplier, 1.0, num_releases, delta)
    if num_releases == 0:
        return 0.0
    with np.errstate(divide="ignore", over="ignore"):
        return _epsilon(_ORDERS, num_releases * 0.5 * _ORDERS / z / z, delta)


def poisson_renyi_epsilon(
    noise_multiplier: float, sample_rate: float, num_releases: int, delta: float
) -> float:
    """Compute epsilon of releases on Poisson samples from their Renyi divergence.

    Parameters
    ----------
    noise_multiplier : float
        ``z`` over the **add-or-remove-one** sensitivity, at least 0.
    sample_rate : float
        ``q`` in (0, 1].
    num_releases, delta
        As in `unsampled_renyi_epsilon`.

    Returns
    -------
    float
        ``epsilon >= 0`` for the add-or-remove-one relation, an upper bound. It can exceed what no
        amplification gives.

    Raises
    ------
    ValueError
        If an argument is not finite or out of its range.
    """
    z, q, num_releases, delta = require_releases(noise_multiplier, sample_rate, num_releases, delta)
    if q == 1.0:
        return unsampled_renyi_epsilon(z, num_releases, delta)
    if num_releases == 0 or z == 0.0:
        return 0.0 if num_releases == 0 else math.inf
    orders, divergences = _poisson_curve(z, q)
    return _epsilon(orders, num_releases * divergences, delta)


def fixed_size_renyi_epsilon(
    noise_multiplier: float, sample_rate: float, num_releases: int, delta: float
) -> float:
    """Compute epsilon of releases on samples without replacement from a Renyi bound [3]_.

    Parameters
    ----------
    noise_multiplier : float
        ``z`` over the **replace-one** sensitivity, at least 0: what `dp_accounting`'s Renyi
        accountant takes (its privacy-loss accountant takes ``2 z``).
    sample_rate : float
        ``p`` in (0, 1].
    num_releases, delta
        As in `unsampled_renyi_epsilon`.

    Returns
    -------
    float
        ``epsilon >= 0`` for the replace-one relation, an upper bound; infinite below ``z = 0.05``.
        It can exceed what no amplification gives.

    Raises
    ------
    ValueError
        If an argument is not finite or out of its range.
    """
    z, p, num_releases, delta = require_releases(noise_multiplier, sample_rate, num_releases, delta)
    if p == 1.0:
        return unsampled_renyi_epsilon(z, num_releases, delta)
    if num_releases == 0:
        return 0.0
    if z < _LEAST_NOISE:
        return math.inf
    orders, divergences = _fixed_size_curve(z, p)
    return _epsilon(orders, num_releases * divergences, delta)


def _epsilon(orders: Array, divergences: Array, delta: float) -> float:
    """Turn a Renyi curve into epsilon at delta [4]_."""
    tail = np.log1p(-1.0 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1.0)
    return max(0.0, float(np.min(divergences + tail)))


@lru_cache(maxsize=4096, typed=True)
def _poisson_curve(z: float, q: float) -> tuple[Array, Array]:
    """Compute orders, and the Renyi divergence of one release on a Poisson sample at each.

    ``ln E_Q (1 - q + q exp(mu x - mu^2/2))^alpha / (alpha - 1)`` for x from Q = N(0, 1), which is
    the larger of both directions [2]_. The integrand is analytic within ``pi / mu`` of the real
    axis and lies between 0 and ``alpha mu``, give or take 10: the trapezoidal rule errs by less
    than exp(-35). With little noise, Minkowski's inequality is as good.
    """
    mu = 1.0 / z
    log_q, log_rest = math.log(q), math.log1p(-q)
    if z < _LEAST_NOISE:
        with np.errstate(over="ignore"):
            grown = np.logaddexp(log_rest, log_q + 0.5 * (_ORDERS - 1.0) * mu * mu)
        return _ORDERS, _ORDERS / (_ORDERS - 1.0) * grown
    orders = _ORDERS[mu * _ORDERS <= 2000.0 * min(1.0, z)]
    step = 0.5 * min(1.0, z)
    x = np.arange(-10.0, mu * orders[-1] + 10.0, step)
    ratio = np.logaddexp(log_rest, log_q + mu * x - 0.5 * mu * mu)
    moments = _log_integrals(orders, ratio, x, step)
    moments = np.maximum(moments, 0.0) * (1.0 + _ROUNDING) + _ROUNDING
    return orders, moments / (orders - 1.0)


@lru_cache(maxsize=4096, typed=True)
def _fixed_size_curve(z: float, p: float) -> tuple[Array, Array]:
    """Compute orders, and a bound on the Renyi divergence of a fixed-size sample at each.

    ``ln(1 + sum_i C(alpha, i) p^i s_i) / (alpha - 1)`` over i from 2 to alpha [3]_ with ``B_i`` the
    i-th moment of ``P/Q - 1`` under Q, for P and Q the releases without sampling, and
    ``s_i = min(4 sqrt(B_i B_i), 2 exp(i (i - 1) mu^2 / 2))``, where for odd i the next smaller and
    the next larger moment stand for ``B_i B_i``. Between whole orders ``ln(1 + ...)``, convex in
    alpha, is interpolated.
    """
    mu = 1.0 / z
    largest = int(min(_MOST_ORDER, 2000.0 * min(1.0, z) * z))
    counts = np.arange(2, largest + 1, dtype=np.float64)
    log_sizes = math.log(2.0) + 0.5 * counts * (counts - 1.0) * mu * mu
    # Even moments: nothing cancels. The integrand is entire and about 1 wide.
    even = np.arange(2, min(largest, _MOST_MOMENT) + 2, 2, dtype=np.float64)
    margin = 10.0 + math.sqrt(even[-1])
    x = np.arange(-margin, mu * even[-1] + margin, 0.2)
    loss = mu * x - 0.5 * mu * mu
    with np.errstate(divide="ignore"):
        gap = np.maximum(loss, 0.0) + np.log(-np.expm1(-np.abs(loss)))
    gap = np.maximum(gap, -1e6)  # a node where P = Q
    log_moments = _log_integrals(even, gap, x, 0.2)
    below = np.interp(2.0 * np.floor(counts / 2.0), even, log_moments)
    above = np.interp(2.0 * np.ceil(counts / 2.0), even, log_moments)
    known = counts <= even[-1]
    smaller = math.log(4.0) + 0.5 * (below + above)
    log_sizes = np.where(known, np.minimum(log_sizes, smaller), log_sizes)

    orders = _ORDERS[(_ORDERS >= 2.0) & (largest >= _ORDERS)]
    whole = orders[orders == np.floor(orders)]
    log_terms = _log_binomials(largest)[: whole.size] + counts * math.log(p) + log_sizes
    moments = np.logaddexp(0.0, special.logsumexp(log_terms, axis=1)) * (1.0 + _ROUNDING)
    return orders, np.interp(orders, whole, moments) / (orders - 1.0)


@lru_cache(maxsize=64)
def _log_binomials(largest: int) -> Array:
    """Return ln C(alpha, i) for the whole orders alpha, and i from 2 to the largest order."""
    whole = _ORDERS[(_ORDERS >= 2.0) & (largest >= _ORDERS) & (np.floor(_ORDERS) == _ORDERS)]
    counts = np.arange(2, largest + 1, dtype=np.float64)
    alpha = whole[:, None]
    rest = alpha - counts
    logs = special.gammaln(alpha + 1.0) - special.gammaln(counts + 1.0)
    logs = logs - special.gammaln(np.maximum(rest, 0.0) + 1.0)
    return np.where(rest >= 0.0, logs, -np.inf)


def _log_integrals(powers: Array, log_base: Array, x: Array, step: float) -> Array:
    """Return ``ln E base(x)^power`` for x from N(0, 1), by the trapezoidal rule on x."""
    logs = np.empty_like(powers)
    for index, power in enumerate(powers):
        exponents = power * log_base - 0.5 * x * x
        most = float(exponents.max())
        logs[index] = most + math.log(float(np.exp(exponents - most).sum()))
    return logs + math.log(step) - 0.5 * math.log(2.0 * math.pi)
