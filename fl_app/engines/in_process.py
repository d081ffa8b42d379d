"""The in-process engine: a Flower grid whose nodes run in this process, one after the other.

The ServerApp, the strategy and the ClientApp are the same that Flower runs; messages are copied
between nodes as a network would copy them, and the order is always the order of sending. With a
`WorkerPool` the nodes run in its processes, several at a time.
"""

import logging
import time
from collections.abc import Iterable, Mapping

from flwr.app import Context, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fl_app.engines.client_node import FIRST_NODE_ID, RUN_ID, ClientNodes
from fl_app.engines.flower_internals import Run, deliver, identify_process
from fl_app.engines.worker_pool import WorkerPool

_log = logging.getLogger(__name__)


class InProcessGrid(Grid):
    """A grid of `num_clients` nodes in this process.

    Parameters
    ----------
    client_app : ClientApp
        What each node runs.
    num_clients : int
        Nodes, >= 1; node i is client i. Nothing is kept for a node that has no state.
    run_config : mapping
        The run's configuration, as Flower would give it to the apps.
    pool : WorkerPool or None
        The processes that the nodes run in, of the same app, number and configuration; None: this
        one.
    first_partition, num_partitions : int
        As in `ClientNodes`, without a pool.

    Raises
    ------
    ValueError
        If `num_clients` is not allowed.
    RunError
        If the installed Flower is not one that this engine was written for.
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_clients: int,
        run_config: Mapping[str, str | int | float],
        pool: WorkerPool | None = None,
        *,
        first_partition: int = 0,
        num_partitions: int | None = None,
    ) -> None:
        if isinstance(num_clients, bool) or not isinstance(num_clients, int) or num_clients < 1:
            raise ValueError(f"num_clients: {num_clients!r}; allowed: an integer >= 1")
        identify_process(RUN_ID)
        self._nodes = ClientNodes(
            client_app, num_clients, dict(run_config), first_partition, num_partitions
        )
        self._num_clients = num_clients
        self._pool = pool
        self._states: dict[int, RecordDict] = {}
        self._replies: dict[str, Message] = {}
        self._run = Run.create_empty(RUN_ID)

    @property
    def partition_ids(self) -> dict[int, int]:
        """Node id to client number; on other engines the nodes are asked for it."""
        return {FIRST_NODE_ID + index: index for index in range(self._num_clients)}

    def set_run(self, run: Run) -> None:
        """Set the run that this grid operates in."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that this grid operates in."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message; see `flwr.serverapp.Grid.create_message`."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids, in the order of the partitions."""
        return range(FIRST_NODE_ID, FIRST_NODE_ID + self._num_clients)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run each message's node in turn and keep the reply until it is pulled."""
        requests = [deliver(message) for message in messages]
        identifiers = [request.metadata.message_id for request in requests]
        for identifier, reply in zip(identifiers, self._answer(requests, None), strict=True):
            assert reply is not None
            self._replies[identifier] = reply
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to the messages, once, in the order of sending."""
        wanted = set(message_ids)
        return [self._replies.pop(key) for key in list(self._replies) if key in wanted]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Run each message's node in turn; what is not answered after `timeout` seconds is lost.

        As on a network, a client that takes longer than that has done its work in vain.
        """
        requests = list(messages)
        replies = self._answer([deliver(each) for each in requests], timeout)
        in_time = [reply for reply in replies if reply is not None]
        if len(in_time) < len(requests):
            # Without numbers: how many were asked may be secret.
            _log.warning("round time-out of %g s: not all clients answered in time", timeout)
        return in_time

    def _answer(self, requests: list[Message], timeout: float | None) -> list[Message | None]:
        """Return the replies in the order of the requests; None for those not in time."""
        if self._pool is not None:
            replies = self._pool.answer(requests, self._states, timeout)
            # Numbered by this process.
            return [reply and deliver(reply) for reply in replies]
        begin, found = time.monotonic(), []
        for request in requests:
            node = request.metadata.dst_node_id
            reply, state = self._nodes.answer(request, self._states.get(node))
            if state is None:
                self._states.pop(node, None)
            else:
                self._states[node] = state
            if timeout is not None and time.monotonic() - begin >= timeout:
                break
            found.append(reply)
        return found + [None] * (len(requests) - len(found))


def run_in_process(
    server_app: ServerApp,
    client_app: ClientApp,
    num_clients: int,
    run_config: Mapping[str, str | int | float] | None = None,
    pool: WorkerPool | None = None,
) -> None:
    """Run a ServerApp against `num_clients` nodes of a ClientApp, in this process or in a pool."""
    config: UserConfig = dict(run_config or {})
    grid = InProcessGrid(client_app, num_clients, config, pool)
    context = Context(
        run_id=RUN_ID, node_id=0, node_config={}, state=RecordDict(), run_config=config
    )
    server_app(grid, context)
