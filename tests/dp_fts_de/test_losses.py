"""Messages that are lost or late, agents that are slow or restarted: the search goes on."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from strategies.device_state import LedgerEntry, Observation
from strategies.dp_fts_de.algorithm import Broadcast, release_sums
from strategies.dp_fts_de.client import train
from strategies.dp_fts_de.messages import parse_reply
from strategies.mechanisms.rng import SeededStream
from tests.dp_fts_de.agents import (
    Memory,
    RecordingGrid,
    make_context,
    make_parameters,
    make_request,
    objective,
)
from tests.dp_fts_de.searches import Run


class LossyGrid(RecordingGrid):
    """Loses requests and replies; some of the lost replies come in a later round.

    Attributes
    ----------
    arrived : dict of int to set of int
        Round to the agents whose replies came in time.
    late : dict of int to list of Message
        Round to replies of earlier ones that came in it.
    """

    def __init__(self, loss_rate: float, slow: Iterable[int] = ()) -> None:
        super().__init__()
        self._rng = np.random.default_rng(0)
        self._loss_rate, self._slow = loss_rate, set(slow)
        self._delayed: list[tuple[int, Message]] = []
        self.arrived: dict[int, set[int]] = {}
        self.late: dict[int, list[Message]] = {}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        t = int(messages[0].metadata.group_id)
        # Slow agents get an even round's request, and answer while the next one is running.
        requests = [m for m in messages if self._rng.random() >= self._loss_rate]
        replies = list(super().send_and_receive(requests, timeout=timeout))
        in_time = []
        for reply in replies:
            is_slow = reply.metadata.src_node_id - 1_000_000 in self._slow and t % 2 == 0
            if is_slow or self._rng.random() < self._loss_rate:
                self._delayed.append((t + 1, reply))
            else:
                in_time.append(reply)
        self.late[t] = [reply for due, reply in self._delayed if due == t]
        self.arrived[t] = {reply.metadata.src_node_id - 1_000_000 for reply in in_time}
        # Late ones first: the agent's reply of this round must count all the same.
        return [*self.late[t], *in_time]


class LossyRun(Run):
    grid: LossyGrid

    def __init__(self, num_rounds: int, grid: LossyGrid, **changes: Any) -> None:
        super().__init__(num_rounds, **changes)
        self.grid = grid


def check_releases(run: LossyRun) -> None:
    """Each release is the sum of what came in time, and the figures say what came."""
    parameters = run.strategy.parameters
    for row, released in zip(run.rows[:-1], run.broadcasts, strict=False):
        t = row.server_round
        drawn = SeededStream(f"0/fts-cohort/{t}".encode()).uniform(5) < parameters.sample_rate
        sample = set(np.flatnonzero(drawn).tolist())
        sent, came = run.uploads(t), sorted(sample & run.grid.arrived[t])
        noise = SeededStream(f"0/fts-server-noise/{t}".encode())
        expected = release_sums(parameters, t, came, [sent[n] for n in came], noise)
        np.testing.assert_array_equal(released, expected)
        assert row.own["num_uploaded"] == len(came)
        assert row.num_replies == len(run.grid.arrived[t])
        assert row.num_failures == 5 - len(run.grid.arrived[t])
        vectors = len(came) + sum("arrays" in reply.content for reply in run.grid.late[t])
        assert (row.uplink_bytes, row.update_bytes) == (80 * vectors, 80 * len(came))


@pytest.mark.parametrize("sample_rate", [1.0, 0.6])
def test_a_fifth_of_the_messages_is_lost(
    sample_rate: float, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Run(15, sample_rate=sample_rate).start()
    lossy = LossyRun(15, LossyGrid(0.2), sample_rate=sample_rate)
    lossy.start()
    assert len(lossy.rows) == 15
    assert lossy.strategy.epsilon() == whole.strategy.epsilon()
    assert lossy.strategy.guarantees() == whole.strategy.guarantees()
    assert lossy.strategy.tally.num_releases == 14
    check_releases(lossy)
    lost = 75 - sum(len(each) for each in lossy.grid.arrived.values())
    assert 10 < lost < 50
    # An agent whose message was lost is there again later.
    for agent in range(5):
        present = [agent in lossy.grid.arrived[t] for t in range(1, 16)]
        first_loss = present.index(False)
        assert any(present[first_loss:])
    assert "not asked in this round" in caplog.text


def test_a_slow_agent_contributes_zero_where_it_is_late_and_is_taken_back_in() -> None:
    run = LossyRun(8, LossyGrid(0.0, slow=[1, 3]))
    run.start()
    check_releases(run)
    for t in range(1, 9):
        assert run.grid.arrived[t] == ({0, 2, 4} if t % 2 == 0 else {0, 1, 2, 3, 4})
        assert [r.metadata.group_id for r in run.grid.late[t]] == (
            [str(t - 1)] * 2 if t % 2 and t > 1 else []
        )
    # It observes all the same: nothing of a late answer is done twice or left out.
    told = [parse_reply(reply)[1] for reply in run.grid.replies]
    points = [len(each.points) for each in told[1::5] if each is not None]
    assert points == [4, *[1] * 7]
    whole = Run(8).start()
    assert run.strategy.epsilon() == whole.strategy.epsilon()


class StoredMemory(Memory):
    """A device's state in a file: a new object reads what the one before has written."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        if path.exists():
            told = json.loads(path.read_text())
            entry = told["entry"]
            if entry is not None:
                self.entry = LedgerEntry(**{**entry, "reply": bytes.fromhex(entry["reply"])})
            self.observations = [Observation(tuple(x), y) for x, y in told["observations"]]

    def write_entry(self, entry: LedgerEntry) -> None:
        super().write_entry(entry)
        self._store()

    def add_observation(self, observation: Observation) -> None:
        super().add_observation(observation)
        self._store()

    def _store(self) -> None:
        entry = None if self.entry is None else {**vars(self.entry)}
        if entry is not None:
            entry["reply"] = entry["reply"].hex()
        observations = [[each.point, each.value] for each in self.observations]
        self._path.write_text(json.dumps({"entry": entry, "observations": observations}))


