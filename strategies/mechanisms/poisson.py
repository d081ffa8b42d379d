"""Privacy of Gaussian releases computed on Poisson samples.

Every record is in the sample of a release with probability ``q``, independently of all others, and
neighbouring data sets differ in one record that is there or not. With ``mu = 1/z`` the releases
with and without the record are dominated by ``P = q N(mu, 1) + (1 - q) N(0, 1)`` and
``Q = N(0, 1)`` [1]_ (Theorem 8). With the Gaussian profile ``delta_G``, at ``epsilon >= 0``::

    removing (P from Q):  q delta_G(ln(1 + (exp(epsilon) - 1) / q))
    adding (Q from P):    c delta_G(ln(1 + (exp(epsilon) - 1) / c)),  c = 1 - (1 - q) exp(epsilon)

and 0 for adding where ``c <= 0``. Adding loses less than removing in one release; after several
this is not known, so both directions are composed and the larger epsilon counts [2]_. The same
holds for a client that takes part with probability ``q`` and adds nothing otherwise.

References
----------
.. [1] B. Balle, G. Barthe and M. Gaboardi, "Privacy amplification by subsampling: tight analyses
   via couplings and divergences", NeurIPS 2018, arXiv:1807.01647.
.. [2] Y. Zhu, J. Dong and Y.-X. Wang, "Optimal accounting of differential privacy via
   characteristic function", AISTATS 2022, arXiv:2106.08567, Theorems 10 and 11.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial

import numpy as np

from strategies.mechanisms.amplification import loss_with_sampling
from strategies.mechanisms.closed_form import gaussian_profile
from strategies.mechanisms.composition import (
    OneRelease,
    drawn_profile,
    outcomes,
    sampled_delta,
    sampled_epsilon,
    sketch_loss,
)
from strategies.mechanisms.discrete_loss import Array


def poisson_delta(
    epsilon: float, noise_multiplier: float, sample_rate: float, *, adding: bool = False
) -> float:
    """Compute the privacy profile of one release on a Poisson sample.

    Parameters
    ----------
    epsilon : float
        Any finite number, of either sign.
    noise_multiplier : float
        ``z``, noise standard deviation over the **add-or-remove-one** sensitivity. Positive.
    sample_rate : float
        ``q`` in (0, 1], the probability that a record is in the sample.
    adding : bool
        Whether the data without the record come first.

    Returns
    -------
    float
        delta in [0, 1], with relative precision: exact where only this record matters, an upper
        bound otherwise.

    Raises
    ------
    ValueError
        If a number is not finite or out of its range.
    """
    removed, added = drawn_profile, _added_profile
    directions = (added, removed) if adding else (removed, added)
    return sampled_delta(epsilon, noise_multiplier, sample_rate, *directions)


@lru_cache(maxsize=4096, typed=True)
def poisson_epsilon(
    noise_multiplier: float, sample_rate: float, num_releases: int, delta: float
) -> float:
    """Compute epsilon of repeated Gaussian releases on Poisson samples.

    Parameters
    ----------
    noise_multiplier : float
        ``z``, noise standard deviation over the **add-or-remove-one** L2 sensitivity, at least 0.
        Without noise the answer is infinite, whatever the sample rate.
    sample_rate : float
        ``q`` in (0, 1]: the probability with which every release includes a record, drawn anew,
        independently of all others and in secret.
    num_releases : int
        ``T``, at least 0; releases may depend on earlier ones. None cost nothing.
    delta : float
        In (0, 1).

    Returns
    -------
    float
        ``epsilon >= 0`` for the add-or-remove-one relation, both directions.

    Formal guarantees
    -----------------
    * The result is an upper bound: grid, truncation and rounding all err upwards.
    * It is never above `gaussian_epsilon`.
    * ``q = 1`` gives `gaussian_epsilon`; one release gives the exact inverse of `poisson_delta`.
    * Within 0.5 % or 1e-4 (the larger of the two) of the epsilon of the exact composition, for
      ``q`` from 1e-4, ``z`` from 0.05 to 1e4, ``T`` to 10,000 and delta from 1e-12 to 0.1.

    Raises
    ------
    ValueError
        If an argument is not finite or out of its range.
    """
    return sampled_epsilon(noise_multiplier, sample_rate, num_releases, delta, _directions)


def _added_profile(epsilon: Array, z: float, p: float) -> Array:
    """Return the profile of one release for a record that is added, at epsilons >= 0."""
    # c has full relative precision for a rate that differs from p by a rounding error.
    none = -math.log1p(-p) if p < 1.0 else math.inf
    epsilon = np.minimum(epsilon, none)
    c = -np.expm1(epsilon - none)
    with np.errstate(divide="ignore", invalid="ignore"):
        before = np.where(c > 0.0, np.log1p(np.expm1(np.minimum(epsilon, 700.0)) / c), np.inf)
    return c * gaussian_profile(before, 1.0 / z)


def _directions(z: float, p: float, largest: float) -> tuple[OneRelease, OneRelease]:
    """Return removing and adding a record; see the module's text for the pair of distributions."""
    removed, added = partial(drawn_profile, z=z, p=p), partial(_added_profile, z=z, p=p)
    before, near, far = outcomes(z, largest)
    # ln of the density ratio where the record is likely in the sample, and where it is not
    up, down = loss_with_sampling(before, p), -np.log1p(p * np.expm1(-before))
    top = float(loss_with_sampling(np.array([largest]), p)[0])
    bottom = -math.log1p(p * math.expm1(-largest))
    drawn = sketch_loss(up, p * near + (1.0 - p) * far, down, p * far + (1.0 - p) * near)
    return (
        OneRelease(removed, added, top, bottom, drawn),
        OneRelease(added, removed, bottom, top, sketch_loss(down, near, up, far), -math.log1p(-p)),
    )
