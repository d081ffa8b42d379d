"""The tally: who was asked counts, whatever came back; and it survives JSON."""

import dataclasses
import json

import pytest

from strategies.dp_fedpaq.tally import Tally


def example() -> Tally:
    tally = Tally().begin_round().add_replies([3, 5, 8], {8}, 2, 100).publish(2)
    return tally.begin_round().add_replies([3, 9], set(), 1, 50).publish(1)


def test_it_counts() -> None:
    tally = example()
    assert tally.num_rounds == 2
    # Client 8 said that it sits out; one of 3 and 9 did not answer, and is charged.
    assert dict(tally.uploads) == {3: 2, 5: 1, 9: 1}
    assert (tally.fewest_uploads, tally.uplink_bytes) == (1, 150)


def test_a_run_is_complete_while_everybody_uploads() -> None:
    full = Tally().begin_round().add_replies([1, 2], set(), 2, 0)
    assert full.complete
    assert full.add_replies([], set(), 0, 0).complete
    assert not full.add_replies([1, 2], set(), 1, 0).complete
    assert not full.add_replies([1, 2], {2}, 1, 0).complete
    # Once incomplete, always so.
    assert not full.add_replies([1], set(), 0, 0).add_replies([1], set(), 1, 0).complete


def test_rounds_that_are_not_published_do_not_count_as_sums() -> None:
    assert Tally().add_replies([1], set(), 0, 0).fewest_uploads is None
    assert Tally().publish(4).publish(7).fewest_uploads == 4


def test_a_round_that_is_repeated_counts_where_it_may_have_been_seen() -> None:
    before = example()
    repeated = before.add_interrupted([3, 4], 10, charged=False)
    assert repeated == dataclasses.replace(before, uplink_bytes=170)
    charged = before.add_interrupted([3, 4], 10, charged=True)
    assert (charged.num_rounds, charged.uplink_bytes) == (3, 170)
    assert dict(charged.uploads) == {3: 3, 4: 1, 5: 1, 9: 1}


def test_it_survives_json() -> None:
    restored = Tally.restore(json.loads(json.dumps(example().export())))
    assert restored == example()
    assert restored.begin_round() == example().begin_round()


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
