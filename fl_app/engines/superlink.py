"""A SuperLink of our own for one run: started in a home of its own, gone without a trace after it.

The user's FLWR_HOME, SuperLinks and Ray cluster are neither used nor touched.
"""

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fl_app.engines import guardian
from fl_app.errors import RunError

CONNECTION = "fl-app"
COMMANDS = ("flwr", "flwr-simulation", "flower-superexec", "flower-superlink")
LOG_FILE = "superlink.log"
START_SECONDS = 60.0
START_ATTEMPTS = 3
POLL_SECONDS = 0.05
# Below the range from which systems give ports to outgoing connections.
PORTS = range(15000, 32000)
# The longest folder in which the names of Ray's sockets fit (a path of at most 107 bytes).
MOST_RAY_CHARACTERS = 36

_SETTINGS = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray listens on the loopback interface, here too: it runs whatever it is sent.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
    # One thread a client, also in libraries that read this at import.
    "OMP_NUM_THREADS": "1",
}
# A Ray cluster of the user's would be joined instead of a new one being started.
_DROPPED = ("RAY_ADDRESS", "RAY_NAMESPACE")


@dataclass(frozen=True)
class SuperLink:
    """A SuperLink of ours: its process, its home, and the environment of Flower's commands."""

    process: subprocess.Popen[bytes]
    home: Path
    environment: dict[str, str]

    def start_run(
        self, bundle: Path, run_config: Path, federation_config: str, log: Path
    ) -> subprocess.Popen[bytes]:
        """Start `flwr run --stream`: a process that lasts as long as the run, and logs it."""
        words = [
            *("run", str(bundle), CONNECTION, "--run-config", str(run_config)),
            *("--federation-config", federation_config, "--stream"),
        ]
        command = find_command("flwr", self.environment)
        return start_process([command, *words], self.environment, self.home, log)

    def read_log(self) -> str:
        """Return what the SuperLink has logged."""
        return (self.home / LOG_FILE).read_text(errors="replace")


@contextmanager
def own_superlink(ray_address: str | None = None) -> Iterator[SuperLink]:
    """Start a SuperLink for simulation; end all its processes and remove its files afterwards.

    A guardian does the cleaning, so that it is done when this process is killed, too.

    Parameters
    ----------
    ray_address : str or None
        A Ray cluster that is joined, and stays; None: Ray is started for the run alone.

    Raises
    ------
    RunError
        If it does not start.
    """
    home = Path(tempfile.mkdtemp(prefix="fl-app-"))
    ray_folder = _ray_folder(home)
    folders = list(dict.fromkeys([str(home), str(ray_folder)]))
    keeper = subprocess.Popen(
        [sys.executable, "-I", guardian.__file__, *folders],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Its own session: a signal to the launcher's group must not end it.
        start_new_session=True,
    )
    superlink = None
    try:
        superlink = _start_superlink(home, ray_folder, ray_address)
        yield superlink
    finally:
        keeper.communicate()
        if keeper.returncode != 0:
            guardian.clean_up(guardian.RunProcesses(str(home)), folders)
        if superlink is not None:
            superlink.process.wait()


def start_process(
    words: list[str], environment: dict[str, str], folder: Path, log: Path
) -> subprocess.Popen[bytes]:
    """Start a process that Ctrl-C in the terminal does not reach, with its output in a file."""
    with log.open("wb") as output:
        return subprocess.Popen(
            words,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def find_command(name: str, environment: Mapping[str, str]) -> str:
    """Return the path of a command, from the environment's PATH."""
    found = shutil.which(name, path=environment["PATH"])
    if found is None:
        raise RunError(f"{name} is not installed; allowed: an environment with flwr[simulation]")
    return found


def _start_superlink(home: Path, ray_folder: Path, ray_address: str | None) -> SuperLink:
    environment = _make_environment(home, ray_folder)
    if ray_address is not None:
        # Ray's own variable: Flower has no other way to name a cluster.
        environment["RAY_ADDRESS"] = ray_address
    for _ in range(START_ATTEMPTS):
        port = find_free_port()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        words = [
            *(find_command("flower-superlink", environment), "--insecure", "--simulation"),
            *("--isolation", "subprocess", "--host", "127.0.0.1", "--port", str(port)),
        ]
        process = start_process(words, environment, home, home / LOG_FILE)
        superlink = SuperLink(process, home, environment)
        if _wait_until_ready(process, port):
            return superlink
        process.kill()
        process.wait()
        # Another program may have taken the port meanwhile; any other cause will come again.
    raise RunError(f"the SuperLink did not start: {' '.join(superlink.read_log().split()[-60:])}")


def _make_environment(home: Path, ray_folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in _DROPPED}
    # Everything here talks to this machine only: no proxy may come in between.
    direct = {
        name: ",".join(filter(None, [os.environ.get(name), "127.0.0.1,localhost"]))
        for name in ("no_proxy", "NO_PROXY")
    }
    scripts = _find_scripts(ray_folder)
    return {
        **kept,
        **direct,
        **_SETTINGS,
        "FLWR_HOME": str(home),
        "RAY_TMPDIR": str(ray_folder),
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def _find_scripts(folder: Path) -> Path:
    """Return the folder of this interpreter's commands, under a path without a space.

    Ray starts its workers through a shell with the interpreter's path as it is. If there is a space
    in it, commands are written to `folder` that start the same interpreter through a link.
    """
    scripts = Path(sys.executable).parent
    if not any(letter.isspace() for letter in str(scripts)):
        return scripts
    link, written = folder / "environment", folder / "commands"
    link.symlink_to(sys.prefix, target_is_directory=True)
    written.mkdir()
    inside = link / os.path.relpath(scripts, sys.prefix)
    for name in COMMANDS:
        command = written / name
        command.write_text(
            f'#!/bin/sh\nexec {inside / Path(sys.executable).name} {inside / name} "$@"\n'
        )
        command.chmod(0o755)
    return written


def _ray_folder(home: Path) -> Path:
    """Return a folder for Ray's files: it allows neither a long path nor a space in it."""
    text = str(home)
    if len(text) <= MOST_RAY_CHARACTERS and not any(letter.isspace() for letter in text):
        return home
    return Path(tempfile.mkdtemp(prefix="fl-app-", dir="/tmp"))


def find_free_port() -> int:
    """Return a port that is free now, another one at each call."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RunError(f"no free port from {PORTS.start} to {PORTS.stop}")


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> bool:
    """Return whether the SuperLink answers before it ends or the time is over."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None:
        try:
            with direct.open(f"http://127.0.0.1:{port}/health", timeout=1.0):
                return process.poll() is None
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
    return False
