"""What a client keeps of its keys between messages: private keys, cards met, the pending nonce."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from strategies.device_state import DeviceState
from strategies.mechanisms.key_agreement import PublicCard
from strategies.mechanisms.rng import Randomness, Stream
from strategies.niss.peers import NONCE_BYTES, pack_cards, unpack_cards

KEY_BYTES = 32
_EXCHANGE, _IDENTITY, _TAG = "niss.exchange", "niss.identity", "niss.run-tag"
_CARDS, _PENDING = "niss.cards", "niss.pending"


@dataclass(frozen=True)
class DeviceTrust:
    """Who a device is to others, and whom it trusts: its owner's choice, not the server's.

    Attributes
    ----------
    identity : bytes or None
        Private Ed25519 key, 32 bytes, the same in all runs. None: one for each run.
    peers : frozenset of bytes, or None
        Public identity keys, 32 bytes each, of the devices that it masks towards; its own may be
        among them. None: whoever comes first under a number (trust on first use).
    """

    identity: bytes | None = field(default=None, repr=False)
    peers: frozenset[bytes] | None = None

    def __post_init__(self) -> None:
        keys = [*([] if self.identity is None else [self.identity]), *(self.peers or ())]
        if any(not isinstance(key, bytes) or len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"keys of another length; allowed: {KEY_BYTES} bytes each")

    def digest(self, own: bytes) -> bytes:
        """Return what tells equal trust lists from others: empty without one.

        Parameters
        ----------
        own : bytes
            The device's own public identity, which belongs to its circle whether listed or not.
        """
        if self.peers is None:
            return b""
        return hashlib.sha256(b"".join(sorted(self.peers | {own}))).digest()


NOBODY_KNOWN = DeviceTrust()


class KeyMemory:
    """A client's keys of one run, in its state.

    Parameters
    ----------
    state : DeviceState
    randomness : Randomness
        Seeded: keys and nonces are functions of the seed (experiments). Secret: from the system.
    client : int
        Its number.
    """

    def __init__(self, state: DeviceState, randomness: Randomness, client: int) -> None:
        self._state = state
        self._randomness = randomness
        self._client = client

    def exchange_key(self) -> bytes:
        """Return the run's private exchange key, drawn when it is first asked for."""
        return self._own(_EXCHANGE)

    def identity_key(self) -> bytes:
        """Return the run's private identity key, for a device that has no other."""
        return self._own(_IDENTITY)

    def agree_on_tag(self, tag: bytes) -> bool:
        """Return whether the run has this tag; the first one is kept."""
        known = self._state.read_key(_TAG)
        if known is None:
            self._state.write_key(_TAG, tag)
        return known is None or known == tag

    def has_agreed_on(self, tag: bytes) -> bool:
        """Return whether the client has registered, under this tag."""
        return self._state.read_key(_TAG) == tag

    def cards(self) -> dict[int, PublicCard]:
        """Return the cards accepted so far in this run, by number."""
        return unpack_cards(self._state.read_key(_CARDS) or b"")

    def pin(self, cards: Iterable[PublicCard]) -> None:
        """Keep cards: their numbers have these keys for the rest of the run."""
        known = self.cards()
        new = {card.number: card for card in cards if card.number not in known}
        if new:
            self._state.write_key(_CARDS, pack_cards({**known, **new}.values()))

    def begin(self, server_round: int, attempt: int) -> bytes:
        """Draw the nonce of an attempt; the same one as long as it has not been used."""
        pending = self.pending()
        if pending is not None and pending[:2] == (server_round, attempt):
            return pending[2]
        stream = self._randomness.stream("niss-nonce", server_round, attempt, self._client)
        nonce = _draw(stream, NONCE_BYTES)
        self._state.write_key(_PENDING, _pack(server_round, attempt) + nonce)
        return nonce

    def pending(self) -> tuple[int, int, bytes] | None:
        """Return round, attempt and nonce that have not been used yet; None if there are none."""
        data = self._state.read_key(_PENDING)
        return None if data is None else (*_unpack(data[:16]), data[16:])

    def use_up(self) -> None:
        """Give up the pending nonce, before anything is computed from it, whatever crashes."""
        self._state.delete_key(_PENDING)

    def has_forgotten(self) -> bool:
        """Return whether there is no private exchange key: never drawn, or forgotten."""
        return self._state.read_key(_EXCHANGE) is None

    def forget_private(self) -> None:
        """Forget what the noise of pairs follows from, after the last upload of the run."""
        for name in (_EXCHANGE, _PENDING):
            self._state.delete_key(name)

    def _own(self, name: str) -> bytes:
        key = self._state.read_key(name)
        if key is None:
            key = _draw(self._randomness.stream(name, self._client), KEY_BYTES)
            self._state.write_key(name, key)
        return key


def _draw(stream: Stream, size: int) -> bytes:
    return stream.words(size // 8).astype("<u8").tobytes()


def _pack(server_round: int, attempt: int) -> bytes:
    return server_round.to_bytes(8, "little") + attempt.to_bytes(8, "little")


def _unpack(data: bytes) -> tuple[int, int]:
    return int.from_bytes(data[:8], "little"), int.from_bytes(data[8:16], "little")
