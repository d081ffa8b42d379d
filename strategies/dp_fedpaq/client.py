"""The client side of DP-FedPaq: unpack, one round, pack; and the client's own refusals."""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from numpy.typing import NDArray

from strategies.device_state import ContextState, DeviceState
from strategies.dp_fedpaq.algorithm import (
    UploadStreams,
    client_mechanism,
    client_noise_multiplier,
    draw_records,
    gradient_noise,
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

# Bounds on what local steps do, which hold in float64 and from models that are not too large.
EXACT_SENSITIVITIES = ("convex", "one_step")
METHOD = "dp_fedpaq"
# In place of a request's digest, which a seeded run has no use for.
_SEEDED = "seeded"
# What a release without noise of the client's own leaves in its ledger.
NOTHING_HIDDEN = json.dumps({"noise_multiplier": 0.0})
_log = logging.getLogger(__name__)

StepNoise = Callable[[int, int], NDArray[np.float64]]


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
        Whether the steps must be computed in float64 (a condition of `EXACT_SENSITIVITIES`).
    max_grad_norm : float or None
        C: the gradient of each record is clipped to this L2 norm; None: no such clipping.
    step_noise : callable or None
        Noise to add to the sum of clipped gradients of a step (`dp_sgd`): the number of the step,
        from 0, and the number d of trained parameters in, a float64 vector of length d out. To be
        called once for each step, in order.
    """

    arrays: dict[str, NDArray[np.generic]]
    batches: Batches
    batch_size: int
    learning_rate: float
    seed: int
    float64: bool
    max_grad_norm: float | None = None
    step_noise: StepNoise | None = None


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
        Where this run's participations are counted. None: in the node's context.

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
    * No round is drawn twice: a repeated request gets the same bytes as the first, and nothing more
      is charged. In a secret run these are the stored ones, and only the very same request gets
      them; a seeded run computes them again. An earlier round is refused.
    * The first request's parameters and terms hold for the run. That these are the ones the report
      names is up to `accepts`: without it, the client believes the server.
    * Values for experiments (the training loss) are added in seeded runs only.
    """
    try:
        request = parse_request(message)
        model = read_model(request.arrays, request.parameters)
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
    agreed = digest_terms(parameters.to_json(), terms)
    if entry.terms not in ("", agreed):
        return error_reply(message, REFUSED, "parameters changed within a run")
    secret = parameters.randomness == "secret"
    asked = _hash_request(request, agreed) if secret else _SEEDED
    charged = request.server_round == entry.last_round and entry.request != ""
    if charged and secret:
        if asked == entry.request and entry.reply:
            return upload_reply(message, entry.reply, None, False)
        return error_reply(message, REFUSED, "round already answered")
    if not charged:
        if entry.participations >= parameters.num_participations:
            return ineligible_reply(message)
        # Before any data is read: whatever follows, no earlier round is answered from here on.
        entry = replace(entry, last_round=request.server_round, terms=agreed, request="", reply=b"")
        memory.write_entry(entry)
    try:
        records = num_records() if callable(num_records) else num_records
    except Exception:
        _log.exception("data could not be read")
        return error_reply(message, FAILED, "data could not be read")
    if records < parameters.min_records and parameters.is_size_public:
        return ineligible_reply(message)
    if not charged:
        # With what it releases, before it is computed: whatever crashes, nothing is forgotten.
        releases = _describe_releases(parameters, max(records, parameters.min_records))
        count = entry.participations + 1
        entry = replace(entry, participations=count, request=asked, releases=releases)
        memory.write_entry(entry)
    client = int(context.node_config.get("partition-id", context.node_id))
    upload, loss, failed = _make_upload(request, model, records, client, local_update)
    if upload is None:
        return error_reply(message, FAILED, "local training failed")
    if secret:
        memory.write_entry(replace(entry, reply=upload))
        return upload_reply(message, upload, None, False)
    return upload_reply(message, upload, loss, failed)


def _make_upload(
    request: Request,
    model: ReceivedModel,
    records: int,
    client: int,
    local_update: LocalUpdate,
) -> tuple[bytes | None, float | None, bool]:
    """Train and make the upload private; return it, the loss, and whether training failed.

    The failure may depend on the data: with noise, it looks like any other upload to the server.
    """
    parameters = request.parameters
    mechanism = client_mechanism(parameters, request.server_round, records)
    randomness = Randomness(parameters.randomness, parameters.seed)
    streams = UploadStreams(randomness, request.server_round, client)
    enough = records >= parameters.min_records or parameters.sampling == "poisson"

    noised: list[int] = []

    def step_noise(step: int, size: int) -> NDArray[np.float64]:
        assert mechanism is not None
        noised.append(step)
        return gradient_noise(mechanism, size, streams.noise)

    in_steps = parameters.mechanism == "dp_sgd" and mechanism is not None
    work = describe_work(
        parameters,
        request.server_round,
        model,
        draw_records(parameters, records, streams.records) if enough else [],
        streams,
        step_noise if in_steps else None,
    )
    try:
        trained, loss = local_update(work) if enough else (model.arrays, None)
        if in_steps and noised != list(range(len(work.batches))):
            _log.error("the local update took noise for steps %s only: nothing is sent", noised)
            return None, None, True
        upload = local_round(model.vector, trained, model.layout, parameters, mechanism, streams)
        # A loss that is no number goes with an update that is none, which has become zero.
        return upload, loss, loss is not None and not math.isfinite(loss)
    except Exception:
        _log.exception("local training failed")
    if not parameters.adds_noise:
        return None, None, True
    unchanged = model.vector
    if in_steps:
        # As if every batch had been empty.
        scale = work.learning_rate / work.batch_size
        for step in range(len(work.batches)):
            unchanged = unchanged - scale * step_noise(step, unchanged.size)
    arrays = model.layout.unflatten(unchanged)
    upload = local_round(model.vector, arrays, model.layout, parameters, mechanism, streams)
    return upload, None, True


def describe_work(
    parameters: DpFedPaqParameters,
    server_round: int,
    model: ReceivedModel,
    batches: Batches,
    streams: UploadStreams,
    step_noise: StepNoise | None = None,
) -> LocalWork:
    """Describe a round's local training."""
    return LocalWork(
        arrays=model.copy_arrays(),
        batches=batches,
        batch_size=parameters.batch_size,
        learning_rate=parameters.learning_rate_in_round(server_round),
        seed=int(streams.training.words(1)[0] >> np.uint64(1)),
        float64=parameters.sensitivity in EXACT_SENSITIVITIES,
        max_grad_norm=parameters.max_grad_norm,
        step_noise=step_noise,
    )


def _hash_request(request: Request, agreed: str) -> str:
    """Return the digest of all that a round's upload depends on, besides the data."""
    return hash_model(request.arrays, [request.server_round, agreed])


def hash_model(arrays: ArrayRecord, beside: list[int | str]) -> str:
    """Return the digest of a model's record and of what stands beside it in a request."""
    heads = [[name, each.dtype, list(each.shape), each.stype] for name, each in arrays.items()]
    sizes = [len(each.data) for each in arrays.values()]
    digest = hashlib.sha256(json.dumps([*beside, heads, sizes]).encode())
    for each in arrays.values():
        digest.update(each.data)
    return digest.hexdigest()


def _describe_releases(parameters: DpFedPaqParameters, records: int) -> str:
    """Say what an upload releases, for the ledger."""
    hidden = parameters.adds_noise and parameters.noise_at == "client"
    if not hidden or parameters.mode == "paper" or parameters.randomness == "seeded":
        # Noise that somebody can draw again is none.
        return NOTHING_HIDDEN
    releases = parameters.releases(client_noise_multiplier(parameters, records), records, 1)
    return json.dumps({**asdict(releases), "delta": parameters.target_delta})


def read_model(arrays: ArrayRecord, parameters: DpFedPaqParameters) -> ReceivedModel:
    """Return the model, checked before any data is read.

    Raises
    ------
    MessageError, SensitivityError, ValueError
        If it is not a model, or not one that the parameters allow to train on.
    """
    model = receive_model(arrays)
    if not model.is_finite:
        raise MessageError("model with a number that is not finite")
    if parameters.sensitivity in EXACT_SENSITIVITIES:
        check_model(model.vector)
    return model


# The same for all requests of a run.
@lru_cache(maxsize=4)
def digest_terms(parameters: str, terms: str) -> str:
    """Return the digest of what a client agrees to when it joins a run."""
    return hashlib.sha256(f"{parameters}\n{terms}".encode()).hexdigest()
