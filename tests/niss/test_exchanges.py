"""Registration and the question who is ready: what a bad reply costs, and what is passed on."""

from collections.abc import Callable

import pytest
from flwr.app import ConfigRecord, Error, Message

from fl_app.engines.in_process import FIRST_NODE_ID
from strategies.dp_fedpaq.client import digest_terms
from strategies.mechanisms.key_agreement import PublicCard, public_identity, verify_card
from strategies.niss import DeviceTrust
from strategies.niss.messages import READY, REGISTER, UPLOAD, exchange_group
from strategies.niss.peers import RECORD_BYTES, bind_run_tag, unpack_ready_set
from tests.niss.small_runs import RecordingGrid, Run, client_of, make_app, start

Damage = Callable[[Message], object]


def config(message: Message) -> ConfigRecord:
    found = message.content.get("config", ConfigRecord())
    assert isinstance(found, ConfigRecord)
    return found


def damage_reply(phase: str, damage: Damage) -> RecordingGrid:
    """Return a grid on which the second client's replies of a phase are damaged."""

    class Damaging(RecordingGrid):
        def after(self, asked: str, replies: list[Message]) -> list[Message]:
            for reply in replies:
                if asked == phase and reply.metadata.src_node_id == FIRST_NODE_ID + 1:
                    damage(reply)
            return replies

    return Damaging(5)


def change(**values: object) -> Damage:
    return lambda reply: config(reply).update(values)


def regroup(group: str) -> Damage:
    return lambda reply: reply.metadata.__dict__.update(_group_id=group)


ALIKE: dict[str, Damage] = {
    "no configuration": lambda reply: reply.content.pop("config"),
    "another word": change(status="upload"),
    "no word": lambda reply: config(reply).pop("status"),
    "of another type": lambda reply: reply.metadata.__dict__.update(_message_type="evaluate"),
    "of a stranger": lambda reply: reply.metadata.__dict__.update(_src_node_id=5),
    "an error": lambda reply: reply.__dict__.update(
        _content=None, _error=Error(1002, "text of the client's own")
    ),
    "of another round": regroup("2.1.register"),
    "of an upload": regroup("1.1.upload"),
}
CARDS: dict[str, Damage] = {
    **ALIKE,
    "no card": lambda reply: config(reply).pop("card"),
    "text for a card": change(card="card"),
    "a short card": lambda reply: change(card=config(reply)["card"][:-1])(reply),  # type: ignore[index]
    "an empty card": change(card=b""),
    "a digest of another length": change(trust=b"short"),
    "text for a digest": change(trust="text"),
}
NONCES: dict[str, Damage] = {
    **ALIKE,
    "no nonce": lambda reply: config(reply).pop("nonce"),
    "a short nonce": change(nonce=bytes(15)),
    "a long nonce": change(nonce=bytes(17)),
    "text for a nonce": change(nonce="0" * 16),
    "a card": lambda reply: reply.content.update({"config": ConfigRecord({"status": REGISTER})}),
    "sizes below zero": change(**{"num-examples": -1}),
    "a truth for a size": change(**{"num-examples": True}),
    "a size that is too large": change(**{"num-examples": 2**31}),
}


def assert_without_the_second(run: Run, grid: RecordingGrid) -> None:
    (row,) = run.rows
    assert (row.num_sampled, row.num_replies, row.num_failures) == (5, 4, 1)
    assert (row.own["num_attempts"], row.own["num_dropped_after_ready"]) == (1, 0)
    assert [client_of(m) for m in grid.sent(UPLOAD)] == [0, 2, 3, 4]
    assert run.strategy.tally.uploads == {0: 1, 2: 1, 3: 1, 4: 1}
    assert abs(run.model["w"]).max() < 5


@pytest.mark.parametrize("damage", CARDS.values(), ids=CARDS.keys())
def test_a_bad_card_leaves_its_client_out_of_the_round(damage: Damage) -> None:
    grid = damage_reply(REGISTER, damage)
    run = start(grid, 1, min_ready=3)
    assert_without_the_second(run, grid)
    assert [client_of(m) for m in grid.sent(READY)] == [0, 2, 3, 4]


@pytest.mark.parametrize("damage", NONCES.values(), ids=NONCES.keys())
def test_a_bad_answer_leaves_its_client_out_of_the_ready_set(damage: Damage) -> None:
    grid = damage_reply(READY, damage)
    assert_without_the_second(start(grid, 1, min_ready=3), grid)


def test_the_twin_nothing_is_damaged() -> None:
    for phase in (REGISTER, READY):
        grid = damage_reply(phase, lambda reply: None)
        assert start(grid, 1, min_ready=3).rows[0].num_replies == 5


@pytest.mark.parametrize("field", ["number", "identity"])
def test_a_client_that_takes_another_s_number_or_key_is_left_out(field: str) -> None:
    """Peers would refuse a set in which one stands twice; whoever came first stays."""

    class Stealing(RecordingGrid):
        def after(self, phase: str, replies: list[Message]) -> list[Message]:
            if phase == REGISTER and len(replies) > 1:
                own = PublicCard.from_bytes(config(replies[1])["card"])  # type: ignore[arg-type]
                other = PublicCard.from_bytes(config(replies[0])["card"])  # type: ignore[arg-type]
                stolen = {**vars(own), field: getattr(other, field)}
                config(replies[1])["card"] = PublicCard(**stolen).to_bytes()
            return replies

    grid = Stealing(5)
    assert_without_the_second(start(grid, 1, min_ready=3), grid)


