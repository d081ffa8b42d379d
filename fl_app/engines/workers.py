"""The end of a run whose workers have died, which Flower's simulation would carry on without."""

from collections.abc import Iterable

from flwr.app import Message

from fl_app.engines.client_work import LOGS
from fl_app.engines.relay import GridRelay
from fl_app.errors import RunError

# Flower's error code for whatever is not the client's own failure.
UNKNOWN = 0


class WorkerWatch(GridRelay):
    """A simulation's grid that fails once a worker process has died.

    A worker that has been killed, for want of memory for example, is not replaced: the messages
    that it would have handled fail from then on, in this round and in all that follow.
    """

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come; RunError if a worker has died."""
        return _check(self._grid.pull_messages(message_ids))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for their replies; RunError if a worker has died."""
        return _check(self._grid.send_and_receive(messages, timeout=timeout))


def _check(replies: Iterable[Message]) -> list[Message]:
    received = list(replies)
    if any(reply.has_error() and reply.error.code == UNKNOWN for reply in received):
        raise RunError(
            "a worker of Flower's simulation has died, and replies with it, often for want of "
            f"memory: try a smaller engine.workers; see {LOGS}"
        )
    return received
