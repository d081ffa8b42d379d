"""What travels between NISS's server and clients: three exchanges.

``register`` (once for a client and run): parameters down, a signed card of public keys up.
``ready`` (each attempt): the round down, a fresh nonce up. ``upload``: the model and the ready set
down, the masked update up. No noise, no seed and no private key is ever in a message.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from strategies.dp_fedpaq.messages import (
    ARRAYS,
    CONFIG,
    INELIGIBLE,
    ROUND_KEY,
    STATUS_KEY,
    MessageError,
    Reply,
    parse_reply,
)
from strategies.mechanisms.fixed_point import FixedPoint
from strategies.mechanisms.key_agreement import CARD_SIZE, KeyAgreementError, PublicCard
from strategies.niss.parameters import NissParameters
from strategies.niss.peers import NONCE_BYTES
from strategies.rounds import PHASE_KEY, UPLOAD_PHASE

REGISTER, READY, UPLOAD = "register", "ready", UPLOAD_PHASE
PHASES = (REGISTER, READY, UPLOAD)
PARAMETERS_KEY, ATTEMPT_KEY, TAG_KEY = "niss", "attempt", "run-tag"
READY_SET_KEY, STEP_KEY, SCALE_KEY = "ready-set", "step-exponent", "pair-scale"
SHARES_KEY, WEIGHT_KEY = "shares", "weight"
CARD_KEY, TRUST_KEY, NONCE_KEY, RECORDS_KEY = "card", "trust", "nonce", "num-examples"
UPLOAD_TYPE = "niss.upload.v1"
TAG_BYTES = 16
TRUST_BYTES = 32
MOST_EXPONENT = 1000  # a double's own


@dataclass(frozen=True)
class Request:
    """A request, parsed and checked.

    Attributes
    ----------
    phase : {"register", "ready", "upload"}
    server_round, attempt : int
        Both counted from 1; of a round that is repeated the attempt grows.
    parameters : NissParameters
    tag : bytes
        The server's name for the run.
    arrays : ArrayRecord or None
        The global model (upload).
    ready_set : bytes
        The other ready clients (upload).
    step_exponent, pair_scale : int
        The grid and the size of the pair noise (upload); the client checks both.
    shares : bytes
        Mode `paper`: who shares noise with whom (upload).
    weight : float
        Mode `paper`: what the client scales its update by (upload).
    """

    phase: str
    server_round: int
    attempt: int
    parameters: NissParameters
    tag: bytes
    arrays: ArrayRecord | None = None
    ready_set: bytes = b""
    step_exponent: int = 0
    pair_scale: int = 0
    shares: bytes = b""
    weight: float = 1.0

    @property
    def grid(self) -> FixedPoint:
        """The grid of the upload."""
        return FixedPoint(math.ldexp(1.0, self.step_exponent))


def exchange_group(phase: str, server_round: int, attempt: int) -> str:
    """Return the group id of an exchange's messages; it begins with the round."""
    return f"{server_round}.{attempt}.{phase}"


def build_request(
    node: int, config: Mapping[str, object], request: Request, arrays: ArrayRecord | None = None
) -> Message:
    """Build the message of a request; `config` is the application's own."""
    values = {
        **config,
        PHASE_KEY: request.phase,
        ROUND_KEY: request.server_round,
        ATTEMPT_KEY: request.attempt,
        PARAMETERS_KEY: request.parameters.to_json(),
        TAG_KEY: request.tag,
    }
    content = RecordDict()
    if request.phase == UPLOAD:
        values |= {
            READY_SET_KEY: request.ready_set,
            STEP_KEY: request.step_exponent,
            SCALE_KEY: request.pair_scale,
        }
        if request.parameters.mode == "paper":
            values |= {SHARES_KEY: request.shares, WEIGHT_KEY: request.weight}
        assert arrays is not None
        content[ARRAYS] = arrays
    content[CONFIG] = ConfigRecord(values)  # type: ignore[arg-type]
    return Message(
        content,
        dst_node_id=node,
        message_type=MessageType.TRAIN,
        group_id=exchange_group(request.phase, request.server_round, request.attempt),
    )


