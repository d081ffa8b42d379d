"""The agent: fits and evaluations that fail, and nothing private beside the vector."""

import json
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.engines.flower_internals import identify_process
from strategies.dp_fts_de import DpFtsDeParameters, ParameterError
from strategies.dp_fts_de.algorithm import AgentStreams, Broadcast, draw_vector
from strategies.dp_fts_de.client import train
from strategies.dp_fts_de.messages import pack_vector, unpack_vector
from strategies.dp_fts_de.parameters import MIN_RIDGE
from strategies.dp_fts_de.progress import Progress
from strategies.mechanisms.accounting import GaussianReleases
from strategies.mechanisms.rng import Randomness
from tests.dp_fts_de.agents import (
    Memory,
    make_context,
    make_parameters,
    make_request,
    objective,
)
from tests.dp_fts_de.one_agent import Agent, broadcast, content, run_rounds


@pytest.mark.parametrize("randomness", ["seeded", "secret"])
@pytest.mark.parametrize("error", [np.linalg.LinAlgError, ValueError, FloatingPointError])
def test_what_cannot_be_fitted_queries_nothing_and_replies_as_ever(
    error: type[Exception],
    randomness: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No random query stands for a model that there is not; the agent's own log says so."""

    def fail(*arguments: Any, **more: Any) -> Any:
        raise error("private")

    agent, parameters = Agent(), make_parameters(randomness=randomness)
    content(agent.answer(make_request(parameters)))
    with monkeypatch.context() as patch:
        for name in ("choose_query", "draw_vector"):
            patch.setattr(f"strategies.dp_fts_de.client.{name}", fail)
        vector, progress = content(agent.answer(make_request(parameters, 2)))
    assert vector is not None
    assert not unpack_vector(vector, 20).any()
    assert len(agent.points) == 4
    assert "nothing is queried" in caplog.text
    assert "the vector is zero" in caplog.text
    if randomness == "secret":
        assert progress is None
    else:
        assert progress is not None
        assert (progress.points, progress.values, progress.is_shared) == ((), (), False)
        assert progress.best_value == max(agent.values())
    # It goes on when it can.
    content(agent.answer(make_request(parameters, 3)))
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


def test_the_smallest_ridge_fits_a_thousand_repeats_of_a_point() -> None:
    parameters = make_parameters(regularizer=MIN_RIDGE * 1e6, outputscale=1e6)
    x = np.full((1000, 2), 0.5)
    values = np.array([1e6, -1e6] * 500)
    stream = AgentStreams(Randomness("seeded", 0), 1, 0).open("vector")
    assert np.isfinite(draw_vector(parameters, x, values, stream)).all()


@pytest.mark.parametrize("bad", [(1.0, 1.0), (2.0, 1.0), (0.0, math.inf), (math.nan, 1.0)])
def test_a_range_of_values_has_two_finite_ends(bad: tuple[float, float]) -> None:
    with pytest.raises(ParameterError, match="value_range"):
        Agent(value_range=bad).answer(make_request(make_parameters()))


@pytest.mark.parametrize("randomness", ["seeded", "secret"])
def test_a_value_outside_the_range_counts_as_the_nearer_end(randomness: str) -> None:
    """How many do is said in seeded runs only; the ends themselves are inside."""
    given = iter([-1.5, 2.0, 87.5, 0.5, 1e300, -1.0, math.inf])
    agent = Agent(value_range=(-1.0, 2.0), failed_value=-1.0, evaluate=lambda _: next(given))
    parameters = make_parameters(randomness=randomness)
    told = [content(agent.answer(make_request(parameters, t)))[1] for t in (1, 2, 3, 4)]
    assert agent.values() == [-1.0, 2.0, 2.0, 0.5, 2.0, -1.0, -1.0]
    found = [None if each is None else (each.outside, each.failures) for each in told]
    seeded = [(2.0, 0.0), (1.0, 0.0), (0.0, 0.0), (0.0, 1.0)]
    assert found == (seeded if randomness == "seeded" else [None] * 4)


def test_without_a_range_any_value_is_taken() -> None:
    agent = Agent(evaluate=lambda _: 87.5)
    _, progress = content(agent.answer(make_request(make_parameters())))
    assert progress is not None
    assert (progress.outside, progress.best_value) == (0.0, 87.5)


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


def test_a_query_that_fails_is_not_the_broadcast_s(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_failed_before_a_kill_is_counted_in_the_round_it_belongs_to() -> None:
    given = iter([math.nan, 7.5, 0.25, 0.5, 0.75])

    class Dying(Memory):
        def add_observation(self, observation: Any) -> None:
            super().add_observation(observation)
            if len(self.observations) == 2:
                raise KeyboardInterrupt

    agent = Agent(value_range=(-1.0, 2.0), failed_value=-1.0, evaluate=lambda _: next(given))
    agent.memory = Dying()
    parameters = make_parameters()
    with pytest.raises(KeyboardInterrupt):
        agent.answer(make_request(parameters))
    told = [content(agent.answer(make_request(parameters, t)))[1] for t in (1, 2)]
    assert [(each.failures, each.outside) for each in told if each is not None] == [
        (1.0, 1.0),
        (0.0, 0.0),
    ]
