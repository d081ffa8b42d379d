"""A grid of devices: replies are noticed at once, and none can end the run or pass for another's.

Flower's own looks for replies every 3 seconds, all in one: one that cannot be read takes the others
with it. It also believes what a reply says of itself: whose it is, and what it answers.
"""

import math
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from flwr.app import Message

from fl_app.engines.flower_internals import UNREADABLE_ERRORS, attribute
from fl_app.engines.relay import GridRelay
from fl_app.warm_worker import shorten_pulls
from strategies.dp_fedpaq.messages import UNREADABLE

POLL_SECONDS = 0.1
# After which a look at a reply goes on beside the others: the rest of the reply is to come.
HOLD_SECONDS = 0.25


class PromptGrid(GridRelay):
    """A grid that looks for each reply every tenth of a second.

    A reply that cannot be read, or says that it is another node's or answers another request, is
    an error of the node that was asked. One whose sender stops in the middle holds up nobody: not
    the others' replies, and not the end of the time.
    """

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for their replies, at most `timeout` seconds."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        shorten_pulls()
        requests = list(messages)
        # None stands for a message that was not accepted.
        names = zip(self.push_messages(requests), requests, strict=False)
        waiting = {name: request for name, request in names if name}
        replies: list[Message] = []
        held: dict[str, Future[Message | None]] = {}
        # A thread more for each look that is held up; the others' are done one after another.
        threads = ThreadPoolExecutor(max(1, len(waiting)), thread_name_prefix="fl-app-look")
        try:
            # However little time there is, what is there already counts.
            is_first = True
            while waiting and (is_first or time.monotonic() < end):
                look = time.monotonic()
                for name, request in list(waiting.items()):
                    if not is_first and time.monotonic() >= end:
                        break
                    found = held.get(name) or threads.submit(self._look_for, name, request)
                    wait([found], timeout=0.0 if name in held else HOLD_SECONDS)
                    if not found.done():
                        held[name] = found
                        continue
                    held.pop(name, None)
                    if (reply := found.result()) is not None:
                        replies.append(reply)
                        del waiting[name]
                is_first = False
                if waiting:
                    now = time.monotonic()
                    # However many there are, half of the time is the others'.
                    time.sleep(max(0.0, min(max(POLL_SECONDS, now - look), end - now)))
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
        return replies

    def _look_for(self, name: str, request: Message) -> Message | None:
        """Return the reply to a request; None if there is none yet."""
        try:
            arrived = list(self.pull_messages([name]))
        except UNREADABLE_ERRORS:
            # Counted as an error of that node's; not told here, where a cohort may be secret.
            return attribute(None, request, name, UNREADABLE)
        return attribute(arrived[0], request, name, UNREADABLE) if arrived else None
