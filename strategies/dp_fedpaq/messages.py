"""What travels between DP-FedPaq's server and clients.

A request holds the model (``arrays``) and, in ``config``, the round and the parameters. A reply
holds one array of bytes, the upload, and nothing that depends on the data otherwise, except for
values marked simulation-only, which a client sends in seeded experiments alone.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from numpy.typing import NDArray

from strategies.dp_fedpaq.parameters import DpFedPaqParameters

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
ROUND_KEY, PARAMETERS_KEY, STATUS_KEY = "server-round", "dp-fedpaq", "status"
UPDATE_KEY, UPLOAD_TYPE = "update", "dp_fedpaq.upload.v1"
INELIGIBLE = "ineligible"
TRAIN_LOSS_KEY, LOCAL_FAILURE_KEY = "train-loss", "local-failure"

REFUSED = 1001
FAILED = 1002
UNANSWERED = 1003  # whatever the application's client could not answer
STATE_LOST = 1004
REFUSED_BY_POLICY = 1005  # a device's own, whatever the method
UNREADABLE = 1006  # no client says so: the server does, of a reply
# Losses beyond this are not believed: sums of them must stay finite.
MAX_LOSS = 1e30


class MessageError(ValueError):
    """A message that is not what this method sends; the text holds no data."""


@dataclass(frozen=True)
class Request:
    """A round's request, parsed and checked.

    Attributes
    ----------
    server_round : int
        Counted from 1.
    parameters : DpFedPaqParameters
    arrays : ArrayRecord
        The global model, not parsed yet.
    """

    server_round: int
    parameters: DpFedPaqParameters
    arrays: ArrayRecord


@dataclass(frozen=True)
class Reply:
    """A reply, parsed: an upload, or word that the client sits out."""

    upload: bytes | None
    train_loss: float | None = None
    local_failure: bool = False


def request_config(
    server_round: int, parameters: DpFedPaqParameters, extra: ConfigRecord
) -> ConfigRecord:
    """Build the config record of a round's requests; `extra` is the application's own."""
    return ConfigRecord({**extra, ROUND_KEY: server_round, PARAMETERS_KEY: parameters.to_json()})


def round_requests(
    nodes: Iterable[int], server_round: int, arrays: ArrayRecord, config: ConfigRecord
) -> list[Message]:
    """Build a round's requests, one for each node, in their order."""
    return [
        Message(
            RecordDict({ARRAYS: arrays, CONFIG: config}),
            dst_node_id=node,
            message_type=MessageType.TRAIN,
            group_id=str(server_round),
        )
        for node in nodes
    ]


def parse_request(message: Message) -> Request:
    """Parse and check a request.

    Raises
    ------
    MessageError, ParameterError
        If the message is malformed or a parameter is not allowed.
    """
    content = message.content
    config, arrays = content.get(CONFIG), content.get(ARRAYS)
    if not isinstance(config, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise MessageError("request without a model or a configuration")
    server_round, text = config.get(ROUND_KEY), config.get(PARAMETERS_KEY)
    if not isinstance(server_round, int) or server_round < 1 or not isinstance(text, str):
        raise MessageError("request without a round or parameters")
    return Request(server_round, DpFedPaqParameters.from_json(text), arrays)


def model_arrays(record: ArrayRecord) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of a model's record; MessageError if one cannot be read."""
    try:
        arrays = {name: array.numpy() for name, array in record.items()}
    except Exception as error:
        # The reader guesses what the bytes are, an archive among others, and fails in many ways.
        raise MessageError(f"array that cannot be read ({type(error).__name__})") from None
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise MessageError("array that is none")
    return arrays


def model_record(arrays: Mapping[str, NDArray[np.generic]]) -> ArrayRecord:
    """Return the record of a model's arrays."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def upload_reply(
    message: Message,
    upload: bytes,
    train_loss: float | None,
    local_failure: bool,
    upload_type: str = UPLOAD_TYPE,
) -> Message:
    """Build the reply that carries an upload; loss and failure are simulation-only values."""
    metrics: dict[str, int | float | list[int] | list[float]] = {"num-examples": 1}
    if train_loss is not None and math.isfinite(train_loss):
        metrics[TRAIN_LOSS_KEY] = float(train_loss)
    if local_failure:
        metrics[LOCAL_FAILURE_KEY] = 1
    array = Array("uint8", (len(upload),), upload_type, upload)
    content = RecordDict({ARRAYS: ArrayRecord({UPDATE_KEY: array}), METRICS: MetricRecord(metrics)})
    return Message(content, reply_to=message)


def ineligible_reply(message: Message) -> Message:
    """Build the reply of a client that sits out, for a reason that is public."""
    config = ConfigRecord({STATUS_KEY: INELIGIBLE})
    return Message(RecordDict({CONFIG: config}), reply_to=message)


def error_reply(message: Message, code: int, reason: str) -> Message:
    """Build an error reply; `reason` is one of this module's callers' fixed sentences."""
    return Message(Error(code, reason), reply_to=message)


def parse_reply(message: Message, upload_type: str = UPLOAD_TYPE) -> Reply:
    """Parse a reply without decoding the upload.

    Raises
    ------
    MessageError
        If the reply is malformed.
    """
    if message.metadata.message_type != MessageType.TRAIN:
        raise MessageError("reply of another type")
    content = message.content
    config, arrays, metrics = content.get(CONFIG), content.get(ARRAYS), content.get(METRICS)
    if isinstance(config, ConfigRecord) and config.get(STATUS_KEY) == INELIGIBLE and not arrays:
        return Reply(upload=None)
    if not isinstance(arrays, ArrayRecord) or list(arrays) != [UPDATE_KEY]:
        raise MessageError("reply without an upload")
    array = arrays[UPDATE_KEY]
    if array.stype != upload_type or array.dtype != "uint8" or array.shape != (len(array.data),):
        raise MessageError("upload of an unknown kind")
    loss = metrics.get(TRAIN_LOSS_KEY) if isinstance(metrics, MetricRecord) else None
    failure = isinstance(metrics, MetricRecord) and bool(metrics.get(LOCAL_FAILURE_KEY, 0))
    known = isinstance(loss, float) and abs(loss) < MAX_LOSS
    return Reply(array.data, loss if known else None, failure)  # type: ignore[arg-type]
