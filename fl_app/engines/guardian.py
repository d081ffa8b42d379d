"""Ends what a launcher has started, however the launcher itself ends: a process of its own.

``python -I guardian.py HOME [FOLDER ...]`` waits until its standard input closes, which also
happens when the launcher is killed. It then ends every process that belongs to HOME, and removes
HOME and the folders. It needs the standard library only.
"""

import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

END_SECONDS = 15.0
POLL_SECONDS = 0.05
LOOK_SECONDS = 2.0
# A process is not seen in the moment in which it becomes another program.
QUIET_SCANS = 3
PROCESSES = Path("/proc")


class Process(NamedTuple):
    """A process as it is now; `start` (in clock ticks) tells it from a later one of its number."""

    number: int
    start: int
    parent: int
    session: int


class RunProcesses:
    """The processes of a run.

    They are those whose FLWR_HOME is the run's, with all their descendants and everybody in a
    session that one of them leads. The variable alone does not do: Ray's processes write their
    titles over their environment, and live on without their parents. What was found once stays.

    Parameters
    ----------
    home : str
        The run's FLWR_HOME.
    """

    def __init__(self, home: str) -> None:
        self._mark = f"FLWR_HOME={home}".encode()
        self._known: set[tuple[int, int]] = set()
        self._sessions: set[int] = set()

    def find(self) -> set[int]:
        """Return the numbers of those that run now, other than this process."""
        running = _list_processes()
        marked = {number for number in running if self._is_marked(number)}
        self._sessions |= {number for number in marked if running[number].session == number}
        found = marked | {
            number
            for number, process in running.items()
            if process.session in self._sessions or (number, process.start) in self._known
        }
        before = 0
        while len(found) > before:
            before = len(found)
            found |= {number for number, each in running.items() if each.parent in found}
        found.discard(os.getpid())
        self._known |= {(number, running[number].start) for number in found}
        return found

    def _is_marked(self, number: int) -> bool:
        try:
            return self._mark in (PROCESSES / str(number) / "environ").read_bytes().split(b"\0")
        except OSError:
            return False


def _list_processes() -> dict[int, Process]:
    """Return the processes that have not ended, by number."""
    running = {}
    for entry in PROCESSES.iterdir() if PROCESSES.is_dir() else ():
        if not entry.name.isdigit():
            continue
        try:
            # After the name, which can hold anything: state, parent, group, session, ..., start.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] not in "ZX":
            number = int(entry.name)
            running[number] = Process(number, int(fields[19]), int(fields[1]), int(fields[3]))
    return running


def end_processes(processes: RunProcesses) -> bool:
    """Kill the processes of a run; return whether all of them have ended.

    They hold nothing that outlives the run, so none is asked to end by itself: Flower would wait
    for its SuperLink, and Ray for its own processes.
    """
    deadline = time.monotonic() + END_SECONDS
    quiet = 0
    while quiet < QUIET_SCANS:
        found = processes.find()
        quiet = 0 if found else quiet + 1
        if found and time.monotonic() > deadline:
            return False
        for number in found:
            try:
                os.kill(number, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(POLL_SECONDS)
    return True


def clean_up(processes: RunProcesses, folders: list[str]) -> bool:
    """End the processes, remove the folders; return whether nothing is left."""
    ended = end_processes(processes)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return ended and not any(Path(folder).exists() for folder in folders)


def main(folders: list[str]) -> int:
    """Look at the processes until standard input closes, and clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    processes = RunProcesses(folders[0])
    while True:
        readable, _, _ = select.select([sys.stdin], [], [], LOOK_SECONDS)
        if readable and not os.read(sys.stdin.fileno(), 4096):
            return 0 if clean_up(processes, folders) else 1
        processes.find()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
