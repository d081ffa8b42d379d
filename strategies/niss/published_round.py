"""A round of mode `paper`: what the tracker tells each client, and what a client makes of it.

The server knows, for each client, what its noise depends on: its number, its weight and the round.
So it names the neighbours; a client computes its own noise again and refuses another number of
shares. No share travels: sender and receiver derive it from a key for this direction.
"""

import math
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from strategies.mechanisms.fixed_point import FixedPoint
from strategies.mechanisms.key_agreement import End, agree, directed_edge_key
from strategies.mechanisms.pairwise_noise import GAUSSIAN_STD
from strategies.mechanisms.rng import Stream
from strategies.niss.parameters import NissParameters
from strategies.niss.peers import PeerError, ReadyPeer
from strategies.niss.published import (
    Vector,
    Words,
    draw_neighbours,
    noise_update,
    offset_update,
    plan_shares,
    published_grid,
    published_noise_std,
    residual_variance,
    resolve_tau,
    share_multiple,
    sum_received,
    sum_shares,
    weigh,
)

PURPOSE = "share"
MAX_MULTIPLE = 2**31 - 1
# For each peer of a ready set, in its order: two bits of flags, and the peer's c if it sends.
_RECORD = struct.Struct("<BI")
RECORD_BYTES = _RECORD.size
_SENDS_TO, _RECEIVES_FROM = 1, 2


@dataclass(frozen=True)
class PublishedRound:
    """Who shares noise with whom in one attempt.

    Attributes
    ----------
    grid : FixedPoint
    weights, noise_stds : mapping of int to float
        By client: what scales its update, and sigma_k.
    neighbours : mapping of int to tuple of int
        By client: those that it sends a share to; empty without shares (DP-FedAvg).
    multiples : mapping of int to int
        By client: c of its shares.
    tau : float
    """

    grid: FixedPoint
    weights: Mapping[int, float]
    noise_stds: Mapping[int, float]
    neighbours: Mapping[int, tuple[int, ...]]
    multiples: Mapping[int, int]
    tau: float

    def describe(self, client: int, peers: Sequence[int]) -> dict[str, Any]:
        """Return what a client is told beside its ready set: fields of a request for an upload."""
        return {
            "step_exponent": self.grid.exponent,
            "pair_scale": self.multiples.get(client, 0),
            "shares": self.describe_shares(client, peers),
            "weight": self.weights[client],
        }

    def describe_shares(self, client: int, peers: Sequence[int]) -> bytes:
        """Return `RECORD_BYTES` for each peer: whether a share goes to it or comes from it."""
        own = set(self.neighbours.get(client, ()))
        records = []
        for peer in peers:
            receives = client in self.neighbours.get(peer, ())
            flags = _SENDS_TO * (peer in own) + _RECEIVES_FROM * receives
            records.append(_RECORD.pack(flags, self.multiples[peer] if receives else 0))
        return b"".join(records) if self.neighbours else b""

    def weight_of(self, uploaded: Collection[int]) -> float:
        """Return what the sum of some uploads is divided by: the sum of their weights."""
        return math.fsum(self.weights[client] for client in uploaded)

    def residual_std(self, uploaded: Collection[int]) -> float:
        """Return the standard deviation of the noise left in the sum of some uploads."""
        if not self.neighbours:
            return math.hypot(*(self.noise_stds[client] for client in uploaded))
        unit = GAUSSIAN_STD * self.grid.step
        variances = {client: (c * unit) ** 2 for client, c in self.multiples.items()}
        return math.sqrt(residual_variance(self.neighbours, variances, uploaded, self.tau))


def plan_published_round(
    parameters: NissParameters,
    server_round: int,
    groups: Collection[Collection[int]],
    num_records: Mapping[int, int],
    numbers: Mapping[int, int],
    stream: Stream,
) -> PublishedRound:
    """Plan a round: the weights, each client's noise, and its neighbours.

    Parameters
    ----------
    parameters : NissParameters
        In mode `paper`.
    server_round : int
    groups : collection of collections of int
        The ready clients, each among those that it may share noise with.
    num_records : mapping of int to int
        n_k, as told; 0 where it is not.
    numbers : mapping of int to int
        The number by which each client's own target goes.
    stream : Stream
        The tracker's.
    """
    ready = sorted(client for members in groups for client in members)
    weights = weigh({client: num_records[client] for client in ready}, parameters.weighting)
    stds = {
        client: published_noise_std(parameters, numbers[client], server_round, weights[client])
        for client in ready
    }
    grid = published_grid(parameters, list(stds.values()))
    tau = resolve_tau(parameters)
    if parameters.pair_noise == "none":
        return PublishedRound(grid, weights, stds, {}, {}, tau)
    neighbours: dict[int, tuple[int, ...]] = {}
    multiples: dict[int, int] = {}
    for members in groups:
        most = len(members) - 1
        shares = {}
        for client in sorted(members):
            shares[client], share_std = plan_shares(stds[client], parameters.unit_noise_std, most)
            multiples[client] = share_multiple(share_std, grid.step)
        neighbours |= draw_neighbours(shares, stream)
    return PublishedRound(grid, weights, stds, neighbours, multiples, tau)


