"""The client side of NISS: its keys, one round, and the client's own refusals."""

import json
import logging
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np
from flwr.app import Context, Message

from strategies.device_state import ContextState, DeviceState, LedgerEntry
from strategies.dp_fedpaq.algorithm import (
    UploadStreams,
    Vector,
    bound_update,
    draw_records,
    subtract_models,
)
from strategies.dp_fedpaq.client import (
    LocalUpdate,
    describe_work,
    digest_terms,
    hash_model,
    read_model,
)
from strategies.dp_fedpaq.messages import (
    FAILED,
    REFUSED,
    MessageError,
    error_reply,
    ineligible_reply,
    upload_reply,
)
from strategies.dp_fedpaq.received_model import ReceivedModel
from strategies.mechanisms.fixed_point import FixedPoint, pack
from strategies.mechanisms.key_agreement import (
    KeyAgreementError,
    PublicCard,
    public_identity,
    sign_card,
)
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.rng import Randomness, Stream
from strategies.mechanisms.sensitivity import SensitivityError
from strategies.niss.algorithm import derive_edges, mask_update
from strategies.niss.key_memory import NOBODY_KNOWN, DeviceTrust, KeyMemory
from strategies.niss.messages import (
    READY,
    REGISTER,
    UPLOAD_TYPE,
    Request,
    card_reply,
    parse_request,
    ready_reply,
)
from strategies.niss.noise_plan import (
    NoisePlan,
    accept_scale,
    edge_share,
    own_noise_multiplier,
    plan_noise,
)
from strategies.niss.parameters import NissParameters
from strategies.niss.peers import (
    PeerError,
    ReadyPeer,
    accept_peers,
    bind_run_tag,
    unpack_ready_set,
)
from strategies.niss.published_round import PublishedNoise, accept_shares

METHOD = "niss"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Client:
    """What a client brings to one request."""

    message: Message
    request: Request
    number: int
    memory: DeviceState
    keys: KeyMemory
    trust: DeviceTrust
    agreed: str
    num_records: Callable[[], int]
    local_update: LocalUpdate
    max_epsilon: float | None

    @property
    def parameters(self) -> NissParameters:
        return self.request.parameters

    @property
    def is_secret(self) -> bool:
        return self.parameters.update.randomness == "secret"

    def run_tag(self) -> bytes:
        return bind_run_tag(self.request.tag, self.agreed)

    def card(self) -> PublicCard:
        identity = self.trust.identity or self.keys.identity_key()
        return sign_card(self.number, self.run_tag(), identity, self.keys.exchange_key())

    def refuse(self, reason: str) -> Message:
        return error_reply(self.message, REFUSED, reason)


def train(
    message: Message,
    context: Context,
    *,
    num_records: int | Callable[[], int],
    local_update: LocalUpdate,
    accepts: Callable[[NissParameters], bool] | None = None,
    terms: str = "",
    state: DeviceState | None = None,
    trust: DeviceTrust = NOBODY_KNOWN,
    max_epsilon: float | None = None,
) -> Message:
    """Answer a request: register, say ready, or upload a masked update.

    Parameters
    ----------
    message : Message
        The server's request.
    context : Context
        The node's context; ``partition-id`` of its node configuration is the client's number.
    num_records, local_update, accepts, terms, state
        As in `strategies.dp_fedpaq.client.train`.
    trust : DeviceTrust
        The device's identity key and its trust list.
    max_epsilon : float or None
        The largest total epsilon that the device's owner allows; the client adds noise of its own
        until it holds.

    Returns
    -------
    Message
        A card, a nonce, an upload; word that the client sits out; or a refusal.

    Notes
    -----
    Formal guarantees, for requests that are delivered one at a time:

    * The reply depends on the data only through the upload, to which at least the noise of the
      request's parameters has been added (`noise_plan`), towards at least min_ready - 1 accepted
      peers (`peers.accept_peers`); a client that accepts fewer uploads nothing.
    * Parameters, terms and the run's tag are those of the registration, or the client refuses.
      They are bound to every key: with a client that was told others, no noise cancels.
    * A nonce, and so a key, is used for one upload; round and attempt never go back. Each upload is
      charged before it is computed. The same request again gets the same bytes or nothing.
    * No message says what a pair's noise is, and none makes the client tell.
    """
    try:
        request = parse_request(message)
    except (MessageError, ParameterError, SensitivityError, ValueError) as error:
        _log.warning("request refused: %s", error)
        return error_reply(message, REFUSED, "request refused by the client")
    parameters = request.parameters
    if accepts is not None and not accepts(parameters):
        return error_reply(message, REFUSED, "parameters refused by the client")
    if parameters.mode == "paper" and max_epsilon is not None:
        return error_reply(message, REFUSED, "mode paper keeps to no epsilon")
    memory = ContextState(context) if state is None else state
    entry = memory.read_entry(METHOD)
    agreed = digest_terms(parameters.to_json(), terms)
    if entry.terms not in ("", agreed):
        return error_reply(message, REFUSED, "parameters changed within a run")
    number = int(context.node_config.get("partition-id", context.node_id))
    randomness = Randomness(parameters.update.randomness, parameters.update.seed)
    client = _Client(
        message=message,
        request=request,
        number=number,
        memory=memory,
        keys=KeyMemory(memory, randomness, number),
        trust=trust,
        agreed=agreed,
        num_records=num_records if callable(num_records) else lambda: num_records,
        local_update=local_update,
        max_epsilon=max_epsilon,
    )
    if request.phase == REGISTER:
        return _register(client, entry)
    if not client.keys.is_registered() or not client.keys.agree_on_tag(request.tag):
        return client.refuse("not registered for this run")
    return _say_ready(client, entry) if request.phase == READY else _upload(client, entry)


