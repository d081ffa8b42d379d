"""One round of NISS in mode `sound`: pure functions of arrays, keys and streams.

The order is that of the paper's Algorithm 2 (train, noise, noise of the others, upload, sum); what
each step became is said in the package. The published steps themselves are in `published`.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.mechanisms.clipping import l2_norm
from strategies.mechanisms.fixed_point import FixedPoint, unwrap, wrap
from strategies.mechanisms.key_agreement import agree, edge_key
from strategies.mechanisms.pairwise_noise import has_edge, sum_pair_noise, sum_uniform_masks
from strategies.mechanisms.rng import Stream
from strategies.niss.peers import ReadyPeer

RANGE = 2.0**31
MOST_OF_RANGE = 0.25
Vector = NDArray[np.float64]
Steps = NDArray[np.int64]
Words = NDArray[np.uint32]


@dataclass(frozen=True)
class Edges:
    """The keys that a client shares with its peers in one attempt.

    Attributes
    ----------
    added, subtracted : tuple of bytes
        One key for each peer. The end with the smaller identity key adds the noise.
    """

    added: tuple[bytes, ...]
    subtracted: tuple[bytes, ...]


# Alg. 2, offsetting (sound): instead of sending shares, both ends derive them.
def derive_edges(
    exchange_private: bytes,
    identity: bytes,
    nonce: bytes,
    peers: Sequence[ReadyPeer],
    *,
    run_tag: bytes,
    server_round: int,
    attempt: int,
    kind: str,
    scale: tuple[int, int, int] = (0, 0, 0),
    edge_probability: float = 1.0,
) -> Edges:
    """Agree on a key with each peer, for this attempt and this ready set only.

    Parameters
    ----------
    exchange_private, identity, nonce : bytes
        The client's own private exchange key, public identity key, and nonce of the attempt.
    peers : sequence of ReadyPeer
        Whom it masks towards.
    run_tag : bytes
        What the run's keys are bound to.
    server_round, attempt : int
    kind : str
        What the keys are for.
    scale : tuple of int
        Exponent of the grid's step, multiple of the pair noise, and number of coordinates.
    edge_probability : float
        With which two clients share noise; 1: all pairs do.

    Formal guarantees: a key depends on both ends' fresh nonces, so no end ever uses one twice; only
    the two ends can compute it; ends that were named different sets, or told to make noise of
    different sizes, have different keys; with a probability below 1 the two ends draw from the key
    whether they share noise at all, and nobody else learns or chooses it.

    Raises
    ------
    KeyAgreementError
        If a peer's public key is not one.
    """
    members = ((identity, nonce), *((peer.card.identity, peer.nonce) for peer in peers))
    # Who is shown another set draws other keys: else a server could learn from the sum of one set
    # which pairs share noise, and show the next one accordingly (`sparse_graph`).
    # And so does whoever was told another grid or scale: the same numbers, larger in a peer's
    # upload than in the client's own, would be known too well from there.
    sizes = b"".join(each.to_bytes(8, "big", signed=True) for each in scale)
    bound = hashlib.sha256(run_tag + sizes + b"".join(sorted(a + b for a, b in members))).digest()
    added: list[bytes] = []
    subtracted: list[bytes] = []
    for peer in peers:
        key = edge_key(
            agree(exchange_private, peer.card.exchange),
            run_tag=bound,
            server_round=server_round,
            attempt=attempt,
            ends=((identity, nonce), (peer.card.identity, peer.nonce)),
            purpose=kind,
        )
        if edge_probability < 1.0 and not has_edge(key, edge_probability):
            continue
        (added if identity < peer.card.identity else subtracted).append(key)
    return Edges(tuple(added), tuple(subtracted))


# Alg. 2, masked upload: the update, noise of one's own, and what cancels.
def mask_update(
    update: Vector,
    edges: Edges,
    *,
    kind: str,
    grid: FixedPoint,
    pair_scale: int,
    own_std: float,
    stream: Stream,
) -> Words:
    """Return an upload: the update on the grid, with noise, mod 2^32.

    Parameters
    ----------
    update : ndarray of float64, shape (d,)
        Clipped, so that it fits the grid.
    edges : Edges
    kind : {"gaussian", "uniform"}
    grid : FixedPoint
    pair_scale : int
        c, with `gaussian`.
    own_std : float
        Of the noise that does not cancel, in the unit of an update; 0: none (for tests, and for
        secure aggregation without differential privacy).
    stream : Stream
        The client's own.

    Returns
    -------
    ndarray of uint32, shape (d,)
    """
    steps = grid.encode(update)
    if own_std > 0.0:
        # On the grid already, so that the last rounding takes a Gaussian mechanism's output.
        noise = stream.standard_normal(steps.size)
        noise *= own_std / grid.step
        noise += steps
        steps = np.rint(noise).astype(np.int64)
    if kind == "uniform":
        return wrap(steps) + sum_uniform_masks(edges.added, edges.subtracted, steps.size)
    pairs = sum_pair_noise(edges.added, edges.subtracted, steps.size)
    pairs *= pair_scale
    pairs += steps
    return wrap(pairs)


# Alg. 2, aggregation: the parameter server sums what it gets.
def sum_uploads(uploads: Iterable[Words], size: int) -> tuple[Words, int]:
    """Return the sum mod 2^32 of uploads of shape (size,), and how many there were."""
    total = np.zeros(size, dtype=np.uint32)
    count = 0
    for upload in uploads:
        total += upload
        count += 1
    return total, count


def average_uploads(total: Words, weight: float, grid: FixedPoint) -> Vector | None:
    """Return the average of updates, with what noise is left in it, from the sum mod 2^32.

    Parameters
    ----------
    total : ndarray of uint32, shape (d,)
    weight : float
        Of all uploads in it: their number, > 0, with uniform weights.
    grid : FixedPoint
        On which the sum of honest uploads does not overflow.

    Returns
    -------
    ndarray of float64, shape (d,), or None
        None if the sum looks like uniform words: then masks did not cancel. The updates of an
        honest sum, and 12 standard deviations of its noise, fit the range: the root mean square of
        16 numbers or more is below a quarter of it, that of uniform words is above but for a
        probability of .1 ^ (d / 10). Of fewer numbers only the largest can be told apart.
    """
    decoded = grid.decode(unwrap(total))
    bound = grid.step * RANGE * max(1.0, MOST_OF_RANGE * math.sqrt(decoded.size))
    return None if l2_norm(decoded) > bound else decoded / weight
