"""The in-process engine's limits: time-outs, unknown nodes, many nodes, other Flowers; FedAvg."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fl_app.engines import client_node, flower_internals, in_process
from fl_app.engines.in_process import InProcessGrid, run_in_process
from fl_app.errors import RunError
from tests.fl_app.test_in_process import (
    ask,
    count_calls,
    make_app,
    make_grid,
    read_ids,
    tell_partition,
)


class Clock:
    """A clock that client work moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("timeout", "answered", "worked"),
    [(None, 5, 5), (100.0, 5, 5), (2.5, 2, 3), (2.0, 1, 2), (0.5, 0, 1), (0.0, 0, 1)],
)
def test_a_time_out_leaves_the_rest_unanswered(
    monkeypatch: pytest.MonkeyPatch, timeout: float | None, answered: int, worked: int
) -> None:
    clock = Clock()
    monkeypatch.setattr(in_process, "time", clock)
    calls = []

    def handle(message: Message, context: Context) -> RecordDict:
        calls.append(context.node_id)
        clock.now += 1.0
        return tell_partition(message, context)

    grid = make_grid(handle, num_clients=5)
    replies = list(grid.send_and_receive(ask(grid), timeout=timeout))
    assert read_ids(replies) == list(range(answered))
    assert len(calls) == worked


@pytest.mark.parametrize("shift", [-1, 3])
def test_an_unknown_node_is_an_error(shift: int) -> None:
    grid = make_grid(tell_partition)
    node = client_node.FIRST_NODE_ID + shift
    message = Message(RecordDict(), dst_node_id=node, message_type="train", group_id="1")
    replies = list(grid.send_and_receive([message, *ask(grid)]))
    assert [reply.has_error() for reply in replies] == [True, False, False, False]
    assert replies[0].error.code == client_node.NODE_UNAVAILABLE
    (identifier,) = grid.push_messages([message])
    assert [reply.has_error() for reply in grid.pull_messages([identifier])] == [True]


@pytest.mark.parametrize("num_clients", [0, -1, True, 2.0, None])
def test_a_number_of_clients_must_be_a_positive_integer(num_clients: object) -> None:
    with pytest.raises(ValueError, match="num_clients"):
        InProcessGrid(make_app(tell_partition), num_clients, {})  # type: ignore[arg-type]


def test_clients_read_the_run_s_configuration_and_cannot_change_it() -> None:
    def handle(message: Message, context: Context) -> RecordDict:
        value = context.run_config["key"]
        context.run_config["key"] = 0
        return RecordDict({"config": ConfigRecord({"id": value})})

    grid = InProcessGrid(make_app(handle), 2, {"key": 5})
    assert read_ids(grid.send_and_receive(ask(grid))) == [5, 5]


def test_ten_thousand_nodes_cost_next_to_nothing() -> None:
    app = make_app(tell_partition)
    tracemalloc.start()
    try:
        grid = InProcessGrid(app, 10_000, {})
        assert len(list(grid.get_node_ids())) == 10_000
        assert tracemalloc.get_traced_memory()[0] < 20_000
        for part in range(10):
            nodes = list(grid.get_node_ids())[part * 100 : (part + 1) * 100]
            messages = [
                Message(RecordDict(), dst_node_id=node, message_type="train", group_id="1")
                for node in nodes
            ]
            grid.send_and_receive(messages)
        del messages, nodes
        # Nothing is kept for nodes that keep no state.
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


def test_a_state_is_what_is_kept_of_a_node() -> None:
    grid = make_grid(count_calls, num_clients=10_000)
    nodes = list(grid.get_node_ids())[:3]
    grid.send_and_receive([m for m in ask(grid) if m.metadata.dst_node_id in nodes])
    assert sorted(grid._states) == nodes
    assert grid._replies == {}


@pytest.mark.parametrize("installed", ["1.41.9", "1.420.0", "1.43.0", "2.0"])
def test_another_flower_is_refused(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    monkeypatch.setattr(flower_internals, "version", lambda name: installed)
    with pytest.raises(RunError, match=f"flwr {installed} is installed"):
        make_grid(tell_partition)


def test_the_version_is_checked_before_anything_private_is_imported() -> None:
    program = (
        "import importlib.metadata as metadata, sys, flwr.supercore.run\n"
        "real = metadata.version\n"
        "metadata.version = lambda name: '1.43.0' if name == 'flwr' else real(name)\n"
        "del flwr.supercore.run.Run\n"
        "try:\n"
        "    import fl_app.engines.in_process\n"
        "except RuntimeError as error:\n"
        "    sys.exit(0 if 'flwr 1.43.0 is installed' in str(error) else 3)\n"
        "sys.exit(4)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_server_app_needs_nothing_private_of_flower() -> None:
    program = (
        "import sys, fl_app.server_app, fl_app.client_app, fl_app.engines.flower\n"
        "sys.exit('fl_app.engines.flower_internals' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_unmodified_fedavg_of_flower_runs() -> None:
    def handle(message: Message, context: Context) -> RecordDict:
        partition = int(context.node_config["partition-id"])
        weights = message.content["arrays"]["w"].numpy() + partition
        metrics = MetricRecord({"num-examples": partition + 1, "loss": float(partition)})
        arrays = ArrayRecord({"w": Array(weights)})
        return RecordDict({"arrays": arrays, "metrics": metrics})

    app = make_app(handle)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "total": float(weights_of(message).sum())})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def weights_of(message: Message) -> np.ndarray:
        return message.content["arrays"]["w"].numpy()

    server = ServerApp()
    results = []

    @server.main()
    def main(grid: InProcessGrid, context: Context) -> None:
        assert context.run_config["key"] == 1
        strategy = FedAvg(min_train_nodes=3, min_available_nodes=3, min_evaluate_nodes=3)
        initial = ArrayRecord({"w": Array(np.zeros(2))})
        results.append(strategy.start(grid, initial, num_rounds=4))

    run_in_process(server, app, 3, {"key": 1})
    (result,) = results
    # A round adds the mean of 0, 1, 2 with weights 1, 2, 3: 8/6.
    assert result.arrays["w"].numpy() == pytest.approx(np.full(2, 4 * 8 / 6))
    assert result.evaluate_metrics_clientapp[4]["total"] == pytest.approx(2 * 4 * 8 / 6)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(8 / 6)
