"""The client: what leaves it, what it is charged, and what it never does twice."""

import json
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.device_state import FolderState
from strategies.device_state import ContextState, DeviceState, LedgerEntry, Observation
from strategies.dp_fedpaq.client import digest_terms
from strategies.dp_fedpaq.messages import FAILED, REFUSED, parse_reply
from strategies.mechanisms.fixed_point import unwrap
from strategies.mechanisms.key_agreement import public_identity
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.rng import Randomness
from strategies.niss import client as niss_client
from strategies.niss.calibration import own_noise_multiplier, plan_own_noise
from strategies.niss.circles import Coalition
from strategies.niss.key_memory import KeyMemory
from strategies.niss.messages import READY, REGISTER, UPLOAD, UPLOAD_TYPE, parse_ready
from strategies.niss.noise_plan import choose_grid, plan_noise
from strategies.niss.parameters import NissParameters
from strategies.niss.peers import pack_ready_set
from tests.niss.hostile_server import (
    Device,
    HostileServer,
    Wiretap,
    make_devices,
    make_parameters,
    make_sybil,
    words_of,
)

SIZE = 60
MEMBERS = 4
KINDS = ["secret", "seeded"]


def make_server(number: int = MEMBERS, size: int = SIZE, **changes: Any) -> HostileServer:
    return HostileServer(make_devices(number, size), make_parameters(number, **changes))


def sum_of(server: HostileServer, wiretap: Wiretap) -> np.ndarray:
    total = np.zeros(server.size, np.uint32)
    for each in wiretap.uploads:
        total += each.words
    return unwrap(total) * wiretap.uploads[0].scale["grid"].step


def keys_of(device: Device) -> KeyMemory:
    return KeyMemory(device.state, Randomness("secret", 0), device.number)


def code_of(reply: Message) -> int | None:
    return reply.error.code if reply.has_error() else None


# What leaves the client.


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_on_the_list_leaves_the_client(kind: str) -> None:
    server = make_server(randomness=kind)
    device = server.devices[0]
    reply = device.answer(server.request(REGISTER, 1, 1))
    assert set(reply.content) == {"config"}
    card = dict(reply.content["config"])
    assert set(card) == {"status", "card"}
    assert (card["status"], len(card["card"])) == ("register", 136)
    server.begin()
    reply = device.answer(server.request(READY, 1, 1))
    assert set(reply.content) == {"config"}
    said = dict(reply.content["config"])
    assert set(said) == {"status", "nonce"}
    assert (said["status"], len(said["nonce"])) == ("ready", 16)
    reply = server.ask_upload(0)
    assert set(reply.content) == {"arrays", "metrics"}
    assert list(reply.content["arrays"]) == ["update"]
    array = reply.content["arrays"]["update"]
    assert (array.dtype, array.stype, array.shape) == ("uint8", UPLOAD_TYPE, (4 * SIZE,))
    extra = {"num-examples": 1} if kind == "secret" else {"num-examples": 1, "train-loss": 0.5}
    assert dict(reply.content["metrics"]) == extra


def test_a_trust_list_leaves_as_a_digest_only() -> None:
    devices = make_devices(MEMBERS, SIZE, trusted=True)
    server = HostileServer(devices, make_parameters(MEMBERS))
    digests = set()
    for device in devices:
        config = dict(device.answer(server.request(REGISTER, 1, 1)).content["config"])
        assert set(config) == {"status", "card", "trust"}
        digests.add(config["trust"])
    assert len(digests) == 1
    assert len(digests.pop()) == 32


def test_a_refusal_says_no_more_than_a_fixed_sentence(caplog: pytest.LogCaptureFixture) -> None:
    server = make_server()
    server.begin()
    reasons = set()
    for changes in ({"pair_scale": 0}, {"model": np.full(SIZE, np.nan)}, {"ready": []}):
        reasons.add(server.ask_upload(0, changes.pop("ready", None), **changes).error.reason)
    assert reasons == {
        "ready set or noise refused by the client",
        "request refused by the client",
    }


