"""Flower's SuperNode, as a device starts it: ``python -m fl_app.supernode``, same arguments.

It looks for messages several times a second; ``flower-supernode`` does so every 3 seconds.
"""

import sys

from flwr.supernode.cli import flower_supernode

from fl_app.engines.flower_internals import shorten_waits

POLL_SECONDS = 0.2


def main() -> None:
    """Run the SuperNode with the arguments of the command line."""
    # Of its usage, and what the process is known by.
    sys.argv[0] = "flower-supernode"
    shorten_waits(POLL_SECONDS)
    flower_supernode()


if __name__ == "__main__":
    main()
