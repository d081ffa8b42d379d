"""A grid of devices that notices replies at once; Flower's own looks for them every 3 seconds."""

import time
from collections.abc import Iterable

from flwr.app import Message

from fl_app.engines.relay import GridRelay

POLL_SECONDS = 0.1


class PromptGrid(GridRelay):
    """A grid that looks for replies every tenth of a second."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for their replies, at most `timeout` seconds."""
        begin = time.monotonic()
        # None stands for a message that was not accepted.
        waiting = {name for name in self.push_messages(list(messages)) if name}
        replies: list[Message] = []
        while waiting:
            arrived = list(self.pull_messages(waiting))
            replies += arrived
            waiting -= {each.metadata.reply_to_message_id for each in arrived}
            if timeout is not None and time.monotonic() - begin >= timeout:
                break
            if waiting:
                time.sleep(POLL_SECONDS)
        return replies