def test_a_second_card_or_nonce_does_not_count() -> None:
    class Twice(RecordingGrid):
        def after(self, phase: str, replies: list[Message]) -> list[Message]:
            return [*replies, *replies[:2]]

    assert (start(Twice(4), 2).model["w"] == start(RecordingGrid(4), 2).model["w"]).all()


@pytest.mark.parametrize("phase", [REGISTER, READY])
def test_the_word_ineligible_takes_nobody_else_out(phase: str) -> None:
    grid = damage_reply(phase, change(status="ineligible"))
    (row,) = start(grid, 1, min_ready=3).rows
    assert row.num_replies == 4
    # Before it is asked whether it is ready, no client has a reason to sit out.
    assert (row.num_ineligible, row.num_failures) == ((0, 1) if phase == REGISTER else (1, 0))


def test_the_ready_set_is_cards_and_nonces_of_the_others_as_they_sent_them() -> None:
    grid = RecordingGrid(4)
    run = start(grid, 1)
    cards = {m.metadata.src_node_id: config(m)["card"] for m in grid.replies if "card" in config(m)}
    nonces = {
        m.metadata.src_node_id: config(m)["nonce"] for m in grid.replies if "nonce" in config(m)
    }
    for request in grid.sent(UPLOAD):
        data = config(request)["ready-set"]
        assert isinstance(data, bytes)
        assert len(data) == 3 * RECORD_BYTES
        others = [node for node in sorted(cards) if node != request.metadata.dst_node_id]
        ready = unpack_ready_set(data)
        assert [each.card.to_bytes() for each in ready] == [cards[node] for node in others]
        assert [each.nonce for each in ready] == [nonces[node] for node in others]
    assert run.rows[0].num_replies == 4


def test_no_request_or_reply_holds_what_a_key_could_be_made_of() -> None:
    grid = RecordingGrid(3)
    start(grid, 2)
    allowed = {
        REGISTER: {"status", "card"},
        READY: {"status", "nonce"},
        UPLOAD: set(),
    }
    for reply in grid.replies:
        phase = reply.metadata.group_id.rpartition(".")[2]
        names = set(config(reply))
        assert names == allowed[phase]
        assert set(reply.content) == ({"arrays", "metrics"} if phase == UPLOAD else {"config"})
    private = [grid._states[node]["keys"] for node in grid.get_node_ids()]
    secrets = [bytes(keys[name]) for keys in private for name in ("niss.exchange", "niss.identity")]
    assert len(set(secrets)) == 6
    sent = b"".join(
        value
        for message in grid.requests + grid.replies
        for value in config(message).values()
        if isinstance(value, bytes)
    )
    assert sent
    assert not any(secret in sent for secret in secrets)


def test_whoever_trusts_other_devices_is_in_another_group() -> None:
    identities = {number: bytes([number + 1]) * 32 for number in range(6)}
    lists = [
        frozenset(public_identity(identities[each]) for each in members)
        for members in ((0, 1, 2), (3, 4, 5))
    ]
    app = make_app(trust=lambda number: DeviceTrust(identities[number], lists[number // 3]))
    grid = RecordingGrid(6, app)
    run = start(grid, 2, min_ready=3)
    assert [row.num_replies for row in run.rows] == [6, 6]
    assert run.strategy.roster.has_trust_lists
    for request in grid.sent(UPLOAD):
        ready = unpack_ready_set(config(request)["ready-set"])  # type: ignore[arg-type]
        own = client_of(request)
        assert {each.card.number for each in ready} == set(
            range(own // 3 * 3, own // 3 * 3 + 3)
        ) - {own}
        assert all(each.card.identity in lists[own // 3] for each in ready)
    # Groups below min_ready upload nothing.
    assert start(RecordingGrid(6, app), 1, min_ready=4).rows[0].num_replies == 0


def test_one_client_without_a_list_and_the_run_has_none() -> None:
    identities = {number: bytes([number + 1]) * 32 for number in range(3)}
    everybody = frozenset(public_identity(each) for each in identities.values())

    def trust(number: int) -> DeviceTrust:
        return DeviceTrust(identities[number], None if number == 2 else everybody)

    run = start(RecordingGrid(3, make_app(trust=trust)), 1, min_ready=2)
    assert not run.strategy.roster.has_trust_lists
    # The two who have one mask towards each other; the third has nobody.
    assert run.rows[0].num_replies == 2


def test_cards_are_signed_for_this_run_and_its_parameters() -> None:
    grid = RecordingGrid(2)
    run = start(grid, 1)
    text = run.strategy.parameters.to_json()
    tag = bytes.fromhex(run.strategy.export_state()["run_tag"])
    for card in run.strategy.roster.cards.values():
        verify_card(card, bind_run_tag(tag, digest_terms(text, "")))
        with pytest.raises(ValueError, match="sign"):
            verify_card(card, bind_run_tag(tag, digest_terms(text, "other")))


def test_groups_name_round_attempt_and_phase() -> None:
    assert exchange_group(UPLOAD, 12, 3) == "12.3.upload"
    groups = {exchange_group(p, r, a) for p in (READY, UPLOAD) for r in (1, 11) for a in (1, 11)}
    assert len(groups) == 8