def _register(client: _Client, entry: LedgerEntry) -> Message:
    if not client.keys.agree_on_tag(client.request.tag):
        return client.refuse("the run's tag changed within a run")
    client.memory.write_entry(replace(entry, terms=client.agreed))
    card = client.card()
    return card_reply(client.message, card, client.trust.digest(card.identity))


def _is_past(client: _Client) -> bool:
    """Return whether the keys of the request's attempt are used up, or those of a later one.

    A seeded run computes its last round again: nothing of it is a release.
    """
    asked = client.request.server_round, client.request.attempt
    used = client.keys.last_used()
    return asked <= used if client.is_secret else asked[0] < used[0]


def _say_ready(client: _Client, entry: LedgerEntry) -> Message:
    request, parameters = client.request, client.parameters
    if _is_past(client):
        return client.refuse("round already answered")
    asked = (request.server_round, request.attempt)
    again = asked <= client.keys.last_used()
    if not again and entry.participations >= parameters.update.num_participations:
        return ineligible_reply(client.message)
    try:
        records = client.num_records()
    except Exception:
        _log.exception("data could not be read")
        return error_reply(client.message, FAILED, "data could not be read")
    if records < parameters.min_records and parameters.update.is_size_public:
        return ineligible_reply(client.message)
    nonce = client.keys.begin(*asked)
    weighs = parameters.weighting == "examples"
    return ready_reply(client.message, nonce, records if weighs else None)


def _upload(client: _Client, entry: LedgerEntry) -> Message:
    request, parameters = client.request, client.parameters
    assert request.arrays is not None
    try:
        model = read_model(request.arrays, parameters.update)
        ready = unpack_ready_set(request.ready_set)
    except (MessageError, PeerError, KeyAgreementError, SensitivityError, ValueError) as error:
        _log.warning("request refused: %s", error)
        return client.refuse("request refused by the client")
    asked = hash_model(
        request.arrays,
        [
            *(request.server_round, request.attempt, client.agreed, request.ready_set.hex()),
            *(request.step_exponent, request.pair_scale),
            *(request.shares.hex(), str(request.weight)),
        ],
    )
    if client.is_secret and entry.reply and asked == entry.request:
        return upload_reply(client.message, entry.reply, None, False, UPLOAD_TYPE)
    pending = client.keys.pending()
    if pending is None or pending[:2] != (request.server_round, request.attempt):
        return client.refuse("not ready for this round, or already answered")
    again = pending[:2] <= client.keys.last_used()
    if not again and entry.participations >= parameters.update.num_participations:
        return ineligible_reply(client.message)
    try:
        card = client.card()
        peers = _accept_ready_set(client, card, ready)
        grid = FixedPoint(math.ldexp(1.0, request.step_exponent))
        published = _accept_shares(client, card, ready, peers, grid)
        plan = None if published else _accept_noise(client, grid, model)
        edges = derive_edges(
            client.keys.exchange_key(),
            card.identity,
            pending[2],
            peers if published is None else [],
            run_tag=client.run_tag(),
            server_round=request.server_round,
            attempt=request.attempt,
            kind=parameters.pair_noise,
            edge_probability=edge_share(parameters, parameters.circle_of(client.number)),
        )
    except (PeerError, KeyAgreementError, ParameterError, SensitivityError, ValueError) as error:
        _log.warning("request refused: %s", error)
        return client.refuse("ready set or noise refused by the client")
    client.keys.pin(peer.card for peer in peers)
    try:
        records = client.num_records()
    except Exception:
        _log.exception("data could not be read")
        return error_reply(client.message, FAILED, "data could not be read")
    needed = 0.0
    if plan is not None:
        needed = own_noise_multiplier(parameters, client.number, records, client.max_epsilon)
    # From here on neither the nonce nor the participation can be had again.
    client.keys.use_up()
    entry = replace(
        entry,
        last_round=request.server_round,
        participations=entry.participations + (not again),
        request=asked,
        reply=b"",
    )
    client.memory.write_entry(entry)
    update, loss, failed, stream = _train(client, model, records)
    if published is not None:
        words = published.add_to(update, stream)
    else:
        assert plan is not None
        words = mask_update(
            update,
            edges,
            kind=parameters.pair_noise,
            grid=grid,
            pair_scale=request.pair_scale,
            own_std=plan.own_std(needed),
            stream=stream,
        )
    upload = pack(words)
    if client.is_secret:
        z = 0.0 if plan is None else max(needed, plan.noise_multiplier)
        releases = _describe_releases(parameters, z, records)
        client.memory.write_entry(replace(entry, reply=upload, releases=releases))
        return upload_reply(client.message, upload, None, False, UPLOAD_TYPE)
    return upload_reply(client.message, upload, loss, failed, UPLOAD_TYPE)


