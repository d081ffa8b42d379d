"""How much of a release is signal: at most, from public numbers; and really, in simulation only."""

import math

import numpy as np

from strategies.dp_fts_de.algorithm import Floats, release_mechanism, release_sums, weigh_agents
from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.mechanisms.clipping import l2_norm
from strategies.mechanisms.rng import Stream

MOST_NOISE = 1.0
"""Noise over the largest possible signal beyond which a run warns.

Beyond 1 noise is the longer of the two, whatever clients hold, and as a rule twice as long: their
sums reach about half of what is possible. Below it the default settings gain in trials, and beyond
it gains are small or not to be told from none.
"""
# With fewer there is hardly a function left to share.
_FEWEST_FEATURES = 4


def bound_noise_share(parameters: DpFtsDeParameters, server_round: int) -> float | None:
    """Return the noise of a release over the largest signal that it can have, public constants.

    Both norms in units of the mechanism, as in `signal_to_noise`, the signal's with everybody in
    the sum as often as expected: its largest where all agents send one vector of norm S / sqrt(P).
    With P = 1 it is z sqrt(M) / (N q).

    Parameters
    ----------
    parameters : DpFtsDeParameters
        Planned.
    server_round : int

    Returns
    -------
    float or None
        None without noise.
    """
    if not parameters.adds_noise or parameters.radius is None:
        return None
    sums = weigh_agents(parameters, server_round).ratios.sum(axis=0)
    largest = parameters.radius * l2_norm(np.asarray(sums))
    size = parameters.num_subregions * parameters.num_random_features
    return release_mechanism(parameters, server_round).noise_std * math.sqrt(size) / largest


def warn_of_noise(parameters: DpFtsDeParameters, num_rounds: int) -> str | None:
    """Say what to change where even the clearest release of a run is mostly noise.

    Parameters
    ----------
    parameters : DpFtsDeParameters
        Planned.
    num_rounds : int
        T + 1.

    Returns
    -------
    str or None
        None up to `MOST_NOISE`, and where nobody shares anything, or random vectors are meant.
    """
    rounds = [t for t in range(1, num_rounds) if parameters.releases_in(t)]
    if not rounds or parameters.control in ("random", "oracle"):
        return None
    # Weights change one way only.
    shares = [bound_noise_share(parameters, t) for t in {rounds[0], rounds[-1]}]
    share = min((each for each in shares if each is not None), default=0.0)
    if share <= MOST_NOISE:
        return None
    assert parameters.noise_multiplier is not None
    excess, z = share / MOST_NOISE, float(parameters.noise_multiplier)
    count, size = parameters.num_agents, parameters.num_random_features
    fewer = math.floor(size / excess**2)
    ways = [
        f"{math.ceil(count * excess)} clients or more",
        f"a noise multiplier of at most {z / excess:.3g} instead of {z:.3g} (a larger epsilon)",
        f"at most {fewer} features instead of {size} (num_random_features, a longer lengthscale)",
    ]
    # Never rounded to the limit itself.
    told = next(text for d in range(2, 18) if float(text := f"{share:.{d}g}") > MOST_NOISE)
    return (
        f"what clients share will be mostly noise: its norm is {told} times that of the "
        f"largest sum that {count} clients can have. What brings it down to {MOST_NOISE:g}: "
        f"{'; or '.join(ways if fewer >= _FEWEST_FEATURES else ways[:2])}"
    )


def signal_to_noise(
    parameters: DpFtsDeParameters, server_round: int, released: Floats, stream: Stream
) -> float | None:
    """Return the norm of a release's sums over the root mean square norm of its noise.

    Both in units of the mechanism: the P sums, each divided by the largest weight of its
    sub-region, as one vector; sqrt(P M) times the noise's standard deviation.

    Parameters
    ----------
    parameters : DpFtsDeParameters
        Of a seeded run.
    server_round : int
    released : ndarray of float64, shape (P, M)
        Finite, as `release_sums` returned it.
    stream : Stream
        The release's stream of noise, opened again: the noise is drawn a second time and taken off,
        so no vector is touched twice.

    Returns
    -------
    float or None
        None without noise, and in secret runs.
    """
    if parameters.randomness != "seeded" or not parameters.adds_noise:
        return None
    noise = release_sums(parameters, server_round, [], [], stream)
    sums = (released - noise) / weigh_agents(parameters, server_round).largest[:, None]
    expected = release_mechanism(parameters, server_round).noise_std * math.sqrt(released.size)
    return l2_norm(np.asarray(sums)) / expected
