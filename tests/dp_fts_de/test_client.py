"""The agent: one query a round, the same bytes again, and what it refuses."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from strategies.dp_fedpaq.messages import REFUSED, model_record
from strategies.dp_fts_de import DpFtsDeParameters
from strategies.dp_fts_de.algorithm import clip_vector, draw_vector, read_broadcast
from strategies.dp_fts_de.messages import pack_vector, unpack_vector
from strategies.mechanisms.rng import SecretStream
from tests.dp_fts_de.agents import (
    Memory,
    make_parameters,
    make_request,
)
from tests.dp_fts_de.one_agent import Agent, broadcast, content, run_rounds


def test_it_starts_with_the_initial_points_and_queries_one_more_each_round() -> None:
    parameters, agent = make_parameters(), Agent()
    counts = []
    for t in range(1, 5):
        run_rounds(parameters, agent, range(t, t + 1))
        counts.append(len(agent.points))
    assert counts == [4, 5, 6, 7]
    assert len(agent.memory.observations) == 7
    assert all(0.0 <= x <= 1.0 for point in agent.points for x in point)


def test_the_vector_is_the_clipped_model_of_the_observations() -> None:
    parameters, agent = make_parameters(), Agent()
    uploads = run_rounds(parameters, agent, range(1, 4))
    x = np.array([each.point for each in agent.memory.observations])
    expected = draw_vector(parameters, x, np.array(agent.values()), SecretStream())
    clipped, was_long = clip_vector(parameters, expected)
    assert was_long
    assert uploads[-1] == pack_vector(clipped)
    assert np.linalg.norm(unpack_vector(uploads[-1], 20)) == pytest.approx(1.0, rel=1e-6)


def test_the_broadcast_is_queried_in_the_next_round_only() -> None:
    parameters, agent = make_parameters(), Agent()
    shared = broadcast(parameters, 1)
    run_rounds(parameters, agent, range(1, 2))
    agent.answer(make_request(parameters, 2, broadcast=shared))
    other = Agent()
    run_rounds(make_parameters(), other, range(1, 2))
    other.answer(make_request(parameters, 3, broadcast=shared))
    function = read_broadcast(parameters, shared)
    grid = np.random.default_rng(0).random((4000, 2))
    top = function.values(grid).max()
    assert function.values(agent.points[-1][None])[0] >= top
    assert function.values(other.points[-1][None])[0] < top


@pytest.mark.parametrize("randomness", ["seeded", "secret"])
def test_a_repeated_request_gets_the_same_bytes_and_nothing_is_queried(randomness: str) -> None:
    parameters = make_parameters(randomness=randomness, upload_kind="sample")
    agent = Agent()
    for t in (1, 2):
        request = make_request(parameters, t)
        first, again = agent.answer(request), agent.answer(request)
        assert content(first) == content(again)
        # Whether it is asked to upload does not change what it would upload.
        quiet = agent.answer(make_request(parameters, t, upload=False))
        assert content(quiet) == (None, content(first)[1])
    assert len(agent.points) == 5


def test_an_agent_that_was_not_asked_first_uploads_when_asked() -> None:
    parameters, agent = make_parameters(), Agent()
    assert content(agent.answer(make_request(parameters, upload=False)))[0] is None
    asked = content(agent.answer(make_request(parameters)))[0]
    assert asked == run_rounds(parameters, Agent(), range(1, 2))[0]


@pytest.mark.parametrize("killed", [1, 3, 4, 5, 6])
def test_a_killed_agent_goes_on_where_it_was(killed: int) -> None:
    """Killed in the n-th evaluation, or (below) between an evaluation and the reply."""
    parameters = make_parameters(upload_kind="sample")
    unharmed, agent = Agent(), Agent()
    expected = run_rounds(parameters, unharmed, range(1, 4))
    agent.kill_at = killed
    found: list[bytes | None] = []
    for t in range(1, 4):
        try:
            found += run_rounds(parameters, agent, range(t, t + 1))
        except KeyboardInterrupt:
            found += run_rounds(parameters, agent, range(t, t + 1))
    assert found == expected
    assert agent.memory.observations == unharmed.memory.observations
    assert len(agent.points) == len(unharmed.points) + 1


def test_killed_between_the_evaluation_and_the_reply_nothing_is_queried_twice() -> None:
    parameters = make_parameters(upload_kind="sample")
    unharmed, agent = Agent(), Agent()
    expected = run_rounds(parameters, unharmed, range(1, 4))

    class Dying(Memory):
        deaths = 0

        def write_entry(self, entry: Any) -> None:
            if entry.reply and self.deaths < 3 and entry.last_round > self.deaths:
                self.deaths += 1
                raise KeyboardInterrupt
            super().write_entry(entry)

    agent.memory = Dying()
    found: list[bytes | None] = []
    for t in range(1, 4):
        with pytest.raises(KeyboardInterrupt):
            run_rounds(parameters, agent, range(t, t + 1))
        found += run_rounds(parameters, agent, range(t, t + 1))
    assert found == expected
    assert len(agent.points) == len(unharmed.points)


def test_an_interrupted_start_is_completed_in_a_later_round() -> None:
    parameters, agent = make_parameters(), Agent()
    agent.kill_at = 3
    with pytest.raises(KeyboardInterrupt):
        run_rounds(parameters, agent, range(1, 2))
    agent.kill_at = None
    run_rounds(parameters, agent, range(4, 5))
    unharmed = Agent()
    run_rounds(parameters, unharmed, range(1, 2))
    assert agent.memory.observations == unharmed.memory.observations


def test_rounds_that_were_missed_are_not_made_up() -> None:
    parameters, agent = make_parameters(), Agent()
    run_rounds(parameters, agent, range(1, 2))
    run_rounds(parameters, agent, range(9, 10))
    assert len(agent.points) == 5
    late = Agent()
    run_rounds(parameters, late, range(9, 10))
    assert len(late.points) == 4


def refusal(agent: Agent, message: Message, **arguments: Any) -> str:
    before, entry = list(agent.memory.observations), agent.memory.entry
    count = len(agent.points)
    reply = agent.answer(message, **arguments)
    assert reply.has_error()
    assert not reply.has_content()
    assert reply.error.code == REFUSED
    assert (agent.memory.observations, agent.memory.entry) == (before, entry)
    assert len(agent.points) == count
    return reply.error.reason


def test_earlier_rounds_and_other_requests_of_a_round_are_refused() -> None:
    parameters, agent = make_parameters(), Agent()
    run_rounds(parameters, agent, range(1, 4))
    entry = agent.memory.entry
    assert refusal(agent, make_request(parameters, 2)) == "round already answered"
    other = make_request(parameters, 3, broadcast=broadcast(parameters, 2, seed=99))
    assert refusal(agent, other) == "round already answered"
    assert agent.memory.entry == entry


def test_parameters_and_terms_hold_for_the_run() -> None:
    parameters, agent = make_parameters(), Agent()
    run_rounds(parameters, agent, range(1, 2))
    changed = "parameters or number changed within a run"
    assert refusal(agent, make_request(make_parameters(clipping_norm=9.0), 2)) == changed
    assert refusal(agent, make_request(parameters, 2), terms="other") == changed
    assert refusal(agent, make_request(parameters, 2, agent=3)) == changed
    assert not agent.answer(make_request(parameters, 2)).has_error()


def test_parameters_that_are_not_accepted_are_refused_before_anything_is_evaluated() -> None:
    agent = Agent()
    asked: list[DpFtsDeParameters] = []

    def accepts(parameters: DpFtsDeParameters) -> bool:
        asked.append(parameters)
        return False

    reason = refusal(agent, make_request(make_parameters()), accepts=accepts)
    assert reason == "parameters refused by the agent"
    assert asked == [make_parameters()]
    assert agent.memory.entry is None


def changed_request(**changes: Any) -> Message:
    message = make_request(make_parameters(), 3, broadcast=broadcast(make_parameters(), 2))
    config = dict(message.content["config"].items())
    message.content["config"] = ConfigRecord({**config, **changes})
    return message


@pytest.mark.parametrize(
    "changes",
    [
        {"server-round": 0},
        {"server-round": True},
        {"server-round": "3"},
        {"server-round": 2},  # the broadcast is of round 2
        {"agent": 5},
        {"agent": -1},
        {"agent": "2"},
        {"upload": 1},
        {"upload": "yes"},
        {"dp-fts-de": "{}"},
        {"dp-fts-de": 3},
        {"dp-fts-de": make_parameters(num_subregions=4).to_json()},
        {"dp-fts-de": make_parameters(num_random_features=21).to_json()},
    ],
)
def test_a_malformed_request_is_refused(changes: dict[str, Any]) -> None:
    assert refusal(Agent(), changed_request(**changes)) == "request refused by the agent"


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"broadcast": np.zeros((1, 20))},
        {"broadcast": np.zeros((1, 20)), "release-round": np.array([2]), "more": np.zeros(1)},
        {"broadcast": np.full((1, 20), math.nan), "release-round": np.array([2])},
        {"broadcast": np.zeros((1, 20), np.float32), "release-round": np.array([2])},
        {"broadcast": np.zeros(20), "release-round": np.array([2])},
        {"broadcast": np.zeros((1, 20)), "release-round": np.array([2.0])},
        {"broadcast": np.zeros((1, 20)), "release-round": np.array([-1])},
        {"broadcast": np.zeros((1, 20)), "release-round": np.array([1, 2])},
        {"broadcast": np.zeros((1, 21)), "release-round": np.array([2])},
        {"broadcast": np.zeros((2, 20)), "release-round": np.array([2])},
        {"broadcast": np.zeros((1, 2000)), "release-round": np.array([2])},
        {"broadcast": np.full((1, 20), math.inf), "release-round": np.array([2])},
        {"broadcast": np.zeros((1, 20)), "release-round": np.array([3])},
    ],
)
def test_a_malformed_broadcast_is_refused(arrays: dict[str, np.ndarray]) -> None:
    message = changed_request()
    message.content["arrays"] = model_record(arrays)
    assert refusal(Agent(), message) == "request refused by the agent"
    message = changed_request()
    message.content = RecordDict({"config": message.content["config"]})
    assert refusal(Agent(), message) == "request refused by the agent"


def test_a_vector_is_given_in_the_rounds_of_the_parameters_only() -> None:
    few = make_parameters(release_rounds=(1, 3))
    for t, changes, allowed in (
        (2, {}, False),
        (3, {}, True),
        (4, {}, False),
        (2, {"upload": "all"}, True),
        (1, {"control": "no_sharing"}, False),
        (1, {"control": "no_sharing", "upload": "all"}, False),
    ):
        parameters = dataclasses.replace(few, **changes)
        if allowed:
            assert content(Agent().answer(make_request(parameters, t)))[0] is not None
        else:
            assert refusal(Agent(), make_request(parameters, t)) == "request refused by the agent"
        assert content(Agent().answer(make_request(parameters, t, upload=False)))[0] is None


def test_a_broadcast_is_of_a_round_that_releases() -> None:
    parameters = make_parameters(release_rounds=(1, 3))
    for release_round, allowed in ((1, True), (2, False), (3, True)):
        shared = broadcast(parameters, release_round)
        request = make_request(parameters, 4, broadcast=shared, upload=False)
        if allowed:
            content(Agent().answer(request))
        else:
            assert refusal(Agent(), request) == "request refused by the agent"
