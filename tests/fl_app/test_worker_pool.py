"""Worker processes answer as one process would, and their end is said and leaves nothing."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fl_app.engines import worker_pool
from fl_app.engines.channel import Channel
from fl_app.engines.client_node import (
    CLIENT_APP_RAISED,
    FIRST_NODE_ID,
    NODE_UNAVAILABLE,
    RUN_ID,
)
from fl_app.engines.client_work import LOGS
from fl_app.engines.flower_internals import deliver, identify_process
from fl_app.engines.in_process import InProcessGrid
from fl_app.engines.stored_reply import Blobs, store_records
from fl_app.engines.worker_pool import WorkerPool, start_workers
from fl_app.errors import RunError
from tests.conftest import REPOSITORY
from tests.fl_app.pool_apps import counting

CONFIG: dict[str, str | int | float] = {"key": "value"}
COUNTING, OBEDIENT = "tests.fl_app.pool_apps:counting", "tests.fl_app.pool_apps:obedient"


@pytest.fixture(autouse=True)
def _identity() -> None:
    identify_process(RUN_ID)


@pytest.fixture(scope="module")
def two() -> Iterator[WorkerPool]:
    """Two workers that do as they are told; tests that end one start their own."""
    with WorkerPool(2, OBEDIENT, 8, CONFIG) as pool:
        yield pool


def ask(node: int, **asked: Any) -> Message:
    content = RecordDict({"config": ConfigRecord(asked)})
    return deliver(Message(content, FIRST_NODE_ID + node, "train", group_id="1"))


def read(replies: list[Message | None], key: str) -> list[Any]:
    return [None if reply is None else reply.content["config"][key] for reply in replies]


def exchange(grid: InProcessGrid, nodes: list[int]) -> list[Any]:
    """Return all of the replies that does not differ between processes."""
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.linspace(0, 1, 7))})})
    found = []
    for reply in grid.send_and_receive(
        Message(content, FIRST_NODE_ID + node, "train", group_id="1") for node in nodes
    ):
        data = reply.metadata
        shown = (data.src_node_id, data.dst_node_id, data.group_id, data.message_type, data.run_id)
        if reply.has_error():
            found.append((*shown, reply.error.code, reply.error.reason))
            continue
        blobs = Blobs()
        found.append((*shown, store_records(reply.content, blobs), dict(blobs)))
    return found


@pytest.mark.parametrize("workers", [2, 3])
def test_a_pool_answers_as_one_process_does(workers: int) -> None:
    with WorkerPool(workers, COUNTING, 6, CONFIG) as pool:
        alone, pooled = (InProcessGrid(counting, 6, CONFIG, each) for each in (None, pool))
        # Fewer, others, all, nobody, one twice, and one that there is not.
        for nodes in ([0, 1, 2, 3, 4, 5], [4, 3, 1], [5, 4, 3, 2, 1, 0], [], [2, 2, 2, 1], [0, 9]):
            expected = exchange(alone, nodes)
            assert exchange(pooled, nodes) == expected
            assert len(expected) == len(nodes)
        # Each worker counts for itself; the numbers that the server sees are this process's.
        asked = [Message(RecordDict(), FIRST_NODE_ID + n, "train", group_id="1") for n in (6, 7)]
        for reply in pooled.send_and_receive(asked):
            assert int(reply.metadata.message_id) > int(reply.metadata.reply_to_message_id)
        codes = [reply[5] for reply in exchange(pooled, [3, 9])[1:]]
        assert codes == [NODE_UNAVAILABLE]
        kept = [
            {node: store_records(state, Blobs()) for node, state in grid._states.items()}
            for grid in (alone, pooled)
        ]
        assert kept[0] == kept[1]
        assert len(kept[0]) == 6


def test_an_error_of_a_client_is_one_and_its_text_stays() -> None:
    with WorkerPool(2, COUNTING, 4, CONFIG) as pool:
        grid = InProcessGrid(counting, 4, CONFIG, pool)
        exchange(grid, [3])
        ((*_, code, reason),) = exchange(grid, [3])
        assert (code, reason) == (CLIENT_APP_RAISED, "client app raised")
        # The state is what it was.
        assert grid._states[FIRST_NODE_ID + 3]["calls"]["count"] == 1
        identifiers = list(
            grid.push_messages(
                Message(RecordDict(), FIRST_NODE_ID + n, "train", group_id="1") for n in (9, 8)
            )
        )
        replies = list(grid.pull_messages(identifiers))
        assert [reply.metadata.reply_to_message_id for reply in replies] == identifiers
        assert len({reply.metadata.message_id for reply in replies}) == 2


def test_all_workers_work_and_a_client_comes_back_to_its_own(two: WorkerPool) -> None:
    states: dict[int, RecordDict] = {}
    first = read(two.answer([ask(node) for node in range(8)], states), "process")
    assert len(set(first)) == 2
    assert os.getpid() not in first


def test_the_requests_to_one_node_are_answered_one_after_the_other(two: WorkerPool) -> None:
    states: dict[int, RecordDict] = {}
    assert read(two.answer([ask(3) for _ in range(9)], states), "calls") == list(range(1, 10))


def test_who_is_late_is_left_out_and_not_asked_twice_at_once(
    two: WorkerPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The time is over as soon as node 2 has answered; node 0 is still at its work then."""
    states: dict[int, RecordDict] = {}
    monkeypatch.setattr(
        worker_pool.time, "monotonic", lambda: 1e6 if FIRST_NODE_ID + 2 in states else 0.0
    )
    file = tmp_path / "go on"
    asked = [ask(0, wait=str(file)), ask(1), ask(2), ask(3)]
    replies = two.answer(asked, states, timeout=1e3)
    assert [reply is not None for reply in replies] == [False, True, False, True]
    assert set(states) == {FIRST_NODE_ID + node for node in (1, 2, 3)}
    monkeypatch.undo()
    # Others are answered meanwhile; node 0 must wait until its first answer, which is in vain.
    assert read(two.answer([ask(2), ask(3)], states), "calls") == [2, 2]
    file.touch()
    again = two.answer([ask(0), ask(1)], states)
    assert read(again, "calls") == [2, 2]


