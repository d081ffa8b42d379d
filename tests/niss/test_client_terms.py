"""The client: data that cannot be read, registration and terms."""

from typing import Any

import numpy as np
import pytest

from strategies.device_state import LedgerEntry
from strategies.dp_fedpaq.client import digest_terms
from strategies.dp_fedpaq.messages import FAILED, REFUSED
from strategies.mechanisms.fixed_point import unwrap
from strategies.niss.messages import READY, REGISTER, UPLOAD, parse_ready
from strategies.niss.parameters import NissParameters
from strategies.niss.peers import pack_ready_set
from tests.niss.clients import KINDS, MEMBERS, code_of, make_server
from tests.niss.hostile_server import (
    Wiretap,
    make_sybil,
    words_of,
)


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
    wiretap: Wiretap, caplog: pytest.LogCaptureFixture, limit: float, sits_out: bool
) -> None:
    """Else it would vanish after each ready set that names it, at the others' expense."""
    server = make_server()
    server.register()
    device = server.devices[0]
    reply = parse_ready(device.answer(server.request(READY, 1, 1), max_epsilon=limit))
    assert (reply.upload is None) == sits_out
    # The number is for the device's owner: it is in the device's own log.
    why = f"NISS: sits out: max-epsilon leaves {limit:g} for the run; the noise for that"
    assert (why in caplog.text) == sits_out
    # Whoever was told that it is ready can make the noise.
    server.ask_ready()
    fields = {"ready_set": pack_ready_set(server.ready_set(0)), **server.scale()}
    upload = device.answer(server.request(UPLOAD, 1, 1, **fields), max_epsilon=limit)
    assert code_of(upload) == (FAILED if sits_out else None)
    assert device.entry.participations == len(wiretap.uploads) == (not sits_out)


@pytest.mark.parametrize(("unit", "sits_out"), [("record", True), ("client", False)])
def test_a_client_with_few_records_sits_out_where_their_number_is_public(
    wiretap: Wiretap, caplog: pytest.LogCaptureFixture, unit: str, sits_out: bool
) -> None:
    server = make_server(unit=unit, batch_size=30)
    server.register()
    for number, device in server.devices.items():
        reply = parse_ready(device.answer(server.request(READY, 1, 1)))
        assert (reply.upload is None) == sits_out
        server.nonces[number] = b"" if reply.upload is None else reply.upload[:16]
    assert ("sits out: 20 records, at least 30 are needed" in caplog.text) == sits_out
    if not sits_out:
        assert not server.ask_upload(0).has_error()
        assert (wiretap.uploads[0].update == 0).all()


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
