"""Whom a client accepts, and what cards are bound to."""

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.mechanisms.key_agreement import CARD_SIZE, PublicCard, sign_card
from strategies.niss.peers import (
    RECORD_BYTES,
    PeerError,
    ReadyPeer,
    accept_peers,
    bind_run_tag,
    pack_cards,
    pack_ready_set,
    unpack_cards,
    unpack_ready_set,
)
from tests.niss.hostile_server import forge_card

RUN = bind_run_tag(bytes(16), "terms")


def make_card(number: int, tag: bytes = RUN, identity: bytes | None = None) -> PublicCard:
    return sign_card(number, tag, identity or os.urandom(32), os.urandom(32))


OWN = make_card(0)
PEERS = [ReadyPeer(make_card(number), bytes([number]) * 16) for number in range(1, 5)]


def accept(
    ready: list[ReadyPeer],
    pinned: dict[int, PublicCard] | None = None,
    trusted: frozenset[bytes] | None = None,
    tag: bytes = RUN,
) -> list[ReadyPeer]:
    return accept_peers(ready, OWN, tag, pinned or {}, trusted)


def test_everybody_is_accepted_who_has_signed() -> None:
    assert accept(PEERS) == PEERS
    assert accept([]) == []


def test_a_card_for_another_run_or_other_terms_does_not_count() -> None:
    for tag in (bind_run_tag(bytes(16), "other"), bind_run_tag(bytes(15) + b"1", "terms")):
        assert accept(PEERS, tag=tag) == []
        assert accept([ReadyPeer(make_card(9, tag), bytes(16)), *PEERS]) == PEERS


@pytest.mark.parametrize("name", ["number", "identity", "exchange", "signature"])
def test_a_card_of_which_anything_was_changed_does_not_count(name: str) -> None:
    other = {"number": 77, "identity": make_card(1).identity, "exchange": make_card(1).exchange}
    changed = replace(PEERS[0].card, **{name: other.get(name, bytes(64))})
    forged = [ReadyPeer(changed, bytes(16)), *PEERS[1:]]
    assert accept(forged) == PEERS[1:]
    trusted = frozenset(each.card.identity for each in [*PEERS, *forged])
    assert accept(forged, trusted=trusted) == PEERS[1:]
    # Who was met before is not left out for another card: it is refused.
    with pytest.raises(PeerError, match="than before"):
        accept(forged, {changed.number: PEERS[0].card})


@pytest.mark.parametrize("point", [0, 1, 2**255 - 19 - 1, 2**255 - 19])
def test_a_card_with_an_exchange_key_of_low_order_does_not_count(point: int) -> None:
    private = os.urandom(32)
    low = forge_card(9, RUN, private, point.to_bytes(32, "little"))
    assert accept([ReadyPeer(low, bytes(16)), *PEERS]) == PEERS
    good = ReadyPeer(forge_card(9, RUN, private, make_card(9).exchange), bytes(16))
    assert accept([good, *PEERS]) == [good, *PEERS]


def test_with_a_trust_list_only_its_devices_count() -> None:
    trusted = frozenset(each.card.identity for each in PEERS[:2])
    assert accept(PEERS, trusted=trusted) == PEERS[:2]
    assert accept(PEERS, trusted=frozenset()) == []
    # What strangers have signed does not matter, so none of them can stop a round.
    forged = ReadyPeer(replace(PEERS[3].card, signature=bytes(64)), bytes(16))
    assert accept([*PEERS[:3], forged], trusted=trusted) == PEERS[:2]
    # A device of the list may be met under a number that a stranger had.
    stranger = {1: make_card(1)}
    with pytest.raises(PeerError, match="than before"):
        accept(PEERS, stranger, trusted)


def test_a_number_keeps_the_card_that_it_had() -> None:
    pinned = {each.card.number: each.card for each in PEERS}
    assert accept(PEERS, pinned) == PEERS
    with pytest.raises(PeerError, match="than before"):
        accept([ReadyPeer(make_card(1), bytes(16)), *PEERS[1:]], pinned)


def test_nobody_is_named_twice() -> None:
    private = os.urandom(32)
    both = [ReadyPeer(make_card(number, identity=private), bytes(16)) for number in (7, 8)]
    for ready in (
        [*PEERS, PEERS[0]],
        [*PEERS, replace(PEERS[0], nonce=bytes(16))],
        [*PEERS, ReadyPeer(make_card(1), bytes(16))],
        both,
        [ReadyPeer(OWN, bytes(16)), *PEERS],
        [ReadyPeer(make_card(0), bytes(16)), *PEERS],
        [ReadyPeer(replace(OWN, number=9), bytes(16)), *PEERS],
    ):
        with pytest.raises(PeerError, match="twice"):
            accept(ready)
        with pytest.raises(PeerError, match="twice"):
            accept(ready, trusted=frozenset(each.card.identity for each in PEERS))


def test_ready_sets_are_152_bytes_a_peer() -> None:
    packed = pack_ready_set(PEERS)
    assert len(packed) == RECORD_BYTES * len(PEERS)
    assert RECORD_BYTES == 152
    assert unpack_ready_set(packed) == PEERS
    assert unpack_ready_set(b"") == []


@given(st.binary(max_size=400))
def test_bytes_are_a_ready_set_or_refused(data: bytes) -> None:
    if len(data) % RECORD_BYTES:
        with pytest.raises(PeerError, match="length"):
            unpack_ready_set(data)
    else:
        assert pack_ready_set(unpack_ready_set(data)) == data


def test_cards_are_kept_in_the_order_of_their_numbers() -> None:
    cards = [each.card for each in PEERS]
    packed = pack_cards(reversed(cards))
    assert packed == pack_cards(cards)
    assert len(packed) == CARD_SIZE * len(cards)
    assert unpack_cards(packed) == {card.number: card for card in cards}
    assert unpack_cards(b"") == {}


def test_a_runs_tag_is_bound_to_what_was_agreed() -> None:
    tags = {bind_run_tag(tag, terms) for tag in (bytes(16), bytes(15) + b"1") for terms in "ab"}
    assert len(tags) == 4
    assert {len(tag) for tag in tags} == {32}