@dataclass(frozen=True)
class PublishedNoise:
    """What one client adds to its update in mode `paper`.

    Attributes
    ----------
    grid : FixedPoint
    weight : float
        What scales the update.
    noise_std : float
        sigma_k.
    keys : tuple of bytes
        Of the shares that it sends.
    multiple : int
        c of these.
    received : tuple of (bytes, int)
        Key and c of each share that it receives.
    tau : float
    offsets : bool
        Whether there are shares; False: the published DP-FedAvg.
    """

    grid: FixedPoint
    weight: float
    noise_std: float
    keys: tuple[bytes, ...]
    multiple: int
    received: tuple[tuple[bytes, int], ...]
    tau: float
    offsets: bool

    def add_to(self, update: Vector, stream: Stream) -> Words:
        """Return the upload; `stream` is the client's own."""
        contribution = update * self.weight
        if not self.offsets:
            return noise_update(contribution, self.grid, self.noise_std, stream)
        size = update.size
        own = sum_shares(self.keys, self.multiple, size)
        return offset_update(
            contribution,
            self.grid,
            [own, sum_received(self.received, size, tau=self.tau, stream=stream)],
        )


def accept_shares(
    parameters: NissParameters,
    ready: Sequence[ReadyPeer],
    accepted: Collection[ReadyPeer],
    *,
    number: int,
    identity: bytes,
    exchange_private: bytes,
    nonce: bytes,
    run_tag: bytes,
    server_round: int,
    attempt: int,
    grid: FixedPoint,
    weight: float,
    own_multiple: int,
    shares: bytes,
) -> PublishedNoise:
    """Derive a client's shares and those that it receives, from what the tracker says.

    Parameters
    ----------
    parameters : NissParameters
        In mode `paper`.
    ready : sequence of ReadyPeer
        As the server names them.
    accepted : collection of ReadyPeer
        Those of them that the client masks towards.
    number, identity, exchange_private, nonce
        The client's own number, keys and nonce.
    run_tag, server_round, attempt
        What the keys are for.
    grid : FixedPoint
    weight : float
        What the server says that the update is to be scaled by; above 0, at most the clients of a
        round, and 1 with uniform weighting.
    own_multiple : int
        c of the client's shares, as the server tells the receivers.
    shares : bytes
        As `PublishedRound.describe_shares` returns them for `ready`.

    Raises
    ------
    PeerError
        If the tracker names others than accepted peers, or another number of them than the client's
        noise asks for; or if the weight or c is not what it can be.
    KeyAgreementError
        If a peer's public key is not one.
    """
    whole = parameters.weighting == "uniform"
    if not 0.0 < weight <= parameters.max_ready or (whole and weight != 1.0):
        raise PeerError("a weight that no client has")
    tau = resolve_tau(parameters)
    noise_std = published_noise_std(parameters, number, server_round, weight)
    if parameters.pair_noise == "none":
        if shares:
            raise PeerError("shares without pair noise")
        return PublishedNoise(grid, weight, noise_std, (), 0, (), tau, offsets=False)
    if len(shares) != RECORD_BYTES * len(ready):
        raise PeerError("shares of a wrong length")
    own: End = (identity, nonce)
    keys, received = [], []
    for (flags, multiple), peer in zip(_RECORD.iter_unpack(shares), ready, strict=True):
        receives = bool(flags & _RECEIVES_FROM)
        if flags > _SENDS_TO + _RECEIVES_FROM or (0 < multiple <= MAX_MULTIPLE) != receives:
            raise PeerError("shares that cannot be read")
        if not flags:
            continue
        if peer not in accepted:
            raise PeerError("a share with a client that is not accepted")
        derive = partial(
            directed_edge_key,
            agree(exchange_private, peer.card.exchange),
            run_tag=run_tag,
            server_round=server_round,
            attempt=attempt,
            purpose=PURPOSE,
        )
        other: End = (peer.card.identity, peer.nonce)
        if flags & _SENDS_TO:
            keys.append(derive(sender=own, receiver=other))
        if receives:
            received.append((derive(sender=other, receiver=own), multiple))
    number_of_shares, share_std = plan_shares(noise_std, parameters.unit_noise_std, len(accepted))
    if len(keys) != number_of_shares:
        raise PeerError("another number of neighbours than the noise asks for")
    # Both compute c from the same numbers, on machines that may round differently.
    if abs(own_multiple - share_multiple(share_std, grid.step)) > 1:
        raise PeerError("shares of another size than the noise asks for")
    return PublishedNoise(
        grid, weight, noise_std, tuple(keys), own_multiple, tuple(received), tau, offsets=True
    )
