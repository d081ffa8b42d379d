"""The client: what leaves it, and what it computes."""

import json
import math

import numpy as np
import pytest

from strategies.device_state import LedgerEntry
from strategies.dp_fedpaq.messages import REFUSED
from strategies.mechanisms.fixed_point import unwrap
from strategies.niss.calibration import own_noise_multiplier
from strategies.niss.circles import Coalition
from strategies.niss.messages import READY, REGISTER, UPLOAD, UPLOAD_TYPE
from strategies.niss.peers import pack_ready_set
from tests.niss.clients import KINDS, MEMBERS, SIZE, code_of, make_server, own_part
from tests.niss.hostile_server import (
    HostileServer,
    Wiretap,
    make_devices,
    make_parameters,
    words_of,
)


def sum_of(server: HostileServer, wiretap: Wiretap) -> np.ndarray:
    total = np.zeros(server.size, np.uint32)
    for each in wiretap.uploads:
        total += each.words
    return unwrap(total) * wiretap.uploads[0].scale["grid"].step


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
