"""The agent: fits and evaluations that fail, and values that are none."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.engines.flower_internals import identify_process
from strategies.dp_fts_de import ParameterError
from strategies.dp_fts_de.algorithm import AgentStreams, draw_vector
from strategies.dp_fts_de.messages import pack_vector, unpack_vector
from strategies.dp_fts_de.parameters import MIN_RIDGE
from strategies.mechanisms.rng import Randomness
from tests.dp_fts_de.agents import (
    Memory,
    make_parameters,
    make_request,
    objective,
)
from tests.dp_fts_de.one_agent import Agent, content, run_rounds


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
