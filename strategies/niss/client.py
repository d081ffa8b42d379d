"""The client side of NISS: its keys, one round, and the client's own refusals."""

import logging
from collections.abc import Callable
from dataclasses import replace

from flwr.app import Context, Message

from strategies.device_state import ContextState, DeviceState, LedgerEntry
from strategies.dp_fedpaq.client import LocalUpdate, digest_terms
from strategies.dp_fedpaq.messages import FAILED, REFUSED, error_reply
from strategies.mechanisms.guarantee import MAX_DELTA
from strategies.mechanisms.rng import Randomness
from strategies.niss.calibration import plan_own_noise
from strategies.niss.key_memory import NOBODY_KNOWN, DeviceTrust, KeyMemory
from strategies.niss.messages import READY, REGISTER, card_reply, parse_request, ready_reply
from strategies.niss.noise_plan import has_room
from strategies.niss.parameters import NissParameters
from strategies.niss.participant import METHOD, USED_UP, Participant, refuse
from strategies.niss.upload import answer_upload

_log = logging.getLogger(__name__)


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
        The largest total epsilon that the device's owner allows, of an exchange of a record or of
        all its data; the client adds noise of its own until it holds, or sits out if there is no
        room for so much. Without a trust list its own noise alone counts.

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
      They are bound to every key, as are ready set, grid and scale of an upload: with a client that
      was told others, no noise cancels.
    * With `max_epsilon`, it takes part in sound, secret runs with noise only.
    * A nonce, and so a key, is used for one upload; round and attempt never go back. Each upload is
      charged before it is computed. The same request again gets the same bytes or nothing (secret
      runs; a seeded one computes again, and releases nothing).
    * No message says what a pair's noise is, and none makes the client tell.
    """
    try:
        request = parse_request(message)
        accepted = accepts is None or accepts(request.parameters)
    except (ValueError, ArithmeticError) as error:
        _log.warning("request refused: %s", error)
        return error_reply(message, REFUSED, "request refused by the client")
    parameters = request.parameters
    if not accepted:
        return refuse(message, "parameters refused by the client")
    if max_epsilon is not None and not _keeps_to_epsilon(parameters):
        return refuse(message, "the run keeps to no epsilon")
    memory = ContextState(context) if state is None else state
    entry = memory.read_entry(METHOD)
    agreed = digest_terms(parameters.to_json(), terms)
    if entry.terms not in ("", agreed):
        return refuse(message, "parameters changed within a run")
    number = int(context.node_config.get("partition-id", context.node_id))
    randomness = Randomness(parameters.update.randomness, parameters.update.seed)
    client = Participant(
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
    if entry.terms != agreed or not client.keys.has_agreed_on(request.tag):
        return client.refuse("not registered for this run")
    return _say_ready(client, entry) if request.phase == READY else answer_upload(client, entry)


def _keeps_to_epsilon(parameters: NissParameters) -> bool:
    """Return whether noise of the client's own can make a run meet its owner's epsilon."""
    update = parameters.update
    noised = parameters.mode == "sound" and update.adds_noise and update.randomness == "secret"
    return noised and update.target_delta <= MAX_DELTA


def _register(client: Participant, entry: LedgerEntry) -> Message:
    # A number that has uploaded has one key for good: with another, and nobody pinned, the server
    # could name it new peers.
    if client.is_secret and entry.last_round > 0 and client.keys.has_forgotten():
        return client.refuse("the run is over for this client: its keys are gone")
    # The terms first: whatever crashes, no run goes on without them.
    client.memory.write_entry(replace(entry, terms=client.agreed))
    if not client.keys.agree_on_tag(client.request.tag):
        return client.refuse("the run's tag changed within a run")
    card = client.card()
    return card_reply(client.message, card, client.trust.digest(card.identity))


def _say_ready(client: Participant, entry: LedgerEntry) -> Message:
    parameters = client.parameters
    if client.is_past(entry):
        return client.refuse("round already answered")
    if not client.is_repeat(entry) and entry.participations >= parameters.update.num_participations:
        return client.sit_out(USED_UP)
    try:
        records = client.num_records()
    except Exception:
        _log.exception("data could not be read")
        return error_reply(client.message, FAILED, "data could not be read")
    if records < parameters.min_records and parameters.update.is_size_public:
        least = parameters.min_records
        return client.sit_out(f"{records} records, at least {least} are needed")
    if reason := _explain_missing_room(client, records):
        return client.sit_out(reason)
    nonce = client.keys.begin(*client.asked)
    weighs = parameters.weighting == "examples"
    return ready_reply(client.message, nonce, records if weighs else None)


def _explain_missing_room(client: Participant, records: int) -> str:
    """Say why the client cannot add as much noise as the run and its owner ask for, if so."""
    parameters = client.parameters
    if parameters.mode == "paper" or not parameters.update.adds_noise:
        return ""
    try:
        own = plan_own_noise(
            *(parameters, client.number, records, client.max_epsilon),
            has_trust_list=client.trust.peers is not None,
        )
        circle = parameters.circle_of(client.number)
        if has_room(parameters, circle, client.request.server_round, own.needed, own.lone):
            return ""
        why = f"noise multiplier {max(own.needed, own.lone):.4g}"
    except (ValueError, ArithmeticError) as error:
        why = str(error)
    if client.max_epsilon is None:
        return f"the noise that its target needs has no room beside that of the others ({why})"
    left = f"max-epsilon leaves {client.max_epsilon:.4g} for the run"
    return f"{left}; the noise for that has no room beside that of the others ({why})"
