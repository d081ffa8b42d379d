"""Exact privacy of the Gaussian mechanism, alone and repeated, in closed form.

``T`` releases of a Gaussian mechanism with noise multiplier ``z`` (noise standard deviation divided
by the L2 sensitivity) are together exactly as private as one release with noise multiplier
``z / sqrt(T)``, adaptive choices included [2]_. Everything here is therefore one function, the
privacy profile ``delta(epsilon)`` of a single Gaussian release [1]_, and its two inverses.

References
----------
.. [1] B. Balle and Y.-X. Wang, "Improving the Gaussian mechanism for differential privacy:
   analytical calibration and optimal denoising", ICML 2018, Theorem 8, arXiv:1805.06530.
.. [2] J. Dong, A. Roth and W. J. Su, "Gaussian differential privacy", JRSS B 2022, Corollary 2,
   arXiv:1905.02383.
.. [3] C. Dwork and A. Roth, "The algorithmic foundations of differential privacy", 2014,
   Theorem 3.22.
"""

from __future__ import annotations

import math
from numbers import Integral, Real

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

_SQRT_HALF = math.sqrt(0.5)
# Below this distance between the two means the profile is integrated, see `gaussian_profile`.
_CLOSE_MEANS = 0.05
_GAUSS_NODES, _GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(3)


def require_real(
    name: str,
    value: float,
    lower: float,
    upper: float,
    *,
    closed: str = "both",
    error: type[ValueError] = ValueError,
) -> float:
    """Return ``value`` as a float, or refuse it with a message that names it.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : float
        The value to check. Booleans, strings, NaN and infinities are refused.
    lower, upper : float
        Ends of the allowed interval; infinite ends are never reached by an accepted value.
    closed : {"both", "lower", "upper", "neither"}
        Which ends belong to the interval.
    error : type
        The exception to raise, a ``ValueError`` or a subclass of it.
    """
    accepted = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    if accepted and math.isfinite(value):
        above = value > lower or (closed in ("both", "lower") and value == lower)
        below = value < upper or (closed in ("both", "upper") and value == upper)
        if above and below:
            return float(value)
    left = "[" if closed in ("both", "lower") and math.isfinite(lower) else "("
    right = "]" if closed in ("both", "upper") and math.isfinite(upper) else ")"
    raise error(
        f"{name}={value!r} is not allowed: "
        f"a finite number in {left}{lower:g}, {upper:g}{right} is needed"
    )


