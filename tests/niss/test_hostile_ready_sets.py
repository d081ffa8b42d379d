"""A server that names ready sets and dropouts at will: nobody is hidden less than was promised."""

import os
from dataclasses import replace

import pytest

from strategies.niss.peers import ReadyPeer
from tests.niss.hostile_rounds import MEMBERS, assert_uncharged, is_refused, make_server
from tests.niss.hostile_server import (
    Wiretap,
    forge_card,
    make_sybil,
)
from tests.niss.judge import assert_hidden, judge, judge_uniform, promised


def test_a_client_that_is_shown_itself_or_anybody_twice_refuses() -> None:
    server = make_server()
    server.begin()
    own = ReadyPeer(server.cards[0], server.nonces[0])
    named = server.ready_set(0)
    twice = make_sybil(50)
    same_number = make_sybil(named[0].card.number).peer(server.run_tag())
    for changed in (
        [own, *named[1:]],
        [own, *named],
        [replace(own, nonce=os.urandom(16)), *named[1:]],
        [*named, named[0]],
        [*named, replace(named[0], nonce=os.urandom(16))],
        [*named[:-1], same_number],
        # Two cards of one identity, both of them signed.
        [*named[:-2], *(replace(twice, number=n).peer(server.run_tag()) for n in (50, 51))],
        # The client's own number; its own identity under another one.
        [*named[:-1], make_sybil(0).peer(server.run_tag())],
        [replace(own, card=replace(server.cards[0], number=99)), *named[1:]],
    ):
        assert is_refused(server.ask_upload(0, changed))
    assert_uncharged(server.devices[0])


def test_a_client_whose_own_exchange_key_is_reflected_hides_no_less(wiretap: Wiretap) -> None:
    """Under an identity that the server made up; what the two share, nobody else can compute."""
    server = make_server()
    server.begin()
    sybil = make_sybil(1)
    exchange = server.cards[0].exchange
    card = forge_card(1, server.run_tag(), sybil.identity_private, exchange)
    named = [ReadyPeer(card, sybil.nonce), *server.ready_set(0, range(2, MEMBERS))]
    assert not server.ask_upload(0, named).has_error()
    for number in range(2, MEMBERS):
        server.ask_upload(number)
    assert_hidden(judge(wiretap, server))


def test_a_ready_set_of_another_size_is_refused() -> None:
    server = make_server(MEMBERS, min_ready=MEMBERS - 1)
    server.begin()
    extra = make_sybil(50).peer(server.run_tag())
    for named in ([], server.ready_set(0, range(3)), [*server.ready_set(0), extra]):
        assert is_refused(server.ask_upload(0, named))
    assert_uncharged(server.devices[0])
    assert not server.ask_upload(0, server.ready_set(0, range(MEMBERS - 1))).has_error()


@pytest.mark.parametrize("pair_noise", ["gaussian", "uniform"])
def test_different_ready_sets_for_different_clients_hide_no_less(
    wiretap: Wiretap, pair_noise: str
) -> None:
    server = make_server(8, pair_noise=pair_noise, min_ready=6)
    server.begin()
    server.ask_upload(0, server.ready_set(0, range(6)))
    for number in range(1, 8):
        if number % 2:
            server.ask_upload(number)
        else:
            server.ask_upload(number, server.ready_set(number, {number, *range(1, 8)}))
    result = judge(wiretap, server)
    if pair_noise == "gaussian":
        assert_hidden(result)
    else:
        assert result is None  # not even the sum is known


@pytest.mark.parametrize("pair_noise", ["gaussian", "uniform"])
def test_false_dropouts_and_other_nonces_hide_no_less(wiretap: Wiretap, pair_noise: str) -> None:
    """The target is shown everybody; the others, that it has gone, or another nonce of it."""
    server = make_server(7, pair_noise=pair_noise, min_ready=6)
    server.begin()
    server.ask_upload(0)
    others = server.ready_set(0)
    for number in range(1, 6):
        named = [each for each in others if each.card != server.cards[number]]
        if number % 2:
            named.append(ReadyPeer(server.cards[0], os.urandom(16)))
        server.ask_upload(number, named)
    result = judge(wiretap, server)
    if pair_noise == "gaussian":
        assert_hidden(result)
    else:
        assert result is None


def test_uploads_that_the_server_never_fetches_hide_no_less(wiretap: Wiretap) -> None:
    server = make_server()
    server.begin()
    for number in (0, 2, 4):
        server.ask_upload(number)
    assert_hidden(judge(wiretap, server))


def test_a_sparse_graph_hides_among_nine_tenths_of_the_clients(wiretap: Wiretap) -> None:
    number = 30
    server = make_server(number, pair_noise="uniform", graph="sparse", num_participations=2)
    for attempt in (1, 2):
        wiretap.uploads.clear()
        server.begin(attempt=attempt) if attempt == 1 else server.ask_ready(1, attempt)
        for each in server.devices:
            assert not server.ask_upload(each, attempt=attempt).has_error()
        degrees = [len(each.keys) for each in wiretap.uploads]
        assert 0 < sum(degrees) < number * (number - 1)
        target = wiretap.uploads[0]
        sigma = promised(target, server.parameters)
        result, summed = judge_uniform(wiretap.uploads, target, sigma, server.exchange_keys(()))
        assert summed >= 0.9 * number
        assert_hidden(result)
    # A twin: all masks of the target are known.
    result, summed = judge_uniform(
        wiretap.uploads, target, sigma, server.exchange_keys(()), leaked=tuple(target.keys)
    )
    assert summed == 1
    assert result is not None
    assert result.breaks_promise
    assert result.beats_promise()


def test_a_sparse_graph_is_drawn_anew_for_each_ready_set(wiretap: Wiretap) -> None:
    """Else a server learns from one set's sum who shares no mask with the target."""
    server = make_server(12, size=10, pair_noise="uniform", graph="sparse", min_ready=11)
    server.begin()
    server.ask_upload(0)
    for number in range(1, 11):
        server.ask_upload(number, server.ready_set(number, range(11)))
    target = set(wiretap.uploads[0].keys)
    assert all(target.isdisjoint(each.keys) for each in wiretap.uploads[1:])
