"""A SuperLink and its SuperNodes as processes, started by the scripts in deploy/."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fl_app.engines.superlink import find_free_port
from tests.conftest import REPOSITORY, Outcome, read_outcome
from tests.deployment import pausing_supernode
from tests.deployment.counting_proxy import CountingProxy
from tests.integration.launcher import FL_APP, MARK, Launcher, new_launcher

SCRIPTS = Path(sys.executable).parent
DEPLOY = REPOSITORY / "deploy"
CONNECTION = "dep"
_NO_INSTALLS = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}
# Far beyond what is needed: how long things take depends on what else the machine does.
PATIENCE = 600.0


class Device:
    """A SuperNode: its folder, its port and what its owner has set."""

    def __init__(self, folder: Path, config: list[str]) -> None:
        self.folder = folder
        self.port = find_free_port()
        self.config = config
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        file = self.folder.with_suffix(".log")
        return file.read_text(errors="replace") if file.exists() else ""


class Federation:
    """A federation in a folder of its own.

    Attributes
    ----------
    folder : Path
    devices : list of Device
    """

    def __init__(self) -> None:
        self.launcher: Launcher = new_launcher()
        self.folder = self.launcher.folder
        (self.folder / "t").mkdir()
        self.home = self.folder / "home"
        self.home.mkdir()
        self.tls = self.folder / "tls"
        self.port = find_free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.proxy = CountingProxy(self.port)
        self.superlink: subprocess.Popen[bytes] | None = None
        self.devices: list[Device] = []
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
        self.environment = {
            **kept,
            "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "TMPDIR": str(self.folder / "t"),
            "FLWR_HOME": str(self.home),
            "OMP_NUM_THREADS": "1",
            "no_proxy": "127.0.0.1,localhost",
            "FL_APP_HUB_PORT": str(find_free_port()),
            MARK: self.launcher.mark,
        }
        self.call(str(DEPLOY / "certificates.sh"), str(self.tls))
        self.connect(CONNECTION, self.address, self.tls / "ca.crt")

    def connect(self, name: str, address: str, authority: Path) -> None:
        """Name a SuperLink in the user's Flower configuration."""
        with (self.home / "config.toml").open("a") as file:
            file.write(
                f'[superlink.{name}]\naddress = "{address}"\nroot-certificates = "{authority}"\n'
            )

    def call(self, *words: str) -> str:
        """Run a command; return its output."""
        done = subprocess.run(
            words,
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start_superlink(self) -> None:
        words = [str(DEPLOY / "superlink.sh"), str(self.tls), str(self.folder / "link")]
        self.superlink = self._spawn([*words, "127.0.0.1", str(self.port)], self.folder / "link")
        self.wait_until(lambda: self._answers(), "the SuperLink answers")

    def add_device(self, *config: str) -> Device:
        """Make a device's key, without registering it."""
        device = Device(self.folder / f"node{len(self.devices)}", list(config))
        self.devices.append(device)
        self.call(*self._device_words(device))
        return device

    def register(self, device: Device) -> None:
        self.call("flwr", "supernode", "register", str(device.folder / "key.pub"), CONNECTION)

    def start_device(
        self, device: Device, address: str = "", authority: Path | None = None
    ) -> None:
        words = self._device_words(device, address, authority)
        device.process = self._spawn(words, device.folder)

    def start_pausing_device(self, device: Device, pause: Path, point: str) -> None:
        """Start a device that waits at a point until `pause` / "go on" exists; see the module."""
        module = str(Path(pausing_supernode.__file__))
        self._start_by(device, [sys.executable, module, str(pause), point])

    def start_plain_device(self, device: Device) -> None:
        """Start a device with Flower's own command."""
        self._start_by(device, ["flower-supernode"])

    def _start_by(self, device: Device, command: list[str]) -> None:
        _, _, address, authority, port, *config = self._device_words(device)
        home = device.folder / "flwr"
        home.mkdir(exist_ok=True)
        (device.folder / "state").mkdir(mode=0o700, exist_ok=True)
        words = [
            *(*command, "--superlink", address, "--root-certificates", authority),
            *("--auth-supernode-private-key", str(device.folder / "key")),
            *("--host", "127.0.0.1", "--port", port, "--isolation", "subprocess"),
            *("--node-config", f'state-dir="{device.folder}/state" {" ".join(config)}'),
        ]
        device.process = self._spawn(words, device.folder, {"FLWR_HOME": str(home)})

    def kill(self, *words: str) -> None:
        """Kill the processes whose command has all the words."""
        numbers = self.find(*words)
        assert numbers, f"no process with {words}"
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def bring_back(self, device: Device, start: Callable[[], None]) -> None:
        """Start a device that was killed.

        It waits while the SuperLink refuses it, until that has noticed that the former connection
        is gone.
        """
        before = device.log.count("SuperNode ID:")
        start()

        def is_back() -> bool:
            assert device.process is not None
            assert device.process.poll() is None, device.log[-3000:]
            return device.log.count("SuperNode ID:") > before

        self.wait_until(is_back, "the device is connected again")

    def kill_device(self, device: Device) -> None:
        """Kill a device's SuperNode and everything that it started, at once."""
        assert device.process is not None
        os.killpg(device.process.pid, signal.SIGKILL)
        device.process.wait()

    def wait_for_devices(self, count: int) -> None:
        self.wait_until(lambda: self.num_online() == count, f"{count} devices are connected")

    def num_online(self) -> int:
        nodes = self.ask("supernode", "list", CONNECTION)["nodes"]
        return sum(node["status"] == "online" for node in nodes)

    def ask(self, *words: str) -> dict:
        return json.loads(self.call("flwr", *words, "--format", "json"))

    def run(self, *overrides: str, folder: Path, superlink: str = CONNECTION) -> Outcome:
        """Run `fl-app run` and return what it left; fail unless it ended well."""
        code, output, errors = self.finish(self.start_run(*overrides, folder=folder))
        assert code == 0, output + errors + self.describe()
        return read_outcome(folder)

    def start_run(
        self, *overrides: str, folder: Path, superlink: str = CONNECTION, resume: bool = False
    ) -> "subprocess.Popen[str]":
        engine = ["engine=deployment", f"engine.superlink={superlink}"]
        where = f"resume={folder}" if resume else f"hydra.run.dir={folder}"
        return subprocess.Popen(
            [*FL_APP, "run", *engine, where, *overrides],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, process: "subprocess.Popen[str]") -> tuple[int, str, str]:
        output, errors = process.communicate(timeout=PATIENCE)
        return process.returncode, output, errors

    def find(self, *words: str) -> list[int]:
        """Return the numbers of the federation's processes whose command has all the words."""
        return [
            number
            for number, command in self.launcher.processes().items()
            if all(any(word in each for each in command) for word in words)
        ]

    def describe(self) -> str:
        """Return the ends of all logs, for a test that fails."""
        logs = sorted(self.folder.glob("*.log"))
        return "".join(f"\n{log.name}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def wait_until(self, condition, what: str, seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain: {what}{self.describe()}"
            time.sleep(0.2)

    def close(self) -> None:
        """End everything that runs, and remove the folder."""
        self.proxy.close()
        # Until none is left: one may have started another meanwhile.
        while numbers := self.launcher.processes():
            for number in numbers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(0.1)
        for process in [self.superlink, *(device.process for device in self.devices)]:
            if process is not None:
                process.wait()
        self.launcher.close()

    def _device_words(
        self, device: Device, address: str = "", authority: Path | None = None
    ) -> list[str]:
        return [
            *(str(DEPLOY / "supernode.sh"), str(device.folder), address or self.proxy.address),
            *(str(authority or self.tls / "ca.crt"), str(device.port), *device.config),
        ]

    def _answers(self) -> bool:
        assert self.superlink is not None
        assert self.superlink.poll() is None, self.describe()
        words = ["flwr", "supernode", "list", CONNECTION, "--format", "json"]
        done = subprocess.run(words, env=self.environment, capture_output=True, cwd=self.folder)
        return b'"success": true' in done.stdout

    def _spawn(
        self, words: list[str], folder: Path, more: dict[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        with folder.with_suffix(".log").open("ab") as log:
            return subprocess.Popen(
                words,
                env={**self.environment, **_NO_INSTALLS, **(more or {})},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@contextlib.contextmanager
def start_federation(
    num_devices: int, *config: str, prepare: Callable[[Federation], None] | None = None
) -> Iterator[Federation]:
    """Start a SuperLink and registered devices; leave nothing behind.

    `prepare` is called when the devices have their folders, before they are started.
    """
    federation = Federation()
    try:
        federation.start_superlink()
        for number in range(num_devices):
            own = [f"partition-id={number}", f"num-partitions={num_devices}"]
            federation.register(federation.add_device(*own, *config))
        if prepare is not None:
            prepare(federation)
        for device in federation.devices:
            federation.start_device(device)
        federation.wait_for_devices(num_devices)
        yield federation
    finally:
        federation.close()
