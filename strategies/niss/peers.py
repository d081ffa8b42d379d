"""Whom a client hides among: the ready set that the server names, and which of it is believed.

The server only passes on what clients have signed. It chooses who is named, so a client counts
whom it accepts, and uploads nothing if there are too few.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from strategies.mechanisms.key_agreement import (
    CARD_SIZE,
    KeyAgreementError,
    PublicCard,
    verify_card,
)

NONCE_BYTES = 16
RECORD_BYTES = CARD_SIZE + NONCE_BYTES
IDENTITY_BYTES = 32


class PeerError(ValueError):
    """A ready set that a client does not accept; the text holds no data."""


@dataclass(frozen=True)
class ReadyPeer:
    """One client of a ready set.

    Attributes
    ----------
    card : PublicCard
        Its number and public keys, signed by itself.
    nonce : bytes
        16 bytes that it drew for this attempt.
    """

    card: PublicCard
    nonce: bytes


def bind_run_tag(tag: bytes, terms: str) -> bytes:
    """Return what a run's keys are bound to: the server's tag, and all that a client agreed to.

    Clients that were told different parameters then reject each other's cards.
    """
    return hashlib.sha256(tag + hashlib.sha256(terms.encode()).digest()).digest()


def pack_ready_set(peers: Iterable[ReadyPeer]) -> bytes:
    """Return the bytes of a ready set, `RECORD_BYTES` a peer."""
    return b"".join(each.card.to_bytes() + each.nonce for each in peers)


def unpack_ready_set(data: bytes) -> list[ReadyPeer]:
    """Return what `pack_ready_set` packed; PeerError if it is something else."""
    if len(data) % RECORD_BYTES:
        raise PeerError("ready set of a wrong length")
    records = (data[at : at + RECORD_BYTES] for at in range(0, len(data), RECORD_BYTES))
    return [
        ReadyPeer(PublicCard.from_bytes(each[:CARD_SIZE]), each[CARD_SIZE:]) for each in records
    ]


def accept_peers(
    ready: list[ReadyPeer],
    own: PublicCard,
    run_tag: bytes,
    pinned: Mapping[int, PublicCard],
    trusted: Collection[bytes] | None,
) -> list[ReadyPeer]:
    """Return the peers of a ready set that a client masks towards.

    Whoever has not signed its card is left out, like one that is not trusted.

    Formal guarantees, if it returns: the peers have different identities and numbers, none of them
    the client's own; each has signed its exchange key for this run; with a trust list all of them
    are on it; a number that was met before has the keys that it had then.

    Parameters
    ----------
    ready : list of ReadyPeer
        As the server names them, the client itself left out.
    own : PublicCard
        The client's own.
    run_tag : bytes
        What the cards are signed for.
    pinned : mapping of int to PublicCard
        The cards of this run that were accepted before, by number.
    trusted : collection of bytes, or None
        Identity keys that the client's owner trusts: nobody else is masked towards, or counted.
        None: whoever comes first under a number.

    Raises
    ------
    PeerError
        If the set is not one that an honest server names.
    """
    cards = [each.card for each in ready]
    everybody = [own, *cards]
    for names in ({each.identity for each in everybody}, {each.number for each in everybody}):
        if len(names) < len(everybody):
            raise PeerError("ready set that names a client twice")
    accepted = []
    for each in ready:
        if trusted is not None and each.card.identity not in trusted:
            continue
        known = pinned.get(each.card.number)
        if known is None:
            try:
                verify_card(each.card, run_tag)
            except KeyAgreementError:
                # One bad client must not end the round for the others. Whoever skips another set
                # than this client shares no key with it.
                continue
        elif known != each.card:
            raise PeerError("ready set with other keys for a client than before")
        accepted.append(each)
    return accepted


def pack_cards(cards: Iterable[PublicCard]) -> bytes:
    """Return the bytes of cards, `CARD_SIZE` each, in the order of their numbers."""
    return b"".join(each.to_bytes() for each in sorted(cards, key=lambda card: card.number))


def unpack_cards(data: bytes) -> dict[int, PublicCard]:
    """Return the cards that `pack_cards` packed, by number."""
    cards = (
        PublicCard.from_bytes(data[at : at + CARD_SIZE]) for at in range(0, len(data), CARD_SIZE)
    )
    return {card.number: card for card in cards}
