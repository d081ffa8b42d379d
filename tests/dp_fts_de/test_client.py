"""The agent: one query a round, the same bytes again, and nothing private beside the vector."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.engines.flower_internals import identify_process
from strategies.dp_fedpaq.messages import REFUSED, model_record
from strategies.dp_fts_de import DpFtsDeParameters, ParameterError
from strategies.dp_fts_de.algorithm import Broadcast, clip_vector, draw_vector, read_broadcast
from strategies.dp_fts_de.client import train
from strategies.dp_fts_de.messages import pack_vector, parse_reply, unpack_vector
from strategies.dp_fts_de.progress import Progress
from strategies.mechanisms.accounting import GaussianReleases
from strategies.mechanisms.rng import SecretStream
from tests.dp_fts_de.agents import (
    Memory,
    make_context,
    make_parameters,
    make_request,
    objective,
)


class Agent:
    """Agent 2 with its device's state, which counts the evaluations and may be killed in one."""

    def __init__(self, **arguments: Any) -> None:
        self.memory = Memory()
        self.points: list[np.ndarray] = []
        self.kill_at: int | None = None
        self.arguments = arguments

    def evaluate(self, point: np.ndarray) -> float:
        self.points.append(point)
        if self.kill_at == len(self.points):
            raise KeyboardInterrupt
        return objective(2, point)

    def answer(self, message: Message, **arguments: Any) -> Message:
        given = {"evaluate": self.evaluate, **self.arguments, **arguments}
        return train(message, make_context(), state=self.memory, **given)

    def values(self) -> list[float]:
        return [each.value for each in self.memory.observations]


def content(reply: Message) -> tuple[bytes | None, Progress | None]:
    assert not reply.has_error(), reply.error
    return parse_reply(reply)


def broadcast(parameters: DpFtsDeParameters, release_round: int, seed: int = 0) -> Broadcast:
    shape = (parameters.num_subregions, parameters.num_random_features)
    return Broadcast(np.random.default_rng(seed).normal(size=shape), release_round)


def run_rounds(parameters: DpFtsDeParameters, agent: Agent, rounds: range) -> list[bytes | None]:
    return [
        content(
            agent.answer(
                make_request(
                    parameters, t, broadcast=broadcast(parameters, t - 1, t) if t > 1 else None
                )
            )
        )[0]
        for t in rounds
    ]


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


@pytest.mark.parametrize("error", [np.linalg.LinAlgError, ValueError, FloatingPointError])
def test_whatever_fails_in_a_fit_gives_a_random_query_and_zero(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **more: Any) -> Any:
        raise error("private")

    agent, parameters = Agent(), make_parameters(randomness="secret")
    content(agent.answer(make_request(parameters)))
    for name in ("choose_query", "draw_vector"):
        monkeypatch.setattr(f"strategies.dp_fts_de.client.{name}", fail)
    vector, progress = content(agent.answer(make_request(parameters, 2)))
    assert vector is not None
    assert not unpack_vector(vector, 20).any()
    assert progress is None
    assert len(agent.points) == 5


@pytest.mark.parametrize("randomness", ["seeded", "secret"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -1e300, None, "no number", ZeroDivisionError])
def test_a_failed_evaluation_counts_as_the_lowest_value_and_looks_like_any_other(
    bad: Any, randomness: str
) -> None:
    calls: list[int] = []

    def evaluate(point: np.ndarray) -> float:
        calls.append(1)
        if len(calls) in (2, 5):
            if isinstance(bad, type):
                raise bad("private")
            return bad
        return objective(2, point)

    agent = Agent(failed_value=-7.0)
    parameters = make_parameters(randomness=randomness)
    told = [
        content(agent.answer(make_request(parameters, t), evaluate=evaluate)) for t in (1, 2, 3)
    ]
    assert [i for i, value in enumerate(agent.values()) if value == -7.0] == [1, 4]
    if randomness == "secret":
        assert [progress for _, progress in told] == [None] * 3
    else:
        assert [p.failures for _, p in told if p is not None] == [1.0, 1.0, 0.0]


def test_a_lowest_value_that_is_no_number_is_refused() -> None:
    with pytest.raises(ParameterError, match="failed_value"):
        Agent(failed_value=math.nan).answer(make_request(make_parameters()))


def test_a_model_that_cannot_be_fitted_gives_zero_and_a_random_query() -> None:
    agent = Agent(snap=lambda point: np.array([0.25, 0.5]))
    parameters = make_parameters(regularizer=1e-20, standardize=False, randomness="secret")
    vector, _ = content(agent.answer(make_request(parameters)))
    assert vector is not None
    assert not unpack_vector(vector, 20).any()
    huge = Agent(evaluate=lambda point: 1e15)
    for t in (1, 2, 3):
        content(huge.answer(make_request(make_parameters(standardize=False), t)))
    assert len(huge.memory.observations) == 6


