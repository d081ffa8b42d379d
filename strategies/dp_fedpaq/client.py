"""The client side of DP-FedPaq: unpack, one round, pack; and the client's own refusals."""

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from numpy.typing import NDArray

from strategies.dp_fedpaq.algorithm import (
    UploadStreams,
    client_mechanism,
    draw_records,
    local_round,
)
from strategies.dp_fedpaq.messages import (
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
from strategies.dp_fedpaq.received_model import ReceivedModel, receive_model
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.rng import Randomness
from strategies.mechanisms.sampling import Batches
from strategies.mechanisms.sensitivity import SensitivityError, check_model

_STATE = "dp_fedpaq"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalWork:
    """What the local training of a round is given.

    Attributes
    ----------
    arrays : dict of str to ndarray
        The global model x, as the server sent it; the caller's own, to write to.
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
) -> Message:
    """Answer a training request with a private upload.

    Parameters
    ----------
    message : Message
        The server's request.
    context : Context
        The node's context. Its state counts this run's participations; ``partition-id`` of its
        node configuration names the streams of a seeded run.
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
    * A round is answered at most once, and the first request's parameters and terms hold for the
      run. That these are the ones the report names is up to `accepts`: without it, the client
      believes the server.
    * Values for experiments (the training loss) are added in seeded runs only.
    """
    try:
        request = parse_request(message)
        model = _read_model(request)
    except (MessageError, ParameterError, SensitivityError, ValueError) as error:
        _log.warning("request refused: %s", error)
        return error_reply(message, REFUSED, "request refused by the client")
    parameters = request.parameters
    if accepts is not None and not accepts(parameters):
        return error_reply(message, REFUSED, "parameters refused by the client")
    last_round, participations, agreed = _participations(context)
    if request.server_round <= last_round:
        return error_reply(message, REFUSED, "round already answered")
    digest = _digest(parameters.to_json(), terms)
    if agreed not in (None, digest):
        return error_reply(message, REFUSED, "parameters changed within a run")
    if participations >= parameters.num_participations:
        return ineligible_reply(message)
    # Before any data is read: whatever follows, this round is not answered again.
    _remember(context, request.server_round, participations, digest)
    try:
        records = num_records() if callable(num_records) else num_records
    except Exception:
        _log.exception("data could not be read")
        return error_reply(message, FAILED, "data could not be read")
    enough = records >= parameters.min_records
    if not enough and parameters.is_size_public:
        return ineligible_reply(message)
    _remember(context, request.server_round, participations + 1, digest)
    mechanism = client_mechanism(parameters, request.server_round, records)
    randomness = Randomness(parameters.randomness, parameters.seed)
    client = int(context.node_config.get("partition-id", context.node_id))
    streams = UploadStreams(randomness, request.server_round, client)
    work = LocalWork(
        arrays=model.copy_arrays(),
        batches=draw_records(parameters, records, streams.records) if enough else [],
        batch_size=parameters.batch_size,
        learning_rate=parameters.learning_rate_in_round(request.server_round),
        seed=int(streams.training.words(1)[0] >> np.uint64(1)),
        float64=parameters.sensitivity == "convex",
    )
    loss, failed = None, False
    try:
        trained, loss = local_update(work) if enough else (model.arrays, None)
        upload = local_round(model.vector, trained, model.layout, parameters, mechanism, streams)
    except Exception:
        _log.exception("local training failed")
        if mechanism is None:
            return error_reply(message, FAILED, "local training failed")
        # The failure may depend on the data: to the server it looks like any other upload.
        failed = True
        unchanged = model.layout.unflatten(model.vector)
        upload = local_round(model.vector, unchanged, model.layout, parameters, mechanism, streams)
    experiment = parameters.randomness == "seeded"
    return upload_reply(message, upload, loss if experiment else None, failed and experiment)


def _read_model(request: Request) -> ReceivedModel:
    """Return the model, checked before any data is read."""
    model = receive_model(request.arrays)
    if not model.is_finite:
        raise MessageError("model with a number that is not finite")
    if request.parameters.sensitivity == "convex":
        check_model(model.vector)
    return model


# The same for all requests of a run.
@lru_cache(maxsize=4)
def _digest(parameters: str, terms: str) -> str:
    return hashlib.sha256(f"{parameters}\n{terms}".encode()).hexdigest()


def _remember(context: Context, server_round: int, participations: int, digest: str) -> None:
    context.state[_STATE] = ConfigRecord(
        {"last-round": server_round, "participations": participations, "parameters": digest}
    )


def _participations(context: Context) -> tuple[int, int, str | None]:
    """Return the last round answered, the participations, and the digest of their parameters."""
    record = context.state.get(_STATE)
    if not isinstance(record, ConfigRecord):
        return 0, 0, None
    last_round, count, digest = (record[k] for k in ("last-round", "participations", "parameters"))
    return int(last_round), int(count), str(digest)  # type: ignore[arg-type]
