"""A server with colluders among the clients: it names whom it likes, and one bad client's harm.

Judged by the best linear attacker, as in `test_hostile_server`.
"""

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from strategies.dp_fedpaq.messages import FAILED, REFUSED, error_reply
from strategies.mechanisms.key_agreement import PublicCard, sign_card
from strategies.mechanisms.offset_noise import OffsetNoise, calibrate_offset_noise
from strategies.niss import calibration, noise_plan, participant
from strategies.niss.client import train
from strategies.niss.guarantees import list_guarantees
from strategies.niss.messages import UPLOAD
from strategies.niss.peers import ReadyPeer
from tests.niss.hostile_server import (
    HostileServer,
    Wiretap,
    forge_card,
    make_devices,
    make_parameters,
)
from tests.niss.judge import assert_hidden, judge, judge_gaussian, promised
from tests.niss.planned import plan
from tests.niss.small_runs import RecordingGrid, local_update, phase_of, start

SIZE = 20_000


@pytest.fixture
def of_the_smallest_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A twin that counts colluders in the smallest ready set: h = m - floor(rho m)."""

    def calibrate(std: float, *, max_ready: int, **others: object) -> OffsetNoise:
        return calibrate_offset_noise(std, **others)  # type: ignore[arg-type]

    forget()
    monkeypatch.setattr(calibration, "calibrate_offset_noise", calibrate)
    yield
    monkeypatch.undo()
    forget()


def forget() -> None:
    for cached in (calibration.calibrate, noise_plan.choose_grid, noise_plan.plan_noise):
        cached.cache_clear()


# Clients of the run and of a round, least ready set, rho, colluders.
NAMED = [
    (10, 10, None, 0.1, 1),
    (10, 10, None, 0.3, 3),
    (30, 10, None, 0.1, 1),
    (25, 10, 7, 0.3, 3),
    (20, 20, None, 0.5, 10),
]


def name_all_colluders(
    wiretap: Wiretap, case: tuple[int, int, int | None, float, int], kind: str
) -> tuple[HostileServer, list[int]]:
    """Ask the smallest ready set for uploads: all colluders are in it, and client 0."""
    clients, sampled, least, rho, num_colluders = case
    parameters, planned = plan(
        clients,
        num_sampled_clients=sampled,
        min_ready=least,
        colluding_fraction=rho,
        pair_noise=kind,
        randomness="secret",
    )
    server = HostileServer(make_devices(clients, SIZE, trusted=True), parameters)
    server.begin()
    chosen = list(range(clients))[: parameters.min_ready]
    colluders = chosen[-num_colluders:]
    # All that the guarantee says may collude do, and no more.
    done = replace(planned, uploads=dict.fromkeys(chosen, 1), fewest_uploads=len(chosen))
    row = list_guarantees(parameters, done, has_trust_lists=True)[0]
    assert row.colluding_fraction == num_colluders / clients
    assert row.valid
    for number in chosen:
        assert not server.ask_upload(number, server.ready_set(number, chosen)).has_error()
    assert len(wiretap.uploads) == parameters.min_ready < sampled
    return server, colluders


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
@pytest.mark.parametrize("case", NAMED, ids=str)
def test_all_colluders_in_the_smallest_ready_set_learn_no_more(
    wiretap: Wiretap, case: tuple[int, int, int | None, float, int], kind: str
) -> None:
    server, colluders = name_all_colluders(wiretap, case, kind)
    result = judge(wiretap, server, colluders=colluders)
    assert_hidden(result)
    assert result is not None
    # Nothing is given away, either.
    assert result.predicted_std == pytest.approx(result.sigma_eff, rel=1e-2)


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
@pytest.mark.parametrize("case", NAMED, ids=str)
@pytest.mark.usefixtures("of_the_smallest_set")
def test_a_twin_that_counts_colluders_in_the_smallest_set_is_caught(
    wiretap: Wiretap, case: tuple[int, int, int | None, float, int], kind: str
) -> None:
    server, colluders = name_all_colluders(wiretap, case, kind)
    result = judge(wiretap, server, colluders=colluders)
    assert result is not None
    assert result.agrees()
    assert result.breaks_promise
    assert result.beats_promise()


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_all_colluders_in_the_smallest_ready_set_of_a_coalition(
    wiretap: Wiretap, kind: str
) -> None:
    """Four of its ten clients may be false; seven of it are named, with all four among them."""
    from strategies.niss import Coalition

    ten = Coalition(tuple(range(10)), 0.4, 7)
    server = HostileServer(
        make_devices(14, SIZE),
        make_parameters(14, coalitions=(ten,), min_ready=4, pair_noise=kind),
    )
    server.begin()
    for number in range(7):
        assert not server.ask_upload(number, server.ready_set(number, range(7))).has_error()
    result = judge(wiretap, server, colluders=(3, 4, 5, 6))
    assert_hidden(result)
    more = judge(wiretap, server, colluders=(2, 3, 4, 5, 6))
    assert more is not None
    assert more.breaks_promise


# One bad client among ten.

BAD, CLIENTS = 3, 10


def make_bad(kind: str, card: PublicCard, run_tag: bytes, identity: bytes) -> PublicCard:
    if kind == "no signature":
        return replace(card, signature=bytes(64))
    if kind == "for another run":
        return sign_card(card.number, b"another", identity, bytes(range(32)))
    return forge_card(card.number, run_tag, identity, bytes([kind == "one"]) + bytes(31))


@pytest.mark.parametrize("pair_noise", ["gaussian", "uniform"])
@pytest.mark.parametrize("kind", ["no signature", "for another run", "zero", "one"])
def test_one_bad_card_does_not_stop_the_others(
    wiretap: Wiretap, monkeypatch: pytest.MonkeyPatch, kind: str, pair_noise: str
) -> None:
    def sign(number: int, run_tag: bytes, identity: bytes, exchange: bytes) -> PublicCard:
        card = sign_card(number, run_tag, identity, exchange)
        return make_bad(kind, card, run_tag, identity) if number == BAD else card

    monkeypatch.setattr(participant, "sign_card", sign)
    app = ClientApp()

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        answered = train(
            message,
            context,
            num_records=50,
            local_update=lambda work: local_update(work),
        )
        if context.node_config["partition-id"] != BAD or phase_of(message) != UPLOAD:
            return answered
        if pair_noise == "gaussian":
            return error_reply(message, FAILED, "vanished")
        # Whatever it uploads is in the sum, as anybody's lies are; nothing, so that masks cancel.
        answered.content["arrays"]["update"].data = bytes(4 * SIZE)
        return answered

    grid = RecordingGrid(CLIENTS, app)
    model = {"w": np.zeros(SIZE)}
    made = start(grid, 2, model, pair_noise=pair_noise, colluding_fraction=0.1, randomness="secret")
    replies = CLIENTS - (pair_noise == "gaussian")
    assert [row.num_replies for row in made.rows] == [replies] * 2
    assert [row.own["num_attempts"] for row in made.rows] == [1, 1]
    bad = made.strategy.roster.cards[BAD].identity
    honest = [each for each in wiretap.uploads if each.identity != bad]
    assert len(honest) == 2 * (CLIENTS - 1)
    assert all(len(each.keys) == CLIENTS - 2 for each in honest)
    assert all(bad not in {peer.card.identity for peer in each.peers} for each in honest)
    if pair_noise == "gaussian":
        target = next(each for each in honest if each.binding["server_round"] == 1)
        sigma_eff = promised(target, made.strategy.parameters)
        assert_hidden(judge_gaussian(honest, target, sigma_eff, {}))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pair_noise", ["gaussian", "uniform"])
def test_swapped_keys_never_hide_a_client_by_less(
    wiretap: Wiretap, seed: int, pair_noise: str
) -> None:
    """Each client is shown others' cards with keys of the server's at random places."""
    rng = np.random.default_rng(seed)
    server = HostileServer(
        make_devices(8, SIZE, trusted=True), make_parameters(8, min_ready=6, pair_noise=pair_noise)
    )
    server.begin()
    own = os.urandom(32)
    swapped = sign_card(0, b"x", own, own).exchange
    skipped = 0
    for number in server.devices:
        named = server.ready_set(number)
        places = set(rng.choice(7, size=int(rng.integers(0, 5)), replace=False))
        shown = [
            ReadyPeer(replace(each.card, exchange=swapped), each.nonce) if at in places else each
            for at, each in enumerate(named)
        ]
        reply = server.ask_upload(number, shown)
        assert reply.has_error() == (len(places) > 2)
        if reply.has_error():
            assert reply.error.code == REFUSED
            assert server.devices[number].entry.participations == 0
            continue
        skipped += len(places)
        upload = wiretap.uploads[-1]
        assert len(upload.peers) == 7 - len(places)
        assert swapped not in {peer.card.exchange for peer in upload.peers}
    assert skipped > 0
    for number in server.devices:
        if server.devices[number].entry.participations:
            result = judge(wiretap, server, number)
            # Of uniform masks, one without its other end hides all of an upload.
            if result is not None:
                assert_hidden(result)
    # Once met, a client with another card is refused, not skipped.
    server.ask_ready(2)
    for number, device in server.devices.items():
        if device.entry.participations and len(keys := server.ready_set(number)) == 7:
            met = {each.number for each in wiretap_cards(wiretap, server, number)}
            at = next(i for i, each in enumerate(keys) if each.card.number in met)
            keys[at] = ReadyPeer(replace(keys[at].card, exchange=swapped), keys[at].nonce)
            assert server.ask_upload(number, keys, server_round=2).has_error()
            assert device.entry.participations == 1


def wiretap_cards(wiretap: Wiretap, server: HostileServer, number: int) -> list[PublicCard]:
    identity = server.cards[number].identity
    return [
        peer.card for each in wiretap.uploads if each.identity == identity for peer in each.peers
    ]


def test_a_client_left_out_by_some_cancels_with_nobody_who_saw_another_set(
    wiretap: Wiretap,
) -> None:
    server = HostileServer(make_devices(8, SIZE), make_parameters(8, min_ready=6))
    server.begin()
    for number in range(8):
        named = server.ready_set(number)
        if number == 0:
            named[4] = ReadyPeer(replace(named[4].card, signature=bytes(64)), named[4].nonce)
        assert not server.ask_upload(number, named).has_error()
    first, *others = wiretap.uploads
    assert not any(first.keys.keys() & each.keys.keys() for each in others)
    assert all(len(a.keys.keys() & b.keys.keys()) == 1 for a in others for b in others if a != b)
    for number in (0, 1, 5):
        assert_hidden(judge(wiretap, server, number))
