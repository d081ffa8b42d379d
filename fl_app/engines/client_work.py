"""Whose log line it is: the server's, or that of a client that works in the same process."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

# Where to look, said where it is not known whether a run is secret.
LOGS = "run.log (of a secret run checkpoint/clients.log)"
# What a record carries that a worker process has sent.
FROM_CLIENT = "from_client"


class _Work:
    # Of the process, not of the thread: a client may start threads of its own.
    num_clients: ClassVar[int] = 0


@contextmanager
def client_at_work() -> Iterator[None]:
    """Let what is logged in this process, while the context is open, be a client's."""
    _Work.num_clients += 1
    try:
        yield
    finally:
        _Work.num_clients -= 1


def is_from_client(record: logging.LogRecord) -> bool:
    """Return whether a simulated client has logged it, in this process or in a worker."""
    return _Work.num_clients > 0 or bool(getattr(record, FROM_CLIENT, False))