# What is computed.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pair_noise", ["gaussian", "uniform"])
def test_pair_noise_leaves_the_sum(
    wiretap: Wiretap, pair_noise: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is the sum of updates and of each client's own noise."""
    server = make_server(pair_noise=pair_noise, randomness=kind, size=5000)
    server.begin()
    for number in server.devices:
        upload = words_of(server.ask_upload(number), server.size)
        assert (upload == wiretap.uploads[-1].words).all()
    left = sum_of(server, wiretap) - sum(each.update for each in wiretap.uploads)
    own = sum(each.scale["own_std"] ** 2 for each in wiretap.uploads)
    # Within 10 standard deviations of a chi-square of 5000 degrees.
    assert np.mean(left**2) == pytest.approx(own, rel=10 * np.sqrt(2 / server.size))


def test_masks_alone_leave_nothing_but_the_updates(wiretap: Wiretap) -> None:
    server = make_server(
        pair_noise="uniform", noise_multiplier=0.0, base_noise_multiplier=0.0, size=500
    )
    server.begin()
    for number in server.devices:
        server.ask_upload(number)
    total = sum(each.update for each in wiretap.uploads)
    step = wiretap.uploads[0].scale["grid"].step
    assert np.abs(sum_of(server, wiretap) - total).max() <= MEMBERS * step / 2
    alone = unwrap(wiretap.uploads[0].words) * step
    # Uniform on all words, within 6 standard deviations of a sample's.
    whole = 2.0**32 * step / np.sqrt(12)
    assert np.std(alone) == pytest.approx(whole, rel=6 * np.sqrt(0.2 / 500))


@pytest.mark.parametrize("learned", [1e3, -1e30, 1e300, np.inf, np.nan])
def test_an_update_is_clipped_whatever_was_learned(wiretap: Wiretap, learned: float) -> None:
    server = make_server()
    server.devices[0].update = np.full(SIZE, learned)
    server.begin()
    assert not server.ask_upload(0).has_error()
    assert np.linalg.norm(wiretap.uploads[0].update) <= 1.0 + 1e-12
    assert np.isfinite(wiretap.uploads[0].update).all()


def test_a_client_with_a_stricter_target_adds_noise_of_its_own(wiretap: Wiretap) -> None:
    changes = {
        "noise_multiplier": None,
        "target_epsilon": 8.0,
        "client_epsilons": ((1, 1.0),),
        "base_noise_multiplier": 1.3,
    }
    server = make_server(**changes)
    server.begin()
    for number in server.devices:
        server.ask_upload(number)
    stds = [each.scale["own_std"] for each in wiretap.uploads]
    assert stds[0] == stds[2] == stds[3]
    needed = own_noise_multiplier(server.parameters, 1, 20)  # times a sensitivity of 2 S
    assert stds[1] ** 2 - stds[0] ** 2 == pytest.approx(4 * (needed**2 - 1.3**2), rel=1e-3)


def own_part(server: HostileServer) -> float:
    """Return z of a client's own noise alone, by a formula of its own: that of its variance."""
    parameters = server.parameters
    circle = parameters.circle_of(0)
    plan = plan_noise(parameters, circle, 1, SIZE, choose_grid(parameters, 1))
    found = plan_own_noise(parameters, 0, 20, None, has_trust_list=False)
    assert found.counted == pytest.approx(plan.own_std(0.0) / plan.sensitivity.value, rel=1e-9)
    assert found.counted <= plan.own_std(0.0) / plan.sensitivity.value
    return found.counted


@pytest.mark.parametrize("trusted", [False, True])
def test_a_devices_owner_may_ask_for_more_noise(wiretap: Wiretap, trusted: bool) -> None:
    """Without a trust list the peers may be the server's: the device's own noise is enough."""
    server = HostileServer(make_devices(MEMBERS, SIZE, trusted=trusted), make_parameters(MEMBERS))
    server.begin()
    fields = {"ready_set": pack_ready_set(server.ready_set(0)), **server.scale()}
    server.devices[0].answer(server.request(UPLOAD, 1, 1, **fields), max_epsilon=2.5)
    server.ask_upload(1)
    needed = own_noise_multiplier(server.parameters, 0, 20, 2.5)
    stds = [each.scale["own_std"] for each in wiretap.uploads]
    assert needed > 2.5
    more = 4 * (needed**2 - 1.0) + stds[1] ** 2 if trusted else 4 * needed**2
    assert stds[0] ** 2 == pytest.approx(more, rel=1e-3)
    told = [json.loads(server.devices[i].entry.releases)["noise_multiplier"] for i in (0, 1)]
    assert told[0] == needed
    # What hides the others, and what is left of it if all their peers tell.
    assert told[1] == (1.0 if trusted else pytest.approx(stds[1] / 2.0, rel=1e-6))
    # Of h = 4 with w = .05: s_ind^2 = 1.05 sigma^2 / 4.
    assert trusted or told[1] == pytest.approx(math.sqrt(1.05 / 4), rel=1e-6)
    assert trusted or told[1] <= stds[1] / 2.0


def test_no_room_for_own_noise_alone_is_no_upload(wiretap: Wiretap) -> None:
    server = make_server()
    server.register()
    reply = server.devices[0].answer(server.request("ready", 1, 1), max_epsilon=1e-3)
    assert reply.content["config"]["status"] == "ineligible"


@pytest.mark.parametrize("graph", ["complete", "sparse"])
def test_the_ledger_says_what_an_upload_released(graph: str) -> None:
    """The failures of sparse graphs are no part of the Gaussian releases' delta."""
    server = make_server(pair_noise="uniform", graph=graph, target_delta=1e-8)
    server.begin()
    assert not server.ask_upload(0).has_error()
    releases = json.loads(server.devices[0].entry.releases)
    assert releases["delta"] == server.parameters.gaussian_delta
    assert (releases["delta"] < 1e-8) == (graph == "sparse")
    assert (releases["num_releases"], releases["noise_multiplier"]) == (1, own_part(server))


def test_a_devices_owner_is_not_told_of_a_limit_that_does_not_hold() -> None:
    """A run without noise, with noise that anybody computes, or with any delta keeps to none."""
    for changes in (
        {"pair_noise": "uniform", "noise_multiplier": 0.0, "base_noise_multiplier": 0.0},
        {"randomness": "seeded"},
        {"target_delta": 0.5},
        {"mode": "paper", "noise_multiplier": None, "target_epsilon": 1.0},
    ):
        server = make_server(**changes)
        device = server.devices[0]
        message = server.request(REGISTER, 1, 1)
        assert code_of(device.answer(message, max_epsilon=100.0)) == REFUSED
        assert device.entry == LedgerEntry("niss")
        assert code_of(device.answer(message)) is None


def test_coalitions_mask_among_themselves(wiretap: Wiretap) -> None:
    pairs = (Coalition((0, 1), 0.0, 2), Coalition((2, 3), 0.0, 2))
    server = make_server(coalitions=pairs, min_ready=2)
    server.begin()
    mixed = server.ask_upload(0, server.ready_set(0, (1, 2)))
    assert code_of(mixed) == REFUSED
    assert code_of(server.ask_upload(0, server.ready_set(0, (2, 3)))) == REFUSED
    assert not server.ask_upload(0, server.ready_set(0, (1,))).has_error()


# Data that cannot be read, training that fails.


@pytest.mark.parametrize("kind", KINDS)
def test_training_that_fails_is_the_zero_update_with_noise(wiretap: Wiretap, kind: str) -> None:
    server = make_server(randomness=kind, size=5000)
    server.begin()

    def fail(*_: object) -> Any:
        raise RuntimeError("record 17")

    server.devices[0].learn = fail  # type: ignore[method-assign]
    reply = server.ask_upload(0)
    (upload,) = wiretap.uploads
    assert (upload.update == 0).all()
    assert len(upload.keys) == MEMBERS - 1
    noise = unwrap(words_of(reply, server.size)) * upload.scale["grid"].step
    assert np.std(noise) > upload.scale["own_std"]
    metrics = dict(reply.content["metrics"])
    assert metrics == {"num-examples": 1, **({"local-failure": 1} if kind == "seeded" else {})}


def test_data_that_cannot_be_read_is_not_charged() -> None:
    server = make_server()
    server.begin()
    device = server.devices[0]

    def fail() -> int:
        raise OSError("record 17")

    device.read_data = fail  # type: ignore[method-assign]
    for reply in (device.answer(server.request(READY, 1, 2)), server.ask_upload(0)):
        assert code_of(reply) in (FAILED, REFUSED)
        assert "17" not in reply.error.reason
    assert device.entry.participations == 0


def test_noise_that_does_not_fit_is_not_charged() -> None:
    server = make_server(target_delta=1e-14)
    server.begin()
    device = server.devices[0]
    fields = {"ready_set": pack_ready_set(server.ready_set(0)), **server.scale()}
    request = server.request(UPLOAD, 1, 1, **fields)
    assert code_of(device.answer(request, max_epsilon=1e-20)) == FAILED
    assert device.entry.participations == 0
    assert device.entry.reply == b""


@pytest.mark.parametrize(("limit", "sits_out"), [(0.5, True), (1e-20, True), (2.5, False)])
def test_a_device_that_needs_too_much_noise_is_never_named_as_ready(
    wiretap: Wiretap, limit: float, sits_out: bool
) -> None:
    """Else it would vanish after each ready set that names it, at the others' expense."""
    server = make_server()
    server.register()
    device = server.devices[0]
    reply = parse_ready(device.answer(server.request(READY, 1, 1), max_epsilon=limit))
    assert (reply.upload is None) == sits_out
    # Whoever was told that it is ready can make the noise.
    server.ask_ready()
    fields = {"ready_set": pack_ready_set(server.ready_set(0)), **server.scale()}
    upload = device.answer(server.request(UPLOAD, 1, 1, **fields), max_epsilon=limit)
    assert code_of(upload) == (FAILED if sits_out else None)
    assert device.entry.participations == len(wiretap.uploads) == (not sits_out)


@pytest.mark.parametrize(("unit", "sits_out"), [("record", True), ("client", False)])
def test_a_client_with_few_records_sits_out_where_their_number_is_public(
    wiretap: Wiretap, unit: str, sits_out: bool
) -> None:
    server = make_server(unit=unit, batch_size=30)
    server.register()
    for number, device in server.devices.items():
        reply = parse_ready(device.answer(server.request(READY, 1, 1)))
        assert (reply.upload is None) == sits_out
        server.nonces[number] = b"" if reply.upload is None else reply.upload[:16]
    if not sits_out:
        assert not server.ask_upload(0).has_error()
        assert (wiretap.uploads[0].update == 0).all()


# Registration, terms.


def test_nothing_is_answered_before_registration(wiretap: Wiretap) -> None:
    server, other = make_server(), make_server()
    other.begin()
    server.cards, server.nonces = other.cards, other.nonces
    device = server.devices[0]
    assert code_of(device.answer(server.request(READY, 1, 1))) == REFUSED
    assert code_of(server.ask_upload(0)) == REFUSED
    assert device.data_read == 0
    assert device.entry == LedgerEntry("niss")


def test_another_tag_is_another_run() -> None:
    server = make_server()
    server.begin()
    tag = bytes(16)
    for phase in (REGISTER, READY):
        reply = server.devices[0].answer(server.request(phase, 2, 1, tag=tag))
        assert code_of(reply) == REFUSED
    server.tag = tag
    assert code_of(server.ask_upload(0)) == REFUSED
    assert server.devices[0].entry.participations == 0


def test_registering_twice_gives_the_same_card() -> None:
    server = make_server()
    server.register()
    before = dict(server.cards)
    server.register()
    assert server.cards == before
    assert len({card.exchange for card in before.values()}) == MEMBERS


def test_terms_are_those_of_the_registration() -> None:
    server = make_server()
    device = server.devices[0]
    assert code_of(device.answer(server.request(REGISTER, 1, 1), terms="lr=1")) is None
    assert code_of(device.answer(server.request(READY, 1, 1), terms="lr=2")) == REFUSED
    assert code_of(device.answer(server.request(READY, 1, 1), terms="lr=1")) is None
    assert device.entry.terms == digest_terms(server.parameters.to_json(), "lr=1")


def test_terms_are_in_the_card() -> None:
    """Clients with other terms reject each other's."""
    server = make_server()
    for number, device in server.devices.items():
        terms = "other" if number == 3 else ""
        reply = device.answer(server.request(REGISTER, 1, 1), terms=terms)
        server.cards[number] = type(make_sybil(0).peer(b"x").card).from_bytes(
            reply.content["config"]["card"]
        )
        nonce = device.answer(server.request(READY, 1, 1), terms=terms)
        server.nonces[number] = nonce.content["config"]["nonce"]
    assert code_of(server.ask_upload(0)) == REFUSED


@pytest.mark.parametrize("phase", [REGISTER, READY, UPLOAD])
def test_parameters_that_the_application_does_not_accept_are_refused(phase: str) -> None:
    server = make_server()
    server.begin()
    fields: dict[str, Any] = {}
    if phase == UPLOAD:
        fields = {"ready_set": pack_ready_set(server.ready_set(0)), **server.scale()}
    asked: list[NissParameters] = []

    def decline(given: NissParameters) -> bool:
        asked.append(given)
        return False

    def fail(given: NissParameters) -> bool:
        raise ValueError("no such plan")

    for accepts in (decline, fail):
        before = server.devices[0].data_read
        message = server.request(phase, 1, 1, **fields)
        assert code_of(server.devices[0].answer(message, accepts=accepts)) == REFUSED
        assert server.devices[0].data_read == before
    assert asked == [server.parameters]


# Participations, repeats.


@pytest.mark.parametrize("kind", KINDS)
def test_participations_are_counted_and_limited(kind: str) -> None:
    server = make_server(randomness=kind, num_participations=2)
    server.register()
    for server_round in (1, 2):
        server.ask_ready(server_round)
        assert not server.ask_upload(0, server_round=server_round).has_error()
        assert server.devices[0].entry.participations == server_round
    reply = server.devices[0].answer(server.request(READY, 3, 1))
    assert parse_ready(reply).upload is None
    assert server.devices[0].entry.participations == 2


def test_who_said_ready_before_the_last_upload_uploads_no_more() -> None:
    server = make_server(num_participations=1)
    server.begin()
    server.ask_upload(0)
    device = server.devices[0]
    device.state.write_key(
        "niss.pending", (5).to_bytes(8, "little") + (1).to_bytes(8, "little") + bytes(16)
    )
    assert parse_reply(server.ask_upload(0, server_round=5), UPLOAD_TYPE).upload is None
    assert device.entry.participations == 1


def test_each_attempt_is_a_participation_with_keys_of_its_own(wiretap: Wiretap) -> None:
    server = make_server()
    server.register()
    for attempt in (1, 2, 3):
        server.ask_ready(1, attempt)
        assert not server.ask_upload(0, attempt=attempt).has_error()
    assert server.devices[0].entry.participations == 3
    keys = [key for each in wiretap.uploads for key in each.keys]
    assert len(set(keys)) == len(keys) == 3 * (MEMBERS - 1)


def test_being_asked_again_whether_it_is_ready_draws_no_new_nonce() -> None:
    server = make_server()
    server.register()
    device = server.devices[0]
    nonces = [
        device.answer(server.request(READY, *asked)).content["config"]["nonce"]
        for asked in ((1, 1), (1, 1), (1, 2), (2, 1), (1, 1))
    ]
    assert nonces[0] == nonces[1]
    assert len(set(nonces)) == 4


def test_a_seeded_round_is_computed_again_and_charged_once() -> None:
    server = make_server(randomness="seeded")
    server.begin()
    first = server.ask_upload(0).content["arrays"]["update"].data
    server.ask_ready()
    assert server.ask_upload(0).content["arrays"]["update"].data == first
    assert server.devices[0].entry.participations == 1


def test_secret_runs_have_other_keys_nonces_and_noise_each_time() -> None:
    seen: set[bytes] = set()
    for _ in range(2):
        server = make_server()
        server.begin()
        seen |= {card.to_bytes() for card in server.cards.values()} | {*server.nonces.values()}
        seen.add(server.ask_upload(0).content["arrays"]["update"].data)
    assert len(seen) == 2 * (2 * MEMBERS + 1)


def test_the_ledger_says_what_was_released() -> None:
    server = make_server()
    server.begin()
    server.ask_upload(0)
    entry = server.devices[0].entry
    releases = json.loads(entry.releases)
    expected = server.parameters.update.releases(own_part(server), 20, 1)
    assert releases == {**asdict(expected), "delta": 1e-5}
    assert (entry.last_round, entry.participations) == (1, 1)


def test_the_log_of_a_client_holds_no_key(caplog: pytest.LogCaptureFixture) -> None:
    server = make_server()
    with caplog.at_level(logging.DEBUG):
        server.begin()
        server.ask_upload(0)
        server.ask_upload(1, [])
    secrets = [device.exchange for device in server.devices.values()]
    assert not any(each.hex() in caplog.text or repr(each) in caplog.text for each in secrets)


# Crashes.


class CrashError(BaseException):
    """The process ends."""


class Frail:
    """A memory whose process dies at one of its writes, just before or just after it."""

    def __init__(self, state: DeviceState, at: int, *, after: bool) -> None:
        self._state, self._at, self._after = state, at, after
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def _write(self, act: Callable[[], None]) -> None:
        self.writes += 1
        if self.writes != self._at:
            return act()
        if self._after:
            act()
        raise CrashError

    def write_entry(self, entry: LedgerEntry) -> None:
        self._write(lambda: self._state.write_entry(entry))

    def write_key(self, name: str, key: bytes) -> None:
        self._write(lambda: self._state.write_key(name, key))

    def delete_key(self, name: str) -> None:
        self._write(lambda: self._state.delete_key(name))

    def add_observation(self, observation: Observation) -> None:
        raise AssertionError


def play_frail(device: Device, server: HostileServer, tries: int) -> list[bytes]:
    """Ask for all that may be had, so often after a crash; return the different uploads.

    After a crash the server changes its mind: other parameters, another model, another attempt.
    """
    others = [number for number in server.devices if number != device.number]
    lenient = make_parameters(MEMBERS, num_participations=50)
    uploads: list[bytes] = []

    def ask(act: Callable[[], Message]) -> Message | None:
        for _ in range(tries):
            try:
                return act()
            except CrashError:
                continue
        return None

    def register(parameters: NissParameters) -> None:
        reply = ask(lambda: device.answer(server.request(REGISTER, 1, 1, parameters)))
        if reply is not None and not reply.has_error():
            card = type(server.cards[others[0]]).from_bytes(reply.content["config"]["card"])
            server.cards[device.number] = card

    register(server.parameters)
    for server_round, attempt in ((1, 1), (1, 2), (2, 1), (2, 1), (3, 1), (4, 1), (5, 1)):
        for parameters in (server.parameters, lenient):
            for value in (0.0, 0.0, 1e-3):
                for _ in range(2):
                    ask(
                        lambda: device.answer(
                            server.request(READY, server_round, attempt, parameters)  # noqa: B023
                        )
                    )
                    reply = ask(
                        lambda: server.ask_upload(
                            device.number,
                            server_round=server_round,  # noqa: B023
                            attempt=attempt,  # noqa: B023
                            parameters=parameters,  # noqa: B023
                            model=np.full(SIZE, value),  # noqa: B023
                        )
                    )
                    if reply is not None and not reply.has_error() and "arrays" in reply.content:
                        uploads.append(reply.content["arrays"]["update"].data)
        register(lenient)
    return list(dict.fromkeys(uploads))


def test_an_upload_is_charged_before_it_is_computed(wiretap: Wiretap) -> None:
    server = make_server()
    server.begin()
    device = server.devices[0]
    learn = device.learn

    def die(*_: object) -> Any:
        raise CrashError

    device.learn = die  # type: ignore[method-assign]
    with pytest.raises(CrashError):
        server.ask_upload(0)
    device.learn = learn  # type: ignore[method-assign]
    assert device.entry.participations == 1
    assert code_of(server.ask_upload(0)) == REFUSED
    assert code_of(device.answer(server.request(READY, 1, 1))) == REFUSED
    assert wiretap.uploads == []


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("kept", "tries"), [("context", 3), ("context", 1), ("folder", 2)])
def test_no_crash_makes_a_client_use_a_key_twice_or_forget_a_charge(
    wiretap: Wiretap, tmp_path: Path, kept: str, tries: int, after: bool
) -> None:
    """Killed at each write of the protocol in turn, and asked for everything again."""
    at, survived = 0, False
    while not survived:
        at += 1
        server = make_server()
        server.begin()
        context = Context(1, 0, {"partition-id": 0}, RecordDict(), {})
        state: DeviceState = ContextState(context)
        if kept == "folder":
            state = FolderState(tmp_path / f"{at}", "run", 0, "OFF")
        frail = Frail(state, at, after=after)
        device = Device(0, server.devices[0].update, state=frail)  # type: ignore[arg-type]
        server.devices[0] = device
        wiretap.uploads.clear()
        uploads = play_frail(device, server, tries)
        survived = frail.writes < at
        identity = public_identity(device.state.read_key("niss.identity") or bytes(32))
        mine = [each for each in wiretap.uploads if each.identity == identity]
        # Each key once, whatever was computed with it; nothing left that was not computed.
        keys = [key for each in mine for key in each.keys]
        assert len(set(keys)) == len(keys)
        assert len({each.nonce for each in mine}) == len(mine)
        assert set(uploads) <= {each.words.tobytes() for each in mine}
        # Each computation was charged, and no more of them than the client agreed to.
        entry = device.state.read_entry("niss")
        agreed = {server.run_tag(): 3}
        agreed[server.run_tag(make_parameters(MEMBERS, num_participations=50))] = 50
        tags = {each.binding["run_tag"] for each in mine}
        assert len(tags) <= 1
        assert len(mine) <= entry.participations <= sum(agreed[tag] for tag in tags)
        # Who is asked again after a crash, uploads again.
        assert len(uploads) >= 2 or tries == 1
    assert at > 10


