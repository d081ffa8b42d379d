"""The roster: who registered, who masks with whom, and that it can be put down and taken up."""

import json

import pytest

from strategies.mechanisms.key_agreement import PublicCard, sign_card
from strategies.niss.circles import Coalition
from strategies.niss.roster import Roster
from tests.niss.hostile_server import make_parameters


def make_card(number: int, identity: int | None = None) -> PublicCard:
    return sign_card(
        number, b"run", bytes([number if identity is None else identity]) * 32, b"x" * 32
    )


def make_roster(count: int, trust: dict[int, bytes] | None = None) -> Roster:
    roster = Roster()
    for number in range(1, count + 1):
        roster = roster.add(number, make_card(number), (trust or {}).get(number, b""))
    return roster


def test_the_first_who_takes_a_place_keeps_it() -> None:
    roster = make_roster(2)
    for client, card in (
        (1, make_card(9)),  # the client again, with other keys
        (9, make_card(2)),  # the number of another
        (9, make_card(9, identity=2)),  # the identity of another
    ):
        assert roster.add(client, card, b"") == roster
    assert set(roster.add(9, make_card(9), b"").cards) == {1, 2, 9}
    assert set(roster.cards) == {1, 2}


def test_who_is_missing_is_asked_for_a_card() -> None:
    assert make_roster(2).missing([3, 2, 1, 4]) == [3, 4]
    assert Roster().missing([1]) == [1]


def test_trust_lists_count_when_everybody_has_one() -> None:
    assert not Roster().has_trust_lists
    assert not make_roster(2).has_trust_lists
    assert not make_roster(2, {1: b"a" * 32}).has_trust_lists
    assert make_roster(2, {1: b"a" * 32, 2: b"b" * 32}).has_trust_lists


def test_clients_mask_with_those_of_their_coalition_and_trust_list() -> None:
    a, b = b"a" * 32, b"b" * 32
    roster = make_roster(7, {1: a, 2: a, 3: b, 4: b, 5: b})
    least = make_parameters(min_ready=2)
    assert roster.split([6, 3, 1, 2, 5, 7], least) == {
        (0, a): [1, 2],
        (0, b): [3, 5],
        (0, b""): [6, 7],
    }
    # Those who are too few to hide among each other are not asked.
    assert roster.split([6, 3, 1, 2], least) == {(0, a): [1, 2]}
    coalitions = (Coalition((1, 3, 4), 0.0, 2), Coalition((5, 6), 0.0, 2))
    chosen = make_parameters(min_ready=2, num_clients=9, coalitions=coalitions)
    assert make_roster(7).split(range(1, 8), chosen) == {
        (1, b""): [1, 3, 4],
        (0, b""): [2, 7],
        (2, b""): [5, 6],
    }


def test_a_roster_is_restored_from_json() -> None:
    roster = make_roster(3, {2: b"t" * 32})
    assert Roster.restore(json.loads(json.dumps(roster.export()))) == roster
    assert Roster.restore([]) == Roster()


@pytest.mark.parametrize(
    "values",
    [
        None,
        7,
        "text",
        [[1, 2, 3]],
        [[1, "zz", ""]],
        [["one", make_card(1).to_bytes().hex(), ""]],
        [[1, make_card(1).to_bytes().hex()]],
        [[1, make_card(1).to_bytes().hex()[2:], ""]],
        [[1, "", ""]],
        [[1, make_card(1).to_bytes().hex(), "0g"]],
    ],
)
def test_what_is_no_roster_is_refused(values: object) -> None:
    with pytest.raises(ValueError, match="no roster"):
        Roster.restore(values)
