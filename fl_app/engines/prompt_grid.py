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

Look = Future[Message | None]
POLL_SECONDS = 0.1
# So many replies are looked for at once.
BATCH = 16
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
        held: dict[str, Look] = {}
        # A thread more for each look that is held up.
        threads = ThreadPoolExecutor(max(1, len(waiting)), thread_name_prefix="fl-app-look")
        try:
            while waiting:
                # What is there at the end counts, however long the look before took.
                is_last = time.monotonic() >= end
                busy = 0.0
                new = [name for name in waiting if name not in held]
                for start in range(0, len(new), BATCH):
                    since = time.monotonic()
                    begun = {
                        name: threads.submit(self._look_for, name, waiting[name])
                        for name in new[start : start + BATCH]
                    }
                    held |= begun
                    if not wait(begun.values(), timeout=HOLD_SECONDS).not_done:
                        busy += time.monotonic() - since
                for name in [name for name, look in held.items() if look.done()]:
                    if (reply := held.pop(name).result()) is not None:
                        replies.append(reply)
                        del waiting[name]
                if is_last:
                    break
                if waiting:
                    # However many there are, half of the time is the others'.
                    left = end - time.monotonic()
                    time.sleep(max(0.0, min(max(POLL_SECONDS, busy), left)))
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
