"""A server that may do anything, around real clients; and what they really masked with."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from fl_app.engines.flower_internals import deliver
from strategies.device_state import ContextState, DeviceState, LedgerEntry
from strategies.dp_fedpaq import DpFedPaqParameters
from strategies.dp_fedpaq.client import LocalWork, digest_terms
from strategies.mechanisms import key_agreement
from strategies.mechanisms.fixed_point import unpack
from strategies.mechanisms.key_agreement import PublicCard, public_identity, sign_card
from strategies.niss import upload as masking
from strategies.niss.algorithm import Edges, derive_edges
from strategies.niss.client import train
from strategies.niss.key_memory import NOBODY_KNOWN, DeviceTrust
from strategies.niss.messages import (
    READY,
    REGISTER,
    UPLOAD,
    UPLOAD_TYPE,
    Request,
    build_request,
    parse_card,
    parse_ready,
    split_card,
    split_ready,
)
from strategies.niss.noise_plan import plan_round
from strategies.niss.parameters import NissParameters
from strategies.niss.peers import ReadyPeer, bind_run_tag, pack_ready_set

TAG = bytes(range(16))
Answer = Callable[..., Message]


def make_parameters(number: int = 6, **changes: Any) -> NissParameters:
    """Parameters of a secret run in which all of some clients are asked; z = 1, S = 1."""
    names = DpFedPaqParameters.__dataclass_fields__.keys() - {"mode"}
    values: dict[str, Any] = {
        "num_participations": 3,
        "noise_multiplier": 1.0,
        "clipping_norm": 1.0,
        "unit": "client",
        "local_steps": 1,
        "batch_size": 4,
        "quantizer": "none",
        "randomness": "secret",
        "base_noise_multiplier": 1.0,
        "colluding_fraction": 0.0,
        **dict.fromkeys(("min_ready", "max_ready", "num_clients"), number),
        **changes,
    }
    update = {key: values.pop(key) for key in names & values.keys()}
    return NissParameters(update=DpFedPaqParameters(**update), **values)


class Device:
    """A client with its data, its memory and its owner's trust list."""

    def __init__(
        self,
        number: int,
        update: np.ndarray,
        *,
        trust: DeviceTrust = NOBODY_KNOWN,
        state: DeviceState | None = None,
    ) -> None:
        self.number, self.update, self.trust = number, update, trust
        self.context = Context(1, number, {"partition-id": number}, RecordDict(), {})
        self.state = ContextState(self.context) if state is None else state
        self.data_read = 0

    def answer(self, message: Message, **options: Any) -> Message:
        return train(
            deliver(message),
            self.context,
            num_records=self.read_data,
            local_update=self.learn,
            state=self.state,
            trust=self.trust,
            **options,
        )

    def read_data(self) -> int:
        self.data_read += 1
        return 20

    def learn(self, work: LocalWork) -> tuple[dict[str, np.ndarray], float | None]:
        values = work.arrays["w"]
        return {"w": values + self.update[: values.size]}, 0.5

    @property
    def entry(self) -> LedgerEntry:
        return self.state.read_entry("niss")

    @property
    def exchange(self) -> bytes:
        found = self.state.read_key("niss.exchange")
        assert found is not None
        return found


@dataclass(eq=False)
class Masked:
    """One upload as its client computed it."""

    identity: bytes
    nonce: bytes
    peers: Sequence[ReadyPeer]
    binding: Mapping[str, Any]
    edges: Edges
    scale: Mapping[str, Any] = field(default_factory=dict)
    update: np.ndarray = field(default_factory=lambda: np.zeros(0))
    words: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint32))

    @property
    def keys(self) -> dict[bytes, int]:
        """Each key, and the sign with which its noise is in the upload."""
        return {**dict.fromkeys(self.edges.added, 1), **dict.fromkeys(self.edges.subtracted, -1)}


