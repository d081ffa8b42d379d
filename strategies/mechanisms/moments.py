"""The moments accountant as it was published, for comparison with published epsilons.

A release on a Poisson sample with rate ``q`` and noise multiplier ``z`` has the log moments [1]_,
by the binomial expansion of its density [2]_ (Section 3.3)::

    alpha(l) = ln sum_{k=0}^{l+1} C(l+1, k) (1-q)^(l+1-k) q^k exp((k^2 - k) / (2 z^2)),

which add up over ``T`` releases, and ``epsilon = min_l (T alpha(l) + ln(1/delta)) / l`` [1]_
(Theorem 2). That is a Renyi bound with few whole orders and a loose last step: valid, not tight.

References
----------
.. [1] M. Abadi et al., "Deep learning with differential privacy", CCS 2016, arXiv:1607.00133.
.. [2] I. Mironov, K. Talwar and L. Zhang, "Renyi differential privacy of the sampled Gaussian
   mechanism", 2019, arXiv:1908.10530.
"""

import math

import numpy as np
from scipy import special

from strategies.mechanisms.closed_form import require_count, require_releases

MAX_ORDER = 32
_LARGEST_ORDER = 1024
# Covers the rounding error of a moment of any order.
_ROUNDING = 1e-11


def log_moment(order: int, noise_multiplier: float, sample_rate: float) -> float:
    """Compute ``alpha(l)``, the log moment of order ``l`` of one release.

    Parameters
    ----------
    order : int
        ``l``, at least 1.
    noise_multiplier : float
        ``z``, positive; not checked.
    sample_rate : float
        ``q`` in (0, 1]; not checked.

    Returns
    -------
    float
        At least 0; infinite where the noise is too little for floating-point numbers.
    """
    count = order + 1
    k = np.arange(count + 1, dtype=np.float64)
    # ln C(l+1, k); divided twice, because z^2 may vanish where z does not
    terms = -special.betaln(count - k + 1.0, k + 1.0) - math.log(count + 1.0)
    with np.errstate(over="ignore"):
        growth = 0.5 * k * (k - 1.0) / noise_multiplier / noise_multiplier
    terms += special.xlog1py(count - k, -sample_rate) + k * math.log(sample_rate) + growth
    return max(0.0, float(special.logsumexp(terms))) * (1.0 + _ROUNDING) + _ROUNDING


def moments_epsilon(
    noise_multiplier: float,
    sample_rate: float,
    num_releases: int,
    delta: float,
    max_order: int = MAX_ORDER,
) -> float:
    """Compute epsilon of repeated Gaussian releases on Poisson samples as published.

    Parameters
    ----------
    noise_multiplier : float
        ``z``, noise standard deviation over the L2 sensitivity for one member that is there or
        contributes zero; at least 0. Without noise the answer is infinite.
    sample_rate : float
        ``q`` in (0, 1].
    num_releases : int
        ``T``, at least 0; releases may depend on earlier ones. None cost nothing.
    delta : float
        In (0, 1). Nothing here knows the number of members ``N``; ``delta >= 1/N`` protects
        nobody, whatever epsilon is.
    max_order : int
        Orders ``l`` from 1 to this, in [1, 1024]; the published values have 32.

    Returns
    -------
    float
        ``epsilon >= 0``, at least ``ln(1/delta) / max_order`` unless there are no releases: an
        upper bound for the zero-out relation, both directions (the larger moment is that of the
        mixture against the single Gaussian [2]_).

    Raises
    ------
    ValueError
        If an argument is not finite or out of its range.
    """
    z, q, num_releases, delta = require_releases(noise_multiplier, sample_rate, num_releases, delta)
    largest = require_count("max_order", max_order, 1)
    if largest > _LARGEST_ORDER:
        raise ValueError(f"max_order={largest} is not allowed: at most {_LARGEST_ORDER} is needed")
    if num_releases == 0 or z == 0.0:
        return 0.0 if num_releases == 0 else math.inf
    log_inverse = -math.log(delta)
    return min(
        (num_releases * log_moment(order, z, q) + log_inverse) / order
        for order in range(1, largest + 1)
    )
