"""Keys that two clients share and the server that relays their cards does not know.

Each client has an identity key (Ed25519, RFC 8032) and for each run an exchange key (X25519,
RFC 7748). Its signed card carries both public keys. Two clients that hold each other's cards agree
on a secret, and derive one key from it for each use with HKDF-SHA256 (RFC 5869).
"""

from dataclasses import dataclass
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_SIZE = 32
SIGNATURE_SIZE = 64
NONCE_SIZE = 16
CARD_SIZE = 8 + 2 * KEY_SIZE + SIGNATURE_SIZE

# A version of its own for each kind of text; none is ever reused for another.
_CARD = b"private-fl-app card 1"
_EDGE = b"private-fl-app edge 1"
_DIRECTED_EDGE = b"private-fl-app directed edge 1"

# An identity's public key and its nonce of the round.
End = tuple[bytes, bytes]


class KeyAgreementError(ValueError):
    """A card, a key or a label that is not allowed; the text carries none of their content."""


@dataclass(frozen=True)
class PublicCard:
    """What a client shows its peers, by way of the server; nothing of it is secret.

    A card is not to be believed before `verify_card`, and then it says only that the identity's
    owner made it: whether that is a peer to trust, a list of trusted identities must tell.

    Attributes
    ----------
    number : int
        The client's number in the run, 0 to 2^64 - 1.
    identity : bytes
        Ed25519 public key, 32 bytes.
    exchange : bytes
        X25519 public key of the run, 32 bytes.
    signature : bytes
        The identity's signature of the other fields and the run's tag, 64 bytes.
    """

    number: int
    identity: bytes
    exchange: bytes
    signature: bytes

    def __post_init__(self) -> None:
        _encode_number("number", self.number)
        _check_bytes("identity", self.identity, KEY_SIZE)
        _check_bytes("exchange", self.exchange, KEY_SIZE)
        _check_bytes("signature", self.signature, SIGNATURE_SIZE)

    def to_bytes(self) -> bytes:
        """Write the card in 136 bytes: number (big-endian), identity, exchange, signature."""
        number = _encode_number("number", self.number)
        return number + self.identity + self.exchange + self.signature

    @classmethod
    def from_bytes(cls, data: bytes) -> "PublicCard":
        """Read what `to_bytes` wrote; its signature is not checked.

        Raises
        ------
        KeyAgreementError
            There are not 136 bytes.
        """
        _check_bytes("card", data, CARD_SIZE)
        identity, exchange = data[8 : 8 + KEY_SIZE], data[8 + KEY_SIZE : 8 + 2 * KEY_SIZE]
        return cls(int.from_bytes(data[:8], "big"), identity, exchange, data[8 + 2 * KEY_SIZE :])


def public_identity(private: bytes) -> bytes:
    """Return the Ed25519 public key of a private one (32 random bytes each)."""
    _check_bytes("private identity key", private, KEY_SIZE)
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def public_exchange(private: bytes) -> bytes:
    """Return the X25519 public key of a private one (32 random bytes each)."""
    _check_bytes("private exchange key", private, KEY_SIZE)
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign_card(
    number: int, run_tag: bytes, identity_private: bytes, exchange_private: bytes
) -> PublicCard:
    """Make a client's card for a run.

    Parameters
    ----------
    number : int
        The client's number in the run, 0 to 2^64 - 1.
    run_tag : bytes
        What names the run, at least one byte; a card is worth nothing in another run.
    identity_private : bytes
        Ed25519 private key, 32 bytes.
    exchange_private : bytes
        X25519 private key, 32 bytes, made for this run.

    Returns
    -------
    PublicCard
        A function of the arguments: signing twice gives the same card.

    Raises
    ------
    KeyAgreementError
        An argument is out of range or has another length.
    """
    identity, exchange = public_identity(identity_private), public_exchange(exchange_private)
    text = _card_text(number, run_tag, identity, exchange)
    signature = Ed25519PrivateKey.from_private_bytes(identity_private).sign(text)
    return PublicCard(number, identity, exchange, signature)


def verify_card(card: PublicCard, run_tag: bytes) -> None:
    """Raise KeyAgreementError unless the card's identity signed it for this run, with a usable key.

    After that, nobody but the owner of the identity can have chosen the number and the exchange
    key: who relays the card cannot swap them, nor bring a card from another run.
    """
    text = _card_text(card.number, run_tag, card.identity, card.exchange)
    try:
        Ed25519PublicKey.from_public_bytes(card.identity).verify(card.signature, text)
    except (InvalidSignature, ValueError):
        raise KeyAgreementError("card: its signature is not its identity's for this run") from None
    # A point of low order shows with any key.
    agree(bytes(KEY_SIZE), card.exchange)


