"""How much of a release is signal: simulation-only, a function of sums that nothing hides."""

import math

import numpy as np

from strategies.dp_fts_de.algorithm import Floats, release_mechanism, release_sums, weigh_agents
from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.mechanisms.clipping import l2_norm
from strategies.mechanisms.rng import Stream


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
