"""How many pairs must share a mask so that masks connect the honest clients.

Each pair decides by a bit of its own secret key whether it shares a mask, so nobody else chooses or
knows the graph. Bell et al. 2020, "Secure single-server aggregation with (poly)logarithmic
overhead" (CCS), use sparse graphs for the same purpose; the bound here is for independent edges.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from strategies.mechanisms.offset_noise import COMPONENT_SHARE
from strategies.mechanisms.parameter_checks import ParameterError, check_integer, check_number

_GRID = 2**32  # edge probabilities are multiples of 2^-32
_MARGIN = 1.0 + 1e-6  # far above the rounding of the logarithms of binomials


def least_component(num_honest: int) -> int:
    """Return the least number of clients >= .9 h, in integer arithmetic."""
    return -(-round(COMPONENT_SHARE * 10) * num_honest // 10)


def component_failure(
    edge_probability: float, *, num_ready: int, num_honest: int, num_sets: int
) -> float:
    """Bound the probability that a client is left with less than .9 h honest clients.

    Parameters
    ----------
    edge_probability : float
        p, 0 to 1: each pair shares a mask independently with this probability.
    num_ready : int
        The most honest clients that one ready set names; the size of the largest set will do.
    num_honest : int
        h, 2 <= h <= num_ready: the least number of honest clients of a ready set.
    num_sets : int
        How many ready sets an adversary may try: the honest clients who mask in the attempt, in
        whatever set. 1 if it cannot show different ones.

    Returns
    -------
    float
        num_sets sum_{s=1}^{ceil(.9 h) - 1} max_{h <= H <= num_ready} C(H-1, s-1) (1-p)^(s (H-s)),
        at most 1.

    Notes
    -----
    *Formal guarantee.* Let each client mask at most once in an attempt, towards one ready set, and
    let a pair's key, from which bit and mask come, depend on all of that set (its members and their
    nonces). Then, except with the probability returned, either the target's upload, or that of a
    client connected to it, carries a mask that nothing else holds, and the uploads tell nothing
    about its update; or what they tell is the sum over at least .9 h honest clients, itself among
    them. This holds for any ready sets, chosen as the attempt goes on, and any clients vanishing.

    *Proof.* Ends that were shown different sets have different keys, so a mask held by both ends
    means the same set. Fix a set R with H >= h honest members. Its bits are fresh: independent of
    all that was seen before R was first shown. Let C be those connected to the target by masks that
    both ends used in an upload. If a member of C shares a mask with an honest member of R outside
    C, that mask is in one upload only. Else all |C| (H - |C|) bits between C and the other honest
    members are 0. For a given C of s clients that has probability (1-p)^(s (H-s)), and there are
    C(H-1, s-1) sets that contain the target: the union bound over all with s < .9 h. The target
    masks towards one of the sets that were shown, at most one for each client who masks, and before
    that the adversary may have watched others mask towards it; the union over these sets covers
    every such strategy. Within C a spanning tree of uniform masks hides all but the sum.

    If keys do not depend on the set, no such bound holds: with many honest clients, an adversary
    shows h of them the set of these, one of them the target besides, and sees from their sum
    whether that one shares a mask with the target. It names to the target only those who do not.
    """
    check_number("edge_probability", edge_probability, positive=False, below=math.nextafter(1, 2))
    check_integer("num_honest", num_honest, 2)
    check_integer("num_ready", num_ready, 2)
    check_integer("num_sets", num_sets, 1)
    if num_honest > num_ready:
        raise ParameterError("num_honest", num_honest, f"at most num_ready = {num_ready}")
    if edge_probability == 1.0:
        return 0.0
    missing = math.log1p(-edge_probability)
    sizes = np.arange(1, least_component(num_honest), dtype=np.float64)
    # From H to H + 1 a term changes by the factor H (1-p)^s / (H - s + 1), below 1 from here on.
    shrink = -np.expm1(sizes * missing)
    turning = np.full_like(sizes, num_ready)
    np.divide(sizes - 1.0, shrink, out=turning, where=shrink > 0.0)
    most = np.clip(np.ceil(turning), num_honest, num_ready)
    exponents = _log_binomial(most, sizes) + sizes * (most - sizes) * missing
    total = math.fsum(np.exp(np.minimum(exponents, 1.0)))
    return min(1.0, num_sets * total * _MARGIN)


@lru_cache(maxsize=64)
def edge_probability(
    num_ready: int, num_honest: int, population: int, failure: float = 1e-9
) -> float:
    """Return the least p at which `component_failure` is small enough.

    Parameters
    ----------
    num_ready : int
        The most clients of one ready set.
    num_honest : int
        h >= 2: the least number of honest clients of a ready set.
    population : int
        How many clients may mask in one attempt, in whatever ready sets.
    failure : float
        Bound on the probability, for each participation of the target; it is added to delta.

    Returns
    -------
    float
        A multiple of 2^-32, rounded up. The expected number of masks of a client is p (M - 1).
    """
    check_number("failure", failure, positive=True, below=1.0)
    sizes = {"num_ready": num_ready, "num_honest": num_honest, "num_sets": population}
    low, high = 0, _GRID
    while high - low > 1:
        middle = (low + high) // 2
        if component_failure(middle / _GRID, **sizes) <= failure:
            high = middle
        else:
            low = middle
    component_failure(1.0, **sizes)
    return high / _GRID


def _log_binomial(honest: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln C(H - 1, s - 1)."""
    value: NDArray[np.float64] = gammaln(honest) - gammaln(sizes) - gammaln(honest - sizes + 1.0)
    return value
