"""A hub for one SuperLink: ``python -m fl_app.engines.bundle_hub FOLDER PORT``.

A SuperLink takes a bundle's signatures from Flower's public hub only, over HTTP; this answers the
same question on the SuperLink's own machine, for the signed bundle in FOLDER. Nobody needs to trust
it: devices check the signatures. It ends when the process that started it has ended.
"""

import hashlib
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

from fl_app.engines.signed_bundle import BUNDLE_FILE, read_name, read_signatures
from fl_app.errors import RunError

ASK_PATH = "/v1/hub/fetch-fab"
MOST_BYTES = 1 << 16
LOOK_SECONDS = 1.0


class _Handler(BaseHTTPRequestHandler):
    folder: ClassVar[Path]

    def do_POST(self) -> None:
        """Say where a bundle is, and who has signed it."""
        try:
            size = int(self.headers.get("Content-Length", 0))
            asked = json.loads(self.rfile.read(min(size, MOST_BYTES)))
            wanted, version = asked["app_id"], asked.get("app_version")
            bundle = self._read_bundle()
            name, own_version = read_name(bundle)
            signatures = read_signatures(self.folder)
        except (ValueError, KeyError, TypeError, AttributeError, OSError, RunError):
            self._answer(404, b'{"detail": "no signed bundle"}')
            return
        if self.path != ASK_PATH or wanted != name:
            self._answer(404, b'{"detail": "no such app"}')
            return
        if version not in (None, own_version):
            detail = {"detail": {"available_app_versions": [own_version]}}
            self._answer(404, json.dumps(detail).encode())
            return
        address = f"http://{self.headers.get('Host')}/{hashlib.sha256(bundle).hexdigest()}"
        answer = {"fab_url": address, "verifications": signatures}
        self._answer(200, json.dumps(answer).encode())

    def do_GET(self) -> None:
        """Send the bundle, if it is still the one that was asked about."""
        try:
            bundle = self._read_bundle()
        except OSError:
            bundle = b""
        if bundle and self.path == f"/{hashlib.sha256(bundle).hexdigest()}":
            self._answer(200, bundle, "application/octet-stream")
        else:
            self._answer(404, b"{}")

    def _read_bundle(self) -> bytes:
        return (self.folder / BUNDLE_FILE).read_bytes()

    def _answer(self, code: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def open_hub(folder: Path, port: int) -> ThreadingHTTPServer:
    """Return a server for a folder's signed bundle, at a port of the loopback interface."""
    handler = type("Handler", (_Handler,), {"folder": folder})
    return ThreadingHTTPServer(("127.0.0.1", port), handler)


def main() -> None:
    """Serve until the parent process has ended."""
    parent = os.getppid()
    hub = open_hub(Path(sys.argv[1]), int(sys.argv[2]))
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    hub.shutdown()


if __name__ == "__main__":
    main()
