"""Flower's SuperNode, as a device starts it: ``python -m fl_app.supernode``, same arguments.

It looks for messages several times a second (``flower-supernode``: every 3 seconds), and a worker
that has the libraries loaded spares it most of the start of a process for each message.
"""

import os
import subprocess
import sys
import tempfile
import traceback
from typing import NoReturn

from fl_app import warm_worker
from fl_app.engines.flower_internals import shorten_waits


def start_worker() -> None:
    """Start the worker, and let it answer for Flower's command in processes started from here.

    It ends by itself when this process has ended.
    """
    folder = tempfile.mkdtemp(prefix="fl-app-worker-")
    subprocess.Popen([sys.executable, "-I", warm_worker.__file__, folder])
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def run_supernode() -> NoReturn:
    """Run Flower's SuperNode, and end the process with it.

    Its loop ends when the SuperLink breaks a connection off, as one that is killed does; the
    threads beside it would keep a process that does nothing. Whoever started it starts it again.
    """
    sys.argv[0] = "flower-supernode"  # what its usage says
    try:
        warm_worker.find_command("flower-supernode")()
    except Exception:
        traceback.print_exc()
    print("the connection to the SuperLink has ended: start the SuperNode again", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    """Run the SuperNode with the arguments of the command line."""
    shorten_waits()
    warm_worker.shorten_pulls()
    start_worker()
    run_supernode()


if __name__ == "__main__":
    main()
