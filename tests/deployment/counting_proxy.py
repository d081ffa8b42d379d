"""A TCP proxy that counts what devices send: at the socket, with TLS and everything around it."""

import contextlib
import socket
import threading

from fl_app.engines.superlink import find_free_port


class CountingProxy:
    """Passes connections on to an address, and counts the bytes of each direction.

    Attributes
    ----------
    sent : int
        Bytes that came from the devices.
    received : int
        Bytes that went to them.
    """

    def __init__(self, port: int) -> None:
        self.sent = self.received = 0
        self._target = ("127.0.0.1", port)
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", find_free_port()))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                device, _ = self._server.accept()
                try:
                    superlink = socket.create_connection(self._target)
                except OSError:
                    device.close()
                    continue
                for source, target, name in (
                    (device, superlink, "sent"),
                    (superlink, device, "received"),
                ):
                    words = (source, target, name)
                    threading.Thread(target=self._pass_on, args=words, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    setattr(self, name, getattr(self, name) + len(data))
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
