"""A SuperNode that stops at a named point of its first training request, so that a test can kill.

``python pausing_supernode.py FOLDER POINT ARGUMENT ...`` is ``flower-supernode ARGUMENT ...`` but
for the pause. Points: ``before`` the app sees the request, ``after`` the app has answered (what it
keeps is written, nothing is sent), ``sent`` (the reply has left the SuperNode). At the point, the
file ``reached`` appears in FOLDER, and all waits for the file ``go on``. It happens once.

Nothing of this is in the product: Flower's own classes are changed, in these processes.
"""

import os
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

POINTS = ("before", "after", "sent")
CLIENT_APP, SUPERNODE = "flwr-clientapp", "flower-supernode"


def pause(folder: Path) -> None:
    """Wait for the test, once for all processes with this folder."""
    try:
        (folder / "reached").touch(exist_ok=False)
    except FileExistsError:
        return
    while not (folder / "go on").exists():
        time.sleep(0.05)


def pause_in_app(folder: Path, point: str) -> None:
    """Pause around the app, wherever it was loaded from."""
    from flwr.clientapp import ClientApp

    call = ClientApp.__call__

    def pausing(self: ClientApp, message: Any, context: Any) -> Any:
        trains = message.metadata.message_type == "train"
        if trains and point == "before":
            pause(folder)
        reply = call(self, message, context)
        if trains and point == "after":
            pause(folder)
        return reply

    ClientApp.__call__ = pausing  # type: ignore[method-assign]


def pause_after_sending(folder: Path) -> None:
    """Pause when the SuperNode has sent the reply to a training request."""
    from flwr.supernode import start_client_internal as loop

    send = loop._push_messages

    def pausing(state: Any, **options: Any) -> None:
        trains = False

        def noted(message: Any, *arguments: Any) -> Any:
            nonlocal trains
            trains = message.metadata.message_type == "train"
            return options["send"](message, *arguments)

        send(state=state, **{**options, "send": noted})
        if trains:
            pause(folder)

    loop._push_messages = pausing


def main(folder: Path, point: str, arguments: list[str]) -> None:
    if arguments[:1] == [CLIENT_APP]:
        pause_in_app(folder, point)
        command, arguments = CLIENT_APP, arguments[1:]
    else:
        if point == "sent":
            pause_after_sending(folder)
        shim = folder / CLIENT_APP
        words = f"'{sys.executable}' '{__file__}' '{folder}' {point} {CLIENT_APP}"
        shim.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        shim.chmod(0o755)
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
        command = SUPERNODE
    sys.argv = [command, *arguments]
    (found,) = entry_points(group="console_scripts", name=command)
    found.load()()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
