"""The grid of devices: every reply is noticed, nothing is waited for in vain."""

import threading
import time
from collections import Counter
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from google.protobuf.message import DecodeError

from fl_app.client_app import app as client_app
from fl_app.engines import prompt_grid
from fl_app.engines.flower_internals import (
    UnexpectedObjectContentError,
    build_message,
    describe_metadata,
)
from fl_app.engines.in_process import InProcessGrid
from fl_app.engines.prompt_grid import PromptGrid
from fl_app.engines.relay import GridRelay
from fl_app.errors import RunError
from fl_app.roll_call import QUERY_TYPE
from strategies.dp_fedpaq.messages import UNREADABLE


class SlowGrid(GridRelay):
    """The nth reply comes at the nth look; some messages are not accepted, some never answered."""

    def __init__(self, refused: int = 0, lost: int = 0) -> None:
        super().__init__(InProcessGrid(client_app, 4, {}))
        self._refused, self._lost = refused, lost
        self._names: list[str] = []
        self.looks: Counter[str] = Counter()

    def push_messages(self, messages):
        self._names = list(super().push_messages(messages))
        return [None] * self._refused + self._names[self._refused :]

    def pull_messages(self, message_ids):
        (name,) = message_ids
        self.looks[name] += 1
        place = self._names.index(name)
        there = place < self.looks[name] and place < 4 - self._lost
        return self.read(super().pull_messages([name])) if there else []

    def read(self, replies):
        return replies


def ask(grid: PromptGrid, timeout: float | None) -> list[Message]:
    nodes = list(grid.get_node_ids())
    requests = [
        Message(RecordDict(), dst_node_id=n, message_type=QUERY_TYPE, group_id="7") for n in nodes
    ]
    return list(grid.send_and_receive(iter(requests), timeout=timeout))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_grid, "POLL_SECONDS", 0.01)


def test_replies_are_collected_until_all_are_there() -> None:
    slow = SlowGrid()
    replies = ask(PromptGrid(slow), None)
    assert {reply.metadata.src_node_id for reply in replies} == set(slow.get_node_ids())
    assert list(slow.looks.values()) == [1, 2, 3, 4]


def test_a_message_that_was_not_accepted_is_not_waited_for() -> None:
    assert len(ask(PromptGrid(SlowGrid(refused=1)), None)) == 3
    assert ask(PromptGrid(SlowGrid(refused=4)), None) == []


def test_what_has_come_is_returned_when_the_time_is_over() -> None:
    assert len(ask(PromptGrid(SlowGrid(lost=1)), 0.3)) == 3
    # Even if there is no time at all, what is there already counts.
    assert len(ask(PromptGrid(SlowGrid(lost=1)), 0.0)) == 1


class HeldGrid(SlowGrid):
    """The replies of some nodes stop in the middle until they are let go."""

    def __init__(self, held: set[int]) -> None:
        super().__init__()
        self._held = held
        self.let_go = threading.Event()
        self.num_held = 0

    def pull_messages(self, message_ids):
        (name,) = message_ids
        if self._names.index(name) in self._held:
            self.num_held += 1
            if not self.let_go.wait(60):
                raise AssertionError
        return super().pull_messages([name])


@pytest.mark.parametrize("held", [{0}, {0, 1, 3}, {0, 1, 2, 3}])
def test_a_reply_that_stops_in_the_middle_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, held: set[int]
) -> None:
    monkeypatch.setattr(prompt_grid, "HOLD_SECONDS", 0.01)
    slow = HeldGrid(held)
    begin = time.monotonic()
    try:
        replies = ask(PromptGrid(slow), 1.0)
        assert time.monotonic() - begin < 30
    finally:
        slow.let_go.set()
    assert len(replies) == 4 - len(held)
    assert slow.num_held == len(held)  # one look each: it is not begun again


def test_it_counts_when_its_rest_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_grid, "HOLD_SECONDS", 0.01)
    slow = HeldGrid({0, 2})
    threading.Timer(0.3, slow.let_go.set).start()
    assert len(ask(PromptGrid(slow), 60.0)) == 4


