"""DP-FTS-DE as pure functions, in the order of the paper's two algorithms.

Parameters, arrays and streams in, arrays out. Rounds count from 1: round 1 is the initialisation,
and iteration t, which queries what round t released, is round t + 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from strategies.dp_fts_de.own_process import fit_own_process, standardize
from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.dp_fts_de.shared_function import SharedFunction
from strategies.mechanisms.acquisition import draw_points, maximize, replace_repeat
from strategies.mechanisms.clipping import clip_by_l2_norm, l2_norm, replace_non_finite
from strategies.mechanisms.eigenfunctions import leading_eigenfunctions
from strategies.mechanisms.gaussian import GaussianMechanism
from strategies.mechanisms.linear_posterior import fit_linear_posterior
from strategies.mechanisms.random_features import draw_random_features
from strategies.mechanisms.rng import Randomness, Stream
from strategies.mechanisms.smooth_functions import FeatureMap
from strategies.mechanisms.subregion_sums import (
    SubregionWeights,
    aggregate_subregions,
    subregion_mechanism,
    subregion_weights,
)
from strategies.mechanisms.subregions import assign_agents

Floats = NDArray[np.float64]
Snap = Callable[[Floats], Floats]


@dataclass(frozen=True, eq=False)
class Broadcast:
    """What the server last released.

    Attributes
    ----------
    vectors : ndarray of float64, shape (P, M)
        w^(i).
    release_round : int
        The round that released it, from 1.
    """

    vectors: Floats
    release_round: int


@dataclass(frozen=True)
class AgentStreams:
    """The streams of one agent in one round, each for one purpose.

    Attributes
    ----------
    randomness : Randomness
    server_round, agent : int
    """

    randomness: Randomness
    server_round: int
    agent: int

    def open(self, purpose: str) -> Stream:
        """Open the stream of a purpose; in a secret run, a fresh one each time."""
        return self.randomness.stream(f"fts-{purpose}", self.server_round, self.agent)


@lru_cache(maxsize=16)
def build_features(parameters: DpFtsDeParameters) -> FeatureMap:
    """Build phi, which all agents share: public, a function of the parameters and their seed."""
    size, dimension = parameters.num_random_features, parameters.dimension
    scale = float(parameters.outputscale)
    if parameters.features == "eigen":
        return leading_eigenfunctions(
            size, dimension, float(parameters.lengthscale), outputscale=scale
        )
    public = Randomness("seeded", parameters.seed).stream("fts-features")
    return draw_random_features(
        size, dimension, float(parameters.lengthscale), public, outputscale=scale
    )


# Alg. 2, initial points: uniform in the agent's own sub-region.
def draw_initial_points(parameters: DpFtsDeParameters, agent: int, stream: Stream) -> Floats:
    """Draw the points that an agent starts with, shape (N_init, D)."""
    if parameters.initial == "everywhere":
        return draw_points(parameters.num_initial, parameters.dimension, stream)
    box = int(assign_agents(agent + 1, parameters.num_subregions)[agent])
    return parameters.boxes.draw_points(box, parameters.num_initial, stream)


# Alg. 2, choice between own and shared function: the first with probability p_t.
def queries_own_function(
    parameters: DpFtsDeParameters,
    server_round: int,
    broadcast: Broadcast | None,
    stream: Stream,
) -> bool:
    """Decide whether an agent queries its own function, not the broadcast, in a round >= 2."""
    if broadcast is None or parameters.control == "no_sharing":
        return True
    if parameters.use_broadcast == "fresh" and broadcast.release_round != server_round - 1:
        return True
    return float(stream.uniform(1)[0]) < parameters.prob_own_in(server_round - 1)


def read_broadcast(parameters: DpFtsDeParameters, broadcast: Broadcast) -> SharedFunction:
    """Return the broadcast as a function.

    Raises
    ------
    ParameterError
        If it has another shape or is not finite.
    """
    return SharedFunction(build_features(parameters), broadcast.vectors, parameters.boxes)


# Alg. 2, own function: Thompson sampling with the agent's own Gaussian process.
def maximize_own_draw(
    parameters: DpFtsDeParameters,
    points: Floats,
    values: Floats,
    shared: SharedFunction | None,
    streams: AgentStreams,
) -> Floats:
    """Return where a draw from the agent's own posterior is largest, shape (D,)."""
    process = fit_own_process(
        points,
        values,
        parameters.fit_every,
        shared if parameters.prior_mean else None,
        standardized=parameters.standardize,
    )
    drawn = process.draw_function(streams.open("draw"))
    return maximize(drawn, parameters.dimension, streams.open("candidates")).point


# Alg. 2, line 8: the query where the function of the point's own box is largest.
def maximize_broadcast(shared: SharedFunction, streams: AgentStreams) -> Floats:
    """Return argmax_x phi(x)^T w^(i[x]), shape (D,)."""
    return shared.maximize(streams.open("candidates"))