def test_what_a_write_cannot_keep_ends_the_request() -> None:
    """An exception of the memory reaches the application, which has an answer for it."""
    server = make_server()
    frail = Frail(server.devices[0].state, 1, after=False)
    device = Device(0, server.devices[0].update, state=frail)  # type: ignore[arg-type]
    with pytest.raises(CrashError):
        device.answer(server.request(REGISTER, 1, 1))


def test_the_client_is_told_by_its_node_who_it_is() -> None:
    server = make_server()
    context = Context(1, 99, {}, RecordDict(), {})
    reply = niss_client.train(
        server.request(REGISTER, 1, 1),
        context,
        num_records=20,
        local_update=server.devices[0].learn,
    )
    assert int.from_bytes(reply.content["config"]["card"][:8], "big") == 99


def test_a_client_uploads_in_the_attempt_that_it_is_ready_for() -> None:
    server = make_server()
    server.begin(2, 2)
    for asked in ((2, 1), (2, 3), (1, 2), (3, 2)):
        reply = server.ask_upload(0, server_round=asked[0], attempt=asked[1])
        assert code_of(reply) == REFUSED
    assert server.devices[0].entry.participations == 0
    assert not server.ask_upload(0, server_round=2, attempt=2).has_error()


EXTREME = [1e-300, 1e-30, 1e-9, 0.5, 1.0, 1e9, 9e14]
MANY = [2, 3, 1000, 2**31, 2**63]


