"""Privacy of Gaussian releases computed on fixed-size samples without replacement.

The records of every release are a secret uniform sample of a fixed size, each record being drawn
with probability ``p``, and neighbouring data sets differ in one replaced record. If an unsampled
release has the privacy profile ``delta_G``, the sampled one has [1]_ (Theorem 11)::

    delta(e') <= p delta_G(e),   e' = ln(1 + p (exp(e) - 1)),   e >= 0.

The relation is symmetric, so the other half of the profile follows from
``delta(-e') = 1 - exp(-e') (1 - delta(e'))``. The completed profile is convex in ``exp(e')``; hence
it is the profile of a dominating pair of distributions, and the profile of ``T`` adaptive releases
is at most that of the pair's ``T``-fold product [2]_ (Theorem 10), which
`strategies.mechanisms.symmetric_loss` computes on a grid. This module chooses the grid: its spacing
follows the width of the loss, which makes an evaluation take about a millisecond.

References
----------
.. [1] B. Balle, G. Barthe and M. Gaboardi, "Privacy amplification by subsampling: tight analyses
   via couplings and divergences", NeurIPS 2018, arXiv:1807.01647.
.. [2] Y. Zhu, J. Dong and Y.-X. Wang, "Optimal accounting of differential privacy via
   characteristic function", AISTATS 2022, arXiv:2106.08567.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from strategies.mechanisms.amplification import loss_with_sampling, loss_without_sampling
from strategies.mechanisms.closed_form import (
    gaussian_epsilon,
    gaussian_profile,
    require_count,
    require_real,
)
from strategies.mechanisms.symmetric_loss import (
    LOG_SLACK,
    LOG_WRAP,
    SLACK,
    Array,
    SymmetricLoss,
    composed_epsilon,
    connect_the_dots,
)

_GRID_CELLS = 4096
_MAX_GRID_CELLS = 2**20
# Outside these there is no privacy to speak of and the grid is not worth its trouble.
_LEAST_NOISE = 1e-3
_MAX_SPACING = 30.0
# Growth of epsilon through the grid, as a share of its estimate, that decides the spacing.
_GRID_TOLERANCE = 3e-4


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
    epsilon = require_real("epsilon", epsilon, -math.inf, math.inf)
    z = require_real("noise_multiplier", noise_multiplier, 0.0, math.inf, closed="neither")
    p = require_real("sample_rate", sample_rate, 0.0, 1.0, closed="upper")
    loss = np.array([abs(epsilon)])
    positive = float(_sampled_profile(loss, z, p)[0])
    if epsilon >= 0.0:
        return positive
    return -math.expm1(epsilon) + math.exp(epsilon) * positive


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
    z = require_real("noise_multiplier", noise_multiplier, 0.0, math.inf)
    p = require_real("sample_rate", sample_rate, 0.0, 1.0, closed="upper")
    num_releases = require_count("num_releases", num_releases, 0)
    delta = require_real("delta", delta, 0.0, 1.0, closed="neither")
    unamplified = gaussian_epsilon(z, num_releases, delta)
    if p == 1.0 or unamplified == 0.0 or not math.isfinite(unamplified):
        return unamplified
    distance = float(_sampled_profile(np.zeros(1), z, p)[0])
    if -math.expm1(num_releases * math.log1p(-distance)) <= delta:
        return 0.0  # the total variation distance of all releases together is within delta
    if num_releases == 1:
        before = gaussian_epsilon(z, 1, delta / p)
        amplified = float(loss_with_sampling(np.array([before]), p)[0])
        return min(unamplified, amplified * (1.0 + 1e-14))
    if z < _LEAST_NOISE:
        return unamplified
    plan = _plan(z, p, num_releases, delta)
    epsilon = _composed_epsilon(plan)
    if epsilon < 0.2 * plan.estimate:
        # The grid was laid out for a larger epsilon.
        epsilon = min(epsilon, _composed_epsilon(replace(plan, spacing=plan.spacing / 8.0)))
    return min(unamplified, epsilon)


@dataclass(frozen=True)
class _Plan:
    """Where and how finely to compute a composed privacy loss; affects tightness, not validity.

    ``estimate`` is a rough upper estimate of epsilon, ``top`` the largest loss of one release that
    is kept finite, ``spacing`` the largest distance of two grid points, ``tilt`` and ``tail_tilt``
    the exponents for the transform and for the bound on the mass above the window, and ``low`` the
    loss that the window has to reach down to.
    """

    noise_multiplier: float
    sample_rate: float
    num_releases: int
    delta: float
    estimate: float
    top: float
    spacing: float
    tilt: float
    tail_tilt: float
    low: float


def _sampled_profile(epsilon: Array, z: float, p: float) -> Array:
    """Return the profile of one release at non-negative epsilons, to relative precision."""
    return p * gaussian_profile(loss_without_sampling(epsilon, p), 1.0 / z)


def _sketch(z: float, p: float, largest: float) -> SymmetricLoss:
    """Return a midpoint-rule approximation of one release's loss, for planning only.

    ``largest`` is the largest loss before sampling. With ``x`` the outcome of the release, the loss
    before sampling is ``mu x - mu^2/2``, and the dominating pair's masses at the positive and the
    negative loss are those of ``p N(mu, 1) + (1 - p) N(0, 1)`` and ``N(0, 1)`` at ``x > mu/2``.
    """
    mu = 1.0 / z
    span = largest / mu
    num_nodes = int(np.clip(span / 0.1, 64, 2000))
    x = 0.5 * mu + span * (np.arange(num_nodes) + 0.5) / num_nodes
    scale = span / num_nodes / math.sqrt(2.0 * math.pi)
    minus = scale * np.exp(-0.5 * x * x)
    plus = p * scale * np.exp(-0.5 * (x - mu) ** 2) + (1.0 - p) * minus
    zero = max(0.0, 1.0 - float(plus.sum()) - float(minus.sum()))
    return SymmetricLoss(loss_with_sampling(mu * x - 0.5 * mu * mu, p), plus, minus, zero)


def _plan(z: float, p: float, num_releases: int, delta: float) -> _Plan:
    """Choose tilt, window and spacing from the moments of the privacy loss."""
    log_delta = math.log(delta)
    # Losses above this carry a share SLACK of delta in all releases together.
    largest = gaussian_epsilon(z, 1, SLACK * delta / (num_releases * p))
    sketch = _sketch(z, p, largest)
    top = float(loss_with_sampling(np.array([largest]), p)[0])

    # Chernoff: epsilon <= (T K(theta) - ln delta) / theta.
    deviation = math.sqrt(num_releases * float((sketch.plus + sketch.minus) @ sketch.losses**2))
    thetas = math.sqrt(1.0 - 2.0 * log_delta) / deviation * np.geomspace(1e-4, 30.0, 64)
    moments = num_releases * sketch.log_moments(thetas)
    best = int(np.argmin((moments - log_delta) / thetas))
    theta, moment = float(thetas[best]), float(moments[best])
    estimate = (moment - log_delta) / theta
    # A larger loss exceeds epsilon whatever the other releases add: its size no longer matters.
    top = min(top, 3.0 * estimate)

    # A loss at distance a from the grid point below is spread over two points: variance
    # a (spacing - a), and half of that more in the mean. The optimal tilt tells what that costs.
    tilted = sketch.tilted(theta, moment / num_releases)
    weight = 0.5 * (theta + 1.0) * num_releases * (tilted.plus + tilted.minus)
    kept = np.minimum(sketch.losses, top)

    # The transform uses half the optimal tilt: the window then has room on both sides.
    tilt = 0.5 * theta
    tilt_moment = num_releases * float(sketch.log_moments(np.array([tilt]))[0])
    tilted = sketch.tilted(tilt, tilt_moment / num_releases)
    mean = float((tilted.plus - tilted.minus) @ tilted.losses)
    square = float((tilted.plus + tilted.minus) @ tilted.losses**2)
    low = num_releases * mean - math.sqrt(num_releases * max(square - mean * mean, 0.0))
    tails = thetas > 1.05 * tilt
    ends = np.maximum(
        (moments[tails] - log_delta - LOG_SLACK) / thetas[tails],
        (moments[tails] - tilt_moment - LOG_WRAP) / (thetas[tails] - tilt),
    )
    last = int(np.argmin(ends))

    width = max(float(ends[last]) - max(low, 0.0), -(log_delta + LOG_SLACK) / tilt, 2.0 * top)
    spacing = width / _GRID_CELLS
    while width / spacing < _MAX_GRID_CELLS:
        spread = np.minimum(spacing * spacing / 6.0, kept * spacing)
        if float(weight @ spread) <= _GRID_TOLERANCE * estimate:
            break
        spacing *= 0.8
    return _Plan(
        noise_multiplier=z,
        sample_rate=p,
        num_releases=num_releases,
        delta=delta,
        estimate=estimate,
        top=top,
        spacing=spacing,
        tilt=tilt,
        tail_tilt=float(thetas[tails][last]),
        low=max(low, 0.0),
    )


def _composed_epsilon(plan: _Plan) -> float:
    """Return an upper bound on epsilon after all releases, infinite if the plan gives none."""
    if plan.spacing > _MAX_SPACING:
        return math.inf
    cells = max(1, math.ceil(plan.top / plan.spacing))
    spacing = plan.top / cells
    grid = spacing * np.arange(cells + 1, dtype=np.float64)
    profile = _sampled_profile(grid, plan.noise_multiplier, plan.sample_rate)
    return composed_epsilon(
        connect_the_dots(profile, spacing),
        plan.num_releases,
        plan.delta,
        tilt=plan.tilt,
        tail_tilt=plan.tail_tilt,
        low=plan.low,
    )
