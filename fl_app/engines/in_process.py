"""The in-process engine: a Flower grid whose nodes run in this process, one after the other.

The ServerApp, the strategy and the ClientApp are the same that Flower runs; messages are copied
between nodes as a network would copy them, and the order is always the order of sending.
"""

import logging
import time
from collections.abc import Iterable, Mapping

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fl_app.device_policy import SIMULATED_KEY
from fl_app.engines.flower_internals import Run, copy_records, deliver, identify_process

RUN_ID = 1
FIRST_NODE_ID = 1_000_000
# Flower's error codes.
CLIENT_APP_RAISED, NODE_UNAVAILABLE = 2, 5

_log = logging.getLogger(__name__)


class InProcessGrid(Grid):
    """A grid of `num_clients` nodes in this process.

    Parameters
    ----------
    client_app : ClientApp
        What each node runs.
    num_clients : int
        Nodes, >= 1; node i has ``partition-id`` i. Nothing is kept for a node that has no state.
    run_config : mapping
        The run's configuration, as Flower would give it to the apps.

    Raises
    ------
    ValueError
        If `num_clients` is not allowed.
    RunError
        If the installed Flower is not one that this engine was written for.
    """

    def __init__(
        self, client_app: ClientApp, num_clients: int, run_config: Mapping[str, str | int | float]
    ) -> None:
        if isinstance(num_clients, bool) or not isinstance(num_clients, int) or num_clients < 1:
            raise ValueError(f"num_clients: {num_clients!r}; allowed: an integer >= 1")
        identify_process(RUN_ID)
        self._client_app = client_app
        self._num_clients = num_clients
        self._run_config = dict(run_config)
        self._states: dict[int, RecordDict] = {}
        self._replies: dict[str, Message] = {}
        self._run = Run.create_empty(RUN_ID)

    @property
    def partition_ids(self) -> dict[int, int]:
        """Node id to partition number; on other engines the nodes are asked for it."""
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
        identifiers = []
        for message in messages:
            delivered = deliver(message)
            identifiers.append(delivered.metadata.message_id)
            self._replies[identifiers[-1]] = self._answer(delivered)
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
        begin = time.monotonic()
        requests, replies = list(messages), []
        for number, message in enumerate(requests):
            reply = self._answer(deliver(message))
            if timeout is not None and time.monotonic() - begin >= timeout:
                _log.warning(
                    "round time-out of %g s: %d of %d clients did not answer in time",
                    timeout,
                    len(requests) - number,
                    len(requests),
                )
                break
            replies.append(reply)
        return replies

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        partition = node - FIRST_NODE_ID
        if not 0 <= partition < self._num_clients:
            return deliver(Message(Error(NODE_UNAVAILABLE, "no such node"), reply_to=message))
        context = Context(
            run_id=RUN_ID,
            node_id=node,
            node_config={
                "partition-id": partition,
                "num-partitions": self._num_clients,
                SIMULATED_KEY: True,
            },
            state=copy_records(self._states.get(node) or RecordDict()),
            run_config=dict(self._run_config),
        )
        try:
            reply = deliver(self._client_app(message, context))
        except (Exception, SystemExit):
            # The text may hold data, so it stays in the client's log. As on Flower's own engines,
            # the node's state is what it was before the message.
            _log.exception("client app of partition %d raised", partition)
            return deliver(Message(Error(CLIENT_APP_RAISED, "client app raised"), reply_to=message))
        if context.state:
            self._states[node] = context.state
        else:
            self._states.pop(node, None)
        return reply


def run_in_process(
    server_app: ServerApp,
    client_app: ClientApp,
    num_clients: int,
    run_config: Mapping[str, str | int | float] | None = None,
) -> None:
    """Run a ServerApp against `num_clients` nodes of a ClientApp in this process."""
    config: UserConfig = dict(run_config or {})
    grid = InProcessGrid(client_app, num_clients, config)
    context = Context(
        run_id=RUN_ID, node_id=0, node_config={}, state=RecordDict(), run_config=config
    )
    server_app(grid, context)
