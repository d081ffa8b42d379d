"""The published rounds of NISS and DP-FedAvg, for comparison in ``mode: paper``: no guarantee.

Algorithms 1 and 2 of arXiv 2102.00404, in their order. A client takes sigma_k from the textbook
formula for its part of the target, splits its noise into v shares, adds all of them, and multiplies
what it receives by its own factors s ~ N(1, tau^2), one for each share and coordinate. What is
wrong with that is said in `published_flaws`.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from strategies.mechanisms.closed_form import classic_gaussian_std
from strategies.mechanisms.fixed_point import WORD_BITS, FixedPoint, wrap
from strategies.mechanisms.pairwise_noise import GAUSSIAN_STD, gaussian_pair_noise, sum_pair_noise
from strategies.mechanisms.parameter_checks import check_integer, check_number
from strategies.mechanisms.rng import Stream
from strategies.niss.parameters import NissParameters

Vector = NDArray[np.float64]
Steps = NDArray[np.int64]
Words = NDArray[np.uint32]

# Products of two Gaussian numbers have heavier tails than one has: beyond 48 deviations lie 1e-20.
_TAIL_STDS = 48.0
_SPLIT_TOLERANCE = 1e-9  # a quotient this little above an integer is that integer


# Alg. 1, noise of a client: sigma_k, from the client's own budget.
def published_noise_multiplier(parameters: NissParameters, client: int) -> float:
    """Return sigma_k over the sensitivity, sqrt(2 ln(1.25 / delta')) / epsilon'.

    The target is split evenly, as in the published baseline: epsilon' and delta' are one
    participation's part of the client's epsilon and delta.

    Parameters
    ----------
    parameters : NissParameters
        Of a planned run, in mode `paper`.
    client : int
        Its number.
    """
    parts = parameters.update.num_participations
    epsilon = parameters.epsilon_of(client)
    assert epsilon is not None
    return classic_gaussian_std(epsilon / parts, parameters.target_delta / parts, 1.0)


def published_noise_std(
    parameters: NissParameters, client: int, server_round: int, weight: float = 1.0
) -> float:
    """Return sigma_k of a contribution, which is `weight` times the update."""
    sensitivity = parameters.update.sensitivity_in_round(server_round).value
    return published_noise_multiplier(parameters, client) * sensitivity * weight


# Alg. 1, weights: p_k. The server divides a sum by the number of ready clients.
def weigh(num_records: Mapping[int, int], weighting: str) -> dict[int, float]:
    """Return what each ready client scales its update by: p_k times the number of ready clients.

    Parameters
    ----------
    num_records : mapping of int to int
        n_k by client; read with `examples` only, where a client without records counts as one of
        a single record (its update is zero).
    weighting : {"uniform", "examples"}
    """
    if weighting == "uniform":
        return dict.fromkeys(num_records, 1.0)
    total = sum(max(n, 1) for n in num_records.values())
    return {client: len(num_records) * max(n, 1) / total for client, n in num_records.items()}


# Alg. 2, number of shares: v = sigma_k^2 / sigma^2.
def plan_shares(noise_std: float, unit_noise_std: float | None, most: int) -> tuple[int, float]:
    """Split a client's noise into shares of equal variance.

    Parameters
    ----------
    noise_std : float
        sigma_k > 0.
    unit_noise_std : float or None
        sigma > 0, the common unit noise; None: as many shares as possible.
    most : int
        Largest v, >= 1: the other ready clients.

    Returns
    -------
    number : int
        v = ceil(sigma_k^2 / sigma^2), at most `most`.
    share_std : float
        sigma_k / sqrt(v): at most the unit, unless `most` is in the way.
    """
    check_number("noise_std", noise_std, positive=True)
    check_number("unit_noise_std", unit_noise_std, positive=True, optional=True)
    check_integer("most", most, 1)
    number = most
    if unit_noise_std is not None:
        # Compared first: the quotient of what a user gives may be too large for an integer, or for
        # a number (a product is infinite then, a power an error).
        ratio = noise_std / unit_noise_std
        wanted = ratio * ratio * (1.0 - _SPLIT_TOLERANCE)
        number = most if wanted >= most else max(1, math.ceil(wanted))
    return number, noise_std / math.sqrt(number)


def lacks_neighbours(noise_std: float, unit_noise_std: float | None, most: int) -> bool:
    """Return whether shares are larger than the unit noise, as there are too few neighbours."""
    if unit_noise_std is None:
        return False
    return plan_shares(noise_std, unit_noise_std, most)[1] > unit_noise_std * (
        1.0 + _SPLIT_TOLERANCE
    )


# Theorem 3, whose formula for tau is missing from the text.
def resolve_tau(parameters: NissParameters) -> float:
    """Return tau: the one given, or a reconstruction from the colluding fraction rho.

    Two readings fit the text, which fixes tau(1) = 1: tau^2 = rho (`conservative`), and
    tau^2 = max(0, 2 rho - 1) (`optimistic`): the uploaded variance (2 - rho + tau^2) sigma_k^2, or
    what the remark on rho = 1 says of it, is then at least sigma_k^2.
    """
    if parameters.tau is not None:
        return parameters.tau
    rho = parameters.colluding_fraction
    square = rho if parameters.collusion_bound == "conservative" else max(0.0, 2.0 * rho - 1.0)
    return math.sqrt(square)


# Alg. 2, tracker: it returns v random neighbours.
def draw_neighbours(shares: Mapping[int, int], stream: Stream) -> dict[int, tuple[int, ...]]:
    """Draw for each ready client those that it sends its shares to.

    Parameters
    ----------
    shares : mapping of int to int
        v of each ready client, at most the number of the others.
    stream : Stream
        The tracker's.
    """
    clients = sorted(shares)
    drawn = {}
    for client in clients:
        others = [each for each in clients if each != client]
        places = stream.sample_without_replacement(len(others), shares[client])
        drawn[client] = tuple(sorted(others[place] for place in places))
    return drawn


def share_multiple(share_std: float, step: float) -> int:
    """Return c >= 1: a share is c times a discrete Gaussian of deviation 512, in steps of the grid.

    The least c with which a share has at least its standard deviation.
    """
    check_number("share_std", share_std, positive=True)
    return max(1, math.ceil(share_std / (GAUSSIAN_STD * step) * (1.0 - _SPLIT_TOLERANCE)))


# Alg. 2, shares: the client draws n_i and adds it; -n_i goes to neighbour i, which draws the same.
def sum_shares(keys: Sequence[bytes], multiple: int, size: int) -> Steps:
    """Return the sum of the shares that a client sends, in steps of the grid.

    Parameters
    ----------
    keys : sequence of bytes
        The key of each share, from the sender to its neighbour.
    multiple : int
        c of the sender.
    size : int
        d.
    """
    return np.asarray(sum_pair_noise(keys, (), size) * multiple)


# Alg. 2, factors: sum of s_i r_i over the received shares r_i = -n_i.
def sum_received(
    received: Sequence[tuple[bytes, int]], size: int, *, tau: float, stream: Stream
) -> Steps:
    """Return the sum of the received shares times the client's own factors, in steps of the grid.

    Parameters
    ----------
    received : sequence of (bytes, int)
        Key and multiple c of each share.
    size : int
        d.
    tau : float
        Standard deviation of the factors, whose mean is 1; 0: what was added is taken away exactly.
    stream : Stream
        The client's own. Each share has factors of its own, in the order of `received`.
    """
    total = np.zeros(size, dtype=np.int64)
    for key, multiple in received:
        share = gaussian_pair_noise(key, size).astype(np.int64) * multiple
        if tau > 0.0:
            factors = 1.0 + tau * stream.standard_normal(size)
            share = np.rint(share * factors).astype(np.int64)
        total -= share
    return total


# Alg. 2, upload (paper): p_k w_k + sum n_i + sum s_i r_i.
def offset_update(contribution: Vector, grid: FixedPoint, noise: Iterable[Steps]) -> Words:
    """Return an upload: the contribution on the grid, and shares, mod 2^32.

    Parameters
    ----------
    contribution : ndarray of float64, shape (d,)
        The clipped update times the client's weight.
    grid : FixedPoint
    noise : iterable of ndarray of int64, shape (d,)
        In steps of the grid.
    """
    steps = grid.encode(contribution)
    for each in noise:
        steps += each
    return wrap(steps)


# Alg. 1, upload: p_k w_k + n_k.
def noise_update(contribution: Vector, grid: FixedPoint, noise_std: float, stream: Stream) -> Words:
    """Return an upload of the published DP-FedAvg: noise that nothing cancels, on the grid."""
    noise = stream.standard_normal(contribution.size) * (noise_std / grid.step)
    return offset_update(contribution, grid, [np.rint(noise).astype(np.int64)])


def published_grid(parameters: NissParameters, noise_stds: Collection[float]) -> FixedPoint:
    """Return the finest grid on which the sum of a round's uploads does not overflow.

    Parameters
    ----------
    parameters : NissParameters
    noise_stds : collection of float
        sigma_k of each ready client. Whoever vanishes, the sum has a variance of at most
        (1 + tau^2) sum sigma_k^2.
    """
    clip = parameters.update.clipping_norm
    assert clip is not None
    spread = math.sqrt((1.0 + resolve_tau(parameters) ** 2) * math.fsum(s * s for s in noise_stds))
    reach = max(len(noise_stds), 1) * clip + _TAIL_STDS * spread
    exponent = math.ceil(math.log2(reach)) - (WORD_BITS - 1)
    # One bit more where rounding would carry the largest sum over the edge.
    while (2.0 ** (WORD_BITS - 1) - 1 - len(noise_stds)) * 2.0**exponent < reach:
        exponent += 1
    return FixedPoint(2.0**exponent)


# Theorem 2: Var V = sum_k tau^2 sigma_k^2 if nobody vanishes.
def residual_variance(
    neighbours: Mapping[int, Collection[int]],
    share_variances: Mapping[int, float],
    uploaded: Collection[int],
    tau: float,
) -> float:
    """Return the variance of the noise that is left in the sum of some uploads, a coordinate.

    Parameters
    ----------
    neighbours : mapping of int to collection of int
        For each client, those that it sends a share to.
    share_variances : mapping of int to float
        Variance of a share, by its sender.
    uploaded : collection of int
        Whose uploads are in the sum.
    tau : float

    Returns
    -------
    float
        A share n of which both ends uploaded leaves (1 - s) n: tau^2 of its variance. One whose
        receiver vanished stays whole, one whose sender vanished leaves -s n: 1 + tau^2 of it.
    """
    there = set(uploaded)
    total = []
    for sender, receivers in neighbours.items():
        for receiver in receivers:
            square = tau * tau
            if not {sender, receiver} <= there:
                square = 1.0 * (sender in there) + (1.0 + square) * (receiver in there)
            total.append(square * share_variances[sender])
    return math.fsum(total)
