"""A server with colluders, Sybils and other keys: it is refused, or learns no more than promised.

Every attack that is answered is judged by the best linear attacker, who knows all other updates and
the colluders' keys, from the uploads as clients computed them. The chi-square bounds are exact, at
1e-6 an assertion.
"""

import os
from dataclasses import replace

import numpy as np
import pytest

from strategies.mechanisms.key_agreement import public_identity, sign_card
from strategies.niss.peers import ReadyPeer
from tests.niss.hostile_rounds import MEMBERS, SIZE, assert_uncharged, is_refused, make_server
from tests.niss.hostile_server import (
    Wiretap,
    forge_card,
    make_sybil,
)
from tests.niss.judge import assert_hidden, judge


@pytest.mark.parametrize("pair_noise", ["gaussian", "uniform"])
def test_an_honest_round_hides_each_client_by_exactly_what_was_promised(
    wiretap: Wiretap, pair_noise: str
) -> None:
    server = make_server(pair_noise=pair_noise)
    server.begin()
    for number in server.devices:
        assert not server.ask_upload(number).has_error()
    for number in (0, 3, 5):
        result = judge(wiretap, server, number)
        assert_hidden(result)
        assert result is not None
        # Nothing is given away, either: pair noise is rounded up to whole multiples.
        assert result.predicted_std == pytest.approx(result.sigma_eff, rel=1e-2)
    # What hides a client is far more than what it adds by itself.
    assert wiretap.uploads[0].scale["own_std"] < 0.5 * result.sigma_eff


@pytest.mark.parametrize("pair_noise", ["gaussian", "uniform"])
def test_a_twin_whose_pair_secrets_leak_is_caught(wiretap: Wiretap, pair_noise: str) -> None:
    """What revealing secrets "of dropped clients" to the server would do."""
    server = make_server(pair_noise=pair_noise)
    server.begin()
    for number in server.devices:
        server.ask_upload(number)
    result = judge(wiretap, server, leaked=tuple(wiretap.uploads[0].keys))
    assert result is not None
    assert result.agrees()
    assert result.breaks_promise
    assert result.beats_promise()


