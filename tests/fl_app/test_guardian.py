"""Whatever ends a launcher, the guardian ends what it has started, and nothing else."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fl_app.engines import guardian
from fl_app.engines.guardian import RunProcesses

Start = Callable[..., subprocess.Popen[bytes]]
SLEEP = [sys.executable, "-I", "-c", "import time; print('up', flush=True); time.sleep(60)"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process with a FLWR_HOME, and return once it runs."""
    started = []

    def begin(home: Path | str, **options: object) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "FLWR_HOME": str(home)}
        process = subprocess.Popen(SLEEP, env=environment, stdout=subprocess.PIPE, **options)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def begin_guard(*folders: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", guardian.__file__, *map(str, folders)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def find(home: Path) -> list[int]:
    return sorted(RunProcesses(str(home)).find())


def test_processes_are_found_by_their_whole_home(start: Start, tmp_path: Path) -> None:
    home = tmp_path / "home"
    ours = [start(home), start(home, start_new_session=True)]
    start(f"{home}-2")
    start(home / "below")
    assert find(home) == sorted(each.pid for each in ours)
    assert find(tmp_path / "other") == []


def read_pids(process: subprocess.Popen[bytes], count: int) -> list[int]:
    assert process.stdout is not None
    return sorted(int(process.stdout.readline()) for _ in range(count))


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a parent in a session of its own, whose descendants have no environment."""
    started: list[subprocess.Popen[bytes]] = []
    child = tmp_path / "child.py"
    child.write_text(
        "import os, subprocess, sys, time\n"
        "depth, leads = int(sys.argv[1]), sys.argv[2] == 'leads'\n"
        "words = [sys.executable, '-I', __file__, str(depth - 1), sys.argv[2]]\n"
        "if depth: subprocess.Popen(words, env={}, start_new_session=leads)\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(60)\n"
    )

    def begin(children: str = "follows") -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-I", str(child), "2", children],
            env={**os.environ, "FLWR_HOME": str(tmp_path / "home")},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        # The others sleep for a minute at most; those that a test left running end here.
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if str(child).encode() in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
        process.communicate()


Family = Callable[..., subprocess.Popen[bytes]]


@pytest.mark.parametrize("children", ["follows", "leads"])
def test_descendants_are_found_without_the_variable(
    family: Family, tmp_path: Path, children: str
) -> None:
    numbers = read_pids(family(children), 3)
    assert find(tmp_path / "home") == numbers


def test_orphans_are_found_by_their_session(family: Family, tmp_path: Path) -> None:
    parent = family()
    numbers = read_pids(parent, 3)
    (middle,) = (n for n in numbers if n != parent.pid and _parent(n) == parent.pid)
    os.kill(middle, signal.SIGKILL)
    while _state(middle) != "Z":
        time.sleep(0.01)
    (orphan,) = (n for n in numbers if n not in (middle, parent.pid))
    assert find(tmp_path / "home") == sorted([parent.pid, orphan])


def test_what_was_found_once_stays_known(family: Family, tmp_path: Path) -> None:
    parent = family("leads")
    processes = RunProcesses(str(tmp_path / "home"))
    numbers = read_pids(parent, 3)
    assert sorted(processes.find()) == numbers
    parent.kill()
    parent.wait()
    assert sorted(processes.find()) == [n for n in numbers if n != parent.pid]
    # Whoever looks for the first time now has nothing to go by.
    assert find(tmp_path / "home") == []
    assert guardian.end_processes(processes)
    assert processes.find() == set()


def _state(number: int) -> str:
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]


def _parent(number: int) -> int:
    return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_session_of_others_is_not_ours(tmp_path: Path) -> None:
    """Whoever looks into a run's home from a shell keeps the shell."""
    # The inner process says its number itself: until it runs, it has no environment yet.
    inside = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    environment = {"FLWR_HOME": str(tmp_path)}
    shell = subprocess.Popen(
        [
            *(sys.executable, "-I", "-c"),
            "import subprocess, sys, time\n"
            f"subprocess.Popen([sys.executable, '-I', '-c', {inside!r}], env={environment!r})\n"
            "time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        (inner,) = read_pids(shell, 1)
        assert find(tmp_path) == [inner]
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate()


def test_the_caller_is_not_found(tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(Path(guardian.__file__).parent)!r})\n"
        f"import guardian; sys.exit(len(guardian.RunProcesses({str(tmp_path)!r}).find()))"
    )
    environment = {**os.environ, "FLWR_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-I", "-c", program], env=environment, check=False)
    assert done.returncode == 0