def test_points_are_evaluated_and_kept_as_snapped() -> None:
    def snap(point: np.ndarray) -> np.ndarray:
        return np.round(point * 8.0) / 8.0

    agent = Agent(snap=snap)
    run_rounds(make_parameters(), agent, range(1, 4))
    for point, kept in zip(agent.points, agent.memory.observations, strict=True):
        np.testing.assert_array_equal(point, snap(point))
        assert kept.point == tuple(point)


def leaves(reply: Message) -> dict[str, Any]:
    return {name: dict(record.items()) for name, record in reply.content.items()}


def test_a_secret_run_tells_nothing_but_the_vector() -> None:
    parameters = make_parameters(randomness="secret")
    agent = Agent(optimum=1.0)
    for t, upload in ((1, True), (2, False), (3, True)):
        told = leaves(agent.answer(make_request(parameters, t, upload=upload)))
        assert told["metrics"] == {"num-examples": 1}
        assert set(told) == ({"metrics", "arrays"} if upload else {"metrics"})
        if upload:
            (array,) = told["arrays"].values()
            assert len(array.data) == 4 * 20
    assert agent.memory.entry is not None
    assert agent.memory.entry.reply.startswith(b"null\n")


def test_a_seeded_run_tells_how_far_the_agent_is() -> None:
    agent = Agent(optimum=1.0)
    for t in (1, 2, 3):
        _, progress = content(agent.answer(make_request(make_parameters(), t)))
        assert progress is not None
        values = agent.values()
        assert progress.value == values[-1]
        assert progress.best_value == max(values)
        assert objective(2, np.array(progress.best_point)) == max(values)
        assert progress.simple_regret == pytest.approx(1.0 - max(values))
        assert progress.cumulative_regret == pytest.approx(sum(1.0 - v for v in values[4:]))
        assert progress.clipped == 1.0
    told = leaves(Agent().answer(make_request(make_parameters())))["metrics"]
    assert "simple-regret" not in told


def test_a_seeded_run_tells_what_the_round_brought() -> None:
    agent, parameters = Agent(), make_parameters(use_broadcast="fresh")
    seen = 0
    # The broadcast of round 1 is fresh in round 2 only.
    for t, release_round, is_shared in ((1, 0, False), (2, 1, True), (3, 1, False), (5, 4, True)):
        shared = broadcast(parameters, release_round, t) if release_round else None
        before = agent.values()
        _, told = content(agent.answer(make_request(parameters, t, broadcast=shared)))
        assert told is not None
        assert len(told.values) == (4 if t == 1 else 1)
        assert [np.array(point).tolist() for point in told.points] == [
            point.tolist() for point in agent.points[seen:]
        ]
        assert list(told.values) == agent.values()[seen:]
        assert told.value == told.values[-1]
        assert told.best_before == (max(before) if before else None)
        assert told.is_shared is is_shared
        seen = len(agent.points)


def test_what_was_best_before_a_round_is_older_than_it() -> None:
    agent, parameters = Agent(), make_parameters()

    def evaluate(point: np.ndarray) -> float:
        return float(len(agent.memory.observations))

    requests = [make_request(parameters, t) for t in (1, 2, 3)]
    told = [content(agent.answer(each, evaluate=evaluate))[1] for each in requests]
    assert [(each.best_before, each.best_value) for each in told if each is not None] == [
        (None, 3.0),
        (3.0, 4.0),
        (4.0, 5.0),
    ]


def test_a_late_start_is_not_a_query_of_the_broadcast() -> None:
    agent, parameters = Agent(), make_parameters()
    _, told = content(agent.answer(make_request(parameters, 3, broadcast=broadcast(parameters, 2))))
    assert told is not None
    assert len(told.points) == 4
    assert not told.is_shared


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_random_query_in_place_of_a_repeat_is_not_the_broadcast_s(interrupted: bool) -> None:
    """Also where the agent was killed after the evaluation, and is asked again."""

    class Dying(Memory):
        def add_observation(self, observation: Any) -> None:
            super().add_observation(observation)
            if interrupted and len(self.observations) in (5, 6):
                raise KeyboardInterrupt

    parameters, agent = make_parameters(), Agent(snap=lambda point: np.round(20.0 * point) / 20.0)
    agent.memory = Dying()
    content(agent.answer(make_request(parameters)))
    vectors = broadcast(parameters, 1).vectors
    told = []
    for t in (2, 3):
        request = make_request(parameters, t, broadcast=Broadcast(vectors, t - 1))
        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                agent.answer(request)
        told.append(content(agent.answer(request))[1])
    first, second = told
    assert first is not None
    assert second is not None
    # The same function has its largest value where it had it before.
    assert first.points != second.points
    assert (first.is_shared, second.is_shared) == (True, False)
    assert len(agent.points) == 6


