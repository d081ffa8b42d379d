"""What may leave a client: one table, enforced on every reply, on every engine.

``public``: the same whatever the data are. ``noised``: made private and charged before. Values that
are ``simulation_only`` never leave a device. Whatever the table does not hold leaves nobody.
"""

from collections.abc import Callable, Mapping
from typing import Literal

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)

from strategies.dp_fedpaq import messages as update_messages
from strategies.dp_fedpaq.messages import REFUSED_BY_POLICY, UNANSWERED
from strategies.dp_fts_de import messages as search_messages
from strategies.mechanisms.key_agreement import CARD_SIZE
from strategies.niss import messages as niss_messages
from strategies.niss.peers import NONCE_BYTES

Kind = Literal["public", "noised", "simulation_only"]

# The only texts that leave a device with an error.
ERRORS: Mapping[int, str] = {
    update_messages.REFUSED: "refused by the client",
    update_messages.FAILED: "failed on the client",
    UNANSWERED: "the client could not answer",
    update_messages.STATE_LOST: "the client could not keep its state",
    REFUSED_BY_POLICY: "refused by the device's policy",
}
_ARRAYS, _CONFIG, _METRICS = "arrays", "config", "metrics"
_UPLOAD_TYPES = (
    update_messages.UPLOAD_TYPE,
    niss_messages.UPLOAD_TYPE,
    search_messages.UPLOAD_TYPE,
)
_SEARCH_VALUES = (
    *("value", "best-value", "clipped", "failures", "outside", "is-shared", "best-point", "points"),
    *("values", "simple-regret", "cumulative-regret", "best-before"),
)
# Record and key of a reply.
ALLOWED: Mapping[tuple[str, str], Kind] = {
    (_ARRAYS, update_messages.UPDATE_KEY): "noised",
    (_METRICS, "num-examples"): "public",
    (_METRICS, update_messages.TRAIN_LOSS_KEY): "simulation_only",
    (_METRICS, update_messages.LOCAL_FAILURE_KEY): "simulation_only",
    **{(_METRICS, name): "simulation_only" for name in _SEARCH_VALUES},
    (_CONFIG, update_messages.STATUS_KEY): "public",
    (_CONFIG, niss_messages.CARD_KEY): "public",
    (_CONFIG, niss_messages.TRUST_KEY): "public",
    (_CONFIG, niss_messages.NONCE_KEY): "public",
    (_CONFIG, niss_messages.RECORDS_KEY): "simulation_only",
    (_CONFIG, "partition-id"): "public",
    (_CONFIG, "num-partitions"): "public",
}
_STATUSES = (update_messages.INELIGIBLE, niss_messages.REGISTER, niss_messages.READY)
# What a public value may be, where its key alone does not say so.
_PUBLIC_VALUES: Mapping[tuple[str, str], Callable[[object], bool]] = {
    (_METRICS, "num-examples"): lambda value: type(value) is int and value == 1,
    (_CONFIG, update_messages.STATUS_KEY): lambda value: value in _STATUSES,
    (_CONFIG, niss_messages.CARD_KEY): lambda value: _is_bytes(value, CARD_SIZE),
    (_CONFIG, niss_messages.TRUST_KEY): lambda value: _is_bytes(value, niss_messages.TRUST_BYTES),
    (_CONFIG, niss_messages.NONCE_KEY): lambda value: _is_bytes(value, NONCE_BYTES),
    (_CONFIG, "partition-id"): lambda value: type(value) is int,
    (_CONFIG, "num-partitions"): lambda value: type(value) is int,
}


class NotAllowedError(Exception):
    """A reply with something that may not leave; names the record and the key, no value."""


def refuse(request: Message, code: int) -> Message:
    """Return the error reply of a code of `ERRORS`."""
    return Message(Error(code, ERRORS[code]), reply_to=request)


def keep_allowed(reply: Message, request: Message, *, is_device: bool) -> Message:
    """Return a reply with what may leave.

    Parameters
    ----------
    reply : Message
    request : Message
        What it answers.
    is_device : bool
        Whether values that are simulation_only are taken out, and texts of errors replaced.

    Raises
    ------
    NotAllowedError
        If there is anything else in it.
    """
    if reply.has_error():
        code = reply.error.code
        if code not in ERRORS:
            raise NotAllowedError(f"error {code}")
        return refuse(request, code) if is_device else reply
    kept = RecordDict()
    for name, record in reply.content.items():
        values = {
            key: value
            for key, value in record.items()
            if _may_leave(name, key, value, is_device=is_device)
        }
        if isinstance(record, ArrayRecord):
            kept[name] = ArrayRecord(values)
        elif isinstance(record, MetricRecord):
            kept[name] = MetricRecord(values)  # type: ignore[arg-type]
        else:
            kept[name] = ConfigRecord(values)  # type: ignore[arg-type]
    reply.content = kept
    return reply


def _may_leave(name: str, key: str, value: object, *, is_device: bool) -> bool:
    kind = ALLOWED.get((name, key))
    if kind == "simulation_only":
        return not is_device
    if kind == "noised":
        allowed = isinstance(value, Array) and value.stype in _UPLOAD_TYPES
    else:
        rule = _PUBLIC_VALUES.get((name, key))
        allowed = rule is not None and rule(value)
    if not allowed:
        raise NotAllowedError(f"{name}.{key}")
    return True


def _is_bytes(value: object, size: int) -> bool:
    return isinstance(value, bytes) and len(value) == size