def test_the_end_of_the_input_ends_everything(start: Start, tmp_path: Path) -> None:
    home, more, other = (tmp_path / name for name in ("home", "more", "other"))
    for folder in (home, more, other):
        folder.mkdir()
        (folder / "file").write_text("")
    ours = [start(home) for _ in range(3)]
    stranger = start(other)
    guard = begin_guard(home, more)
    time.sleep(0.2)
    assert guard.poll() is None
    assert all(process.poll() is None for process in ours)
    guard.communicate(timeout=20)
    assert guard.returncode == 0
    assert [process.wait(timeout=5) for process in ours] == [-signal.SIGKILL] * 3
    assert [folder.exists() for folder in (home, more, other)] == [False, False, True]
    assert stranger.poll() is None


def test_the_death_of_the_launcher_is_the_end_of_the_input(start: Start, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    process = start(home)
    launcher = subprocess.Popen(
        [
            *(sys.executable, "-I", "-c"),
            "import subprocess, sys, time\n"
            "keep = subprocess.Popen([sys.executable, '-I', *sys.argv[1:]],"
            " stdin=subprocess.PIPE, start_new_session=True)\n"
            "print('up', flush=True); time.sleep(60)",
            *(guardian.__file__, str(home)),
        ],
        stdout=subprocess.PIPE,
    )
    assert launcher.stdout is not None
    launcher.stdout.readline()
    assert process.poll() is None
    launcher.kill()
    launcher.wait()
    assert process.wait(timeout=20) == -signal.SIGKILL
    deadline = time.monotonic() + 20
    while home.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not home.exists()
    launcher.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_do_not_keep_it_from_cleaning(tmp_path: Path, number: signal.Signals) -> None:
    home = tmp_path / "home"
    home.mkdir()
    guard = begin_guard(home)
    status = Path(f"/proc/{guard.pid}/status")
    bit, deadline = 1 << (number - 1), time.monotonic() + 20
    while time.monotonic() < deadline:
        (ignored,) = (line for line in status.read_text().splitlines() if "SigIgn" in line)
        if int(ignored.split()[1], 16) & bit:
            break
        time.sleep(0.02)
    guard.send_signal(number)
    time.sleep(0.1)
    assert guard.poll() is None
    guard.communicate(timeout=20)
    assert (guard.returncode, home.exists()) == (0, False)


def test_what_cannot_be_removed_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nobody = RunProcesses(str(tmp_path / "home"))
    assert guardian.clean_up(nobody, [str(tmp_path / "gone"), str(tmp_path / "too")])
    monkeypatch.setattr(guardian.shutil, "rmtree", lambda *_, **__: None)
    assert not guardian.clean_up(nobody, [str(tmp_path)])


def test_a_process_that_does_not_end_is_said(
    monkeypatch: pytest.MonkeyPatch, start: Start, tmp_path: Path
) -> None:
    process = start(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(guardian, "END_SECONDS", 0.2)
        patch.setattr(guardian.os, "kill", lambda *_: None)
        assert not guardian.end_processes(RunProcesses(str(tmp_path)))
    assert process.poll() is None


def test_a_moment_of_absence_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is becoming another program has no environment for a moment."""
    kills: list[int] = []
    scans = iter([{5}, set(), {5}, set(), set(), {7}, set(), set(), set(), {9}])

    class Flickering(RunProcesses):
        def find(self) -> set[int]:
            return next(scans)

    monkeypatch.setattr(guardian.os, "kill", lambda number, _: kills.append(number))
    monkeypatch.setattr(guardian, "POLL_SECONDS", 0.0)
    assert guardian.end_processes(Flickering("home"))
    assert kills == [5, 5, 7]


def test_without_a_list_of_processes_there_are_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(guardian, "PROCESSES", tmp_path / "no proc")
    assert find(tmp_path) == []
