"""A privacy loss on a grid, and epsilon after its repeated composition.

The privacy loss of a pair of distributions (P, Q) takes the value ``l`` with a mass under P and a
mass under Q that are in the ratio ``exp(l)``. Such a loss is fixed by two halves of a profile:
``delta(epsilon)`` at ``epsilon >= 0`` of the pair itself and of the reversed pair (Q, P). The grid
is filled by the pessimistic "connect the dots" rule [1]_, that of ``dp_accounting``'s
``create_pmf_pessimistic_connect_dots``. The ``T``-fold convolution is not that of its
``self_compose``, whose rounding error of about ``T * 1e-16`` is as large as a small delta: at
``T = 10,000`` and delta 1e-11 its epsilon is below the true one. Here

* every mass is read off a profile at ``epsilon >= 0``, which keeps relative precision where the
  loss is rare or tiny;
* the masses are tilted by ``exp(theta loss)`` before the Fourier transform, which moves the
  rounding error to where it is small beside delta;
* what is left of the rounding error is bounded and counted.

References
----------
.. [1] V. Doroshenko, B. Ghazi, P. Kamath, R. Kumar and P. Manurangsi, "Connect the dots: tighter
   discrete approximations of privacy loss distributions", PETS 2022, arXiv:2207.04380.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

Array = NDArray[np.float64]

# Share of delta given up to each truncation and to what rounding is not counted elsewhere.
SLACK = 1e-6
LOG_SLACK = math.log(SLACK)
# Natural logarithm of the share of the tilted mass that may wrap around the window.
LOG_WRAP = LOG_SLACK - 10.0


@dataclass(frozen=True)
class DiscreteLoss:
    """A privacy loss that takes finitely many values, and infinity.

    Attributes
    ----------
    losses : ndarray of float64, shape (n,)
        Ascending, of either sign.
    masses : ndarray of float64, shape (n,)
        Probabilities of the losses under the first distribution of the pair.
    infinite : float
        Probability of an infinite loss.
    """

    losses: Array
    masses: Array
    infinite: float = 0.0

    def log_moments(self, thetas: Array) -> Array:
        """Compute ``K(theta) = ln E exp(theta loss)`` over the finite losses, without overflow.

        Parameters
        ----------
        thetas : ndarray of float64, shape (k,)
            Positive.

        Returns
        -------
        ndarray of float64, shape (k,)
        """
        exponents = np.outer(thetas, self.losses)
        with np.errstate(divide="ignore"):
            exponents += np.log(self.masses)
        shift = exponents.max(axis=1)
        return np.asarray(shift + np.log(np.exp(exponents - shift[:, None]).sum(axis=1)))

    def tilted_masses(self, theta: float, log_moment: float) -> Array:
        """Return the masses multiplied by ``exp(theta loss - log_moment)``, shape (n,)."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.exp(np.log(self.masses) + theta * self.losses - log_moment))


def connect_the_dots(profile: Array, reverse_profile: Array, spacing: float) -> DiscreteLoss:
    """Build the smallest loss on a grid whose profile is nowhere below the given one.

    Parameters
    ----------
    profile : ndarray of float64, shape (n + 1,)
        delta of the pair at ``0, spacing, ..., n spacing``, falling and convex in
        ``exp(epsilon)``; n >= 1.
    reverse_profile : ndarray of float64, shape (m + 1,)
        The same of the reversed pair, m >= 1; equal to ``profile`` at 0. That of a symmetric pair
        is ``profile`` itself.
    spacing : float
        Positive, at most 700.

    Returns
    -------
    DiscreteLoss
        On the grid ``spacing * (-m, ..., n)``. Its profile, and that of the reversed pair, runs
        through the given points and is linear in ``exp(epsilon)`` between them.
    """
    right = _masses_above_zero(profile, spacing)
    # The reversed pair's masses at positive losses, seen from this pair.
    mirrored = _masses_above_zero(reverse_profile, spacing)
    left = mirrored * np.exp(-spacing * np.arange(1, mirrored.size + 1, dtype=np.float64))
    infinite = float(profile[-1])
    zero = max(0.0, 1.0 - infinite - float(right.sum()) - float(left.sum()))
    losses = spacing * np.arange(-left.size, right.size + 1, dtype=np.float64)
    return DiscreteLoss(losses, np.concatenate([left[::-1], [zero], right]), infinite)


