"""One round as arrays: noise that is shared cancels to the last bit, noise that is not stays."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies

from strategies.mechanisms.fixed_point import FixedPoint, wrap
from strategies.mechanisms.key_agreement import sign_card
from strategies.mechanisms.rng import Randomness, SeededStream
from strategies.niss.algorithm import (
    Edges,
    average_uploads,
    derive_edges,
    mask_update,
    sum_uploads,
)
from strategies.niss.peers import ReadyPeer

GRID = FixedPoint(2.0**-20)
SIZE = 257
TAG = bytes(range(32))


class Client:
    def __init__(self, number: int) -> None:
        self.identity_private = bytes([number]) * 32
        self.exchange_private = bytes([number + 100]) * 32
        self.card = sign_card(number, TAG, self.identity_private, self.exchange_private)
        self.peer = ReadyPeer(self.card, bytes([number + 1]) * 16)

    def edges(self, peers: list["Client"], kind: str = "gaussian", **changes: object) -> Edges:
        use = {"run_tag": TAG, "server_round": 1, "attempt": 1, "kind": kind, **changes}
        nonce = use.pop("nonce", self.peer.nonce)
        others = [each.peer for each in peers if each is not self]
        return derive_edges(self.exchange_private, self.card.identity, nonce, others, **use)


CLIENTS = [Client(number) for number in range(100)]


def updates_of(count: int) -> np.ndarray:
    draws = Randomness("seeded", 5).stream("updates").standard_normal(count * SIZE)
    return 0.01 * draws.reshape(count, SIZE)


def mask(update: np.ndarray, edges: Edges, kind: str, own_std: float = 0.0, name: bytes = b"x"):
    return mask_update(
        update,
        edges,
        kind=kind,
        grid=GRID,
        pair_scale=3,
        own_std=own_std,
        stream=SeededStream(name),
    )


@pytest.mark.parametrize("share", [1.0, 0.4])
@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
@pytest.mark.parametrize("count", [2, 10, 100])
def test_without_own_noise_the_average_is_that_of_the_rounded_updates(
    count: int, kind: str, share: float
) -> None:
    updates, clients = updates_of(count), CLIENTS[:count]
    edges = [each.edges(clients, kind, edge_probability=share) for each in clients]
    uploads = [mask(u, e, kind) for u, e in zip(updates, edges, strict=True)]
    total, number = sum_uploads(uploads, SIZE)
    average = average_uploads(total, number, GRID)
    rounded = sum(GRID.encode(each) for each in updates)
    assert average.tobytes() == (GRID.decode(rounded) / count).tobytes()
    hidden = [
        not np.array_equal(w, wrap(GRID.encode(u))) for w, u in zip(uploads, updates, strict=True)
    ]
    assert hidden == [bool(each.added or each.subtracted) for each in edges]
    if count > 2:
        assert sum(map(len, (e.added for e in edges))) == sum(len(e.subtracted) for e in edges) > 0
        # One upload less, and noise stays.
        some, _ = sum_uploads(uploads[1:], SIZE)
        assert not np.array_equal(some, wrap(rounded - GRID.encode(updates[0])))


def test_own_noise_is_all_that_stays_and_is_added_before_the_last_rounding() -> None:
    updates, clients = updates_of(10), CLIENTS[:10]
    own_std = 37.3 * GRID.step
    uploads = [
        mask(update, client.edges(clients), "gaussian", own_std, bytes([number]))
        for number, (update, client) in enumerate(zip(updates, clients, strict=True))
    ]
    noises = [
        37.3 * SeededStream(bytes([number])).standard_normal(SIZE) for number in range(len(updates))
    ]
    expected = sum(
        np.rint(noise + GRID.encode(update)).astype(np.int64)
        for noise, update in zip(noises, updates, strict=True)
    )
    assert np.array_equal(sum_uploads(uploads, SIZE)[0], wrap(expected))


def test_one_pair_s_noise_is_the_scale_times_integers_of_the_table() -> None:
    one, other = CLIENTS[:2]
    update = updates_of(1)[0]
    words = mask(update, one.edges([one, other]), "gaussian")
    noise = (words - wrap(GRID.encode(update))).astype(np.int32).astype(np.int64)
    assert not np.any(noise % 3)
    assert 512 * 0.7 < np.std(noise / 3) < 512 * 1.4


def test_edges_are_the_same_at_both_ends_and_fresh_for_each_use() -> None:
    one, other, third = CLIENTS[:3]
    both = [one, other]

    def keys(client: Client, peers: list[Client], **changes: object) -> tuple[bytes, ...]:
        edges = client.edges(peers, **changes)
        return edges.added + edges.subtracted

    assert keys(one, both) == keys(other, both)
    adding = min(both, key=lambda each: each.card.identity)
    assert len(adding.edges(both).added) == 1
    assert not adding.edges(both).subtracted
    different = {
        keys(one, both),
        keys(one, both, server_round=2),
        keys(one, both, attempt=2),
        keys(one, both, kind="uniform"),
        keys(one, both, run_tag=bytes(32)),
        keys(one, both, nonce=bytes(16)),
        # Another ready set: other keys with the same peer.
        keys(one, [one, other, third])[:1],
        keys(one, [one, other, third])[1:],
    }
    assert len(different) == 8


@given(
    size=strategies.integers(1, 300),
    share=strategies.floats(-1.0, 1.0),
    count=strategies.integers(1, 1000),
)
def test_a_sum_within_the_range_is_never_taken_for_garbage(
    size: int, share: float, count: int
) -> None:
    """All updates at their longest and alike, in the worst direction: one coordinate."""
    total = np.zeros(size, dtype=np.int64)
    total[0] = math.trunc(share * (2**31 - 1))
    average = average_uploads(wrap(total), count, GRID)
    assert average is not None
    assert average[0] == total[0] * GRID.step / count


@pytest.mark.parametrize("size", [64, 650, 7850])
def test_words_of_a_mask_are_taken_for_garbage(size: int) -> None:
    """Honest noise of the largest deviation that fits is not; .794^64 is 4e-7."""
    words = SeededStream(b"mask").half_words(size)
    assert average_uploads(words, 3, GRID) is None
    noise = SeededStream(b"honest").standard_normal(size) * 2**31 / 12
    assert average_uploads(wrap(np.rint(noise).astype(np.int64)), 3, GRID) is not None


def test_no_uploads_sum_to_zero() -> None:
    total, count = sum_uploads([], 4)
    assert (total.tolist(), count) == ([0, 0, 0, 0], 0)
