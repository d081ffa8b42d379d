"""A worker of the in-process engine: a process that runs one client after the other.

It is a new process and no fork, for torch and BLAS have threads. It ends when its launcher does,
however that ends, and in the middle of whatever it does.
"""

import logging
import os
import queue
import socket
import threading
from importlib import import_module
from typing import Any

from flwr.clientapp import ClientApp

from fl_app.engines.carried_message import pack_message, unpack_message
from fl_app.engines.channel import Channel
from fl_app.engines.client_node import RUN_ID, ClientNodes
from fl_app.engines.client_work import FROM_CLIENT, is_from_client
from fl_app.engines.flower_internals import identify_process
from fl_app.engines.stored_reply import Blobs

_OURS = ("fl_app", "strategies")
_log = logging.getLogger(__name__)
_Frames = queue.SimpleQueue[tuple[dict[str, Any], Blobs]]


class _LogSender(logging.Handler):
    """Sends what is logged to the launcher, which writes the run's log."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        trace = record.exc_info and logging.Formatter().formatException(record.exc_info)
        self._channel.send(
            {
                "log": {
                    "name": record.name,
                    "levelno": record.levelno,
                    "levelname": record.levelname,
                    "msg": record.getMessage(),
                    "created": record.created,
                    "exc_text": trace or None,
                    FROM_CLIENT: is_from_client(record),
                }
            }
        )


def main(descriptor: int) -> None:
    """Answer the launcher's requests until it is gone.

    Parameters
    ----------
    descriptor : int
        The inherited socket.
    """
    channel = Channel(socket.socket(fileno=descriptor))
    logging.getLogger().addHandler(_LogSender(channel))
    for name in _OURS:
        logging.getLogger(name).setLevel(logging.INFO)
    frames: _Frames = queue.SimpleQueue()
    threading.Thread(target=_follow, args=(channel, frames), daemon=True).start()
    setup, _ = frames.get()
    nodes = ClientNodes(_load_app(setup["app"]), setup["num_clients"], setup["run_config"])
    identify_process(RUN_ID)
    channel.send({"ready": True})
    while True:
        message, state = unpack_message(*frames.get())
        channel.send(*pack_message(*nodes.answer(message, state)))


def _follow(channel: Channel, frames: _Frames) -> None:
    """Read what the launcher sends; end this process at once when it is gone."""
    try:
        while True:
            frames.put(channel.receive())
    finally:
        os._exit(1)


def _load_app(path: str) -> ClientApp:
    module, _, name = path.partition(":")
    try:
        app: ClientApp = getattr(import_module(module), name)
    except Exception:
        _log.exception("a worker could not import %s", path)
        raise
    return app