@pytest.mark.parametrize(("how", "words"), [("die", "signal SIGKILL"), ("exit", "exit code 7")])
def test_a_worker_that_ends_is_named(
    how: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "fl_app"),
        WorkerPool(2, OBEDIENT, 4, CONFIG) as pool,
        pytest.raises(RunError) as caught,
    ):
        pool.answer([ask(0), ask(1), ask(2, **{how: True}), ask(3)], {})
    assert str(caught.value) == (
        f"a worker process has died ({words}), often for want of memory: try a smaller "
        f"engine.workers; see {LOGS}"
    )
    # Apart, for a secret run's folder does not tell who was asked.
    assert [record.getMessage() for record in caplog.records] == ["client 2 was at work"]


def test_an_app_that_cannot_be_imported_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with WorkerPool(1, "no_such_module:app", 4, CONFIG) as pool, pytest.raises(RunError) as caught:
        pool.answer([ask(0)], {})
    assert str(caught.value) == f"a worker process did not start (exit code 1); see {LOGS}"
    assert "a worker could not import no_such_module:app" in caplog.text


def test_what_a_worker_logs_is_logged_here(
    two: WorkerPool, caplog: pytest.LogCaptureFixture
) -> None:
    two.answer([ask(5, log=True)], {})
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("fl_app.pool_apps", logging.ERROR)
    assert record.getMessage() == "said by 5"
    assert record.exc_text is not None
    assert record.exc_text.endswith("ValueError: my secret")


def test_no_more_workers_than_clients_and_none_for_one() -> None:
    with start_workers(1, OBEDIENT, 5, CONFIG) as pool:
        assert pool is None
    with start_workers(4, OBEDIENT, 1, CONFIG) as pool:
        assert pool is None
    with start_workers(4, OBEDIENT, 2, CONFIG) as pool:
        assert pool is not None
        assert len(pool._workers) == 2
        running = [each.process for each in pool._workers]
    assert all(process.poll() == -signal.SIGKILL for process in running)


LAUNCHER = """
import sys
from fl_app.engines.worker_pool import WorkerPool
from fl_app.engines.flower_internals import identify_process
from tests.fl_app.test_worker_pool import CONFIG, OBEDIENT, ask
identify_process(1)
with WorkerPool(2, OBEDIENT, 2, CONFIG) as pool:
    pool.answer([ask(0, wait=sys.argv[1]), ask(1, wait=sys.argv[1])], {})
"""


def test_workers_end_with_their_launcher_in_the_middle_of_their_work(tmp_path: Path) -> None:
    file = tmp_path / "never"
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(file)], cwd=REPOSITORY)

    def wait_until(condition: Any) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    workers = [int(each.suffix[1:]) for each in tmp_path.iterdir()]
    launcher.kill()
    launcher.wait()
    wait_until(lambda: not any(is_running(number) for number in workers))


def is_running(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.lists(st.binary(max_size=200), max_size=4))
def test_a_frame_comes_as_it_was_sent(values: dict[str, Any], data: list[bytes]) -> None:
    ends = [Channel(each) for each in socket.socketpair()]
    blobs = Blobs()
    for each in data:
        blobs.add(each)
    try:
        for _ in range(2):
            ends[0].send(values, blobs)
        for _ in range(2):
            assert ends[1].receive() == (values, blobs)
        ends[0].close()
        with pytest.raises(EOFError):
            ends[1].receive()
    finally:
        ends[1].close()


def test_a_frame_that_breaks_off_is_an_end() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        head = json.dumps([{}, []]).encode()
        theirs.sendall(len(head).to_bytes(8, "little") + head[:-1])
        theirs.close()
        with pytest.raises(EOFError):
            Channel(ours).receive()
