"""A SuperNode that stops at a named point of its first upload, so that a test can kill it.

It also writes down each upload that leaves it, and how many the ledger held at that moment.

``python pausing_supernode.py FOLDER POINT ARGUMENT ...`` is ``flower-supernode ARGUMENT ...`` but
for the pause. Points: ``before`` the app sees its first training request, ``after`` the app has
answered with an upload (what it keeps is written, nothing is sent), ``sending`` (the reply is
announced, its array is not there yet), ``sent`` (the reply has left the SuperNode). At the point,
the file ``reached`` appears in FOLDER, and all waits for the file ``go on``. It happens once. At
any other point, never.

The file ``traffic`` in FOLDER has a line for each upload, written before it is sent: the round, the
SHA-256 of what is sent, and the number of releases in the ledger.

Nothing of this is in the product: Flower's own classes are changed, in these processes.
"""

import os
import re
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

TRAFFIC = "traffic"
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
        if trains and point == "after" and reply.has_content() and "arrays" in reply.content:
            pause(folder)
        return reply

    ClientApp.__call__ = pausing  # type: ignore[method-assign]


def watch_sending(folder: Path, point: str, ledger: Path) -> None:
    """Write down the uploads that the SuperNode sends, and pause when the first has been sent."""
    from flwr.supercore.inflatable.inflatable_object import get_object_type_from_object_content
    from flwr.supernode import start_client_internal as loop

    from fl_app.device_ledger import list_releases

    push_messages = loop._push_messages

    def watched(state: Any, **options: Any) -> None:
        group, has_upload = "", False

        def send(message: Any, *arguments: Any) -> Any:
            nonlocal group
            trains = message.metadata.message_type == "train"
            group = message.metadata.group_id if trains else ""
            return options["send"](message, *arguments)

        def push_object(run: int, session: str, name: str, content: bytes) -> None:
            nonlocal has_upload
            # What holds an array's bytes.
            if get_object_type_from_object_content(content) == "ArrayChunk":
                has_upload = has_upload or bool(group)
                with (folder / TRAFFIC).open("a") as file:
                    file.write(f"{group} {name} {len(list_releases(ledger))}\n")
                if group and point == "sending":
                    pause(folder)
            options["push_object"](run, session, name, content)

        push_messages(state=state, **{**options, "send": send, "push_object": push_object})
        if has_upload and point == "sent":
            pause(folder)

    loop._push_messages = watched


def main(folder: Path, point: str, arguments: list[str]) -> None:
    if arguments[:1] == [CLIENT_APP]:
        pause_in_app(folder, point)
        arguments = arguments[1:]
    else:
        from fl_app.supernode import run_supernode

        (state,) = re.findall(r'state-dir="([^"]+)"', " ".join(arguments))
        watch_sending(folder, point, Path(state))
        shim = folder / CLIENT_APP
        words = f"'{sys.executable}' '{__file__}' '{folder}' {point} {CLIENT_APP}"
        shim.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        shim.chmod(0o755)
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
        sys.argv = [SUPERNODE, *arguments]
        run_supernode()
    sys.argv = [CLIENT_APP, *arguments]
    (found,) = entry_points(group="console_scripts", name=CLIENT_APP)
    found.load()()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