def require_count(
    name: str, value: int, minimum: int, *, error: type[ValueError] = ValueError
) -> int:
    """Return ``value`` as an int of at least ``minimum``, or refuse it with a message.

    Booleans and floats are refused, even whole ones.
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and value >= minimum:
        return int(value)
    raise error(f"{name}={value!r} is not allowed: an integer of at least {minimum} is needed")


def require_releases(
    noise_multiplier: float, sample_rate: float, num_releases: int, delta: float
) -> tuple[float, float, int, float]:
    """Return what repeated releases are described by, or refuse it with a message.

    Parameters
    ----------
    noise_multiplier, sample_rate, num_releases, delta
        ``z >= 0``, a probability in (0, 1], ``T >= 0``, delta in (0, 1).
    """
    return (
        require_real("noise_multiplier", noise_multiplier, 0.0, math.inf),
        require_real("sample_rate", sample_rate, 0.0, 1.0, closed="upper"),
        require_count("num_releases", num_releases, 0),
        require_real("delta", delta, 0.0, 1.0, closed="neither"),
    )


def gaussian_profile(epsilon: NDArray[np.float64], separation: float) -> NDArray[np.float64]:
    """Compute the hockey-stick divergence of two unit Gaussians, to relative precision.

    Parameters
    ----------
    epsilon : ndarray of float64, any shape
        Non-negative values; not checked, this is the inner loop of the accountants.
    separation : float
        ``mu = sensitivity / noise_std``, the distance of the two means. Positive; not checked.

    Returns
    -------
    ndarray of float64, shape of ``epsilon``
        ``Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)``, in [0, 1]. The relative
        error is below 1e-11 wherever it does not underflow: neither ``exp(epsilon)`` nor a
        difference of two nearly equal numbers is ever formed.
    """
    # With x = epsilon/mu - mu/2 and the Mills ratio R(x) = Phi(-x)/phi(x), the profile is
    # phi(x) (R(x) - R(x + mu)): the factor exp(epsilon) disappears because it turns phi(x + mu)
    # into phi(x). R itself is sqrt(pi/2) erfcx(x/sqrt(2)).
    mu = separation
    with np.errstate(over="ignore"):
        # Outside the clip the profile is 1 or underflows to 0.
        x = np.clip(epsilon / mu - 0.5 * mu, -1000.0, 40.0)
    bell = 0.5 * np.exp(-0.5 * x * x)
    if mu < _CLOSE_MEANS:
        # The two ratios nearly cancel. Integrate -R'(y) = 1 - y R(y) > 0 over [x, x + mu] instead;
        # three Gauss-Legendre nodes leave an error below mu^7 / 2e6.
        y = x[..., None] + 0.5 * mu * (1.0 + _GAUSS_NODES)
        slope = math.sqrt(2.0 / math.pi) - y * special.erfcx(_SQRT_HALF * y)
        profile = bell * (0.5 * mu) * (slope @ _GAUSS_WEIGHTS)
    else:
        # erfcx overflows far to the left, where Phi(-x) is close to 1 and needs no scaling.
        right = bell * special.erfcx(_SQRT_HALF * np.maximum(x, 0.0))
        first = np.where(x < 0.0, special.ndtr(-x), right)
        profile = first - bell * special.erfcx(_SQRT_HALF * (x + mu))
    return np.asarray(np.clip(profile, 0.0, 1.0), dtype=np.float64)


def analytic_gaussian_delta(epsilon: float, sensitivity: float, noise_std: float) -> float:
    """Compute the smallest delta at which a Gaussian release is (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float
        Any finite number; a negative one gives the other half of the privacy profile,
        ``delta(-e) = 1 - exp(-e) (1 - delta(e))``.
    sensitivity : float
        L2 sensitivity under the declared neighbouring relation, positive.
    noise_std : float
        Standard deviation of the noise in every coordinate, at least 0. Without noise the answer
        is 1.

    Returns
    -------
    float
        delta in [0, 1], with relative precision: exact for the pair of inputs at distance
        ``sensitivity``, an upper bound for every other pair (Theorem 8 of [1]_).

    Raises
    ------
    ValueError
        If an argument is not finite or out of its range.
    """
    epsilon = require_real("epsilon", epsilon, -math.inf, math.inf)
    sensitivity = require_real("sensitivity", sensitivity, 0.0, math.inf, closed="neither")
    noise_std = require_real("noise_std", noise_std, 0.0, math.inf)
    if noise_std == 0.0:
        return 1.0
    return _delta(epsilon, sensitivity / noise_std)


def analytic_gaussian_std(epsilon: float, delta: float, sensitivity: float) -> float:
    """Compute the smallest noise that makes one Gaussian release (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float
        At least 0.
    delta : float
        In (0, 1).
    sensitivity : float
        L2 sensitivity, positive.

    Returns
    -------
    float
        Noise standard deviation. Never below the true one: ``analytic_gaussian_delta`` of the
        result is at most ``delta``; above it by a relative 1e-12 at most.

    Raises
    ------
    ValueError
        If an argument is not finite or out of its range.
    """
    epsilon = require_real("epsilon", epsilon, 0.0, math.inf)
    delta = require_real("delta", delta, 0.0, 1.0, closed="neither")
    sensitivity = require_real("sensitivity", sensitivity, 0.0, math.inf, closed="neither")
    # delta(0) = erf(1/(sqrt(8) z)) bounds delta(epsilon), so its root z is never too small.
    enough = 0.5 * _SQRT_HALF / float(special.erfinv(delta))
    tail = -float(special.ndtri(delta))
    if epsilon > 0.0 and tail > 0.0:
        # So does Phi(1/(2z) - epsilon z); its root solves a quadratic.
        enough = min(enough, (tail + math.sqrt(tail * tail + 2.0 * epsilon)) / (2.0 * epsilon))
    low = 0.5 * enough
    while _delta(epsilon, 1.0 / low) <= delta:
        low *= 0.5
        if low < 1e-150:
            raise ValueError(f"epsilon={epsilon!r} is too large to calibrate noise for")
    log_delta = math.log(delta)
    root = optimize.brentq(
        lambda log_z: _log_delta(epsilon, math.exp(-log_z)) - log_delta,
        math.log(low),
        math.log(enough) + 1e-9,
        xtol=1e-14,
    )
    noise_std = math.exp(root) * sensitivity
    nudge = 2.0**-50
    while _delta(epsilon, sensitivity / noise_std) > delta:
        noise_std *= 1.0 + nudge
        nudge *= 2.0
    return float(noise_std)


def gaussian_epsilon(noise_multiplier: float, num_releases: int, delta: float) -> float:
    """Compute the epsilon of repeated Gaussian releases, exactly.

    Parameters
    ----------
    noise_multiplier : float
        ``z = noise_std / sensitivity``, at least 0. Without noise the answer is infinite.
    num_releases : int
        ``T``, at least 0; the releases may depend on one another. None cost nothing.
    delta : float
        In (0, 1).

    Returns
    -------
    float
        The smallest epsilon >= 0 at which the ``T`` releases together are (epsilon, delta)-private:
        that of one release with ``mu = sqrt(T) / z`` (Corollary 2 of [2]_), rounded up.

    Raises
    ------
    ValueError
        If an argument is not finite or out of its range.
    """
    z, _, num_releases, delta = require_releases(noise_multiplier, 1.0, num_releases, delta)
    if num_releases == 0:
        return 0.0
    mu = math.sqrt(num_releases) / z if z > 0.0 else math.inf
    if not math.isfinite(mu * mu):
        return math.inf
    if _delta(0.0, mu) <= delta:
        return 0.0
    # delta(epsilon) <= Phi(mu/2 - epsilon/mu) gives the upper end of the bracket.
    upper = max(mu * (0.5 * mu - float(special.ndtri(delta))), 0.0)
    log_delta = math.log(delta)
    epsilon = float(
        optimize.brentq(
            lambda e: _log_delta(e, mu) - log_delta, 0.0, upper * (1.0 + 1e-9), xtol=1e-300
        )
    )
    nudge = 2.0**-50
    while _delta(epsilon, mu) > delta:
        epsilon += nudge * upper
        nudge *= 2.0
    return epsilon


def classic_gaussian_std(epsilon: float, delta: float, sensitivity: float) -> float:
    """Compute the textbook noise, ``sqrt(2 ln(1.25/delta)) sensitivity / epsilon``.

    This is the published formula of many papers, offered for comparison only; noise that is
    meant to protect comes from `analytic_gaussian_std`.

    Formal guarantees
    -----------------
    Proven for ``epsilon < 1`` (Theorem 3.22 of [3]_), where it is up to about twice too much.
    Numerically it stays sufficient a little longer and is then **too small**: from epsilon 5.8 at
    delta 0.1, 7.5 at 1e-3, 8.5 at 1e-5 and 9.9 at 1e-10.

    Parameters
    ----------
    epsilon : float
        Positive; values of 1 and more are accepted although nothing is proven there.
    delta : float
        In (0, 1).
    sensitivity : float
        L2 sensitivity, positive.

    Returns
    -------
    float
        Noise standard deviation.

    Raises
    ------
    ValueError
        If an argument is not finite or out of its range.
    """
    epsilon = require_real("epsilon", epsilon, 0.0, math.inf, closed="neither")
    delta = require_real("delta", delta, 0.0, 1.0, closed="neither")
    sensitivity = require_real("sensitivity", sensitivity, 0.0, math.inf, closed="neither")
    return math.sqrt(2.0 * math.log(1.25 / delta)) * sensitivity / epsilon


def _delta(epsilon: float, mu: float) -> float:
    """Evaluate the profile of one release at a single point, of either sign."""
    # A separation that underflows leaves nothing to tell apart.
    positive = float(gaussian_profile(np.array(abs(epsilon)), mu)) if mu > 0.0 else 0.0
    if epsilon >= 0.0:
        return positive
    return -math.expm1(epsilon) + math.exp(epsilon) * positive


def _log_delta(epsilon: float, mu: float) -> float:
    """Evaluate the logarithm of the profile, kept finite where the profile underflows."""
    return math.log(max(_delta(epsilon, mu), 5e-324))
