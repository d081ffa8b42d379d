"""A client's masked upload: the ready set and the noise that it accepts, training, masking."""

import json
import logging
import math
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
from flwr.app import Message

from strategies.device_state import LedgerEntry
from strategies.dp_fedpaq.algorithm import (
    UploadStreams,
    Vector,
    bound_update,
    draw_records,
    subtract_models,
)
from strategies.dp_fedpaq.client import NOTHING_HIDDEN, describe_work, hash_model, read_model
from strategies.dp_fedpaq.messages import FAILED, error_reply, upload_reply
from strategies.dp_fedpaq.received_model import ReceivedModel
from strategies.mechanisms.fixed_point import pack
from strategies.mechanisms.key_agreement import PublicCard
from strategies.mechanisms.rng import Randomness, Stream
from strategies.niss.algorithm import Words, derive_edges, mask_update
from strategies.niss.calibration import edge_share, plan_own_noise
from strategies.niss.messages import UPLOAD_TYPE
from strategies.niss.noise_plan import accept_grid, accept_scale, choose_grid, plan_noise
from strategies.niss.parameters import SPARSE_FAILURE, NissParameters
from strategies.niss.participant import USED_UP, Participant
from strategies.niss.peers import PeerError, ReadyPeer, accept_peers, unpack_ready_set
from strategies.niss.published_round import accept_shares

# From an update and the client's stream to the upload.
AddNoise = Callable[[Vector, Stream], Words]
# From n_k to that, and z of the noise that hides the client.
Prepared = Callable[[int], tuple[AddNoise, float]]
_log = logging.getLogger(__name__)


def answer_upload(client: Participant, entry: LedgerEntry) -> Message:
    """Train and upload towards a ready set; the last exchange of a round's attempt.

    Each step may refuse. Only after all have passed, the nonce and a participation are used up;
    then the upload is computed.
    """
    request, parameters = client.request, client.parameters
    assert request.arrays is not None
    try:
        model = read_model(request.arrays, parameters.update)
        ready = unpack_ready_set(request.ready_set)
    except ValueError as error:
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
    if pending is None or pending[:2] != client.asked or client.is_past(entry):
        return client.refuse("not ready for this round, or already answered")
    if not client.is_repeat(entry) and entry.participations >= parameters.update.num_participations:
        return client.sit_out(USED_UP)
    try:
        card = client.card()
        peers = _accept_ready_set(client, card, ready)
        prepare = _prepare_shares if parameters.mode == "paper" else _prepare_masks
        prepared = prepare(client, card, pending[2], ready, peers, model)
    except (ValueError, ArithmeticError) as error:
        _log.warning("request refused: %s", error)
        return client.refuse("ready set or noise refused by the client")
    client.keys.pin(peer.card for peer in peers)
    try:
        records = client.num_records()
        add_noise, noise_multiplier = prepared(records)
    except Exception:
        _log.exception("data could not be read, or has no noise that meets the target")
        return error_reply(client.message, FAILED, "data could not be read")
    # From here on neither the nonce nor the participation can be had again. In this order: after a
    # crash in between, the attempt begins anew with a fresh nonce.
    client.keys.use_up()
    entry = client.charge(
        entry,
        request=asked,
        reply=b"",
        releases=_describe_releases(parameters, noise_multiplier, records),
    )
    client.memory.write_entry(entry)
    update, loss, failed, stream = _train(client, model, records)
    upload = pack(add_noise(update, stream))
    if client.is_secret:
        client.memory.write_entry(replace(entry, reply=upload))
        if entry.participations >= parameters.update.num_participations:
            client.keys.forget_private()
        return upload_reply(client.message, upload, None, False, UPLOAD_TYPE)
    return upload_reply(client.message, upload, loss, failed, UPLOAD_TYPE)


def _accept_ready_set(
    client: Participant, card: PublicCard, ready: list[ReadyPeer]
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


def _prepare_masks(
    client: Participant,
    card: PublicCard,
    nonce: bytes,
    ready: list[ReadyPeer],
    peers: list[ReadyPeer],
    model: ReceivedModel,
) -> Prepared:
    """Accept the round's noise, as the client itself computes it; the server's may not be less."""
    parameters, request = client.parameters, client.request
    circle, grid = parameters.circle_of(client.number), request.grid
    size = model.layout.num_parameters
    accept_grid(grid, choose_grid(parameters, request.server_round))
    plan = plan_noise(parameters, circle, request.server_round, size, grid)
    plan = accept_scale(plan, request.pair_scale, max_ready=parameters.max_ready)
    edges = derive_edges(
        client.keys.exchange_key(),
        card.identity,
        nonce,
        peers,
        run_tag=client.run_tag(),
        server_round=request.server_round,
        attempt=request.attempt,
        kind=parameters.pair_noise,
        scale=(request.step_exponent, request.pair_scale, size),
        edge_probability=edge_share(parameters, circle),
    )

    def for_records(records: int) -> tuple[AddNoise, float]:
        own = plan_own_noise(
            *(parameters, client.number, records, client.max_epsilon),
            has_trust_list=client.trust.peers is not None,
        )
        own_std = plan.own_std(own.needed, own.lone)

        def mask(update: Vector, stream: Stream) -> Words:
            return mask_update(
                update,
                edges,
                kind=parameters.pair_noise,
                grid=grid,
                pair_scale=request.pair_scale,
                own_std=own_std,
                stream=stream,
            )

        return mask, own.counted

    return for_records


def _prepare_shares(
    client: Participant,
    card: PublicCard,
    nonce: bytes,
    ready: list[ReadyPeer],
    peers: list[ReadyPeer],
    model: ReceivedModel,
) -> Prepared:
    """Accept the neighbours that the tracker names (mode `paper`)."""
    request = client.request
    noise = accept_shares(
        client.parameters,
        ready,
        peers,
        number=client.number,
        identity=card.identity,
        exchange_private=client.keys.exchange_key(),
        nonce=nonce,
        run_tag=client.run_tag(),
        server_round=request.server_round,
        attempt=request.attempt,
        grid=request.grid,
        weight=request.weight,
        own_multiple=request.pair_scale,
        shares=request.shares,
    )
    return lambda _: (noise.add_to, 0.0)


def _train(
    client: Participant, model: ReceivedModel, records: int
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
    """Say what an upload releases, for the ledger."""
    update = parameters.update
    if not update.adds_noise or parameters.mode == "paper" or update.randomness == "seeded":
        return NOTHING_HIDDEN
    releases = update.releases(noise_multiplier, max(records, update.min_records), 1)
    values = {**asdict(releases), "delta": parameters.gaussian_delta}
    if parameters.graph == "sparse":
        values["failure"] = SPARSE_FAILURE
    return json.dumps(values)
