"""CPU seconds of one thread that NISS's masks and double-masked secure aggregation take.

Left out on both sides: training, own noise, encoding, transport.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares

from bench.double_masking import (
    Advertisement,
    MaskedSum,
    MaskingClient,
    derive_key,
    left_over_keys,
)
from bench.secret_shares import (
    KEY_FIELD,
    SEED_FIELD,
    draw_polynomial,
    evaluate,
    interpolation_weights,
    reconstruct,
)
from strategies.mechanisms.key_agreement import agree, edge_key, sign_card, verify_card
from strategies.mechanisms.pairwise_noise import sum_pair_noise, sum_uniform_masks

RUN_TAG = b"bench"
MOST_CLIENTS, MOST_PAIRS = 20, 100
"""How many clients and pairs of the server's repeated work are timed; the rest is scaled."""


def cpu_seconds(action: Callable[[], object]) -> float:
    begin = time.thread_time()
    action()
    return time.thread_time() - begin


def time_operations() -> dict[str, float]:
    """Return the seconds of one operation of each kind, the median of seven tries."""
    agreeing, peer = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key()
    signing, message, nonce = Ed25519PrivateKey.generate(), os.urandom(64), os.urandom(12)
    signature, public = signing.sign(message), signing.public_key()
    sealing, key = AESGCM(os.urandom(32)), os.urandom(32)
    keys, size = [os.urandom(32) for _ in range(10)], 100_000
    actions: dict[str, Callable[[], object]] = {
        "X25519 key pair": X25519PrivateKey.generate,
        "X25519 agreement": lambda: agreeing.exchange(peer),
        "HKDF-SHA256": lambda: derive_key(key, b"label"),
        "Ed25519 signature": lambda: signing.sign(message),
        "Ed25519 verification": lambda: public.verify(signature, message),
        "AES-256-GCM, 64 bytes": lambda: sealing.encrypt(nonce, message, None),
        "uniform masks, 1,000,000 words": lambda: sum_uniform_masks(keys, [], size),
        "Gaussian pair noise, 1,000,000 words": lambda: sum_pair_noise(keys, [], size),
    }

    def median(action: Callable[[], object]) -> float:
        action()
        times = 1 if cpu_seconds(action) > 1e-3 else 100
        tries = [cpu_seconds(lambda: [action() for _ in range(times)]) for _ in range(7)]
        return statistics.median(tries) / times

    return {name: median(action) for name, action in actions.items()}


def time_sharing(num_clients: int, threshold: int) -> dict[str, float]:
    """Return the seconds to share a 16-byte secret and to reconstruct it alone."""
    shares: list[int] = []

    def share() -> None:
        polynomial = draw_polynomial(1, threshold, SEED_FIELD)
        shares.extend(evaluate(polynomial, point + 1, SEED_FIELD) for point in range(num_clients))

    def combine() -> None:
        weights = interpolation_weights(range(1, threshold + 1), SEED_FIELD)
        assert reconstruct(weights, shares[:threshold], SEED_FIELD) == 1

    return {"share": cpu_seconds(share), "reconstruct": cpu_seconds(combine)}


def time_flower_sharing(num_clients: int, threshold: int) -> dict[str, float]:
    """Return the same for the shares that Flower's SecAgg+ makes of a secret of one block."""
    secret, shares = os.urandom(15), []
    # Flower works in a thread of its own: the time of the whole process.
    begin = time.process_time()
    shares = create_shares(secret, threshold, num_clients)
    middle = time.process_time()
    assert combine_shares(shares[:threshold]) == secret
    return {"share": middle - begin, "reconstruct": time.process_time() - middle}


