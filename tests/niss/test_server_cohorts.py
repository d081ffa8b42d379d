"""The server: dropouts, cohorts and budgets."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from strategies.mechanisms.parameter_checks import ParameterError
from strategies.niss.messages import READY, REGISTER, UPLOAD
from tests.niss.server_rounds import UNIFORM, Vanishing
from tests.niss.small_runs import (
    MODEL,
    SIZE,
    RecordingGrid,
    client_of,
    make_app,
    start,
)


@pytest.mark.parametrize(
    ("changes", "lost", "failing", "expected"),
    [
        # replies, attempts and uploads charged to each client, of one round
        ({}, 3, 99, (2, 1, 1)),
        ({"max_dropouts": 3}, 3, 99, (2, 1, 1)),
        ({"max_dropouts": 2}, 3, 99, (0, 3, 3)),
        ({"max_dropouts": 2}, 3, 2, (5, 3, 3)),
        ({"max_dropouts": 0}, 1, 1, (5, 2, 2)),
        ({"max_dropouts": 0, "max_attempts": 1}, 1, 1, (0, 1, 1)),
        ({"min_replies": 4}, 2, 1, (5, 2, 2)),
        ({"min_replies": 4}, 1, 1, (4, 1, 1)),
        (UNIFORM, 1, 99, (0, 3, 3)),
        (UNIFORM, 1, 1, (5, 2, 2)),
        (UNIFORM, 0, 1, (5, 1, 1)),
        ({**UNIFORM, "max_attempts": 5}, 5, 4, (5, 5, 5)),
    ],
)
def test_dropouts_are_borne_or_the_round_is_tried_again(
    changes: dict[str, Any], lost: int, failing: int, expected: tuple[int, int, int]
) -> None:
    run = start(Vanishing(5, lost, failing), 1, max_participations=9, **changes)
    (row,) = run.rows
    (charged,) = set(run.strategy.tally.uploads.values())
    assert (row.num_replies, row.own["num_attempts"], charged) == expected
    assert row.num_failures == 5 - row.num_replies
    assert np.array_equal(run.model["w"], MODEL["w"]) == (row.num_replies == 0)
    nonces = [m.content["config"]["nonce"] for m in run.grid.replies if "nonce" in _config(m)]
    assert len(nonces) == len(set(nonces)) == 5 * row.own["num_attempts"]


def _config(message: Message) -> ConfigRecord:
    return message.content["config"] if "config" in message.content else ConfigRecord()


class NotReady(RecordingGrid):
    """The first clients do not answer whether they are ready, in the first attempts."""

    def __init__(self, num_clients: int, silent: int, attempts: int = 99) -> None:
        super().__init__(num_clients)
        self.silent, self.attempts = silent, attempts

    def after(self, phase: str, replies: list[Message]) -> list[Message]:
        attempt = int(self.requests[-1].content["config"]["attempt"])
        return replies[self.silent :] if phase == READY and attempt <= self.attempts else replies


@pytest.mark.parametrize(
    ("min_ready", "silent", "failing", "expected"),
    [
        # replies, attempts, upload requests
        (4, 1, 99, (4, 1, 4)),
        (4, 2, 99, (0, 3, 0)),
        (4, 2, 2, (5, 3, 5)),
        (None, 1, 99, (0, 3, 0)),  # nine of ten of five: all
        (5, 0, 0, (5, 1, 5)),
    ],
)
def test_below_min_ready_nobody_is_asked_to_upload(
    min_ready: int | None, silent: int, failing: int, expected: tuple[int, int, int]
) -> None:
    grid = NotReady(5, silent, failing)
    run = start(grid, 1, min_ready=min_ready)
    (row,) = run.rows
    assert (row.num_replies, row.own["num_attempts"], len(grid.sent(UPLOAD))) == expected
    assert sum(run.strategy.tally.uploads.values()) == expected[2]
    # A client that is not in the ready set is no dropout: nobody masked towards it.
    assert row.own["num_dropped_after_ready"] == 0
    if row.num_replies:
        ready = {len(m.content["config"]["ready-set"]) for m in grid.sent(UPLOAD)}
        assert len(ready) == 1


def test_a_client_that_could_not_register_is_asked_again_in_the_next_round() -> None:
    class Late(RecordingGrid):
        def after(self, phase: str, replies: list[Message]) -> list[Message]:
            return replies[1:] if phase == REGISTER and len(replies) > 1 else replies

    grid = Late(4)
    run = start(grid, 2, min_ready=3)
    assert [client_of(m) for m in grid.sent(REGISTER)] == [0, 1, 2, 3, 0]
    assert [row.num_replies for row in run.rows] == [3, 4]
    assert [row.left_out for row in run.rows] == [{0: "no answer"}, {}]
    assert run.strategy.tally.uploads == {0: 1, 1: 2, 2: 2, 3: 2}


def test_clients_that_sit_out_are_no_failures_and_not_charged() -> None:
    app = make_app(num_records=lambda number: 3 if number == 0 else 50)
    unit = {"unit": "record", "min_ready": 3}
    run = start(RecordingGrid(4, app), 1, **unit)
    (row,) = run.rows
    assert (row.num_replies, row.num_ineligible, row.num_failures) == (3, 1, 0)
    assert row.left_out == {0: "sits out"}
    assert run.strategy.tally.uploads == {1: 1, 2: 1, 3: 1}


def test_a_client_whose_participations_are_used_up_sits_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = start(RecordingGrid(4), 3, max_participations=2)
    assert [(row.num_replies, row.num_ineligible) for row in run.rows] == [(4, 0), (4, 0), (0, 4)]
    assert set(run.strategy.tally.uploads.values()) == {2}
    # Of four clients, in the three tries of the third round and in no other.
    assert caplog.text.count("NISS: sits out: all its participations in the run are used up") == 12


def test_tries_of_a_round_use_up_participations() -> None:
    run = start(Vanishing(4, 1), 3, max_participations=4, **UNIFORM)
    assert [row.own["num_attempts"] for row in run.rows] == [3, 3, 3]
    assert [row.num_ineligible for row in run.rows] == [0, 4, 4]
    assert set(run.strategy.tally.uploads.values()) == {4}
    # What was planned is spent, although no model was ever released.
    assert run.strategy.epsilon() == pytest.approx(
        start(RecordingGrid(4), 4, **UNIFORM).strategy.epsilon()
    )


def test_the_uplink_budget_counts_every_try() -> None:
    bits = 4 * 32 * SIZE  # of one round
    whole = start(Vanishing(4, 0), 3, uplink_budget_bits=3 * bits, **UNIFORM)
    assert [row.num_replies for row in whole.rows] == [4, 4, 4]
    # The first round takes two tries, the second two: 16 uploads, of which two are lost.
    failing = start(
        Vanishing(4, 1, 1), 3, uplink_budget_bits=3 * bits, max_participations=9, **UNIFORM
    )
    assert [row.num_replies for row in failing.rows] == [4, 0]
    assert [row.own["num_attempts"] for row in failing.rows] == [2, 2]
    assert 8 * failing.strategy.tally.uplink_bytes <= 3 * bits
    # What was uploaded before the budget was used up is charged.
    assert set(failing.strategy.tally.uploads.values()) == {3}
    with pytest.raises(ParameterError, match="uplink_budget_bits"):
        start(RecordingGrid(4), 3, uplink_budget_bits=3 * bits - 1, **UNIFORM)


def test_in_turn_everybody_is_asked_as_often() -> None:
    grid = RecordingGrid(6)
    run = start(grid, 6, num_sampled_clients=2, participation="round_robin")
    asked = [client_of(m) for m in grid.sent(UPLOAD)]
    assert asked == [0, 1, 2, 3, 4, 5] * 2
    assert run.strategy.parameters.update.num_participations == 2
    assert run.strategy.tally.uploads == dict.fromkeys(range(6), 2)


def test_a_cohort_of_which_some_are_not_connected() -> None:
    class Gone(RecordingGrid):
        def get_node_ids(self) -> list[int]:
            nodes = list(super().get_node_ids())
            return nodes if not self.requests else nodes[1:]

    run = start(Gone(4), 2, min_ready=3)
    assert [(row.num_replies, row.num_failures) for row in run.rows] == [(4, 0), (3, 1)]
