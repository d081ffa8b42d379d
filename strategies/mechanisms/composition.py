"""Epsilon of repeated Gaussian releases on samples, from the privacy loss of one of them.

Each sampler's own module says what one release loses, for each direction in which neighbouring data
sets can differ (`OneRelease`): a pair of distributions that dominates the release. The profile of
``T`` adaptive releases is then at most that of the pair's ``T``-fold product [1]_ (Theorem 10),
which `strategies.mechanisms.discrete_loss` computes on a grid. This module chooses the grid: its
spacing follows the width of the loss, which makes an evaluation take milliseconds.

References
----------
.. [1] Y. Zhu, J. Dong and Y.-X. Wang, "Optimal accounting of differential privacy via
   characteristic function", AISTATS 2022, arXiv:2106.08567.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from strategies.mechanisms.amplification import loss_with_sampling, loss_without_sampling
from strategies.mechanisms.closed_form import (
    gaussian_epsilon,
    gaussian_profile,
    require_real,
    require_releases,
)
from strategies.mechanisms.discrete_loss import (
    LOG_SLACK,
    LOG_WRAP,
    SLACK,
    Array,
    DiscreteLoss,
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


Profile = Callable[[Array, float, float], Array]


@dataclass(frozen=True)
class OneRelease:
    """What one release can lose, in one direction between neighbouring data sets.

    Attributes
    ----------
    profile : callable
        delta at an array of non-negative epsilons, to relative precision.
    reverse_profile : callable
        The same of the opposite direction.
    top, bottom : float
        Largest losses of this and of the opposite direction that are worth keeping apart from
        infinity; they affect tightness, not validity.
    sketch : DiscreteLoss
        An approximation of the loss, for planning only.
    most : float
        A loss that is never exceeded.
    """

    profile: Callable[[Array], Array]
    reverse_profile: Callable[[Array], Array]
    top: float
    bottom: float
    sketch: DiscreteLoss
    most: float = math.inf


def drawn_profile(epsilon: Array, z: float, p: float) -> Array:
    """Return the profile of one release towards data without the record, at epsilons >= 0.

    ``p delta_G(ln(1 + (exp(epsilon) - 1) / p))``, the hockey-stick divergence of
    ``p N(1/z, 1) + (1 - p) N(0, 1)`` from ``N(0, 1)``; to relative precision.
    """
    return p * gaussian_profile(loss_without_sampling(epsilon, p), 1.0 / z)


def sampled_delta(
    epsilon: float, noise_multiplier: float, sample_rate: float, profile: Profile, reverse: Profile
) -> float:
    """Compute the privacy profile of one Gaussian release on a secret sample.

    Parameters
    ----------
    epsilon, noise_multiplier, sample_rate
        Any finite number, ``z > 0``, ``p`` in (0, 1].
    profile, reverse : callable
        delta at non-negative epsilons, z and p, in this and in the opposite direction.

    Returns
    -------
    float
        ``profile(epsilon)`` for ``epsilon >= 0``; below, ``1 - exp(epsilon) + exp(epsilon)
        reverse(-epsilon)``, the same pair of distributions with their order changed.

    Raises
    ------
    ValueError
        If a number is not finite or out of its range.
    """
    epsilon = require_real("epsilon", epsilon, -math.inf, math.inf)
    z = require_real("noise_multiplier", noise_multiplier, 0.0, math.inf, closed="neither")
    p = require_real("sample_rate", sample_rate, 0.0, 1.0, closed="upper")
    chosen = profile if epsilon >= 0.0 else reverse
    positive = float(chosen(np.array([abs(epsilon)]), z, p)[0])
    if epsilon >= 0.0:
        return positive
    return -math.expm1(epsilon) + math.exp(epsilon) * positive


def outcomes(z: float, largest: float) -> tuple[Array, Array, Array]:
    """Lay nodes over the outcomes of a Gaussian release, for sketches.

    Parameters
    ----------
    z : float
        Noise multiplier.
    largest : float
        Largest privacy loss without sampling that matters.

    Returns
    -------
    losses, near, far : ndarray of float64, shape (n,)
        Positive, ascending losses without sampling; a midpoint rule's masses around them under the
        distribution that favours them and under the other one.
    """
    mu = 1.0 / z
    span = largest / mu
    num_nodes = int(np.clip(span / 0.1, 64, 2000))
    x = span * (np.arange(num_nodes) + 0.5) / num_nodes
    scale = span / num_nodes / math.sqrt(2.0 * math.pi)
    near = scale * np.exp(-0.5 * (x - 0.5 * mu) ** 2)
    far = scale * np.exp(-0.5 * (x + 0.5 * mu) ** 2)
    return mu * x, near, far


def sketch_loss(up: Array, up_masses: Array, down: Array, down_masses: Array) -> DiscreteLoss:
    """Put losses ``up`` and ``-down`` (positive, ascending) together; the rest of 1 is at 0."""
    zero = max(0.0, 1.0 - float(up_masses.sum()) - float(down_masses.sum()))
    losses = np.concatenate([-down[::-1], [0.0], up])
    return DiscreteLoss(losses, np.concatenate([down_masses[::-1], [zero], up_masses]))


def sampled_epsilon(
    noise_multiplier: float,
    sample_rate: float,
    num_releases: int,
    delta: float,
    directions: Callable[[float, float, float], Iterable[OneRelease]],
) -> float:
    """Compute epsilon of repeated Gaussian releases on secret samples.

    Parameters
    ----------
    noise_multiplier, sample_rate, num_releases, delta
        ``z >= 0``, ``p`` in (0, 1], ``T >= 0``, delta in (0, 1).
    directions : callable
        Takes z, p and the largest loss without sampling that matters; returns the directions in
        which neighbouring data sets differ. The profile of one release must be at most
        `drawn_profile` in each and equal to it in the first.

    Returns
    -------
    float
        ``epsilon >= 0``, an upper bound for every direction, at most `gaussian_epsilon`.

    Raises
    ------
    ValueError
        If an argument is not finite or out of its range.
    """
    z, p, num_releases, delta = require_releases(noise_multiplier, sample_rate, num_releases, delta)
    unamplified = gaussian_epsilon(z, num_releases, delta)
    if p == 1.0 or unamplified == 0.0 or not math.isfinite(unamplified):
        return unamplified
    distance = float(drawn_profile(np.zeros(1), z, p)[0])
    if -math.expm1(num_releases * math.log1p(-distance)) <= delta:
        return 0.0  # the total variation distance of all releases together is within delta
    if num_releases == 1:
        before = gaussian_epsilon(z, 1, delta / p)
        amplified = float(loss_with_sampling(np.array([before]), p)[0])
        return min(unamplified, amplified * (1.0 + 1e-14))
    if z < _LEAST_NOISE:
        return unamplified
    # Losses above this carry a share SLACK of delta in all releases together.
    largest = gaussian_epsilon(z, 1, SLACK * delta / (num_releases * p))
    epsilon = 0.0
    for release in directions(z, p, largest):
        if num_releases * release.most > epsilon:
            epsilon = max(epsilon, _compose(release, num_releases, delta, epsilon))
    return min(unamplified, epsilon)


@dataclass(frozen=True)
class _Plan:
    """Where and how finely to compute a composed privacy loss; affects tightness, not validity.

    ``estimate`` is a rough upper estimate of epsilon, ``top`` and ``bottom`` the largest losses of
    one release that are kept finite, ``spacing`` the distance of two grid points, ``tilt`` and
    ``tail_tilt`` the exponents for the transform and for the bound on the mass above the window,
    and ``low`` the loss that the window has to reach down to.
    """

    estimate: float
    top: float
    bottom: float
    spacing: float
    tilt: float
    tail_tilt: float
    low: float


def _compose(release: OneRelease, num_releases: int, delta: float, enough: float) -> float:
    """Return an upper bound on epsilon in one direction; infinite if the grid gives none.

    An epsilon below ``enough`` need not be precise.
    """
    plan = _plan(release, num_releases, delta, enough)
    epsilon = _evaluate(release, plan, num_releases, delta)
    if enough < epsilon < 0.2 * plan.estimate:
        # The grid was laid out for a larger epsilon.
        finer = replace(plan, spacing=plan.spacing / 8.0)
        epsilon = min(epsilon, _evaluate(release, finer, num_releases, delta))
    return epsilon


def _plan(release: OneRelease, num_releases: int, delta: float, enough: float) -> _Plan:
    """Choose tilt, window and spacing from the moments of the privacy loss."""
    log_delta = math.log(delta)
    sketch = release.sketch

    # Chernoff: epsilon <= (T K(theta) - ln delta) / theta.
    deviation = math.sqrt(num_releases * float(sketch.masses @ sketch.losses**2))
    thetas = math.sqrt(1.0 - 2.0 * log_delta) / deviation * np.geomspace(1e-4, 30.0, 64)
    moments = num_releases * sketch.log_moments(thetas)
    best = int(np.argmin((moments - log_delta) / thetas))
    theta, moment = float(thetas[best]), float(moments[best])
    estimate = max((moment - log_delta) / theta, enough)
    # A larger loss exceeds epsilon whatever the other releases add: its size no longer matters.
    top, bottom = min(release.top, 3.0 * estimate), min(release.bottom, 3.0 * estimate)

    # A loss at distance a from the grid point below is spread over two points: variance
    # a (spacing - a), and half of that more in the mean. The optimal tilt tells what that costs.
    weight = sketch.tilted_masses(theta, moment / num_releases)
    weight = 0.5 * (theta + 1.0) * num_releases * weight
    kept = np.minimum(np.abs(sketch.losses), top)

    # The transform uses half the optimal tilt: the window then has room on both sides.
    tilt = 0.5 * theta
    tilt_moment = num_releases * float(sketch.log_moments(np.array([tilt]))[0])
    tilted = sketch.tilted_masses(tilt, tilt_moment / num_releases)
    mean, square = float(tilted @ sketch.losses), float(tilted @ sketch.losses**2)
    low = num_releases * mean - math.sqrt(num_releases * max(square - mean * mean, 0.0))
    tails = thetas > 1.05 * tilt
    ends = np.maximum(
        (moments[tails] - log_delta - LOG_SLACK) / thetas[tails],
        (moments[tails] - tilt_moment - LOG_WRAP) / (thetas[tails] - tilt),
    )
    last = int(np.argmin(ends))

    width = max(float(ends[last]) - max(low, 0.0), -(log_delta + LOG_SLACK) / tilt, top + bottom)
    spacing = width / _GRID_CELLS
    while width / spacing < _MAX_GRID_CELLS:
        spread = np.minimum(spacing * spacing / 6.0, kept * spacing)
        if float(weight @ spread) <= _GRID_TOLERANCE * estimate:
            break
        spacing *= 0.8
    return _Plan(
        estimate=estimate,
        top=top,
        bottom=bottom,
        spacing=spacing,
        tilt=tilt,
        tail_tilt=float(thetas[tails][last]),
        low=max(low, 0.0),
    )


def _evaluate(release: OneRelease, plan: _Plan, num_releases: int, delta: float) -> float:
    """Return an upper bound on epsilon after all releases, infinite if the plan gives none."""
    if plan.spacing > _MAX_SPACING:
        return math.inf
    up, down = (
        plan.spacing * np.arange(max(1, math.ceil(end / plan.spacing)) + 1, dtype=np.float64)
        for end in (plan.top, plan.bottom)
    )
    return composed_epsilon(
        connect_the_dots(release.profile(up), release.reverse_profile(down), plan.spacing),
        plan.spacing,
        num_releases,
        delta,
        tilt=plan.tilt,
        tail_tilt=plan.tail_tilt,
        low=plan.low,
    )