def choose_timed(num_clients: int) -> list[int]:
    """Name the clients that are timed: of those that only add, do both, and only subtract."""
    return [0, num_clients // 2, num_clients - 1]


def time_niss_client(num_clients: int, size: int, gaussian: bool) -> float:
    """Return a client's seconds: check the cards, agree on keys, draw and add the masks.

    As in a first round, when every card is new.
    """
    identities, exchanges = ([os.urandom(32) for _ in range(num_clients)] for _ in range(2))
    cards = [
        sign_card(number, RUN_TAG, *private)
        for number, private in enumerate(zip(identities, exchanges, strict=True))
    ]
    ends = [(card.identity, os.urandom(16)) for card in cards]
    update = np.zeros(size, dtype=np.uint32)

    def mask(own: int) -> None:
        added, subtracted = [], []
        for card, end in zip(cards, ends, strict=True):
            if card.number == own:
                continue
            verify_card(card, RUN_TAG)
            key = edge_key(
                agree(exchanges[own], card.exchange),
                run_tag=RUN_TAG,
                server_round=1,
                attempt=1,
                ends=(ends[own], end),
                purpose="noise",
            )
            (added if ends[own] < end else subtracted).append(key)
        if gaussian:
            # Once for all pairs: onto the grid.
            update + 2 * sum_pair_noise(added, subtracted, size)
        else:
            update + sum_uniform_masks(added, subtracted, size)

    ranks = sorted(range(num_clients), key=lambda number: cards[number].identity)
    timed = [ranks[rank] for rank in choose_timed(num_clients)]
    return statistics.mean(cpu_seconds(lambda own=own: mask(own)) for own in timed)


def time_sum(num_uploads: int, size: int) -> float:
    """Return the seconds that the server takes to add the uploads up."""
    sample = min(num_uploads, MOST_CLIENTS)
    uploads = np.random.default_rng(0).integers(0, 2**32, (sample, size), dtype=np.uint32)
    total = np.zeros(size, dtype=np.uint32)

    def add() -> None:
        for upload in uploads:
            np.add(total, upload, out=total)

    return cpu_seconds(add) * num_uploads / sample


class Cohort:
    """A client's peers in double masking and itself, some of which drop out after round 1."""

    def __init__(self, num_peers: int, threshold: int, dropped: int, active: bool) -> None:
        self.members = range(num_peers + 1)
        self.threshold, self.active = threshold, active
        self.gone = list(range(1, dropped + 1))
        self.uploaded = frozenset(self.members) - set(self.gone)
        self._signing = [Ed25519PrivateKey.generate() for _ in self.members]
        self.identities = {i: key.public_key().public_bytes_raw() for i, key in self._enumerated()}
        self.clients = {i: MaskingClient(i, key, threshold) for i, key in self._enumerated()}
        self.advertised = {i: client.advertise() for i, client in self.clients.items()}

    def _enumerated(self) -> list[tuple[int, Ed25519PrivateKey]]:
        return list(enumerate(self._signing))

    def time_client(self, own: int, size: int) -> float:
        """Return the seconds of one client, rounds 0 to 4; what it gets is made before."""
        update = np.zeros(size, dtype=np.uint32)
        begin = time.thread_time()
        client = MaskingClient(own, self._signing[own], self.threshold)
        advertised = client.advertise()
        seconds = time.thread_time() - begin

        others = {i: each for i, each in self.clients.items() if i != own}
        sealed, confirmations = {}, {}
        for number, other in others.items():
            other.meet({own: advertised}, None)
            sealed[number] = other.seal_for(own)
            if number in self.uploaded and self.active:
                confirmations[number] = other.confirm(self.uploaded)

        begin = time.thread_time()
        peers = {i: each for i, each in self.advertised.items() if i != own}
        client.meet(peers, self.identities if self.active else None)
        client.seal()
        client.mask(update, sealed)
        client.confirm(self.uploaded)
        client.unmask(confirmations)
        return seconds + time.thread_time() - begin


def time_double_masking_client(cohort: Cohort, size: int) -> float:
    """Return the mean seconds of the clients that are timed."""
    timed = choose_timed(len(cohort.members))
    return statistics.mean(cohort.time_client(own, size) for own in timed)


def time_double_masking_server(
    cohort: Cohort, num_clients: int, dropped: int, size: int
) -> dict[str, float]:
    """Return the server's seconds, by what for; scaled to all clients from a sample of the cohort.

    If the cohort is smaller than all clients (SecAgg+), each client's shares lie with others, and
    the server interpolates once for each.
    """
    points = [number + 1 for number in sorted(cohort.uploaded)[: cohort.threshold]]
    staying = num_clients - dropped
    server = MaskedSum(points)
    sparse = len(cohort.members) < num_clients
    seconds = {"interpolation": cpu_seconds(lambda: server.seed_weights)}
    seconds["interpolation"] *= staying if sparse else 1
    sample = sorted(cohort.uploaded)[:MOST_CLIENTS]
    shares = [_evaluate_all(cohort.clients[i].seed_polynomial, points, SEED_FIELD) for i in sample]
    seconds["self masks"] = cpu_seconds(
        lambda: sum_uniform_masks([server.seed_of(s) for s in shares], [], size)
    ) * (staying / len(sample))
    if cohort.gone:
        once_more = cpu_seconds(lambda: server.key_weights)
        seconds["interpolation"] += once_more * (dropped if sparse else 1)
        seconds["dropouts' masks"] = _time_left_over(cohort, server, points, dropped, size)
    seconds["sum"] = time_sum(staying, size)
    return seconds


def _time_left_over(
    cohort: Cohort, masked_sum: MaskedSum, points: Sequence[int], dropped: int, size: int
) -> float:
    lost = cohort.gone[:MOST_CLIENTS]
    shares = {i: _evaluate_all(cohort.clients[i].key_polynomial, points, KEY_FIELD) for i in lost}
    keys: list[X25519PrivateKey] = []
    recovering = cpu_seconds(
        lambda: keys.extend(
            masked_sum.key_of(each, cohort.advertised[i].masking) for i, each in shares.items()
        )
    )
    few: Mapping[int, Advertisement] = {
        i: cohort.advertised[i] for i in sorted(cohort.uploaded)[:MOST_PAIRS]
    }
    expanding = cpu_seconds(lambda: sum_uniform_masks(*left_over_keys(lost[0], keys[0], few), size))
    # A client that dropped out leaves a mask with each of its peers that stayed.
    pairs = dropped * len(cohort.uploaded)
    return recovering * dropped / len(lost) + expanding * pairs / len(few)


def _evaluate_all(polynomial: Sequence[int], points: Sequence[int], prime: int) -> list[int]:
    return [evaluate(polynomial, point, prime) for point in points]
