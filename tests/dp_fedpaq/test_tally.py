"""The tally: who was asked counts, whatever came back; and it survives JSON."""

import dataclasses
import json

import pytest

from strategies.dp_fedpaq.tally import Tally


def example() -> Tally:
    tally = Tally().begin_round([3, 5, 8]).add_replies(3, {8}, 2, 100).publish(2)
    return tally.begin_round([3, 9]).add_replies(2, set(), 1, 50).publish(1)


def test_it_counts() -> None:
    tally = example()
    assert tally.num_rounds == 2
    # Client 8 said that it sits out; one of 3 and 9 did not answer, and is charged.
    assert dict(tally.uploads) == {3: 2, 5: 1, 9: 1}
    assert (tally.fewest_uploads, tally.uplink_bytes) == (1, 150)


def test_whoever_is_asked_is_charged_at_once() -> None:
    assert dict(Tally().begin_round([4, 6]).uploads) == {4: 1, 6: 1}


def test_a_run_is_complete_while_everybody_uploads() -> None:
    full = Tally().begin_round([1, 2]).add_replies(2, set(), 2, 0)
    assert full.complete
    assert full.add_replies(0, set(), 0, 0).complete
    # One lost; one that sits out; one that was drawn and is not connected.
    assert not full.begin_round([1, 2]).add_replies(2, set(), 1, 0).complete
    assert not full.begin_round([1, 2]).add_replies(2, {2}, 1, 0).complete
    assert not full.begin_round([1]).add_replies(2, set(), 1, 0).complete
    # Once incomplete, always so.
    assert not full.add_replies(1, set(), 0, 0).add_replies(1, set(), 1, 0).complete


def test_rounds_that_are_not_published_do_not_count_as_sums() -> None:
    assert Tally().add_replies(1, set(), 0, 0).fewest_uploads is None
    assert Tally().publish(4).publish(7).fewest_uploads == 4


def test_a_round_that_is_sent_again_takes_the_uplink_again() -> None:
    assert example().repeat_uploads(2, 10) == dataclasses.replace(example(), uplink_bytes=170)


def test_it_survives_json() -> None:
    restored = Tally.restore(json.loads(json.dumps(example().export())))
    assert restored == example()
    assert restored.begin_round([3]) == example().begin_round([3])


@pytest.mark.parametrize(
    "changes",
    [
        {"num_rounds": -1},
        {"num_rounds": 1.5},
        {"uploads": 3},
        {"num_rounds": True},
        {"uploads": [[1, "x"]]},
        {"uploads": [[1, -1]]},
        {"uploads": [["1", 2]]},
        {"uploads": [[1]]},
        {"complete": 1},
        {"fewest_uploads": "two"},
        {"unknown": 1},
    ],
)
def test_anything_else_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="export_state"):
        Tally.restore({**example().export(), **changes})
    whole = example().export()
    partial = [{k: v for k, v in whole.items() if k != left} for left in whole]
    for other in (None, [], {}, "text", *partial):
        with pytest.raises(ValueError, match="export_state"):
            Tally.restore(other)