def composed_epsilon(
    loss: DiscreteLoss,
    spacing: float,
    num_releases: int,
    delta: float,
    *,
    tilt: float,
    tail_tilt: float,
    low: float,
) -> float:
    """Compute epsilon at delta after independent repetitions of a loss on a grid.

    Parameters
    ----------
    loss : DiscreteLoss
        On the grid ``spacing * (-m, ..., n)``, n >= 1.
    spacing : float
        Positive.
    num_releases : int
        ``T``, at least 1.
    delta : float
        In (0, 1).
    tilt : float
        ``theta``, positive. Best near half of the theta that minimises
        ``(T K(theta) - ln delta) / theta``.
    tail_tilt : float
        Larger than ``tilt``; sets how far up the window reaches.
    low : float
        At least 0; the window reaches down to it at least.

    Returns
    -------
    float
        ``epsilon >= 0``, an upper bound for any ``tilt``, ``tail_tilt`` and ``low``; a poor choice
        costs tightness and time. Infinite if infinite losses or the tail use up delta.
    """
    places = np.rint(loss.losses / spacing).astype(np.int64)
    most = num_releases * int(places[-1])
    from scipy.signal import lfilter  # takes long to import, and not every run counts so

    log_mass, log_tail_mass = (float(k) for k in loss.log_moments(np.array([tilt, tail_tilt])))
    tilted = loss.tilted_masses(tilt, log_mass)
    log_mass, log_tail_mass = num_releases * log_mass, num_releases * log_tail_mass

    # The window ends where both the mass and the tilted mass above it are negligible, and is long
    # enough that mass wrapping around from below is. Wrapped mass only ever adds to the count.
    log_least = math.log(delta) + LOG_SLACK
    high = max(
        (log_tail_mass - log_least) / tail_tilt,
        (log_tail_mass - log_mass - LOG_WRAP) / (tail_tilt - tilt),
    )
    last = math.ceil(min(high / spacing, most))
    reach = max(last * spacing - low, -log_least / tilt)
    cells = max(places.size, math.ceil(reach / spacing) + 3)
    # Mass above the window (Chernoff) and at infinity is taken from delta in full.
    above = 0.0 if last >= most else math.exp(log_tail_mass - tail_tilt * spacing * last)
    infinite = -math.expm1(num_releases * math.log1p(-loss.infinite))
    budget = delta * (1.0 - SLACK) - infinite - above
    while budget > 0.0:
        size = int(fft.next_fast_len(cells, real=True))
        masses = np.zeros(size)
        masses[places % size] = tilted
        power = fft.rfft(masses) ** num_releases
        composed = np.maximum(fft.irfft(power, size), 0.0) + _rounding(masses, power, num_releases)
        indices = last - np.arange(size)
        # From the largest loss down: undo the tilt, then delta(l - spacing) =
        # exp(-spacing) delta(l) + (1 - exp(-spacing)) P(loss >= l), which takes no differences.
        exponents = np.minimum(log_mass - tilt * spacing * indices, 600.0)
        survival = np.cumsum(composed[indices % size] * np.exp(exponents))
        deltas = lfilter([-math.expm1(-spacing)], [1.0, -math.exp(-spacing)], survival)
        crossing = int(np.searchsorted(deltas, budget))
        if crossing < size:
            # Between two grid points the profile is linear in exp(epsilon).
            at_left = float(deltas[crossing])
            at_right = float(deltas[crossing - 1]) if crossing else 0.0
            rise = math.expm1(spacing) * (at_left - budget) / (at_left - at_right)
            return max(0.0, spacing * float(indices[crossing] - 1) + math.log1p(rise))
        if indices[-1] <= 0:
            return 0.0
        cells *= 2
    return math.inf


def _masses_above_zero(profile: Array, spacing: float) -> Array:
    """Return the masses at ``spacing * (1, ..., n)`` that belong to a profile's n + 1 points."""
    drops = np.maximum(profile[:-1] - profile[1:], 0.0)
    masses = drops / -math.expm1(-spacing)
    masses[:-1] -= drops[1:] / math.expm1(spacing)
    return np.maximum(masses, 0.0)


def _rounding(masses: Array, power: NDArray[np.complex128], num_releases: int) -> float:
    """Return a bound on the rounding error of one cell of the inverse transform of ``power``.

    A coefficient f of the transform is off by at most ``eps log2(size) |masses|`` (Euclidean norm),
    which its power multiplies by ``T |f|^(T-1) <= T (2 |f|^T + 2^(1-T))``; the power's own argument
    is off by ``eps T pi``. A cell is the mean of the powers.
    """
    mean = float(np.abs(power).mean())
    transform = math.log2(masses.size) * float(np.linalg.norm(masses))
    error = transform * (2.0 * mean + 2.0 ** (1 - min(num_releases, 60))) + 4.0 * mean
    return num_releases * float(np.finfo(np.float64).eps) * error