def agree(exchange_private: bytes, peer_exchange: bytes) -> bytes:
    """Return the secret that the owners of two exchange keys share.

    Parameters
    ----------
    exchange_private : bytes
        The own X25519 private key, 32 bytes.
    peer_exchange : bytes
        The peer's X25519 public key, 32 bytes, from a verified card.

    Returns
    -------
    bytes
        32 bytes, the same at both ends. No key itself: for `edge_key` only.

    Raises
    ------
    KeyAgreementError
        A key does not have 32 bytes, or the peer's is a point of low order, with which the secret
        would be zero for everyone.
    """
    _check_bytes("private exchange key", exchange_private, KEY_SIZE)
    _check_bytes("exchange key of the peer", peer_exchange, KEY_SIZE)
    own = _load_private(exchange_private)
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(peer_exchange))
    except ValueError:
        raise KeyAgreementError("exchange key of the peer: a point of low order") from None


# A client agrees with all its peers in a row; loading takes as long as agreeing.
@lru_cache(maxsize=1)
def _load_private(exchange_private: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(exchange_private)


def edge_key(
    shared: bytes,
    *,
    run_tag: bytes,
    server_round: int,
    attempt: int,
    ends: tuple[End, End],
    purpose: str,
) -> bytes:
    """Derive a pair's key for one use; both ends get the same.

    To whoever does not know `shared`, keys of different arguments are independent random bytes, as
    far as HKDF-SHA256 is a pseudo-random function. So the key is fresh, whatever round, attempt and
    peer's nonce a server names, as long as one end's nonce is; and it is bound to the run and to
    both identities. All fields have their lengths before them: no two lists of arguments give the
    same text.

    Parameters
    ----------
    shared : bytes
        What `agree` returned, 32 bytes.
    run_tag : bytes
        What names the run, at least one byte.
    server_round, attempt : int
        The round and its attempt, 0 to 2^64 - 1.
    ends : two pairs (identity, nonce)
        Each end's Ed25519 public key (32 bytes) and its nonce of this attempt (16 random bytes,
        never used before), in any order.
    purpose : str
        What the key is for, at least one character.

    Returns
    -------
    bytes
        32 bytes.

    Raises
    ------
    KeyAgreementError
        An argument is out of range or has another length, or both ends are the same identity.
    """
    _check_ends(*ends)
    first, second = sorted(ends)
    return _derive(_EDGE, shared, run_tag, server_round, attempt, first, second, purpose)


def directed_edge_key(
    shared: bytes,
    *,
    run_tag: bytes,
    server_round: int,
    attempt: int,
    sender: End,
    receiver: End,
    purpose: str,
) -> bytes:
    """Derive a pair's key for one use in one direction; both ends get the same.

    As `edge_key`, but the key from a sender to a receiver is independent of the one back, and of
    the pair's key without a direction.

    Parameters
    ----------
    shared : bytes
        What `agree` returned, 32 bytes.
    run_tag : bytes
        What names the run, at least one byte.
    server_round, attempt : int
        The round and its attempt, 0 to 2^64 - 1.
    sender, receiver : pair (identity, nonce)
        Each end's Ed25519 public key (32 bytes) and its nonce of this attempt (16 bytes).
    purpose : str
        What the key is for, at least one character.

    Returns
    -------
    bytes
        32 bytes.

    Raises
    ------
    KeyAgreementError
        An argument is out of range or has another length, or both ends are the same identity.
    """
    _check_ends(sender, receiver)
    return _derive(
        _DIRECTED_EDGE, shared, run_tag, server_round, attempt, sender, receiver, purpose
    )


def _derive(
    label: bytes,
    shared: bytes,
    run_tag: bytes,
    server_round: int,
    attempt: int,
    first: End,
    second: End,
    purpose: str,
) -> bytes:
    _check_bytes("shared secret", shared, KEY_SIZE)
    _check_tag(run_tag)
    if not isinstance(purpose, str) or not purpose:
        raise KeyAgreementError("purpose: allowed: at least one character")
    info = _join(
        label,
        purpose.encode(),
        run_tag,
        _encode_number("server_round", server_round),
        _encode_number("attempt", attempt),
        *first,
        *second,
    )
    return HKDF(SHA256(), length=KEY_SIZE, salt=None, info=info).derive(shared)


def _card_text(number: int, run_tag: bytes, identity: bytes, exchange: bytes) -> bytes:
    _check_tag(run_tag)
    return _join(_CARD, run_tag, _encode_number("number", number), identity, exchange)


def _join(*fields: bytes) -> bytes:
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def _encode_number(name: str, value: int) -> bytes:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise KeyAgreementError(f"{name}: allowed: an integer from 0 to 2^64 - 1")
    return value.to_bytes(8, "big")


def _check_bytes(name: str, value: bytes, size: int) -> None:
    if not isinstance(value, bytes) or len(value) != size:
        found = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
        raise KeyAgreementError(f"{name}: {found}; allowed: {size} bytes")


def _check_ends(*ends: End) -> None:
    for identity, nonce in ends:
        _check_bytes("identity", identity, KEY_SIZE)
        _check_bytes("nonce", nonce, NONCE_SIZE)
    if len({identity for identity, _ in ends}) != 2:
        raise KeyAgreementError("ends: allowed: two different identities")


def _check_tag(run_tag: bytes) -> None:
    if not isinstance(run_tag, bytes) or not run_tag:
        raise KeyAgreementError("run_tag: allowed: at least one byte")