def choose_query(
    parameters: DpFtsDeParameters,
    points: Floats,
    values: Floats,
    broadcast: Broadcast | None,
    streams: AgentStreams,
    snap: Snap | None = None,
) -> tuple[Floats, bool]:
    """Choose an agent's next query.

    Parameters
    ----------
    parameters : DpFtsDeParameters
    points : ndarray of float64, shape (n, D)
        Earlier queries, as snapped; n >= 1.
    values : ndarray of float64, shape (n,)
        What was observed there.
    broadcast : Broadcast or None
        None before the first release.
    streams : AgentStreams
        Of a round >= 2.
    snap : callable or None
        Maps a point of the cube to the one that stands for it where axes are rounded.

    Returns
    -------
    point : ndarray of float64, shape (D,)
        In [0, 1]^D, snapped; random if it was queried before.
    is_shared : bool
        Whether it is the broadcast's, not the agent's own or a random one in place of a repeat.

    Raises
    ------
    FactorizationError
        If the own process cannot be fitted.
    """
    shared = None
    if broadcast is not None and parameters.control != "no_sharing":
        shared = read_broadcast(parameters, broadcast)
    own = queries_own_function(parameters, streams.server_round, broadcast, streams.open("coin"))
    if own or shared is None:
        point = maximize_own_draw(parameters, points, values, shared, streams)
    else:
        point = maximize_broadcast(shared, streams)
    snap_point = snap or np.asarray
    wanted = snap_point(point)
    point = replace_repeat(wanted, points, streams.open("replacement"))
    is_shared = not own and np.array_equal(point, wanted)
    return np.asarray(snap_point(point), dtype=np.float64), is_shared


# Alg. 2, vector: a draw from the posterior of the weights, or its mean.
def draw_vector(
    parameters: DpFtsDeParameters, points: Floats, values: Floats, stream: Stream
) -> Floats:
    """Return omega ~ N(nu, lambda Sigma^-1), or nu, shape (M,), not clipped yet.

    Raises
    ------
    FactorizationError
        If lambda is too small beside the features: an error, never a random vector.
    """
    observed = standardize(values) if parameters.standardize else values
    phi = build_features(parameters).values(points)
    posterior = fit_linear_posterior(phi, observed, float(parameters.regularizer))
    return posterior.mean if parameters.upload_kind == "mean" else posterior.draw(stream)


# Alg. 1, line 9: clipping, at the agent and again at the server.
def clip_vector(parameters: DpFtsDeParameters, vector: Floats) -> tuple[Floats, bool]:
    """Clip a vector to L2 norm S / sqrt(P), and say whether it was longer.

    A vector with a number that is not finite becomes zero.
    """
    finite = replace_non_finite(vector)
    clipped = clip_by_l2_norm(finite, parameters.radius)
    return clipped, parameters.radius is not None and l2_norm(finite) > parameters.radius


# Alg. 1, subset of agents: each by itself with probability q.
def sample_agents(parameters: DpFtsDeParameters, stream: Stream) -> list[int]:
    """Draw the agents of a round's sample, in increasing order; perhaps none."""
    drawn = stream.uniform(parameters.num_agents) < parameters.sample_rate
    return [int(agent) for agent in np.flatnonzero(drawn)]


# Alg. 1, weights: more for those who explore a sub-region, in the first iterations.
@lru_cache(maxsize=4)
def weigh_agents(parameters: DpFtsDeParameters, server_round: int) -> SubregionWeights:
    """Return phi_n^(i) of all N agents in a round: public constants."""
    boxes = assign_agents(parameters.num_agents, parameters.num_subregions)
    emphasis = parameters.emphasis.emphasis(server_round)
    return subregion_weights(boxes, parameters.num_subregions, emphasis)


def release_mechanism(parameters: DpFtsDeParameters, server_round: int) -> GaussianMechanism:
    """Return the Gaussian mechanism of a round's release.

    It acts on the P sums, each divided by the largest weight of its sub-region, as one vector.
    """
    if parameters.noise_multiplier is None or parameters.clipping_norm is None:
        raise RuntimeError("a release needs parameters whose noise has been planned, and clipping")
    return subregion_mechanism(
        weigh_agents(parameters, server_round),
        clipping_norm=float(parameters.clipping_norm),
        sample_rate=float(parameters.sample_rate),
        noise_multiplier=float(parameters.noise_multiplier),
        exact=parameters.mode == "sound",
    )


# Alg. 1, weighted average: a sum for each sub-region over the sample, divided by q.
# Alg. 1, line 11: Gaussian noise, whoever was sampled and whatever came.
def release_sums(
    parameters: DpFtsDeParameters,
    server_round: int,
    agents: Sequence[int],
    vectors: Sequence[Floats],
    stream: Stream,
) -> Floats:
    """Sum the sample's vectors for each sub-region and add noise.

    Parameters
    ----------
    parameters : DpFtsDeParameters
        With its noise multiplier.
    server_round : int
        From 1.
    agents : sequence of int
        Those in the sample whose vector came; distinct, below N. Whoever is missing is zero.
    vectors : sequence of ndarray of float64, shape (M,)
        Theirs; clipped here in any case.
    stream : Stream
        The server's noise.

    Returns
    -------
    ndarray of float64, shape (P, M)
        Noise alone if nobody was sampled or nothing came.
    """
    if parameters.noise_multiplier is None:
        raise RuntimeError("a release needs parameters whose noise has been planned")
    rows = np.zeros((len(agents), parameters.num_random_features))
    for row, vector in enumerate(vectors):
        rows[row] = vector
    norm = parameters.clipping_norm
    return aggregate_subregions(
        rows,
        np.array(agents, dtype=np.int64),
        weigh_agents(parameters, server_round),
        stream,
        clipping_norm=None if norm is None else float(norm),
        sample_rate=float(parameters.sample_rate),
        noise_multiplier=float(parameters.noise_multiplier),
        exact=parameters.mode == "sound",
    )


def apply_control(parameters: DpFtsDeParameters, released: Floats, stream: Stream) -> Floats:
    """Return what is broadcast, shape (P, M): under the control `random`, other directions.

    Their norms are those of the released vectors, so this is post-processing.
    """
    if parameters.control != "random":
        return released
    drawn = stream.standard_normal(released.size).reshape(released.shape)
    norms = np.array([[l2_norm(row)] for row in released])
    return np.asarray(drawn * (norms / np.linalg.norm(drawn, axis=1, keepdims=True)))
