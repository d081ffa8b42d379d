"""Double-masked secure aggregation against an active server, so that it can be timed.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning" (CCS 2017),
figure 4: the methods of `MaskingClient` are its rounds 0 to 4, `MaskedSum` is the server's end of
round 4. X25519, HKDF-SHA256, Ed25519, AES-256-GCM, AES-256-CTR masks modulo 2^32 (the same code as
NISS's), Shamir shares. A client deals with the peers it is given: all others, or its neighbours in
SecAgg+. For measurements only: no transport, and little thought for hostile lengths.
"""

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from bench.secret_shares import (
    KEY_FIELD,
    SEED_FIELD,
    draw_polynomial,
    evaluate,
    interpolation_weights,
    reconstruct,
)
from strategies.mechanisms.pairwise_noise import sum_uniform_masks

Words = NDArray[np.uint32]


@dataclass(frozen=True)
class Advertisement:
    """What a client sends in round 0: two public keys and a signature of them."""

    sealing: bytes
    masking: bytes
    signature: bytes


@dataclass(frozen=True)
class Answer:
    """What a client sends in round 4: shares of who uploaded, and of who did not."""

    seeds: dict[int, int]
    keys: dict[int, int]


def derive_key(secret: bytes, label: bytes) -> bytes:
    """Return 32 bytes by HKDF-SHA256."""
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=label).derive(secret)


def agree(own: X25519PrivateKey, public: bytes, label: bytes) -> bytes:
    """Return the key that both owners derive."""
    return derive_key(own.exchange(X25519PublicKey.from_public_bytes(public)), label)


def seed_key(seed: int) -> bytes:
    """Return the key of the self mask that belongs to a 16-byte seed."""
    return derive_key(seed.to_bytes(16, "little"), b"self mask")


def masking_key(secret: int) -> X25519PrivateKey:
    """Return the private key of that number; any 32 bytes are one (RFC 7748)."""
    return X25519PrivateKey.from_private_bytes(secret.to_bytes(32, "little"))


def _set_bytes(members: Iterable[int]) -> bytes:
    return b"uploaded" + b"".join(number.to_bytes(8, "little") for number in sorted(members))


class MaskingClient:
    """One client in one round."""

    def __init__(self, number: int, identity: Ed25519PrivateKey, threshold: int) -> None:
        self.number, self._identity, self._threshold = number, identity, threshold
        self._sealing = X25519PrivateKey.generate()
        self._secret = secrets.randbelow(KEY_FIELD)
        self._masking = masking_key(self._secret)
        self._seed = secrets.randbelow(SEED_FIELD)

    def advertise(self) -> Advertisement:
        """Round 0."""
        keys = [key.public_key().public_bytes_raw() for key in (self._sealing, self._masking)]
        return Advertisement(*keys, self._identity.sign(b"keys" + b"".join(keys)))

    def meet(
        self, peers: Mapping[int, Advertisement], identities: Mapping[int, bytes] | None
    ) -> None:
        """Begin round 1: check the peers' signatures, draw the polynomials of both secrets.

        Without the peers' identity keys nothing is checked, as against a server that follows the
        protocol.
        """
        if identities is not None:
            for number, peer in peers.items():
                key = Ed25519PublicKey.from_public_bytes(identities[number])
                key.verify(peer.signature, b"keys" + peer.sealing + peer.masking)
        self._peers, self._identities = peers, identities
        self._sealing_keys: dict[int, bytes] = {}
        self.seed_polynomial = draw_polynomial(self._seed, self._threshold, SEED_FIELD)
        self.key_polynomial = draw_polynomial(self._secret, self._threshold, KEY_FIELD)

    def seal_for(self, peer: int) -> bytes:
        """Round 1, one peer: seal this client's two shares for it."""
        key = self._sealing_key(peer)
        shares = evaluate(self.key_polynomial, peer + 1, KEY_FIELD).to_bytes(32, "little")
        shares += evaluate(self.seed_polynomial, peer + 1, SEED_FIELD).to_bytes(16, "little")
        plain = self.number.to_bytes(8, "little") + peer.to_bytes(8, "little") + shares
        nonce = os.urandom(12)
        return nonce + AESGCM(key).encrypt(nonce, plain, None)

    def _sealing_key(self, peer: int) -> bytes:
        if peer not in self._sealing_keys:
            public = self._peers[peer].sealing
            self._sealing_keys[peer] = agree(self._sealing, public, b"seal")
        return self._sealing_keys[peer]

    def seal(self) -> dict[int, bytes]:
        """Round 1: seal the shares for all peers."""
        return {peer: self.seal_for(peer) for peer in self._peers}

    def mask(self, update: Words, sealed: Mapping[int, bytes]) -> Words:
        """Round 2: mask towards those whose shares came."""
        self._sealed = sealed
        added, subtracted = [seed_key(self._seed)], []
        for peer in sealed:
            key = agree(self._masking, self._peers[peer].masking, b"mask")
            (added if self.number < peer else subtracted).append(key)
        return update + sum_uniform_masks(added, subtracted, len(update))

    def confirm(self, uploaded: frozenset[int]) -> bytes:
        """Round 3: sign the set of those that uploaded, after which it is the only one."""
        if len(uploaded) < self._threshold or self.number not in uploaded:
            raise ValueError("too few uploads")
        self._uploaded = uploaded
        return self._identity.sign(_set_bytes(uploaded))

    def unmask(self, confirmations: Mapping[int, bytes]) -> Answer:
        """Round 4: check the others' signatures, open the shares, give one of each pair."""
        if self._identities is not None:
            if len(confirmations) + 1 < self._threshold:
                raise ValueError("too few confirmations")
            signed = _set_bytes(self._uploaded)
            for peer, signature in confirmations.items():
                key = Ed25519PublicKey.from_public_bytes(self._identities[peer])
                key.verify(signature, signed)
        own = evaluate(self.seed_polynomial, self.number + 1, SEED_FIELD)
        answer = Answer({self.number: own}, {})
        for peer, data in self._sealed.items():
            plain = AESGCM(self._sealing_key(peer)).decrypt(data[:12], data[12:], None)
            addresses = peer.to_bytes(8, "little") + self.number.to_bytes(8, "little")
            if plain[:16] != addresses:
                raise ValueError("shares of another pair")
            if peer in self._uploaded:
                answer.seeds[peer] = int.from_bytes(plain[48:], "little")
            else:
                answer.keys[peer] = int.from_bytes(plain[16:48], "little")
        return answer


