"""A node that runs in a process of this machine: a message and its state in, a reply out."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_app.engines import SIMULATED_KEY
from fl_app.engines.client_work import client_at_work
from fl_app.engines.flower_internals import copy_records, deliver

RUN_ID = 1
FIRST_NODE_ID = 1_000_000
# Flower's error codes.
CLIENT_APP_RAISED, NODE_UNAVAILABLE = 2, 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClientNodes:
    """The nodes of a run: node i has the id FIRST_NODE_ID + i.

    Attributes
    ----------
    client_app : ClientApp
        What each node runs.
    num_clients : int
    run_config : mapping
        The run's configuration, as Flower would give it to the apps.
    first_partition : int
        ``partition-id`` of node 0; those of the others follow.
    num_partitions : int or None
        How many partitions there are in all; None: as many as nodes.
    """

    client_app: ClientApp
    num_clients: int
    run_config: Mapping[str, str | int | float]
    first_partition: int = 0
    num_partitions: int | None = None

    def answer(
        self, message: Message, state: RecordDict | None
    ) -> tuple[Message, RecordDict | None]:
        """Run the node that a message is for.

        Parameters
        ----------
        message : Message
            As delivered.
        state : RecordDict or None
            What the node has kept so far.

        Returns
        -------
        tuple of Message and RecordDict or None
            The reply as delivered, and what the node keeps. If the app raises: an error without
            its text, and the state as it was.
        """
        node = message.metadata.dst_node_id
        number = node - FIRST_NODE_ID
        if not 0 <= number < self.num_clients:
            return _refuse(message, NODE_UNAVAILABLE, "no such node"), state
        context = Context(
            run_id=RUN_ID,
            node_id=node,
            node_config={
                "partition-id": self.first_partition + number,
                "num-partitions": self.num_partitions or self.num_clients,
                # What makes it a simulated one: no message from a server can.
                SIMULATED_KEY: True,
            },
            state=copy_records(state or RecordDict()),
            run_config=dict(self.run_config),
        )
        try:
            with client_at_work():
                reply = deliver(self.client_app(message, context))
        except (Exception, SystemExit):
            # The text may hold data, so it stays in the client's log. As on Flower's own engines,
            # the node's state is what it was before the message.
            with client_at_work():
                _log.exception("client app of client %d raised", number)
            return _refuse(message, CLIENT_APP_RAISED, "client app raised"), state
        return reply, context.state or None


def _refuse(message: Message, code: int, reason: str) -> Message:
    return deliver(Message(Error(code, reason), reply_to=message))