def parse_request(message: Message) -> Request:
    """Parse and check a request.

    Raises
    ------
    MessageError, ParameterError
        If the message is malformed or a parameter is not allowed.
    """
    config, arrays = message.content.get(CONFIG), message.content.get(ARRAYS)
    if not isinstance(config, ConfigRecord):
        raise MessageError("request without a configuration")
    phase, server_round, attempt, text, tag = (
        config.get(key) for key in (PHASE_KEY, ROUND_KEY, ATTEMPT_KEY, PARAMETERS_KEY, TAG_KEY)
    )
    if phase not in PHASES:
        raise MessageError("request of an unknown phase")
    if not _is_count(server_round, 1) or not _is_count(attempt, 1) or not isinstance(text, str):
        raise MessageError("request without a round, an attempt or parameters")
    if not isinstance(tag, bytes) or len(tag) != TAG_BYTES:
        raise MessageError("request without the run's tag")
    request = Request(str(phase), server_round, attempt, NissParameters.from_json(text), tag)  # type: ignore[arg-type]
    if phase != UPLOAD:
        return request
    ready_set, exponent, scale = (config.get(key) for key in (READY_SET_KEY, STEP_KEY, SCALE_KEY))
    if not isinstance(arrays, ArrayRecord) or not isinstance(ready_set, bytes):
        raise MessageError("request without a model or a ready set")
    if type(exponent) is not int or abs(exponent) > MOST_EXPONENT or not _is_count(scale, 0):
        raise MessageError("request without a grid")
    shares, weight = config.get(SHARES_KEY, b""), config.get(WEIGHT_KEY, 1.0)
    if not isinstance(shares, bytes) or not isinstance(weight, float):
        raise MessageError("request with shares that cannot be read")
    return Request(
        *(request.phase, request.server_round, request.attempt, request.parameters, tag),
        arrays=arrays,
        ready_set=ready_set,
        step_exponent=exponent,
        pair_scale=scale,  # type: ignore[arg-type]
        shares=shares,
        weight=weight,
    )


def _is_count(value: object, least: int) -> bool:
    return type(value) is int and least <= value < 2**31


def card_reply(message: Message, card: PublicCard, trust: bytes) -> Message:
    """Build the reply to a registration: the card, and which trust list stands behind it."""
    config = ConfigRecord({STATUS_KEY: REGISTER, CARD_KEY: card.to_bytes()})
    if trust:
        config[TRUST_KEY] = trust
    return Message(RecordDict({CONFIG: config}), reply_to=message)


def ready_reply(message: Message, nonce: bytes, num_records: int | None) -> Message:
    """Build the reply of a client that is ready; n_k only where weights need it (mode paper)."""
    config = ConfigRecord({STATUS_KEY: READY, NONCE_KEY: nonce})
    if num_records is not None:
        config[RECORDS_KEY] = num_records
    return Message(RecordDict({CONFIG: config}), reply_to=message)


def parse_card(message: Message) -> Reply:
    """Parse a reply to a registration: the card and the digest of the trust list, in one."""
    config = _config(message)
    card, trust = config.get(CARD_KEY), config.get(TRUST_KEY, b"")
    if config.get(STATUS_KEY) != REGISTER or not isinstance(card, bytes):
        raise MessageError("reply without a card")
    if not isinstance(trust, bytes) or len(trust) not in (0, TRUST_BYTES):
        raise MessageError("reply without a trust list's digest")
    try:
        PublicCard.from_bytes(card)
    except KeyAgreementError:
        raise MessageError("card that cannot be read") from None
    return Reply(card + trust)


def parse_ready(message: Message) -> Reply:
    """Parse a reply to the question who is ready: the nonce, and n_k where it is told."""
    config = _config(message)
    if config.get(STATUS_KEY) == INELIGIBLE:
        return Reply(upload=None)
    nonce, records = config.get(NONCE_KEY), config.get(RECORDS_KEY, 0)
    if config.get(STATUS_KEY) != READY or not isinstance(nonce, bytes):
        raise MessageError("reply without a nonce")
    if len(nonce) != NONCE_BYTES or not _is_count(records, 0):
        raise MessageError("reply without a nonce")
    return Reply(nonce + int(records).to_bytes(8, "little"))  # type: ignore[arg-type]


def parse_upload(message: Message) -> Reply:
    """Parse a reply that carries an upload, without decoding it."""
    return parse_reply(message, UPLOAD_TYPE)


def split_card(data: bytes) -> tuple[PublicCard, bytes]:
    """Return the card and the digest of the trust list of a parsed reply."""
    return PublicCard.from_bytes(data[:CARD_SIZE]), data[CARD_SIZE:]


def split_ready(data: bytes) -> tuple[bytes, int]:
    """Return the nonce and n_k (0: not told) of a parsed reply."""
    return data[:NONCE_BYTES], int.from_bytes(data[NONCE_BYTES:], "little")


def _config(message: Message) -> ConfigRecord:
    config = message.content.get(CONFIG)
    if message.metadata.message_type != MessageType.TRAIN or not isinstance(config, ConfigRecord):
        raise MessageError("reply of another type")
    return config
