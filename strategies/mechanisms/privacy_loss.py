"""Privacy of Gaussian releases computed on fixed-size samples without replacement.

The records of every release are a secret uniform sample of a fixed size, each record being drawn
with probability ``p``, and neighbouring data sets differ in one replaced record. If an unsampled
release has the privacy profile ``delta_G``, the sampled one has [1]_ (Theorem 11)::

    delta(e') <= p delta_G(e),   e' = ln(1 + p (exp(e) - 1)),   e >= 0.

The relation is symmetric, so the other half of the profile follows from
``delta(-e') = 1 - exp(-e') (1 - delta(e'))``. The completed profile is convex in ``exp(e')``; hence
it is the profile of a dominating pair of distributions, and the profile of ``T`` adaptive releases
is at most that of the pair's ``T``-fold product [2]_ (Theorem 10), which
`strategies.mechanisms.composition` computes.

References
----------
.. [1] B. Balle, G. Barthe and M. Gaboardi, "Privacy amplification by subsampling: tight analyses
   via couplings and divergences", NeurIPS 2018, arXiv:1807.01647.
.. [2] Y. Zhu, J. Dong and Y.-X. Wang, "Optimal accounting of differential privacy via
   characteristic function", AISTATS 2022, arXiv:2106.08567.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from strategies.mechanisms.amplification import loss_with_sampling
from strategies.mechanisms.composition import (
    OneRelease,
    drawn_profile,
    outcomes,
    sampled_delta,
    sampled_epsilon,
    sketch_loss,
)


def fixed_size_delta(epsilon: float, noise_multiplier: float, sample_rate: float) -> float:
    """Compute the privacy profile of one release on a fixed-size sample.

    Parameters
    ----------
    epsilon : float
        Any finite number, of either sign.
    noise_multiplier : float
        ``z``, noise standard deviation over the **replace-one** sensitivity. Positive.
    sample_rate : float
        ``p`` in (0, 1], the probability that a given record is in the sample.

    Returns
    -------
    float
        An upper bound on delta for this mechanism and every pair of neighbouring data sets, in
        [0, 1], and the exact profile of the dominating pair that `fixed_size_epsilon` composes.

    Raises
    ------
    ValueError
        If an argument is not finite or out of its range.
    """
    return sampled_delta(
        epsilon, noise_multiplier, sample_rate, profile=drawn_profile, reverse=drawn_profile
    )


@lru_cache(maxsize=4096, typed=True)
def fixed_size_epsilon(
    noise_multiplier: float, sample_rate: float, num_releases: int, delta: float
) -> float:
    """Compute epsilon of repeated Gaussian releases on fixed-size samples.

    Parameters
    ----------
    noise_multiplier : float
        ``z``, noise standard deviation over the **replace-one** L2 sensitivity, at least 0.
        Without noise the answer is infinite, whatever the sample rate.
    sample_rate : float
        ``p`` in (0, 1]: the exact probability that a given record is in the sample of one release.
        Every release draws a new, secret sample of the same public size, uniformly without
        replacement.
    num_releases : int
        ``T``, at least 0; releases may depend on earlier ones. None cost nothing.
    delta : float
        In (0, 1).

    Returns
    -------
    float
        ``epsilon >= 0`` for the replace-one relation.

    Formal guarantees
    -----------------
    * The result is an upper bound: grid, truncation and rounding all err upwards.
    * It is never above `gaussian_epsilon`: a release on a sample is a mixture, over draws that two
      neighbouring data sets can share, of releases that are private without any sampling.
    * ``p = 1`` gives `gaussian_epsilon`; one release gives the exact inverse of `fixed_size_delta`.
    * Within 0.5 % or 1e-4 (the larger of the two) of the epsilon of the exact composition, for
      ``p`` from 1e-4, ``z`` from 0.05 to 1e4, ``T`` to 10,000 and delta from 1e-12 to 0.1.

    Raises
    ------
    ValueError
        If an argument is not finite or out of its range.
    """
    return sampled_epsilon(noise_multiplier, sample_rate, num_releases, delta, _directions)


def _directions(z: float, p: float, largest: float) -> tuple[OneRelease]:
    """Return the only direction: whoever replaces a record can also put it back.

    With ``x`` the outcome of the release, the loss before sampling is ``mu x - mu^2/2``, and the
    dominating pair's masses at the positive and the negative loss are those of
    ``p N(mu, 1) + (1 - p) N(0, 1)`` and ``N(0, 1)`` at ``x > mu/2``.
    """
    profile = partial(drawn_profile, z=z, p=p)
    before, near, far = outcomes(z, largest)
    losses = loss_with_sampling(before, p)
    top = float(loss_with_sampling(np.array([largest]), p)[0])
    sketch = sketch_loss(losses, p * near + (1.0 - p) * far, losses, far)
    return (OneRelease(profile, profile, top, top, sketch),)