class TimedGrid(GridRelay):
    """Each look takes a while; the replies of all but the first come after another while."""

    def __init__(self, number: int, num_held: int, seconds: float, after: float) -> None:
        super().__init__(InProcessGrid(client_app, number, {}))
        self._num_held, self._seconds, self._after = num_held, seconds, after
        self._lock, self.let_go = threading.Lock(), threading.Event()

    def push_messages(self, messages):
        self._begin = time.monotonic()
        self._names = list(super().push_messages(messages))
        return self._names

    def pull_messages(self, message_ids):
        (name,) = message_ids
        if self._names.index(name) < self._num_held:
            self.let_go.wait(60)
            return []
        with self._lock:  # one look after another, as on one core
            time.sleep(self._seconds)
            if time.monotonic() - self._begin < self._after:
                return []
            return super().pull_messages([name])


@pytest.mark.parametrize("num_held", [0, 20])
def test_what_is_there_at_the_end_counts_however_long_the_looks_take(
    monkeypatch: pytest.MonkeyPatch, num_held: int
) -> None:
    """A pass of looks takes half of the time, and the replies come in the middle of one."""
    monkeypatch.setattr(prompt_grid, "HOLD_SECONDS", 0.2)
    slow = TimedGrid(40 + num_held, num_held, 0.01, 0.6)
    try:
        assert len(ask(PromptGrid(slow), 0.8)) == 40
    finally:
        slow.let_go.set()


NODES = list(SlowGrid().get_node_ids())
LIES: dict[str, dict[str, Any]] = {
    "another node": {"_src_node_id": NODES[0]},
    "another request": {"_reply_to_message_id": "1"},
    "another round": {"_group_id": "6"},
}


class Hostile(SlowGrid):
    """The second node's reply is another one, or cannot be read."""

    def __init__(self, change) -> None:
        super().__init__()
        self._change = change

    def read(self, replies):
        return [
            self._change(each) if each.metadata.src_node_id == NODES[1] else each
            for each in replies
        ]


def check_hostile(change, code: int = UNREADABLE) -> None:
    replies = ask(PromptGrid(Hostile(change)), 60.0)
    assert [reply.metadata.src_node_id for reply in replies] == NODES
    assert [reply.has_error() for reply in replies] == [False, True, False, False]
    assert replies[1].error.code == code
    assert replies[1].metadata.group_id == "7"
    # The text is the client's own.
    assert replies[1].error.reason is None


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_reply_that_passes_for_another_is_an_error_of_whoever_was_asked(lie: Any) -> None:
    def change(reply: Message) -> Message:
        return build_message({**describe_metadata(reply), **lie}, reply.content)

    check_hostile(change)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_so_is_an_error(lie: Any) -> None:
    def change(reply: Message) -> Message:
        return build_message({**describe_metadata(reply), **lie}, Error(1002, "secret"))

    check_hostile(change, 1002)


@pytest.mark.parametrize(
    "error",
    [
        *(ValueError, TypeError, KeyError, AttributeError, RecursionError, UnicodeError),
        *(UnexpectedObjectContentError, DecodeError, IndexError),
    ],
)
def test_one_reply_that_cannot_be_read_takes_no_other_with_it(error: type[Exception]) -> None:
    def change(reply: Message) -> Message:
        raise error("object", "why")

    check_hostile(change)


@pytest.mark.parametrize("error", [ConnectionError, RuntimeError, KeyboardInterrupt, RunError])
def test_a_broken_connection_is_not_a_device_s_fault(error: type[BaseException]) -> None:
    def change(reply: Message) -> Message:
        raise error("broken")

    with pytest.raises(error):
        ask(PromptGrid(Hostile(change)), 60.0)


@pytest.mark.parametrize("content", ["records", "a record", "data"])
def test_content_of_other_types_is_not_read(content: str) -> None:
    """Flower checks types where records are made, not where they are read."""

    def change(reply: Message) -> Message:
        array = Array("uint8", (1,), "x", b"1")
        if content == "records":
            found: Any = ConfigRecord()
        elif content == "a record":
            found = RecordDict()
            found.__dict__["_data"]["config"] = array
        else:
            found = RecordDict({"arrays": ArrayRecord({"update": array})})
            found["arrays"]["update"].data = None  # type: ignore[index,union-attr,assignment]
        built = build_message(describe_metadata(reply), RecordDict())
        built.__dict__["_content"] = found
        return built

    check_hostile(change)
