"""A device's worker, which has the libraries loaded: a process of its own beside the SuperNode.

Flower starts a new process for each message, and most of its time goes into importing torch, SciPy
and Flower itself. ``python -P warm_worker.py FOLDER PARENT`` imports them once. It puts a command
``flwr-clientapp`` into FOLDER, to be found first on the PATH, which passes its arguments on; the
worker then forks, and the child does what Flower's command does. Only libraries are shared: the
app's code is in no process but the children, each of which loads the bundle of its own run, and
finds it before whatever is installed or on the PYTHONPATH. PARENT is the number of the process
with which the worker ends.
"""

import contextlib
import importlib
import importlib.metadata
import os
import select
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMAND, ARGUMENTS = "flwr-clientapp", "arguments"
END = b"\n\0"
LOOK_SECONDS = 1.0
FIRST_PULL_SECONDS = 0.05
MOST_BYTES = 1 << 16
LIBRARIES = (
    *("flwr.clientapp", "numpy", "torch", "safetensors.numpy", "cryptography.x509"),
    *("scipy.linalg", "scipy.optimize", "scipy.special", "scipy.stats"),
)


def main(folder: Path, parent: int) -> None:
    """Answer calls of the command until the parent process has ended, which may be already."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no child is waited for
    begun = b""
    try:
        real = shutil.which(COMMAND) or COMMAND
        os.mkfifo(folder / ARGUMENTS, 0o600)
        # Both ends: no call is lost, and none that has come and gone ends the reading.
        calls = os.open(folder / ARGUMENTS, os.O_RDWR)
        _import_libraries()
        _write_command(folder / COMMAND, folder / ARGUMENTS, real)
        while os.getppid() == parent:
            readable, _, _ = select.select([calls], [], [], LOOK_SECONDS)
            *whole, begun = (begun + (os.read(calls, MOST_BYTES) if readable else b"")).split(END)
            for call in whole:
                if os.fork() == 0:
                    _answer([os.fsdecode(word) for word in call.split(b"\0")[:-1]], calls)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_command(name: str) -> Callable[[], object]:
    """Return what an installed command calls."""
    (found,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    command: Callable[[], object] = found.load()
    return command


def shorten_pulls() -> None:
    """Let Flower look again soon for a part of a message that is not there yet.

    Its own first wait is a second, which a message whose parts come a moment later costs whole.
    The waits still double, and there are as many as before.
    """
    from flwr.supercore.inflatable import inflatable_utils

    for function in (
        *(inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree),
    ):
        defaults: dict[str, Any] = function.__kwdefaults__ or {}
        defaults["initial_backoff"] = min(FIRST_PULL_SECONDS, defaults["initial_backoff"])


def _import_libraries() -> None:
    find_command(COMMAND)
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _write_command(command: Path, arguments: Path, real: str) -> None:
    """Write the command: it passes its words on, or is Flower's own once the worker has gone.

    Each word ends with a zero, a call with a line's end as the last word: one printf, one write,
    which the system does not mix with others.
    """
    text = (
        f"#!/bin/sh\nif kill -0 {os.getpid()} 2> /dev/null; then\n"
        f"    printf '%s\\0' \"$@\" '\n' > {shlex.quote(str(arguments))}\n"
        f'else\n    exec {shlex.quote(real)} "$@"\nfi\n'
    )
    temporary = command.with_suffix(".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(0o700)
    temporary.rename(command)


def _answer(words: list[str], calls: int) -> None:
    """Be the process that Flower's command would have been; never return."""
    code = 1
    try:
        os.close(calls)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        # Python's own global generator is seeded anew in each child; NumPy's is not by itself, and
        # a user's code may draw from it.
        importlib.import_module("numpy.random").seed()
        shorten_pulls()
        sys.argv = [COMMAND, *words]
        find_command(COMMAND)()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
