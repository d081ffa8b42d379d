"""A grid of devices: replies are noticed at once, and none can end the run or pass for another's.

Flower's own looks for replies every 3 seconds, all in one: one that cannot be read takes the others
with it. It also believes what a reply says of itself: whose it is, and what it answers.
"""

import time
from collections.abc import Iterable

from flwr.app import Message

from fl_app.engines.flower_internals import UNREADABLE_ERRORS, attribute
from fl_app.engines.relay import GridRelay
from strategies.dp_fedpaq.messages import UNREADABLE

POLL_SECONDS = 0.1


class PromptGrid(GridRelay):
    """A grid that looks for each reply every tenth of a second.

    A reply that cannot be read, or says that it is another node's or answers another request, is
    an error of the node that was asked.
    """

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for their replies, at most `timeout` seconds."""
        begin = time.monotonic()
        requests = list(messages)
        # None stands for a message that was not accepted.
        names = zip(self.push_messages(requests), requests, strict=False)
        waiting = {name: request for name, request in names if name}
        replies: list[Message] = []
        while waiting:
            look = time.monotonic()
            for name, request in list(waiting.items()):
                if (reply := self._look_for(name, request)) is not None:
                    replies.append(reply)
                    del waiting[name]
            if timeout is not None and time.monotonic() - begin >= timeout:
                break
            if waiting:
                # However many there are, half of the time is the others'.
                time.sleep(max(POLL_SECONDS, time.monotonic() - look))
        return replies

    def _look_for(self, name: str, request: Message) -> Message | None:
        """Return the reply to a request; None if there is none yet."""
        try:
            arrived = list(self.pull_messages([name]))
        except UNREADABLE_ERRORS:
            # Counted as an error of that node's; not told here, where a cohort may be secret.
            return attribute(None, request, name, UNREADABLE)
        return attribute(arrived[0], request, name, UNREADABLE) if arrived else None