class Wiretap:
    """Watches clients derive keys and mask; the attack's covariance is what they really did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uploads: list[Masked] = []
        self._derived: Masked | None = None
        self._derive, self._mask = masking.derive_edges, masking.mask_update
        monkeypatch.setattr(masking, "derive_edges", self.derive)
        monkeypatch.setattr(masking, "mask_update", self.mask)

    def derive(self, exchange: bytes, identity: bytes, nonce: bytes, peers: Any, **kw: Any) -> Any:
        edges = self._derive(exchange, identity, nonce, peers, **kw)
        self._derived = Masked(identity, nonce, list(peers), kw, edges)
        return edges

    def mask(self, update: np.ndarray, edges: Edges, **scale: Any) -> np.ndarray:
        words = self._mask(update, edges, **scale)
        assert self._derived is not None
        # What is used, not what was derived: a client may not forget a peer in between.
        self.uploads.append(
            replace(self._derived, edges=edges, scale=scale, update=update, words=words)
        )
        return words


@dataclass
class Colluder:
    """Keys of a client that tells the server all it knows, or that the server made up."""

    number: int
    identity_private: bytes
    exchange: bytes
    nonce: bytes = field(default_factory=lambda: os.urandom(16))

    @property
    def identity(self) -> bytes:
        return public_identity(self.identity_private)

    def peer(self, run_tag: bytes) -> ReadyPeer:
        card = sign_card(self.number, run_tag, self.identity_private, self.exchange)
        return ReadyPeer(card, self.nonce)


def make_sybil(number: int) -> Colluder:
    return Colluder(number, os.urandom(32), os.urandom(32))


def forge_card(number: int, run_tag: bytes, identity_private: bytes, exchange: bytes) -> PublicCard:
    """Sign a public exchange key whose private key nobody has, as `sign_card` would."""
    identity = public_identity(identity_private)
    text = key_agreement._card_text(number, run_tag, identity, exchange)
    signature = Ed25519PrivateKey.from_private_bytes(identity_private).sign(text)
    return PublicCard(number, identity, exchange, signature)


def known_keys(upload: Masked, exchange_keys: Mapping[bytes, bytes]) -> set[bytes]:
    """Keys of an upload that the owners of private exchange keys, by identity, can compute."""
    found: set[bytes] = set()
    for peer in upload.peers:
        private = exchange_keys.get(peer.card.identity)
        if private is None:
            continue
        # The colluder's own view: the upload's client is one of its peers.
        card = PublicCard(0, upload.identity, _public(upload, exchange_keys), bytes(64))
        others = [each for each in upload.peers if each is not peer]
        edges = derive_edges(
            private,
            peer.card.identity,
            peer.nonce,
            [*others, ReadyPeer(card, upload.nonce)],
            **upload.binding,
        )
        found |= {*edges.added, *edges.subtracted}
    return found & upload.keys.keys()


def _public(upload: Masked, exchange_keys: Mapping[bytes, bytes]) -> bytes:
    return exchange_keys[b"public of " + upload.identity]


class HostileServer:
    """Sends what it likes; each method does what an honest server would unless told otherwise."""

    def __init__(
        self,
        devices: Iterable[Device],
        parameters: NissParameters,
        *,
        tag: bytes = TAG,
        size: int | None = None,
    ) -> None:
        self.devices = {device.number: device for device in devices}
        self.parameters, self.tag = parameters, tag
        self.size = next(iter(self.devices.values())).update.size if size is None else size
        self.cards: dict[int, PublicCard] = {}
        self.nonces: dict[int, bytes] = {}

    def request(
        self,
        phase: str,
        server_round: int,
        attempt: int,
        parameters: NissParameters | None = None,
        *,
        model: np.ndarray | None = None,
        tag: bytes | None = None,
        **fields: Any,
    ) -> Message:
        request = Request(
            phase,
            server_round,
            attempt,
            self.parameters if parameters is None else parameters,
            self.tag if tag is None else tag,
            **fields,
        )
        arrays = ArrayRecord({"w": Array(np.zeros(self.size) if model is None else model)})
        return build_request(7, {}, request, arrays if phase == UPLOAD else None)

    def register(self, **changes: Any) -> None:
        for number, device in self.devices.items():
            reply = parse_card(device.answer(self.request(REGISTER, 1, 1, **changes)))
            assert reply.upload is not None
            self.cards[number] = split_card(reply.upload)[0]

    def ask_ready(self, server_round: int = 1, attempt: int = 1, **changes: Any) -> None:
        for number, device in self.devices.items():
            reply = device.answer(self.request(READY, server_round, attempt, **changes))
            upload = parse_ready(reply).upload
            assert upload is not None
            self.nonces[number] = split_ready(upload)[0]

    def ready_set(self, number: int, members: Iterable[int] | None = None) -> list[ReadyPeer]:
        """The other members of a ready set, as an honest server names them to a client."""
        chosen = self.devices if members is None else members
        return [ReadyPeer(self.cards[each], self.nonces[each]) for each in chosen if each != number]

    def scale(self, parameters: NissParameters | None = None, server_round: int = 1) -> Any:
        chosen = self.parameters if parameters is None else parameters
        plan = next(iter(plan_round(chosen, server_round, self.size).values()))
        return {"step_exponent": plan.grid.exponent, "pair_scale": plan.pair_scale}

    def ask_upload(
        self,
        number: int,
        ready: Iterable[ReadyPeer] | None = None,
        *,
        server_round: int = 1,
        attempt: int = 1,
        parameters: NissParameters | None = None,
        **changes: Any,
    ) -> Message:
        fields = {**self.scale(parameters, server_round), **changes}
        named = self.ready_set(number) if ready is None else ready
        request = self.request(
            UPLOAD,
            server_round,
            attempt,
            parameters,
            ready_set=pack_ready_set(named),
            **fields,
        )
        return self.devices[number].answer(request)

    def begin(self, server_round: int = 1, attempt: int = 1) -> None:
        """Everybody registers and says ready."""
        self.register()
        self.ask_ready(server_round, attempt)

    def run_tag(self, parameters: NissParameters | None = None, terms: str = "") -> bytes:
        chosen = self.parameters if parameters is None else parameters
        return bind_run_tag(self.tag, digest_terms(chosen.to_json(), terms))

    def exchange_keys(self, colluders: Iterable[int | Colluder]) -> dict[bytes, bytes]:
        """Private exchange keys of colluders by identity, and the public ones of everybody."""
        found = {b"public of " + card.identity: card.exchange for card in self.cards.values()}
        for each in colluders:
            if isinstance(each, Colluder):
                found[each.identity] = each.exchange
            else:
                found[self.cards[each].identity] = self.devices[each].exchange
        return found


def words_of(reply: Message, size: int) -> np.ndarray:
    array = reply.content["arrays"]["update"]
    assert array.stype == UPLOAD_TYPE
    return unpack(array.data, size)


def make_devices(
    number: int, size: int, *, trusted: bool = False, norm: float = 0.9
) -> list[Device]:
    """Clients with random updates of a given norm; with a trust list of each other, if wanted."""
    rng = np.random.default_rng(number)
    updates = rng.normal(size=(number, size))
    updates *= norm / np.linalg.norm(updates, axis=1, keepdims=True)
    privates = [bytes([index + 1]) * 32 for index in range(number)]
    everybody = frozenset(public_identity(each) for each in privates)
    return [
        Device(
            index,
            updates[index],
            trust=DeviceTrust(privates[index], everybody) if trusted else NOBODY_KNOWN,
        )
        for index in range(number)
    ]
