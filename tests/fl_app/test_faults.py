"""Lost and late replies: on any grid, the same on every engine, at the rate that was asked for."""

import json
import random
from collections.abc import Callable, Iterable

import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fl_app.engines.faults import FaultSettings, FaultyGrid, draw_faults
from fl_app.engines.in_process import InProcessGrid
from fl_app.engines.stored_reply import Blobs, restore_reply, store_reply
from strategies.rounds import payload_bytes

CLIENTS = 20


def make_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        told = {"id": context.node_config["partition-id"], "group": message.metadata.group_id}
        return Message(RecordDict({"config": ConfigRecord(told)}), reply_to=message)

    return app


class OtherEngine(Grid):
    """Another engine: node ids of its own, and replies in no order."""

    def __init__(self) -> None:
        self._inner = InProcessGrid(make_app(), CLIENTS, {})
        self._random = random.Random(5)

    set_run = run = create_message = None  # type: ignore[assignment]

    def get_node_ids(self) -> Iterable[int]:
        return self._inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._shuffle(self._inner.pull_messages(message_ids))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self._shuffle(self._inner.send_and_receive(messages, timeout=timeout))

    def _shuffle(self, replies: Iterable[Message]) -> Iterable[Message]:
        shuffled = list(replies)
        self._random.shuffle(shuffled)
        return iter(shuffled)


def in_process() -> Grid:
    return InProcessGrid(make_app(), CLIENTS, {})


def ask(grid: Grid, group: str) -> list[Message]:
    return [
        Message(RecordDict(), dst_node_id=node, message_type="train", group_id=group)
        for node in grid.get_node_ids()
    ]


def exchange(grid: Grid, group: str) -> list[Message]:
    return list(grid.send_and_receive(ask(grid, group)))


def push_and_pull(grid: Grid, group: str) -> list[Message]:
    return list(grid.pull_messages(grid.push_messages(ask(grid, group))))


Exchange = Callable[[Grid, str], list[Message]]


WAYS = pytest.mark.parametrize("way", [exchange, push_and_pull])


ENGINES = pytest.mark.parametrize("make_grid", [in_process, OtherEngine])


def read(replies: list[Message]) -> list[tuple[str, int]]:
    """Return the exchange and the client of each reply, in order of the clients."""
    told = [reply.content["config"] for reply in replies]
    return sorted((str(each["group"]), int(each["id"])) for each in told)


def expect(settings: FaultSettings, number: int) -> tuple[set[int], set[int]]:
    lost, late = draw_faults(settings, number, CLIENTS)
    return {i for i, hit in enumerate(lost) if hit}, {i for i, hit in enumerate(late) if hit}


@WAYS
@ENGINES
def test_the_lost_stay_away_and_the_late_come_one_exchange_later(
    make_grid: Callable[[], Grid], way: Exchange
) -> None:
    settings = FaultSettings(loss_rate=0.3, late_rate=0.4, seed=3)
    grid = FaultyGrid(make_grid(), settings)
    overdue: set[tuple[str, int]] = set()
    hits = 0
    for number in range(1, 8):
        lost, late = expect(settings, number)
        assert not lost & late
        group = str(number)
        in_time = {(group, client) for client in set(range(CLIENTS)) - lost - late}
        assert read(way(grid, group)) == sorted(overdue | in_time)
        overdue = {(group, client) for client in late}
        hits += len(lost) + len(late)
    assert 0 < hits < 7 * CLIENTS


@WAYS
@ENGINES
def test_no_fault_changes_nothing(make_grid: Callable[[], Grid], way: Exchange) -> None:
    grid = FaultyGrid(make_grid(), FaultSettings())
    for number in range(1, 4):
        assert read(way(grid, str(number))) == [(str(number), i) for i in range(CLIENTS)]


@ENGINES
@pytest.mark.parametrize("cut", [1, 3])
def test_another_grid_goes_on_with_the_faults_and_the_late_replies(
    make_grid: Callable[[], Grid], cut: int
) -> None:
    """Late replies are those of the run, with all their bytes; nodes have other numbers then."""
    settings = FaultSettings(loss_rate=0.2, late_rate=0.5, seed=3)
    straight = FaultyGrid(make_grid(), settings)
    expected = [exchange(straight, str(number)) for number in range(1, 6)]
    first = FaultyGrid(make_grid(), settings)
    nodes = list(first.get_node_ids())
    for number in range(1, cut + 1):
        exchange(first, str(number))
    state, blobs = first.export_state({node: index for index, node in enumerate(nodes)})
    assert len(state["late"]) == len(expect(settings, cut)[1]) > 0
    second = FaultyGrid(make_grid(), settings)
    moved = {node: index for index, node in enumerate(nodes[::-1])}
    second.import_state(json.loads(json.dumps(state)), blobs, moved)
    overdue = [reply for reply in exchange(second, str(cut + 1)) if _group(reply) == str(cut)]
    renamed = {node: nodes[index] for node, index in moved.items()}
    assert sorted(renamed[reply.metadata.src_node_id] for reply in overdue) == sorted(
        reply.metadata.src_node_id for reply in expected[cut] if _group(reply) == str(cut)
    )
    for number in range(cut + 2, 6):
        assert read(exchange(second, str(number))) == read(expected[number - 1])


