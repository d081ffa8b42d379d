"""A launcher as a user starts it, watched with all that comes of it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

FL_APP = (sys.executable, "-m", "fl_app.cli")
MARK = "FL_APP_TEST_MARK"


@dataclass
class Launcher:
    """A command in a session of its own, marked so that every process it starts can be found.

    Attributes
    ----------
    folder : Path
        Where its temporary files go, and (by default) its working folder.
    """

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    commands: dict[int, list[str]] = field(default_factory=dict)
    process: "subprocess.Popen[str] | None" = None
    _seen: set[tuple[int, str]] = field(default_factory=set)

    def start(
        self,
        *words: str,
        cwd: Path | None = None,
        environment: dict[str, str] | None = None,
        command: tuple[str, ...] = FL_APP,
    ) -> None:
        temporary = self.folder / "t"
        temporary.mkdir(exist_ok=True)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
        marked = {"TMPDIR": str(temporary), **(environment or {}), MARK: self.mark}
        self.process = subprocess.Popen(
            [*command, *words],
            cwd=cwd or self.folder,
            env={**kept, **marked},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._watch, daemon=True).start()

    def finish(self, seconds: float = 180.0) -> tuple[int, str, str]:
        """Return the exit code, the output and the errors."""
        assert self.process is not None
        output, errors = self.process.communicate(timeout=seconds)
        return self.process.returncode, output, errors

    def run(self, *words: str, **options: object) -> tuple[int, str, str]:
        self.start(*words, **options)  # type: ignore[arg-type]
        return self.finish()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the launcher's process group, as a terminal does."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def processes(self) -> dict[int, list[str]]:
        """Return the command lines of the processes that run now and came of this launcher.

        Programs can write over their environment and outlive their parents, so everybody is
        remembered who was ever seen with the mark or as a child of another.
        """
        running: dict[int, tuple[str, int]] = {}
        found = set()
        wanted = f"{MARK}={self.mark}".encode()
        for entry in Path("/proc").iterdir():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] == "Z":
                    continue
                number = int(entry.name)
                running[number] = (fields[19], int(fields[1]))
                if wanted in (entry / "environ").read_bytes():
                    found.add(number)
            except (OSError, ValueError):
                continue
        found |= {n for n, (start, _) in running.items() if (n, start) in self._seen}
        found |= {n for n, (_, parent) in running.items() if parent in found}
        self._seen |= {(number, running[number][0]) for number in found}
        return {number: _command_line(number) for number in found}

    def listening_addresses(self) -> set[str]:
        """Return the addresses at which its processes listen, as the kernel writes them."""
        sockets = set()
        for number in self.processes():
            with contextlib.suppress(OSError):
                sockets |= {os.readlink(each) for each in Path(f"/proc/{number}/fd").iterdir()}
        found = set()
        for table in ("tcp", "tcp6"):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    found.add(fields[1].partition(":")[0])
        return found

    def wait_for_command(self, name: str, seconds: float = 60.0) -> None:
        self.wait_until(lambda: any(name in " ".join(c) for c in self.commands.values()), seconds)

    def wait_until(self, condition, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.05)

    def assert_nothing_is_left(self, seconds: float = 0.0) -> None:
        """Fail if a process or a temporary file is left after so many seconds."""
        deadline = time.monotonic() + seconds
        while (self.processes() or self.temporary_files()) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = {number: " ".join(words) for number, words in self.processes().items()}
        assert (left, self.temporary_files()) == ({}, [])

    def temporary_files(self) -> list[str]:
        """Return what is left in the folder for temporary files, and in those of the guardian."""
        folders = [
            Path(word)
            for command in self.commands.values()
            if any(word.endswith("guardian.py") for word in command)
            for word in command[3:]
        ]
        left = [*(self.folder / "t").iterdir(), *(each for each in folders if each.exists())]
        return [str(each) for each in left]

    def assert_nothing_is_installed(self) -> None:
        """Fail if any process was an installer of packages."""
        names = {Path(word).name for command in self.commands.values() for word in command[:3]}
        assert names & {"uv", "uvx", "pip", "pip3", "-mpip"} == set()

    def close(self) -> None:
        """End whatever is left of the marked processes, and remove the folder."""
        for number in self.processes():
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self.process is not None:
            self.process.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _watch(self) -> None:
        assert self.process is not None
        while self.process.poll() is None:
            # One that has just ended has no words any more.
            self.commands.update({n: words for n, words in self.processes().items() if words})
            time.sleep(0.1)


def _command_line(number: int) -> list[str]:
    try:
        text = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return []
    return [word for word in text.split("\0") if word.strip()]


def new_launcher() -> Launcher:
    """Return a launcher with a folder whose path is short enough for Ray's sockets."""
    return Launcher(Path(tempfile.mkdtemp(prefix="t")))


def read_summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())
