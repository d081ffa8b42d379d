"""The simulation engine: the same run through Flower's own commands on a SuperLink of its own.

`flwr run` would leave its SuperLink running, may install all dependencies again for each run, and
exits 0 even when the run failed. Here a SuperLink is started for one run with a home of its own,
the run's real status decides, and everything is stopped at the end.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fl_app.config import find_conf
from fl_app.errors import RunError
from fl_app.settings import RunSettings

CONNECTION = "fl-app"
START_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0
POLL_SECONDS = 0.5
STATUS_SECONDS = 10.0
LOG_LINES = 25

_ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
    # One thread a client, also in libraries that read this at import.
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class _SuperLink:
    """A SuperLink of ours: its process, its home and how to call Flower's commands on it."""

    process: subprocess.Popen[bytes]
    home: Path
    environment: dict[str, str]

    def call(self, *words: str) -> str:
        """Run one of Flower's commands and return what it printed."""
        done = subprocess.run(
            [_find_command("flwr"), *words],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RunError(f"flwr {words[0]} failed: {_last_lines(done.stdout + done.stderr)}")
        return done.stdout


def run_simulation(settings: RunSettings, folder: Path) -> None:
    """Run the settings on Flower's simulation runtime, and wait until the run has ended.

    Parameters
    ----------
    settings : RunSettings
        With `num_clients` set.
    folder : Path
        The run's folder, absolute.

    Raises
    ------
    RunError
        If the SuperLink does not start, or the run ends in any state but completed; the message
        ends with the run's own last lines.
    """
    with _bundle_folder() as bundle, _own_superlink() as superlink:
        config = superlink.home / "run.toml"
        config.write_text(
            f"settings = {json.dumps(settings.to_json())}\noutput-dir = {json.dumps(str(folder))}\n"
        )
        workers = settings.engine.workers
        resources = (
            f"num-supernodes={settings.num_clients} client-resources-num-cpus=1 "
            f"client-resources-num-gpus=0.0 init-args-num-cpus={workers}"
        )
        printed = superlink.call(
            *("run", str(bundle), CONNECTION, "--run-config", str(config)),
            *("--federation-config", resources, "--format", "json"),
        )
        started = _parse_json(printed)
        if not started.get("run-id"):
            raise RunError(f"Flower did not start the run: {started.get('error-message', printed)}")
        run_id = str(started["run-id"])
        try:
            status = _wait_for_end(superlink, run_id, folder)
        except KeyboardInterrupt:
            superlink.call("stop", run_id, CONNECTION)
            raise
        if status != "finished:completed":
            log = superlink.call("log", run_id, CONNECTION, "--show")
            raise RunError(f"the run ended as {status}:\n{_last_lines(log, LOG_LINES)}")


def _wait_for_end(superlink: _SuperLink, run_id: str, folder: Path) -> str:
    """Return the run's final status; its summary is a sign to ask for it at once."""
    asked = time.monotonic()
    while True:
        time.sleep(POLL_SECONDS)
        if superlink.process.poll() is not None:
            log = (superlink.home / "superlink.log").read_text(errors="replace")
            raise RunError(f"the SuperLink ended during the run:\n{_last_lines(log, LOG_LINES)}")
        overdue = time.monotonic() - asked > STATUS_SECONDS
        if not overdue and not (folder / "summary.json").exists():
            continue
        asked = time.monotonic()
        printed = superlink.call("list", CONNECTION, "--run-id", run_id, "--format", "json")
        status = str(_parse_json(printed)["runs"][0]["status"])
        if status.startswith("finished"):
            return status


@contextmanager
def _own_superlink() -> Iterator[_SuperLink]:
    """Start a SuperLink for simulation in a home of its own; stop all its processes at the end."""
    home = Path(tempfile.mkdtemp(prefix="fl-app-"))
    port, control_port = _free_ports(2)
    address = f"127.0.0.1:{port}"
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n'
        f'[superlink.{CONNECTION}]\naddress = "{address}"\ninsecure = true\n'
    )
    scripts = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        **_ENVIRONMENT,
        "FLWR_HOME": str(home),
        "PATH": scripts + os.pathsep + os.environ.get("PATH", ""),
    }
    with (home / "superlink.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(_find_command("flower-superlink"), "--insecure", "--simulation"),
                *("--isolation", "subprocess", "--host", "127.0.0.1", "--port", str(port)),
                *("--control-api-address", f"127.0.0.1:{control_port}"),
            ],
            env=environment,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # A group of its own: Ctrl-C reaches us alone, and all of it can be ended together.
            start_new_session=True,
        )
    try:
        _wait_for_start(process, port, home)
        yield _SuperLink(process, home, environment)
    finally:
        _stop(process, str(home))
        shutil.rmtree(home, ignore_errors=True)


def _wait_for_start(process: subprocess.Popen[bytes], port: int, home: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    log = (home / "superlink.log").read_text(errors="replace")
    raise RunError(f"the SuperLink did not start:\n{_last_lines(log, LOG_LINES)}")


def _stop(process: subprocess.Popen[bytes], home: str) -> None:
    """End the SuperLink, and whatever its run left behind."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # Ray's processes leave the group; all of them carry our home in their environment.
    deadline = time.monotonic() + STOP_TIMEOUT
    while left := _processes_of(home):
        force = time.monotonic() > deadline - STOP_TIMEOUT + 3.0
        for number in left:
            try:
                os.kill(number, signal.SIGKILL if force else signal.SIGTERM)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)


def _processes_of(home: str) -> list[int]:
    """Return the processes started under our home, other than this one."""
    mark = f"FLWR_HOME={home}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@contextmanager
def _bundle_folder() -> Iterator[Path]:
    """Give the folder that Flower bundles: a copy of the packages and conf/ as they are here.

    A copy serves a checkout and an installed wheel alike, and holds nothing else.
    """
    package = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory(prefix="fl-app-bundle-") as name:
        bundle = Path(name)
        skip = shutil.ignore_patterns("__pycache__", "conf", "bundle")
        shutil.copytree(package, bundle / "fl_app", ignore=skip)
        shutil.copytree(package.parent / "strategies", bundle / "strategies", ignore=skip)
        shutil.copytree(find_conf(), bundle / "conf")
        installed = package / "bundle"
        project = installed if installed.is_dir() else package.parent
        text = (project / "pyproject.toml").read_text(encoding="utf-8")
        # Flower refuses a pattern that matches nothing, and the copy holds nothing to exclude.
        kept = [line for line in text.splitlines() if not line.startswith("fab-exclude")]
        (bundle / "pyproject.toml").write_text("\n".join(kept), encoding="utf-8")
        shutil.copy(project / "README.md", bundle / "README.md")
        yield bundle


def _free_ports(count: int) -> list[int]:
    """Return free ports below the range from which the system gives ports to outgoing calls."""
    start = 20000 + (os.getpid() * 7) % 10000
    found: list[int] = []
    for port in range(start, start + 2000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RunError(f"no {count} free ports from {start} on")


def _find_command(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise RunError(f"{name} is not installed; allowed: an environment with flwr[simulation]")
    return found


def _parse_json(printed: str) -> dict:  # type: ignore[type-arg]
    start = printed.find("{")
    if start < 0:
        raise RunError(f"Flower printed no JSON: {_last_lines(printed)}")
    return dict(json.loads(printed[start:]))


def _last_lines(text: str, count: int = 5) -> str:
    return "\n".join(line for line in text.strip().splitlines()[-count:])
