"""Processes among which a round's clients are divided, for the in-process engine.

Which process a client is run by changes nothing of what it answers: its state travels with the
message, or lies in the run's folder, and replies are put in the order of the requests.
"""

import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, NoReturn

from flwr.app import Message, RecordDict

from fl_app.engines.carried_message import pack_message, unpack_message
from fl_app.engines.channel import Channel
from fl_app.engines.client_node import FIRST_NODE_ID
from fl_app.engines.client_work import LOGS, client_at_work
from fl_app.errors import RunError

# The same modules can be imported as in this process, wherever they come from.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fl_app.engines.worker_process import main; main(int(sys.argv[2]))"
)
_THREADS = "OMP_NUM_THREADS"
_log = logging.getLogger(__name__)


class _Task(NamedTuple):
    """A request that a worker has: of which batch, its place in it, and its node."""

    batch: int
    place: int
    node: int


class _Worker:
    """One process, and what it is at."""

    def __init__(self, setup: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Each computes on one core, as in Flower's simulation.
                env={_THREADS: "1", **os.environ},
                # A terminal's Ctrl-C is the launcher's business.
                start_new_session=True,
            )
        self.channel = Channel(ours)
        self.task: _Task | None = None
        self.is_ready = False
        try:
            self.channel.send(setup)
        except OSError:
            self.fail()

    def fail(self) -> NoReturn:
        """Raise RunError: the process has ended."""
        code = self.process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if not self.is_ready:
            raise RunError(f"a worker process did not start ({how}); see {LOGS}")
        if self.task is not None:
            # Who was asked may be secret.
            with client_at_work():
                _log.info("client %d was at work", self.task.node - FIRST_NODE_ID)
        raise RunError(
            f"a worker process has died ({how}), often for want of memory: try a smaller "
            f"engine.workers; see {LOGS}"
        )

    def begin(self, task: _Task, request: Message, state: RecordDict | None) -> None:
        """Hand a request over."""
        self.task = task
        try:
            self.channel.send(*pack_message(request, state))
        except OSError:
            self.fail()

    def read(self) -> tuple[_Task, Message, RecordDict | None] | None:
        """Read what the process says; return its answer, if it is one."""
        try:
            values, blobs = self.channel.receive()
        except EOFError:
            self.fail()
        if "log" in values:
            _log_again(values["log"])
        elif "ready" in values:
            self.is_ready = True
        else:
            task, self.task = self.task, None
            assert task is not None
            return task, *unpack_message(values, blobs)
        return None

    def close(self) -> None:
        """End the process, whatever it is at."""
        self.process.kill()
        self.process.wait()
        self.channel.close()


class WorkerPool:
    """A number of worker processes; a context manager that ends them.

    Parameters
    ----------
    num_workers : int
        Processes, >= 1.
    client_app : str
        Import path ``package.module:name`` of what each node runs.
    num_clients : int
        Nodes of the run.
    run_config : mapping
        The run's configuration, as Flower would give it to the apps.
    """

    def __init__(
        self,
        num_workers: int,
        client_app: str,
        num_clients: int,
        run_config: Mapping[str, str | int | float],
    ) -> None:
        setup = {"app": client_app, "num_clients": num_clients, "run_config": dict(run_config)}
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._batch = 0
        try:
            for _ in range(num_workers):
                worker = _Worker(setup)
                self._workers.append(worker)
                self._selector.register(worker.channel, selectors.EVENT_READ, worker)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, whatever they are at."""
        for worker in self._workers:
            worker.close()
        self._selector.close()

    def answer(
        self,
        requests: Sequence[Message],
        states: MutableMapping[int, RecordDict],
        timeout: float | None = None,
    ) -> list[Message | None]:
        """Run each request's node.

        A node is at one request at a time, in their order. After `timeout` seconds nothing more is
        begun; what a worker is at then it finishes in vain, before anything new.

        Parameters
        ----------
        requests : sequence of Message
            As delivered.
        states : mutable mapping of int to RecordDict
            What each node keeps, by node id; changed.
        timeout : float or None
            Seconds.

        Returns
        -------
        list of Message or None
            The replies in the order of the requests; None: not in time.

        Raises
        ------
        RunError
            If a worker has died.
        """
        # Their start is not a client's time.
        while not all(worker.is_ready for worker in self._workers):
            self._collect(states, None)
        self._batch += 1
        replies: dict[int, Message] = {}
        waiting = dict(enumerate(requests))
        deadline = None if timeout is None else time.monotonic() + timeout
        while len(replies) < len(requests):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0.0:
                break
            self._hand_out(waiting, states)
            found = self._collect(states, left)
            if deadline is None or time.monotonic() < deadline:
                replies.update(found)
        return [replies.get(index) for index in range(len(requests))]

    def _hand_out(
        self, waiting: dict[int, Message], states: MutableMapping[int, RecordDict]
    ) -> None:
        """Give a request to each worker that is at none."""
        for number, worker in enumerate(self._workers):
            index = None if worker.task else self._choose(waiting, number)
            if index is not None:
                request = waiting.pop(index)
                node = request.metadata.dst_node_id
                worker.begin(_Task(self._batch, index, node), request, states.get(node))

    def _choose(self, waiting: dict[int, Message], number: int) -> int | None:
        """Return the place of a request that a worker may begin, rather one that is always its."""
        taken = {worker.task.node for worker in self._workers if worker.task}
        others = None
        for index, request in waiting.items():
            node = request.metadata.dst_node_id
            if node in taken:
                continue
            # What a process has read or computed for a client, it has then at hand again.
            if index % len(self._workers) == number:
                return index
            others = index if others is None else others
            taken.add(node)  # its later requests come after this one
        return others

    def _collect(
        self, states: MutableMapping[int, RecordDict], seconds: float | None
    ) -> dict[int, Message]:
        """Wait until a worker says something; return the batch's replies, by place."""
        found = {}
        for key, _ in self._selector.select(seconds):
            worker: _Worker = key.data
            answered = worker.read()
            if answered is None:
                continue
            task, reply, state = answered
            if state is None:
                states.pop(task.node, None)
            else:
                states[task.node] = state
            if task.batch == self._batch:
                found[task.place] = reply
        return found


def _log_again(values: dict[str, Any]) -> None:
    """Log in this process what a worker has logged."""
    logger = logging.getLogger(values["name"])
    if logger.isEnabledFor(values["levelno"]):
        logger.handle(logging.makeLogRecord(values))


def start_workers(
    num_workers: int,
    client_app: str,
    num_clients: int,
    run_config: Mapping[str, str | int | float],
) -> AbstractContextManager[WorkerPool | None]:
    """Return a context of a pool, with no more workers than clients; of None for a single one."""
    needed = min(num_workers, num_clients)
    if needed < 2:
        return nullcontext()
    return WorkerPool(needed, client_app, num_clients, run_config)