class Killed(BaseException):
    """The device's power goes."""


@pytest.mark.parametrize("killed", ["evaluating", "after the value", "before the reply", "replied"])
def test_an_agent_killed_at_iteration_20_goes_on_with_its_observations(
    killed: str, tmp_path: Path
) -> None:
    """Ten initial points and one an iteration: thirty after round 21, which is iteration 20."""
    parameters = make_parameters(
        num_initial=10, release_rounds=(1, 20), upload="all", upload_kind="sample", fit_every=5
    )
    shape = (1, parameters.num_random_features)
    vectors = np.random.default_rng(3).normal(size=shape)
    evaluated: list[np.ndarray] = []

    def answer(memory: Memory, t: int, dying: bool = False) -> tuple[bytes | None, Any]:
        def evaluate(point: np.ndarray) -> float:
            evaluated.append(point)
            if dying and killed == "evaluating":
                raise Killed
            return objective(2, point)

        release_round = 0 if t == 1 else 20 if t > 20 else 1
        broadcast = Broadcast(release_round * vectors, release_round) if release_round else None
        request = make_request(parameters, t, broadcast=broadcast)
        reply = train(request, make_context(), evaluate=evaluate, state=memory)
        assert not reply.has_error(), reply.error
        return parse_reply(reply)

    unharmed = Memory()
    expected = [answer(unharmed, t) for t in range(1, 24)]
    count = len(evaluated)
    path = tmp_path / "state.json"
    memory = StoredMemory(path)
    found = [answer(memory, t) for t in range(1, 21)]
    assert len(memory.observations) == 29

    class Dying(StoredMemory):
        def add_observation(self, observation: Observation) -> None:
            super().add_observation(observation)
            if killed == "after the value":
                raise Killed

        def write_entry(self, entry: LedgerEntry) -> None:
            if killed == "before the reply" and entry.reply:
                raise Killed
            super().write_entry(entry)

    if killed == "replied":
        answer(Dying(path), 21)  # the reply is lost on its way
    else:
        with pytest.raises(Killed):
            answer(Dying(path), 21, dying=True)
    before = len(StoredMemory(path).observations)
    assert before == (29 if killed == "evaluating" else 30)
    found += [answer(StoredMemory(path), t) for t in range(21, 24)]
    assert found == expected
    assert len(StoredMemory(path).observations) == 32
    assert StoredMemory(path).observations == unharmed.observations
    # Nothing is evaluated a second time, but the evaluation that was cut off.
    assert len(evaluated) == 2 * count + (killed == "evaluating")
