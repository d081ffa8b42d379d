"""Ctrl-C in a run: the first one asks it to stop after the round, the second one ends it."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)


@contextmanager
def stop_on_signals(
    is_asked: Callable[[], bool], ask: Callable[[], object], *numbers: signal.Signals
) -> Iterator[None]:
    """Handle signals while a run is going on; in threads other than the main one do nothing.

    Parameters
    ----------
    is_asked : callable
        Whether the run was asked to stop: another signal raises KeyboardInterrupt then.
    ask : callable
        Asks it to stop after the round.
    numbers : signal.Signals
        The signals; what handled them before does so again afterwards.
    """

    def handle(number: int, frame: object) -> None:
        if is_asked():
            raise KeyboardInterrupt
        _log.warning("stopping after this round (Ctrl-C again stops at once)")
        ask()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: whatever handled it was not set from Python and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