def _accept_ready_set(
    client: _Client, card: PublicCard, ready: list[ReadyPeer]
) -> list[ReadyPeer]:
    parameters = client.parameters
    circle = parameters.circle_of(client.number)
    if any(parameters.circle_of(each.card.number) != circle for each in ready):
        raise PeerError("ready set with clients of another coalition")
    peers = accept_peers(ready, card, client.run_tag(), client.keys.cards(), client.trust.peers)
    if not circle.min_ready <= len(peers) + 1 <= parameters.max_ready:
        raise PeerError(
            f"{len(peers) + 1} clients to hide among; {circle.min_ready} to "
            f"{parameters.max_ready} are allowed"
        )
    return peers


def _accept_noise(client: _Client, grid: FixedPoint, model: ReceivedModel) -> NoisePlan:
    """Return the round's noise as the client itself computes it; the server's may not be less."""
    parameters, request = client.parameters, client.request
    size = model.layout.num_parameters
    circle = parameters.circle_of(client.number)
    plan = plan_noise(parameters, circle, request.server_round, size, grid)
    return accept_scale(plan, request.pair_scale)


def _accept_shares(
    client: _Client,
    card: PublicCard,
    ready: list[ReadyPeer],
    peers: list[ReadyPeer],
    grid: FixedPoint,
) -> PublishedNoise | None:
    """Return the noise of mode `paper`, as the tracker says; None in mode `sound`."""
    request, pending = client.request, client.keys.pending()
    if request.parameters.mode != "paper":
        return None
    assert pending is not None
    return accept_shares(
        request.parameters,
        ready,
        peers,
        number=client.number,
        identity=card.identity,
        exchange_private=client.keys.exchange_key(),
        nonce=pending[2],
        run_tag=client.run_tag(),
        server_round=request.server_round,
        attempt=request.attempt,
        grid=grid,
        weight=request.weight,
        own_multiple=request.pair_scale,
        shares=request.shares,
    )


def _train(
    client: _Client, model: ReceivedModel, records: int
) -> tuple[Vector, float | None, bool, Stream]:
    """Train and clip; a failure, which may depend on the data, is the zero update."""
    parameters, request = client.parameters.update, client.request
    randomness = Randomness(parameters.randomness, parameters.seed)
    streams = UploadStreams(randomness, request.server_round, client.number, request.attempt)
    enough = records >= parameters.min_records or parameters.sampling == "poisson"
    batches = draw_records(parameters, records, streams.records) if enough else []
    work = describe_work(parameters, request.server_round, model, batches, streams)
    if client.parameters.mode == "paper":
        # Nothing is proven there that would need more.
        work = replace(work, float64=False)
    try:
        trained, loss = client.local_update(work) if enough else (model.arrays, None)
        update = subtract_models(trained, model.vector, model.layout)
        bounded = bound_update(update, parameters.clipping_norm)
        return bounded, loss, loss is not None and not math.isfinite(loss), streams.noise
    except Exception:
        _log.exception("local training failed")
        return np.zeros_like(model.vector), None, True, streams.noise


def _describe_releases(parameters: NissParameters, noise_multiplier: float, records: int) -> str:
    """Say what each upload of this run releases, for the ledger."""
    if not parameters.update.adds_noise or parameters.mode == "paper":
        return json.dumps({"noise_multiplier": 0.0})
    releases = parameters.update.releases(noise_multiplier, records, 1)
    return json.dumps({**asdict(releases), "delta": parameters.update.target_delta})
