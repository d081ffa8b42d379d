"""The few private parts of Flower that an in-process grid needs, in one place.

Flower has no public way to run its apps without a SuperLink: messages get their ids and the process
its identity from private attributes. This file holds every touch of them (but those of a device's
start, in `supernode_internals` and `fl_app.warm_worker`) and refuses a Flower version that it was
not written for.
"""

import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from fl_app.errors import RunError

SUPPORTED = "1.42"
SERVER_NODE_ID = 1
# Flower's own wait of an idle SuperNode; the first wait, and how it grows with the idle time.
IDLE_SECONDS, LOOK_SECONDS, IDLE_SHARE = 3.0, 0.1, 0.1


def check_flower_version() -> None:
    """Raise RunError unless the installed Flower is one this file was written for."""
    installed = version("flwr")
    if not installed.startswith(SUPPORTED + "."):
        raise RunError(
            f"flwr {installed} is installed; the in-process engine and fl_app.supernode allow "
            f"{SUPPORTED}.x (engine=simulation and flower-supernode use public interfaces only)"
        )


# Before the private names are looked up, which another version may not have.
check_flower_version()

from flwr.app import (  # noqa: E402
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.app.message import make_message  # noqa: E402
from flwr.supercore.inflatable.inflatable_object import (  # noqa: E402
    UnexpectedObjectContentError,
)
from flwr.supercore.run import Run  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # noqa: E402

# What reading a message's bytes raises, whoever made them; a broken connection is another error.
UNREADABLE_ERRORS = (
    *(UnexpectedObjectContentError, DecodeError, RecursionError),
    *(ValueError, TypeError, LookupError, AttributeError),
)

_message_numbers = itertools.count(1)

__all__ = [
    "SERVER_NODE_ID",
    "UNREADABLE_ERRORS",
    "Run",
    "attribute",
    "build_message",
    "check_flower_version",
    "copy_records",
    "deliver",
    "describe_metadata",
    "identify_process",
    "own_identity",
    "shorten_waits",
]


def identify_process(run_id: int) -> None:
    """Give this process the identity of a ServerApp, which new messages carry."""
    check_flower_version()
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = SERVER_NODE_ID
    TaskIdentity.task_id = 1


@contextmanager
def own_identity() -> Iterator[None]:
    """Let a process that is a client of one run be the server of another, and put back after it."""
    before = TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id
    try:
        yield
    finally:
        TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = before


def describe_metadata(message: Message) -> dict[str, Any]:
    """Return all that a message holds beside its content, as JSON values."""
    return dict(message.metadata.__dict__)


def build_message(metadata: Mapping[str, Any], content: RecordDict | Error) -> Message:
    """Return the message of a content and of what `describe_metadata` returned."""
    built = Metadata.__new__(Metadata)
    built.__dict__.update(metadata)
    if isinstance(content, Error):
        return make_message(metadata=built, error=content)
    return make_message(metadata=built, content=content)


class ShortWaits:
    """What a SuperNode's loop sleeps by: it looks soon, and less often the longer it is idle.

    Flower's sleeps 3 s whenever no message was there, and half a second between looks for a reply.
    Here a message waits for at most a tenth of a second and a tenth of the idle time before it.
    """

    def __init__(self) -> None:
        self._idle_since = time.monotonic()

    def sleep(self, wanted: float) -> None:
        """Sleep, at most as long as Flower wants to."""
        now = time.monotonic()
        if wanted < IDLE_SECONDS:
            self._idle_since = now
        time.sleep(min(wanted, LOOK_SECONDS + IDLE_SHARE * (now - self._idle_since)))


def shorten_waits() -> None:
    """Let the SuperNode of this process look for messages as `ShortWaits` says."""
    from flwr.supernode import start_client_internal

    check_flower_version()
    start_client_internal.__dict__["time"] = ShortWaits()


def attribute(reply: Message | None, request: Message, name: str, unreadable: int) -> Message:
    """Return a reply to a request, of the node that was asked, whatever it says of itself.

    Parameters
    ----------
    reply : Message or None
        None: one that could not be read.
    request : Message
    name : str
        The request's id.
    unreadable : int
        The code of the error in place of a reply that is no honest node's: one that names another
        node, request or group, or whose content Flower's types do not allow.
    """
    asked = request.metadata
    if reply is not None and not reply.has_error():
        told = reply.metadata
        named = (told.src_node_id, told.reply_to_message_id, told.group_id)
        if named == (asked.dst_node_id, name, asked.group_id) and _is_readable(reply.content):
            return reply
    code = unreadable if reply is None or not reply.has_error() else reply.error.code
    metadata = {
        **describe_metadata(request),
        "_message_id": "",
        "_src_node_id": asked.dst_node_id,
        "_dst_node_id": asked.src_node_id,
        "_reply_to_message_id": name,
    }
    return build_message(metadata, Error(code))


def _is_readable(content: object) -> bool:
    """Return whether a content is what a reader of messages takes for granted."""
    if not isinstance(content, RecordDict):
        return False
    for record in content.values():
        if isinstance(record, ArrayRecord):
            arrays = record.values()
            if not all(isinstance(a, Array) and isinstance(a.data, bytes) for a in arrays):
                return False
        elif not isinstance(record, ConfigRecord | MetricRecord):
            return False
    return True


def deliver(message: Message) -> Message:
    """Return a message as its receiver gets it: numbered, and with records of its own.

    Bytes are immutable and stay shared; every record around them is new, so neither side can
    change what the other holds.
    """
    metadata = {**describe_metadata(message), "_message_id": str(next(_message_numbers))}
    content = message.error if message.has_error() else copy_records(message.content)
    return build_message(metadata, content)


def copy_records(content: RecordDict) -> RecordDict:
    """Return new records with the same values; the bytes of arrays stay shared."""
    copied = RecordDict()
    for key, record in content.items():
        new: Any = record.copy()
        copied[key] = new
        for name, value in record.items():
            if isinstance(value, Array):
                new[name] = _copy_array(value)
            elif isinstance(value, list):
                new[name] = list(value)
    return copied


def _copy_array(array: Array) -> Array:
    """Return what ``Array(dtype, shape, stype, data)`` builds, without its checks (much faster)."""
    copied = Array.__new__(Array)
    copied.__dict__.update(
        dtype=array.dtype, shape=tuple(array.shape), stype=array.stype, data=array.data
    )
    return copied