@settings(max_examples=60)
@given(
    st.sampled_from(EXTREME),
    st.sampled_from(EXTREME),
    st.sampled_from([*EXTREME[:3], 1e-5, None]),
    st.sampled_from(MANY),
    st.sampled_from(MANY),
    st.sampled_from([1, 1000, 2**31 - 1]),
    st.sampled_from([-1000, -500, -30, 0, 49, 1000]),
    st.sampled_from([0, 1, 1000, 2**31 - 1]),
    st.sampled_from(["gaussian", "uniform"]),
)
def test_extreme_parameters_are_refused_or_obeyed(
    clipping: float,
    noise: float,
    epsilon: float | None,
    ready: int,
    participations: int,
    server_round: int,
    exponent: int,
    scale: int,
    pair_noise: str,
) -> None:
    """By a client that believes its server: nothing raises, and no upload is left uncharged."""
    try:
        server = make_server(
            3,
            10,
            pair_noise=pair_noise,
            clipping_norm=clipping,
            noise_multiplier=noise if epsilon is None else None,
            target_epsilon=epsilon,
            base_noise_multiplier=noise,
            min_ready=2,
            max_ready=max(3, ready),
            num_clients=max(3, ready),
            num_participations=participations,
            lr_schedule="exponential",
            lr_decay=0.5,
        )
    except ParameterError:
        return
    server.register()
    for number, each in server.devices.items():
        assert code_of(each.answer(server.request(READY, server_round, 1))) is None
        # Whoever sits out, for want of a grid, is asked for an upload all the same.
        server.nonces[number] = keys_of(each).begin(server_round, 1)
    device = server.devices[0]
    scales: list[dict[str, int]] = [{"step_exponent": exponent, "pair_scale": scale}]
    with suppress(ValueError, ArithmeticError):
        scales.append(server.scale(server_round=server_round))
    for fields in scales:
        charged = device.entry.participations
        request = server.request(
            UPLOAD, server_round, 1, ready_set=pack_ready_set(server.ready_set(0)), **fields
        )
        reply = device.answer(request)
        assert code_of(reply) in (None, REFUSED, FAILED)
        if not reply.has_error() and "arrays" in reply.content:
            assert device.entry.participations == charged + 1


def test_after_its_last_upload_no_noise_can_be_derived_again() -> None:
    server = make_server(num_participations=1)
    server.begin()
    device = server.devices[0]
    first = server.ask_upload(0)
    assert first is not None
    assert device.entry.participations == 1
    assert device.state.read_key("niss.exchange") is None
    assert device.state.read_key("niss.pending") is None
    again = server.ask_upload(0)
    assert again is not None
    assert again.content["arrays"]["update"].data == first.content["arrays"]["update"].data


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_whose_keys_are_gone_does_not_register_again(kind: str) -> None:
    """With new keys and nobody pinned, a server could name it peers of its own making."""
    server = make_server(randomness=kind)
    device = server.devices[0]
    server.begin()
    assert not server.ask_upload(0).has_error()
    assert device.entry.last_round == 1
    # Registering again is no harm as long as the keys are those of before.
    card = device.answer(server.request(REGISTER, 1, 1))
    keys_of(device).forget_private()
    again = device.answer(server.request(REGISTER, 2, 1))
    if kind == "secret":
        assert code_of(again) == REFUSED
        assert keys_of(device).has_forgotten()
    else:
        # Seeded keys are functions of the seed: the same ones again.
        assert again.content["config"]["card"] == card.content["config"]["card"]
