"""Frames of JSON values and bytes between two processes of this machine, over a socket."""

import json
import socket
import struct
import threading
from typing import Any

from fl_app.engines.stored_reply import Blobs

_SIZE = struct.Struct("<Q")


class Channel:
    """One end of a connected pair of sockets; several threads may send, one receives.

    Parameters
    ----------
    connection : socket.socket
        Blocking.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """Return the socket's number, for `selectors`."""
        return self._socket.fileno()

    def send(self, values: dict[str, Any], blobs: Blobs | None = None) -> None:
        """Send a frame; OSError if the other end is gone."""
        blobs = Blobs() if blobs is None else blobs
        sizes = [[name, len(data)] for name, data in blobs.items()]
        head = json.dumps([values, sizes]).encode()
        with self._sending:
            self._socket.sendall(b"".join([_SIZE.pack(len(head)), head, *blobs.values()]))

    def receive(self) -> tuple[dict[str, Any], Blobs]:
        """Wait for a whole frame; EOFError if the other end is gone."""
        (size,) = _SIZE.unpack(self._read(_SIZE.size))
        values, sizes = json.loads(self._read(size))
        return values, Blobs({name: self._read(length) for name, length in sizes})

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            try:
                count = self._socket.recv_into(view[done:])
            except ConnectionError:
                count = 0
            if not count:
                raise EOFError
            done += count
        return bytes(data)
