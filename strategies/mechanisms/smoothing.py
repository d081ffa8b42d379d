"""Why integers instead of real numbers cost nothing: pair noise on a grid beside continuous noise.

The privacy of noise that cancels is computed for Gaussian pair noise. What clients draw is an
integer; the continuous noise of their own smooths it. With A the matrix of the sum over the
integers below, Poisson summation bounds how far the densities are apart: relative to the Gaussian
one, a coordinate is off by at most (1 + 2 sum_{k >= 1} exp(-2 pi^2 lambda k^2))^(h - 1) - 1, where
lambda is the smallest eigenvalue of the inverse of A.
"""

import math

import numpy as np

from strategies.mechanisms.offset_noise import OffsetNoise
from strategies.mechanisms.pairwise_noise import GAUSSIAN_STD
from strategies.mechanisms.parameter_checks import ParameterError, check_integer, check_number

LEAST_SMOOTHING = 3.5
"""The lambda asked for: a coordinate is then off by at most 2e-30 for each honest peer."""


def smoothing(noise: OffsetNoise, step: float, num_honest: int) -> float:
    """Return lambda, by which own noise smooths a grid.

    Parameters
    ----------
    noise : OffsetNoise
        The variances, those of the least own noise of any client.
    step : float
        Step of the grid > 0, in the unit of the updates.
    num_honest : int
        h >= 1: the honest clients counted on. An adversary may be given the noise of further ones,
        so that this is the number that the claimed effective variance is for.

    Returns
    -------
    float
        Gaussian: 1 / (1 / 512^2 + c^2 h step^2 / s_ind^2), with c from `OffsetNoise.pair_multiple`.
        Uniform: s_ind^2 / (h step^2).

    Notes
    -----
    *Gaussian pairs.* In steps, let s be the deviation of own noise, T = 512, and give the adversary
    all pair noise but the n_j, j = 1..h-1, that target k shares with honest peers. The target's
    update then enters Y_k = u_k + c sum_j n_j + g_k and Y_j = u_j - c n_j + g_j (signs do not
    matter), and uploads are a function of those, rint(Y) modulo 2^32, so rounding at the end
    loses nothing. Summed over n in Z^(h-1), the density of Y is that of the Gaussian with
    covariance c^2 T^2 L + s^2 I, L the Laplacian of the star, times a number that depends on
    neither Y nor u, times

        sum_n exp(-(n - m)^T A (n - m) / 2) / integral of the same,  A = I/T^2 + c^2 (I + 11^T)/s^2,

    with a centre m that depends on Y and u. By Poisson summation the quotient is
    1 + sum_{k != 0} exp(-2 pi^2 k^T A^-1 k) cos(2 pi k^T m), and k^T A^-1 k >= lambda |k|^2 with
    1 / lambda = 1/T^2 + c^2 h / s^2, the largest eigenvalue of A, in direction 1. A peer that did
    not use the noise, or did not upload, takes its term out of A, and a peer with more own noise
    makes it smaller: lambda only grows. (The noise of one peer alone gives exactly the bound. For
    more it is loose: the shortest k gives (h - 1) lambda.)

    *Uniform masks.* Known is the sum of rint(y_j), y_j = u_j + g_j, of h honest clients: a function
    of S = sum_j y_j and the fractions f_j = y_j - rint(y_j), j < h. Their joint density is the same
    sum over the integer parts, with A = (I + 11^T) / s^2: that of N(sum_j u_j, h s^2) at S, times 1
    for f, times 1 + tau.
    """
    check_number("step", step, positive=True)
    check_integer("num_honest", num_honest, 1)
    ratio = num_honest * step * (step / noise.own_variance)
    if noise.pair_noise == "uniform":
        return 1.0 / ratio
    return 1.0 / (GAUSSIAN_STD**-2 + noise.pair_multiple(step) ** 2 * ratio)


def smoothing_error(
    smoothing: float, *, num_peers: int, num_coordinates: int = 1, num_participations: int = 1
) -> float:
    """Return tau: how far the density of all uploads is from the Gaussian one, relatively.

    Parameters
    ----------
    smoothing : float
        lambda > 0.
    num_peers : int
        h - 1 >= 0.
    num_coordinates, num_participations : int
        d >= 0 and T >= 0.

    Returns
    -------
    float
        tau = (1 + 2 sum_{k >= 1} exp(-2 pi^2 lambda k^2))^((h - 1) d T) - 1, possibly infinite.

    Notes
    -----
    *Formal guarantee.* For every value of the uploads the density is between 1 - tau and 1 + tau
    times the Gaussian one. For a coordinate this is shown in `smoothing`; coordinates are
    independent and rounds adaptive with fresh noise, so the quotients multiply, and
    (1 - x)^n >= 1 - ((1 + x)^n - 1). If the Gaussian uploads are (epsilon, delta)-DP and tau < 1,
    then the uploads are (epsilon + ln((1 + tau) / (1 - tau)), (1 + tau) delta)-DP: each event's
    probability is off by a factor in [1 - tau, 1 + tau].
    """
    check_number("smoothing", smoothing, positive=True)
    for key, value in (
        ("num_peers", num_peers),
        ("num_coordinates", num_coordinates),
        ("num_participations", num_participations),
    ):
        check_integer(key, value, 0)
    rate = 2.0 * math.pi**2 * smoothing
    # exp(-745.2) is below the smallest number above zero.
    terms = np.arange(1, math.ceil(math.sqrt(746.0 / rate)) + 1, dtype=np.float64)
    one = 2.0 * float(np.exp(-rate * terms * terms).sum()) * (1.0 + 1e-9)
    exponent = num_peers * num_coordinates * num_participations * math.log1p(one)
    return math.expm1(exponent) if exponent < 700.0 else math.inf


def check_smoothing(noise: OffsetNoise, step: float, *, max_ready: int) -> None:
    """Refuse a grid on which own noise does not smooth pair noise: lambda < 3.5.

    Parameters
    ----------
    noise : OffsetNoise
        The variances.
    step : float
        Step of the grid > 0.
    max_ready : int
        The most clients of a ready set, all of whom may be honest.

    Raises
    ------
    ParameterError
        Names the number of clients and the most that would be allowed.
    """
    if smoothing(noise, step, max_ready) >= LEAST_SMOOTHING:
        return
    multiple = 1 if noise.pair_noise == "uniform" else noise.pair_multiple(step)
    room = 1.0 / LEAST_SMOOTHING
    room -= 0.0 if noise.pair_noise == "uniform" else GAUSSIAN_STD**-2
    most = math.floor(room * noise.own_variance / (multiple * step) ** 2)
    raise ParameterError(
        "max_ready",
        max_ready,
        f"at most {most} clients of a ready set at a step of {step!r} and own noise of std "
        f"{math.sqrt(noise.own_variance):.4g}: more, and own noise does not smooth the grid",
    )
