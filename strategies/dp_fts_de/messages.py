"""What travels between DP-FTS-DE's server and agents.

A request holds the last broadcast (``arrays``) and, in ``config``, the round, the parameters, the
agent's number and whether it shall upload. A reply holds one array of bytes, the clipped vector, if
that was asked for. Values marked simulation-only go with it in seeded experiments alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from numpy.typing import NDArray

from strategies.dp_fedpaq.messages import (
    ARRAYS,
    CONFIG,
    METRICS,
    ROUND_KEY,
    UPDATE_KEY,
    MessageError,
    model_arrays,
    model_record,
)
from strategies.dp_fts_de.algorithm import Broadcast, read_broadcast
from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.dp_fts_de.progress import Progress as Progress
from strategies.dp_fts_de.progress import read_progress, write_progress

PARAMETERS_KEY, AGENT_KEY, UPLOAD_KEY = "dp-fts-de", "agent", "upload"
BROADCAST_KEY, RELEASE_KEY = "broadcast", "release-round"
UPLOAD_TYPE = "dp_fts_de.upload.v1"
_VECTOR = "<f4"


@dataclass(frozen=True)
class Request:
    """A round's request to one agent, parsed and checked.

    Attributes
    ----------
    server_round : int
        Counted from 1.
    parameters : DpFtsDeParameters
    agent : int
        The agent's number, below N.
    wants_upload : bool
    broadcast : Broadcast or None
        Of an earlier round; it fits the parameters.
    arrays : ArrayRecord
        The broadcast as it came.
    """

    server_round: int
    parameters: DpFtsDeParameters
    agent: int
    wants_upload: bool
    broadcast: Broadcast | None
    arrays: ArrayRecord


def broadcast_record(broadcast: Broadcast | None) -> ArrayRecord:
    """Return the record of a broadcast; without one, that which a run starts from."""
    vectors = np.zeros((0, 1)) if broadcast is None else broadcast.vectors
    release_round = 0 if broadcast is None else broadcast.release_round
    return model_record({BROADCAST_KEY: vectors, RELEASE_KEY: np.array([release_round])})


def parse_broadcast(record: ArrayRecord) -> Broadcast | None:
    """Return the broadcast of a record; None where nothing has been released.

    Raises
    ------
    MessageError
        If it is something else.
    """
    arrays = model_arrays(record)
    if arrays.keys() != {BROADCAST_KEY, RELEASE_KEY}:
        raise MessageError("arrays that are no broadcast")
    vectors, rounds = arrays[BROADCAST_KEY], arrays[RELEASE_KEY]
    if vectors.dtype != np.float64 or vectors.ndim != 2:
        raise MessageError("broadcast of another kind")
    if rounds.dtype != np.int64 or rounds.shape != (1,) or rounds[0] < 0:
        raise MessageError("broadcast without a round")
    release_round = int(rounds[0])
    if release_round == 0:
        return None
    return Broadcast(np.asarray(vectors, dtype=np.float64), release_round)


def build_requests(
    nodes: Mapping[int, int],
    server_round: int,
    arrays: ArrayRecord,
    parameters: DpFtsDeParameters,
    uploaders: Iterable[int],
    extra: ConfigRecord,
) -> list[Message]:
    """Build a round's requests, in the order of the agents' numbers.

    Parameters
    ----------
    nodes : mapping of int to int
        Agent's number to node id.
    server_round : int
    arrays : ArrayRecord
        The last broadcast.
    parameters : DpFtsDeParameters
    uploaders : iterable of int
        Numbers of those who shall upload.
    extra : ConfigRecord
        The application's own entries.
    """
    asked = set(uploaders)
    common = {**extra, ROUND_KEY: server_round, PARAMETERS_KEY: parameters.to_json()}
    requests = []
    for agent, node in sorted(nodes.items()):
        config = ConfigRecord({**common, AGENT_KEY: agent, UPLOAD_KEY: agent in asked})
        requests.append(
            Message(
                RecordDict({ARRAYS: arrays, CONFIG: config}),
                dst_node_id=node,
                message_type=MessageType.TRAIN,
                group_id=str(server_round),
            )
        )
    return requests


def parse_request(message: Message) -> Request:
    """Parse and check a request.

    Raises
    ------
    MessageError, ParameterError
        If the message is malformed, a parameter is not allowed or the broadcast does not fit.
    """
    content = message.content
    config, arrays = content.get(CONFIG), content.get(ARRAYS)
    if not isinstance(config, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise MessageError("request without a broadcast or a configuration")
    server_round, agent = config.get(ROUND_KEY), config.get(AGENT_KEY)
    text, upload = config.get(PARAMETERS_KEY), config.get(UPLOAD_KEY)
    if type(server_round) is not int or server_round < 1 or not isinstance(text, str):
        raise MessageError("request without a round or parameters")
    parameters = DpFtsDeParameters.from_json(text)
    if type(agent) is not int or not 0 <= agent < parameters.num_agents:
        raise MessageError("request without the agent's number")
    if type(upload) is not bool:
        raise MessageError("request that does not say whether to upload")
    if upload and not _may_ask(parameters, server_round):
        raise MessageError("upload in a round without a release")
    broadcast = parse_broadcast(arrays)
    if broadcast is not None:
        read_broadcast(parameters, broadcast)
        if broadcast.release_round >= server_round:
            raise MessageError("broadcast of a later round")
        if not parameters.releases_in(broadcast.release_round):
            raise MessageError("broadcast of a round without a release")
    return Request(server_round, parameters, agent, upload, broadcast, arrays)


def _may_ask(parameters: DpFtsDeParameters, server_round: int) -> bool:
    """Return whether some agent may be asked for its vector in a round."""
    if parameters.control == "no_sharing":
        return False
    return parameters.upload == "all" or parameters.releases_in(server_round)


def pack_vector(vector: NDArray[np.float64]) -> bytes:
    """Return a vector as 4 M bytes, float32; what exceeds its range becomes infinite."""
    with np.errstate(over="ignore"):
        return vector.astype(_VECTOR).tobytes()


def unpack_vector(data: bytes, size: int) -> NDArray[np.float64]:
    """Return the M = `size` numbers of an upload, finite or not; MessageError if it has others."""
    if len(data) != size * np.dtype(_VECTOR).itemsize:
        raise MessageError("upload of another length")
    return np.frombuffer(data, dtype=_VECTOR).astype(np.float64)


def step_reply(message: Message, vector: bytes | None, progress: Progress | None) -> Message:
    """Build the reply of an agent that has done its step, with its packed vector if asked for."""
    told = {} if progress is None else write_progress(progress)
    content = RecordDict({METRICS: MetricRecord({"num-examples": 1, **told})})
    if vector is not None:
        array = Array("uint8", (len(vector),), UPLOAD_TYPE, vector)
        content[ARRAYS] = ArrayRecord({UPDATE_KEY: array})
    return Message(content, reply_to=message)


def parse_reply(message: Message) -> tuple[bytes | None, Progress | None]:
    """Parse a reply without decoding its vector: the packed vector and the progress, if any.

    Raises
    ------
    MessageError
        If the reply is malformed.
    """
    if message.metadata.message_type != MessageType.TRAIN:
        raise MessageError("reply of another type")
    metrics, arrays = message.content.get(METRICS), message.content.get(ARRAYS)
    if not isinstance(metrics, MetricRecord):
        raise MessageError("reply without metrics")
    progress = read_progress(metrics)
    if arrays is None:
        return None, progress
    if not isinstance(arrays, ArrayRecord) or list(arrays) != [UPDATE_KEY]:
        raise MessageError("reply without an upload")
    array = arrays[UPDATE_KEY]
    if array.stype != UPLOAD_TYPE or array.dtype != "uint8" or array.shape != (len(array.data),):
        raise MessageError("upload of an unknown kind")
    return array.data, progress
