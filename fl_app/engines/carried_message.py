"""A message with the state of its node, as it travels between processes of this machine."""

from typing import Any

from flwr.app import Error, Message, RecordDict

from fl_app.engines.flower_internals import build_message, describe_metadata
from fl_app.engines.stored_reply import Blobs, restore_records, store_records


def pack_message(message: Message, state: RecordDict | None) -> tuple[dict[str, Any], Blobs]:
    """Return a message and a node's state as JSON values, and the bytes that these name."""
    blobs = Blobs()
    values: dict[str, Any] = {
        "metadata": describe_metadata(message),
        "state": None if state is None else store_records(state, blobs),
    }
    if message.has_error():
        values["error"] = [message.error.code, message.error.reason]
    else:
        values["records"] = store_records(message.content, blobs)
    return values, blobs


def unpack_message(values: dict[str, Any], blobs: Blobs) -> tuple[Message, RecordDict | None]:
    """Return what `pack_message` was given."""
    state = values["state"]
    if "error" in values:
        content: RecordDict | Error = Error(*values["error"])
    else:
        content = restore_records(values["records"], blobs)
    kept = None if state is None else restore_records(state, blobs)
    return build_message(values["metadata"], content), kept
