"""The agent: what it tells of itself in a seeded run, and nothing in a secret one."""

import json
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from strategies.dp_fts_de import DpFtsDeParameters
from strategies.dp_fts_de.algorithm import Broadcast
from strategies.dp_fts_de.client import train
from strategies.dp_fts_de.progress import Progress
from strategies.mechanisms.accounting import GaussianReleases
from tests.dp_fts_de.agents import (
    Memory,
    make_context,
    make_parameters,
    make_request,
    objective,
)
from tests.dp_fts_de.one_agent import Agent, broadcast, content


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