def test_a_twin_that_uses_a_nonce_twice_is_caught(
    wiretap: Wiretap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two uploads with the same pair noise, of updates one of which is known."""
    server = make_server()
    server.begin()
    for number in server.devices:
        server.ask_upload(number)
    target = server.devices[0]
    target.state.write_key("niss.pending", _pending(1, 1, server.nonces[0]))
    target.state.write_entry(replace(target.entry, last_round=0, last_attempt=0, request=""))
    assert not server.ask_upload(0, model=np.full(SIZE, 1e-9)).has_error()
    assert len(wiretap.uploads) == MEMBERS + 1
    result = judge(wiretap, server)
    assert result is not None
    assert result.agrees()
    assert result.breaks_promise
    assert result.beats_promise()


def _pending(server_round: int, attempt: int, nonce: bytes) -> bytes:
    return server_round.to_bytes(8, "little") + attempt.to_bytes(8, "little") + nonce


def test_a_twin_that_adds_too_little_of_its_own_is_caught(wiretap: Wiretap) -> None:
    server = make_server()
    server.begin()
    for number in server.devices:
        server.ask_upload(number)
    wiretap.uploads[0] = replace(
        wiretap.uploads[0],
        scale={
            **wiretap.uploads[0].scale,
            "own_std": 1.3 * wiretap.uploads[0].scale["own_std"],
        },
    )
    result = judge(wiretap, server)
    assert result is not None
    assert not result.agrees()


@pytest.mark.parametrize("pair_noise", ["gaussian", "uniform"])
def test_as_many_colluders_as_were_allowed_for_learn_no_more(
    wiretap: Wiretap, pair_noise: str
) -> None:
    server = make_server(8, pair_noise=pair_noise, colluding_fraction=0.25)
    server.begin()
    for number in server.devices:
        server.ask_upload(number)
    assert_hidden(judge(wiretap, server, colluders=(6, 7)))
    more = judge(wiretap, server, colluders=(5, 6, 7))
    assert more is not None
    assert more.agrees()
    assert more.breaks_promise


def test_sybils_do_not_count_against_a_trust_list(wiretap: Wiretap) -> None:
    server = make_server(trusted=True, max_ready=2 * MEMBERS, num_clients=2 * MEMBERS)
    server.begin()
    sybils = [make_sybil(100 + index) for index in range(MEMBERS)]
    named = [each.peer(server.run_tag()) for each in sybils]
    # With too few trusted peers, the Sybils do not help.
    assert is_refused(server.ask_upload(0, [*server.ready_set(0, range(MEMBERS - 1)), *named]))
    assert_uncharged(server.devices[0])
    for number in server.devices:
        assert not server.ask_upload(number, [*server.ready_set(number), *named]).has_error()
    assert all(len(each.peers) == MEMBERS - 1 for each in wiretap.uploads)
    assert_hidden(judge(wiretap, server, colluders=tuple(sybils)))


def test_a_ready_set_of_sybils_is_refused_with_a_trust_list() -> None:
    server = make_server(trusted=True)
    server.begin()
    named = [make_sybil(number).peer(server.run_tag()) for number in range(1, MEMBERS)]
    assert is_refused(server.ask_upload(0, named))
    assert_uncharged(server.devices[0])


def test_without_a_trust_list_sybils_strip_a_client_as_the_report_says(wiretap: Wiretap) -> None:
    """Why `server_and_colluders` is not valid without trust lists: this must be possible."""
    server = make_server()
    server.begin()
    sybils = [make_sybil(number) for number in range(1, MEMBERS)]
    assert not server.ask_upload(0, [each.peer(server.run_tag()) for each in sybils]).has_error()
    result = judge(wiretap, server, colluders=tuple(sybils))
    assert result is not None
    assert result.agrees()
    assert result.breaks_promise


def test_a_swapped_exchange_key_is_refused_with_a_trust_list() -> None:
    server = make_server(trusted=True)
    server.begin()
    named = server.ready_set(0)
    for changed in (
        replace(named[0].card, exchange=make_sybil(0).peer(b"tag").card.exchange),
        replace(named[0].card, number=77),
        replace(named[0].card, signature=bytes(64)),
        # Signed by somebody else in the name of the first.
        replace(make_sybil(1).peer(server.run_tag()).card, identity=named[0].card.identity),
    ):
        swapped = [replace(named[0], card=changed), *named[1:]]
        assert is_refused(server.ask_upload(0, swapped))
    # A whole card of the server's own is merely not trusted: too few are left.
    assert is_refused(server.ask_upload(0, [make_sybil(1).peer(server.run_tag()), *named[1:]]))
    assert_uncharged(server.devices[0])


def test_without_a_trust_list_a_key_that_was_met_is_not_swapped_later(wiretap: Wiretap) -> None:
    server = make_server()
    server.begin()
    for number in server.devices:
        server.ask_upload(number)
    server.ask_ready(2)
    named = [make_sybil(1).peer(server.run_tag()), *server.ready_set(0, range(2, MEMBERS))]
    assert is_refused(server.ask_upload(0, named, server_round=2))
    assert server.devices[0].entry.participations == 1
    assert not server.ask_upload(0, server_round=2).has_error()


def test_a_card_of_another_run_is_refused() -> None:
    server = make_server(trusted=True)
    server.begin()
    named = server.ready_set(0)
    private = bytes([2]) * 32
    assert public_identity(private) == named[0].card.identity
    old = sign_card(1, b"another run", private, os.urandom(32))
    assert is_refused(server.ask_upload(0, [ReadyPeer(old, named[0].nonce), *named[1:]]))
    assert_uncharged(server.devices[0])


def test_a_public_key_of_low_order_is_refused() -> None:
    server = make_server()
    server.begin()
    sybil = make_sybil(1)
    card = sybil.peer(server.run_tag()).card
    for point in (bytes(32), (1).to_bytes(32, "little")):
        forged = forge_card(1, server.run_tag(), sybil.identity_private, point)
        assert is_refused(
            server.ask_upload(0, [replace(sybil.peer(b"x"), card=forged), *server.ready_set(0)[1:]])
        )
    assert card != forged
    assert_uncharged(server.devices[0])
