"""The client: what it is charged, and what it never does twice, whatever crashes."""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from fl_app.device_state import FolderState
from strategies.device_state import ContextState, DeviceState, LedgerEntry, Observation
from strategies.dp_fedpaq.messages import REFUSED, parse_reply
from strategies.mechanisms.key_agreement import public_identity
from strategies.niss.messages import READY, REGISTER, UPLOAD_TYPE, parse_ready
from strategies.niss.parameters import NissParameters
from tests.niss.clients import KINDS, MEMBERS, SIZE, code_of, make_server, own_part
from tests.niss.hostile_server import (
    Device,
    HostileServer,
    Wiretap,
    make_parameters,
)


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


@pytest.mark.parametrize("after", [False, True])
def test_a_seeded_run_that_died_anywhere_is_charged_as_one_that_did_not(after: bool) -> None:
    """Killed at each write in turn; its last round begins anew, from the first attempt."""
    schedule = ((1, 1), (2, 1), (2, 2), (3, 1))

    def play(at: int) -> tuple[LedgerEntry, list[bytes], int]:
        server = make_server(randomness="seeded", num_participations=4)
        server.register()
        context = Context(1, 0, {"partition-id": 0}, RecordDict(), {})
        frail = Frail(ContextState(context), at, after=after)
        device = Device(0, server.devices[0].update, state=frail)  # type: ignore[arg-type]
        server.devices[0] = device

        def attempt(asked: tuple[int, int]) -> bytes:
            device.answer(server.request(REGISTER, *asked))
            server.ask_ready(*asked)
            reply = server.ask_upload(0, server_round=asked[0], attempt=asked[1])
            return reply.content["arrays"]["update"].data

        uploads: list[bytes] = []
        while len(uploads) < len(schedule):
            begun = [each for each in schedule if each[0] < schedule[len(uploads)][0]]
            try:
                uploads.append(attempt(schedule[len(uploads)]))
            except CrashError:
                del uploads[len(begun) :]
        return device.state.read_entry("niss"), uploads, frail.writes

    expected, uploads, writes = play(0)
    assert expected.participations == len(schedule)
    assert writes > 3 * len(schedule)
    for at in range(1, writes + 1):
        assert play(at)[:2] == (expected, uploads), at


def test_what_a_write_cannot_keep_ends_the_request() -> None:
    """An exception of the memory reaches the application, which has an answer for it."""
    server = make_server()
    frail = Frail(server.devices[0].state, 1, after=False)
    device = Device(0, server.devices[0].update, state=frail)  # type: ignore[arg-type]
    with pytest.raises(CrashError):
        device.answer(server.request(REGISTER, 1, 1))