def test_a_random_query_without_a_model_is_not_the_broadcast_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: Any) -> Any:
        raise np.linalg.LinAlgError

    agent, parameters = Agent(), make_parameters()
    content(agent.answer(make_request(parameters)))
    monkeypatch.setattr("strategies.dp_fts_de.algorithm.maximize_broadcast", fail)
    _, told = content(agent.answer(make_request(parameters, 2, broadcast=broadcast(parameters, 1))))
    assert told is not None
    assert not told.is_shared


@pytest.mark.parametrize("killed", [2, 4, 5, 6])
@pytest.mark.parametrize("before_evaluating", [True, False])
def test_a_killed_agent_tells_the_same_of_its_round(killed: int, before_evaluating: bool) -> None:
    """Killed in the n-th evaluation, or after it and before its value is of any use."""
    parameters = make_parameters()

    def ask(agent: Agent, t: int) -> tuple[bytes | None, Progress | None]:
        shared = broadcast(parameters, t - 1, t) if t > 1 else None
        return content(agent.answer(make_request(parameters, t, broadcast=shared)))

    class Dying(Memory):
        def add_observation(self, observation: Any) -> None:
            super().add_observation(observation)
            if len(self.observations) == killed and not before_evaluating:
                raise KeyboardInterrupt

    unharmed, agent = Agent(), Agent()
    if before_evaluating:
        agent.kill_at = killed
    agent.memory = Dying()
    deaths = 0
    for t in (1, 2, 3):
        expected = ask(unharmed, t)
        try:
            found = ask(agent, t)
        except KeyboardInterrupt:
            deaths += 1
            agent.kill_at = None
            found = ask(agent, t)
        assert found == expected
        assert found == ask(agent, t)
        assert found[1] is not None
        assert found[1].is_shared is (t > 1)
    assert deaths == 1


def test_every_release_is_charged_whether_or_not_the_agent_uploads() -> None:
    agent, parameters = Agent(), make_parameters(release_rounds=(1, 3))
    charged = []
    for t in range(1, 5):
        agent.answer(make_request(parameters, t, upload=False))
        agent.answer(make_request(parameters, t, upload=False))
        assert agent.memory.entry is not None
        charged.append(agent.memory.entry.participations)
    assert charged == [1, 1, 2, 2]
    assert json.loads(agent.memory.entry.releases) == {"noise_multiplier": 0.0}


def test_a_release_is_described_as_the_server_promises_it() -> None:
    agent = Agent()
    parameters = make_parameters(release_rounds=(1,), randomness="secret", sample_rate=0.5)
    agent.answer(make_request(parameters, 1))
    assert agent.memory.entry is not None
    values = json.loads(agent.memory.entry.releases)
    assert (values.pop("noise_at"), values.pop("delta")) == ("server", parameters.target_delta)
    assert parameters.noise_multiplier is not None
    told = parameters.describe_releases(1, parameters.noise_multiplier)
    assert GaussianReleases(**values) == told


def test_it_works_in_the_node_s_own_context() -> None:
    parameters, context = make_parameters(), make_context()
    kept: list[bytes | None] = []
    for t in (1, 2, 2):
        reply = train(
            make_request(parameters, t), context, evaluate=lambda point: objective(2, point)
        )
        kept.append(content(reply)[0])
    assert kept[:2] == run_rounds_without_broadcast(parameters)
    assert kept[1] == kept[2]


def run_rounds_without_broadcast(parameters: DpFtsDeParameters) -> list[bytes | None]:
    agent = Agent()
    return [content(agent.answer(make_request(parameters, t)))[0] for t in (1, 2)]


def test_secret_agents_draw_differently() -> None:
    parameters = make_parameters(randomness="secret", upload_kind="sample")
    first, second = (run_rounds(parameters, Agent(), range(1, 2)) for _ in range(2))
    assert first != second
    seeded = make_parameters(upload_kind="sample")
    assert run_rounds(seeded, Agent(), range(1, 2)) == run_rounds(seeded, Agent(), range(1, 2))


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=200))
def test_an_upload_of_another_length_is_no_vector(data: bytes) -> None:
    identify_process(1)
    if len(data) == 80:
        assert unpack_vector(data, 20).shape == (20,)
    else:
        with pytest.raises(ValueError, match="length"):
            unpack_vector(data, 20)


def test_vectors_survive_packing_up_to_float32() -> None:
    vector = np.random.default_rng(0).normal(size=20)
    np.testing.assert_allclose(unpack_vector(pack_vector(vector), 20), vector, rtol=1e-7)
    assert np.isinf(unpack_vector(pack_vector(np.array([1e300])), 1))
