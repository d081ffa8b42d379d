"""The client side of DP-FedPaq: unpack, one round, pack; and the client's own refusals."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from numpy.typing import NDArray

from strategies.device_state import ContextState, DeviceState
from strategies.dp_fedpaq.algorithm import (
    UploadStreams,
    client_mechanism,
    draw_records,
    local_round,
)
from strategies.dp_fedpaq.messages import (
    ARRAYS,
    FAILED,
    REFUSED,
    MessageError,
    Request,
    error_reply,
    ineligible_reply,
    parse_request,
    upload_reply,
)
from strategies.dp_fedpaq.parameters import DpFedPaqParameters
from strategies.mechanisms.layout import ArrayLayout
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.rng import Randomness
from strategies.mechanisms.sampling import Batches
from strategies.mechanisms.sensitivity import SensitivityError, check_model

METHOD = "dp_fedpaq"
# In place of a request's digest, which a seeded run has no use for.
_SEEDED = "seeded"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalWork:
    """What the local training of a round is given.

    Attributes
    ----------
    arrays : dict of str to ndarray
        The global model x, as the server sent it.
    batches : list of ndarray of int64
        One batch of record indices for each local step, in order.
    batch_size : int
        b: each step's gradient is the sum over the batch divided by b.
    learning_rate : float
        eta of this round.
    seed : int
        For random layers (dropout); drawn from the client's own stream.
    float64 : bool
        Whether the steps must be computed in float64 (a condition of the convex bound).
    """

    arrays: dict[str, NDArray[np.generic]]
    batches: Batches
    batch_size: int
    learning_rate: float
    seed: int
    float64: bool


Trained = tuple[Mapping[str, NDArray[np.generic]], float | None]
LocalUpdate = Callable[[LocalWork], Trained]


def train(
    message: Message,
    context: Context,
    *,
    num_records: int | Callable[[], int],
    local_update: LocalUpdate,
    accepts: Callable[[DpFedPaqParameters], bool] | None = None,
    terms: str = "",
    state: DeviceState | None = None,
) -> Message:
    """Answer a training request with a private upload.

    Parameters
    ----------
    message : Message
        The server's request.
    context : Context
        The node's context; ``partition-id`` of its node configuration names the streams of a
        seeded run.
    num_records : int or callable
        n_k, or a function that reads the data and returns it. The function is called only once
        the request has passed all checks.
    local_update : callable
        The local training: `LocalWork` in, the trained arrays and the mean loss (or None) out.
    accepts : callable or None
        Whether the client agrees to the parameters, asked before any data is read.
    terms : str
        Whatever else the local training depends on (the application's settings). It may not
        change within a run, just as the parameters may not.
    state : DeviceState or None
        What the client remembers of the run: its participations above all. None: the context's
        own state, which is lost when the node restarts.

    Returns
    -------
    Message
        The upload; word that the client sits out; or a refusal.

    Notes
    -----
    Formal guarantees, for requests that are delivered one at a time:

    * The reply depends on the data only through the upload, to which the noise of the request's
      parameters has been added. A client sits out if its participations are used up, or if it has
      too few records where their number is public (unit record under replace_one, or no noise);
      where it is not, it uploads noise alone.
    * No round is drawn twice: a repeated request gets the same bytes as the first, and nothing is
      charged. In a secret run these are the stored ones, and only the very same request gets them;
      a seeded run computes them again. An earlier round is refused.
    * The first request's parameters and terms hold for the run. That these are the ones the report
      names is up to `accepts`: without it, the client believes the server.
    * Values for experiments (the training loss) are added in seeded runs only.
    """
    try:
        request = parse_request(message)
        start, layout = _read_model(request)
    except (MessageError, ParameterError, SensitivityError, ValueError) as error:
        _log.warning("request refused: %s", error)
        return error_reply(message, REFUSED, "request refused by the client")
    parameters = request.parameters
    if accepts is not None and not accepts(parameters):
        return error_reply(message, REFUSED, "parameters refused by the client")
    memory = ContextState(context) if state is None else state
    entry = memory.read_entry(METHOD)
    if request.server_round < entry.last_round:
        return error_reply(message, REFUSED, "round already answered")
    digest = hashlib.sha256(f"{parameters.to_json()}\n{terms}".encode()).hexdigest()
    if entry.terms not in ("", digest):
        return error_reply(message, REFUSED, "parameters changed within a run")
    secret = parameters.randomness == "secret"
    asked = _digest(message, request, digest) if secret else _SEEDED
    charged = request.server_round == entry.last_round and entry.request != ""
    if charged and secret:
        if asked == entry.request and entry.reply:
            return upload_reply(message, entry.reply, None, False)
        return error_reply(message, REFUSED, "round already answered")
    if not charged:
        if entry.participations >= parameters.num_participations:
            return ineligible_reply(message)
        # Before any data is read: whatever follows, no earlier round is answered from here on.
        entry = replace(entry, last_round=request.server_round, terms=digest, request="", reply=b"")
        memory.write_entry(entry)
    try:
        records = num_records() if callable(num_records) else num_records
    except Exception:
        _log.exception("data could not be read")
        return error_reply(message, FAILED, "data could not be read")
    enough = records >= parameters.min_records
    if not enough and parameters.is_size_public:
        return ineligible_reply(message)
    if not charged:
        entry = replace(entry, participations=entry.participations + 1, request=asked)
        memory.write_entry(entry)
    mechanism = client_mechanism(parameters, request.server_round, records)
    randomness = Randomness(parameters.randomness, parameters.seed)
    client = int(context.node_config.get("partition-id", context.node_id))
    streams = UploadStreams(randomness, request.server_round, client)
    work = LocalWork(
        arrays=request.arrays,
        batches=draw_records(parameters, records, streams.records) if enough else [],
        batch_size=parameters.batch_size,
        learning_rate=parameters.learning_rate_in_round(request.server_round),
        seed=int(streams.training.words(1)[0] >> np.uint64(1)),
        float64=parameters.sensitivity == "convex",
    )
    loss, failed = None, False
    try:
        trained, loss = local_update(work) if enough else (request.arrays, None)
        upload = local_round(start, trained, layout, parameters, mechanism, streams)
    except Exception:
        _log.exception("local training failed")
        if mechanism is None:
            return error_reply(message, FAILED, "local training failed")
        # The failure may depend on the data: to the server it looks like any other upload.
        failed = True
        unchanged = layout.unflatten(start)
        upload = local_round(start, unchanged, layout, parameters, mechanism, streams)
    if secret:
        memory.write_entry(replace(entry, reply=upload))
        return upload_reply(message, upload, None, False)
    return upload_reply(message, upload, loss, failed)


def _read_model(request: Request) -> tuple[NDArray[np.float64], ArrayLayout]:
    """Return the model's vector and layout, checked before any data is read."""
    layout = ArrayLayout.of(request.arrays)
    start = layout.flatten(request.arrays)
    if not np.isfinite(start).all():
        raise MessageError("model with a number that is not finite")
    if request.parameters.sensitivity == "convex":
        check_model(start)
    return start, layout


def _digest(message: Message, request: Request, terms: str) -> str:
    """Return the digest of all that a round's upload depends on, besides the data."""
    digest = hashlib.sha256()
    record = message.content[ARRAYS]
    assert isinstance(record, ArrayRecord)
    heads = [[name, each.dtype, list(each.shape), each.stype] for name, each in record.items()]
    sizes = [len(each.data) for each in record.values()]
    digest.update(json.dumps([request.server_round, terms, heads, sizes]).encode())
    for each in record.values():
        digest.update(each.data)
    return digest.hexdigest()