def _group(reply: Message) -> str:
    return reply.metadata.group_id


def test_a_stored_reply_is_the_reply() -> None:
    grid = InProcessGrid(make_app(), CLIENTS, {})
    (request,) = ask(grid, "7")[3:4]
    content = RecordDict(
        {
            "arrays": ArrayRecord({"u": Array("uint8", (3,), "kind", b"\x00\xff1")}),
            "metrics": MetricRecord({"loss": float("nan"), "n": 1, "list": [0.1, 2.0]}),
            "config": ConfigRecord(
                {"b": b"\x00\xff", "t": "text", "y": True, "l": [b"x", b"\x00"]}
            ),
        }
    )
    for reply in (
        Message(content, reply_to=request),
        Message(Error(1002, "why"), reply_to=request),
    ):
        blobs = Blobs()
        stored = json.loads(json.dumps(store_reply(reply, blobs)))
        again = restore_reply(stored, blobs, request.metadata.dst_node_id)
        for key in ("group_id", "message_type", "src_node_id", "dst_node_id"):
            assert getattr(again.metadata, key) == getattr(reply.metadata, key)
        assert payload_bytes(again) == payload_bytes(reply)
        if reply.has_error():
            assert (again.error.code, again.error.reason) == (1002, "why")
        else:
            assert repr(again.content) == repr(reply.content)
            assert again.content["arrays"]["u"].data == b"\x00\xff1"


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"exchanges": 1},
        {"exchanges": 1, "late": [[1, 99, {}]]},
        {"exchanges": 1, "late": [[1, 0, {"type": "train", "group": "1"}]]},
        {"exchanges": 1, "late": [[1]]},
        {"exchanges": None, "late": []},
    ],
    ids=str,
)
def test_what_is_no_state_of_a_grid_is_refused(state: dict) -> None:
    grid = FaultyGrid(in_process(), FaultSettings())
    with pytest.raises((ValueError, KeyError, TypeError)):
        grid.import_state(state, Blobs(), {node: i for i, node in enumerate(grid.get_node_ids())})


def test_without_faults_the_order_is_the_grid_s() -> None:
    grid = FaultyGrid(in_process(), FaultSettings())
    told = [int(reply.content["config"]["id"]) for reply in exchange(grid, "1")]
    assert told == list(range(CLIENTS))


@WAYS
def test_everything_lost_and_everything_late(way: Exchange) -> None:
    nothing = FaultyGrid(in_process(), FaultSettings(loss_rate=1.0, late_rate=1.0))
    assert [way(nothing, str(number)) for number in (1, 2)] == [[], []]
    later = FaultyGrid(in_process(), FaultSettings(late_rate=1.0))
    assert [read(way(later, str(number))) for number in (1, 2, 3)] == [
        [],
        [("1", i) for i in range(CLIENTS)],
        [("2", i) for i in range(CLIENTS)],
    ]


def test_a_late_reply_is_not_there_for_whoever_keeps_asking() -> None:
    grid = FaultyGrid(in_process(), FaultSettings(late_rate=1.0))
    identifiers = list(grid.push_messages(ask(grid, "1")))
    assert [list(grid.pull_messages(identifiers)) for _ in range(3)] == [[], [], []]
    grid.push_messages(ask(grid, "2"))
    assert len(list(grid.pull_messages([]))) == CLIENTS


def test_replies_can_be_read_more_than_once() -> None:
    grid = FaultyGrid(OtherEngine(), FaultSettings())
    replies = grid.send_and_receive(ask(grid, "1"))
    assert len(list(replies)) == len(list(replies)) == CLIENTS


def test_the_rest_is_the_grid_s_own() -> None:
    inner = InProcessGrid(make_app(), CLIENTS, {})
    grid = FaultyGrid(inner, FaultSettings(loss_rate=0.5))
    assert list(grid.get_node_ids()) == list(inner.get_node_ids())
    assert grid.run is inner.run
    marker = inner.run.__class__.create_empty(9)
    grid.set_run(marker)
    assert inner.run is marker
    message = grid.create_message(RecordDict(), "train", 7, "3", ttl=5.0)
    assert (message.metadata.dst_node_id, message.metadata.group_id) == (7, "3")


def test_a_time_out_reaches_the_grid() -> None:
    grid = FaultyGrid(in_process(), FaultSettings())
    assert list(grid.send_and_receive(ask(grid, "1"), timeout=0.0)) == []
