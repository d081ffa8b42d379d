"""Records and replies as JSON values and named bytes: for a checkpoint, and between processes."""

from typing import Any

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)

_RECORDS: dict[str, type[MetricRecord] | type[ConfigRecord]] = {
    "metrics": MetricRecord,
    "config": ConfigRecord,
}


class Blobs(dict[str, bytes]):
    """Bytes by name."""

    def add(self, data: bytes) -> str:
        """Add bytes; return their name."""
        name = str(len(self))
        self[name] = data
        return name


def store_reply(reply: Message, blobs: Blobs) -> dict[str, Any]:
    """Return a reply as JSON values, without ids of messages and nodes; bytes go to `blobs`."""
    stored: dict[str, Any] = {
        "type": reply.metadata.message_type,
        "group": reply.metadata.group_id,
    }
    if reply.has_error():
        return {**stored, "error": [reply.error.code, reply.error.reason]}
    return {**stored, "records": store_records(reply.content, blobs)}


def restore_reply(stored: dict[str, Any], blobs: Blobs, node: int) -> Message:
    """Return the reply again, as one of a node of this process's run.

    Raises
    ------
    ValueError, KeyError, TypeError
        If it is not what `store_reply` returned.
    """
    request = Message(
        RecordDict(), dst_node_id=node, message_type=stored["type"], group_id=stored["group"]
    )
    if "error" in stored:
        code, reason = stored["error"]
        return Message(Error(code, reason), reply_to=request)
    return Message(restore_records(stored["records"], blobs), reply_to=request)


def store_records(content: RecordDict, blobs: Blobs) -> list[Any]:
    """Return records as JSON values; bytes go to `blobs`."""
    return [_store(key, each, blobs) for key, each in content.items()]


def restore_records(stored: list[Any], blobs: Blobs) -> RecordDict:
    """Return the records again; ValueError, KeyError, TypeError if they are something else."""
    content = RecordDict()
    for key, kind, items in stored:
        if kind == "arrays":
            content[key] = ArrayRecord(
                {
                    name: Array(dtype, tuple(shape), stype, blobs[blob])
                    for name, dtype, shape, stype, blob in items
                }
            )
        else:
            values: dict[str, Any] = {name: _decode(value, blobs) for name, value in items}
            content[key] = _RECORDS[kind](values)
    return content


def _store(key: str, record: ArrayRecord | MetricRecord | ConfigRecord, blobs: Blobs) -> list[Any]:
    if isinstance(record, ArrayRecord):
        arrays = [
            [name, each.dtype, list(each.shape), each.stype, blobs.add(each.data)]
            for name, each in record.items()
        ]
        return [key, "arrays", arrays]
    kind = "metrics" if isinstance(record, MetricRecord) else "config"
    return [key, kind, [[name, _encode(value, blobs)] for name, value in record.items()]]


def _encode(value: Any, blobs: Blobs) -> Any:
    """Return a JSON value; bytes become an object with their name."""
    if isinstance(value, list):
        return [_encode(each, blobs) for each in value]
    return {"blob": blobs.add(value)} if isinstance(value, bytes) else value


def _decode(value: Any, blobs: Blobs) -> Any:
    if isinstance(value, list):
        return [_decode(each, blobs) for each in value]
    return blobs[value["blob"]] if isinstance(value, dict) else value