class MaskedSum:
    """The server's end of round 4: take the masks out of the sum of the uploads."""

    def __init__(self, points: Sequence[int]) -> None:
        self._points = points

    @cached_property
    def seed_weights(self) -> list[int]:
        """The weights of the shares of seeds."""
        return interpolation_weights(self._points, SEED_FIELD)

    @cached_property
    def key_weights(self) -> list[int]:
        """The weights of the shares of keys, needed only if somebody dropped out."""
        return interpolation_weights(self._points, KEY_FIELD)

    def seed_of(self, shares: Sequence[int]) -> bytes:
        """Return the self mask's key from the shares of its seed, in the order of the points."""
        return seed_key(reconstruct(self.seed_weights, shares, SEED_FIELD))

    def key_of(self, shares: Sequence[int], public: bytes) -> X25519PrivateKey:
        """Return the masking key of one that dropped out, checked against its public key."""
        key = masking_key(reconstruct(self.key_weights, shares, KEY_FIELD))
        if key.public_key().public_bytes_raw() != public:
            raise ValueError("shares of another key")
        return key


def left_over_keys(
    dropped: int, key: X25519PrivateKey, staying: Mapping[int, Advertisement]
) -> tuple[list[bytes], list[bytes]]:
    """Return the keys of the pair masks that those who stayed added, and took away, for one."""
    added: list[bytes] = []
    subtracted: list[bytes] = []
    for number, peer in staying.items():
        (added if number < dropped else subtracted).append(agree(key, peer.masking, b"mask"))
    return added, subtracted


def unmask_sum(
    uploads: Mapping[int, Words],
    answers: Mapping[int, Answer],
    advertised: Mapping[int, Advertisement],
    threshold: int,
) -> Words:
    """Return the exact sum of the updates that were uploaded, modulo 2^32; complete graph."""
    helpers = sorted(answers)[:threshold]
    server = MaskedSum([number + 1 for number in helpers])
    staying = {number: advertised[number] for number in uploads}
    added = [server.seed_of([answers[i].seeds[number] for i in helpers]) for number in uploads]
    subtracted: list[bytes] = []
    for number in advertised.keys() - uploads.keys():
        shares = [answers[i].keys[number] for i in helpers]
        key = server.key_of(shares, advertised[number].masking)
        plus, minus = left_over_keys(number, key, staying)
        added += plus
        subtracted += minus
    total = np.zeros_like(next(iter(uploads.values())))
    for upload in uploads.values():
        total += upload
    return total - sum_uniform_masks(added, subtracted, len(total))
