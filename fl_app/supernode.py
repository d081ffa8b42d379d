"""Flower's SuperNode, as a device starts it: ``python -m fl_app.supernode``, same arguments.

It looks for messages several times a second (``flower-supernode``: every 3 seconds), and a worker
that has the libraries loaded spares it most of the start of a process for each message. Behind
``--`` the node configuration may stand as `fl_app.node_config` reads it. A policy that no run could
be checked by ends it at once, with exit code 2.
"""

import argparse
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from fl_app import warm_worker
from fl_app.engines.flower_internals import shorten_waits
from fl_app.engines.supernode_internals import activate_patiently, read_node_config
from fl_app.errors import ConfigError, RunError
from fl_app.node_config import read_pairs, write_pairs

CONFIG_OPTION, STATE_OPTION = "--node-config", "--state-dir"
# Beside the device's key: the number of the node that was activated with it.
NODE_SUFFIX = ".node"


def join_words(arguments: list[str]) -> list[str]:
    """Return Flower's arguments, of which the words behind ``--`` are the node configuration.

    ``--state-dir DIR`` before them is where the device keeps its state, unless they name another.
    """
    if "--" not in arguments:
        return arguments
    place = arguments.index("--")
    own, words = arguments[:place], arguments[place + 1 :]
    given = _read_options(own).node_config
    if given is not None:
        raise ConfigError(CONFIG_OPTION, given, "nothing beside KEY=VALUE behind --")
    values = read_pairs(words)
    if STATE_OPTION in own:
        place = own.index(STATE_OPTION)
        values = {"state-dir": own[place + 1], **values}
        del own[place : place + 2]
    return [*own, CONFIG_OPTION, write_pairs(values)]


def check_start(arguments: list[str]) -> None:
    """Look at what would end the device, or keep it from answering, once it is connected.

    Raises
    ------
    ConfigError
        If the node configuration cannot be read.
    RunError
        If the port for the device's own processes is taken.
    SystemExit
        With code 2, if the policy allows nothing because it cannot be read.
    """
    options = _read_options(arguments)
    # In a process that ends: the SuperNode itself needs nothing of what reads a policy.
    config = read_node_config(options.node_config or "")
    check = multiprocessing.get_context("fork").Process(target=_check_policy, args=(config,))
    check.start()
    check.join()
    if check.exitcode:
        sys.exit(check.exitcode)
    if options.host is not None and options.port is not None:
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        try:
            socket.create_server((options.host, options.port), family=family).close()
        except OSError as error:
            where = f"port {options.port} of {options.host}"
            raise RunError(f"{where}: {os.strerror(error.errno or 0)}") from None


def start_worker() -> None:
    """Start the worker, and let it answer for Flower's command in processes started from here.

    It ends by itself when this process has ended.
    """
    folder = tempfile.mkdtemp(prefix="fl-app-worker-")
    # -P: what lies beside the script is no library. What is on the PYTHONPATH is, as for Flower's
    # own command; a run's bundle comes before it.
    subprocess.Popen([sys.executable, "-P", warm_worker.__file__, folder, str(os.getpid())])
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def run_supernode() -> NoReturn:
    """Run Flower's SuperNode, and end the process with it.

    Its loop ends when the SuperLink breaks a connection off, as one that is killed does; the
    threads beside it would keep a process that does nothing. Whoever started it starts it again.
    """
    sys.argv[0] = "flower-supernode"  # what its usage says
    key = _read_options(sys.argv[1:]).auth_supernode_private_key
    activation = activate_patiently(None if key is None else Path(f"{key}{NODE_SUFFIX}"))
    try:
        warm_worker.find_command("flower-supernode")()
    except Exception:
        traceback.print_exc()
    if activation.happened:
        print(
            "the connection to the SuperLink has ended: start the SuperNode again", file=sys.stderr
        )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _read_options(arguments: list[str]) -> argparse.Namespace:
    """Return those of Flower's options that are of interest here; None: not given."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for name in (CONFIG_OPTION, "--auth-supernode-private-key", "--host"):
        parser.add_argument(name)
    parser.add_argument("--port", type=int)
    try:
        return parser.parse_known_args(arguments)[0]
    except argparse.ArgumentError:
        # Flower says what is wrong.
        return parser.parse_args([])


def _check_policy(config: Mapping[str, Any]) -> None:
    from fl_app.device_policy import read_policy

    try:
        read_policy(config)
    except ValueError as error:
        print(f"fl-app: the device's node configuration: {error}", file=sys.stderr, flush=True)
        sys.exit(2)


def main() -> None:
    """Run the SuperNode with the arguments of the command line."""
    try:
        sys.argv[1:] = join_words(sys.argv[1:])
        if not {"-h", "--help", "-V", "--version"} & set(sys.argv):
            check_start(sys.argv[1:])
    except (ConfigError, RunError) as error:
        print(f"fl-app: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    shorten_waits()
    warm_worker.shorten_pulls()
    start_worker()
    run_supernode()


if __name__ == "__main__":
    main()
