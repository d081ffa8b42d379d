"""Flower's commands for a SuperLink of the user's: a run is submitted, followed and ended."""

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from fl_app.engines.submitted_run import Record, read_record
from fl_app.engines.superlink import find_command
from fl_app.errors import RunError

LAST_LINES = 40
MOST_CHARACTERS = 600  # of a reason that Flower gives


class Connection:
    """Flower's commands for one of the user's SuperLinks.

    Parameters
    ----------
    name : str
        Its name in ``$FLWR_HOME/config.toml``.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._environment = {
            **os.environ,
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        self._command = find_command("flwr", self._environment)

    def ask(self, verb: str, *words: str) -> dict[str, Any]:
        """Return the JSON answer of ``flwr VERB WORDS``; RunError with Flower's reason."""
        done = self._call(verb, *words, "--format", "json")
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
            failed = answer["success"] is not True
        except (ValueError, KeyError, TypeError):
            answer, failed = {}, True
        if failed:
            reason = str(answer.get("error-message") or done.stderr or done.stdout)
            raise RunError(f"SuperLink {self._name}: {' '.join(reason.split())[-MOST_CHARACTERS:]}")
        return answer

    def start_run(self, app: str, run_config: Path) -> str:
        """Submit a run of a bundle's folder, or of ``@account/app``; return its number."""
        answer = self.ask("run", app, self._name, "--run-config", str(run_config))
        return str(answer["run-id"])

    def status(self, run: str) -> str:
        """Return a run's status, for example ``finished:failed``."""
        runs = self.ask("list", self._name, "--run-id", run)["runs"]
        return str(runs[0]["status"])

    def stop_run(self, run: str) -> None:
        """End a run at once."""
        self.ask("stop", run, self._name)

    def read_log(self, run: str) -> str:
        """Return a run's whole log so far."""
        return self._call("log", run, self._name, "--show").stdout

    def follow_log(self, run: str) -> "subprocess.Popen[str]":
        """Start a process that prints a run's log from its beginning until the run ends."""
        return subprocess.Popen(
            [self._command, "log", run, self._name, "--stream"],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def _call(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self._command, *words],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            # Ctrl-C in the terminal is for the launcher alone.
            start_new_session=True,
        )


class RunLog:
    """A run's log as it grows, over interruptions of the connection."""

    def __init__(self, connection: Connection, run: str) -> None:
        self._connection, self._run = connection, run
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._taken = self._skip = 0
        self.last: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def read(self, timeout: float) -> tuple[list[Record], bool]:
        """Return the records that have come since, and whether the stream has ended."""
        if self._process is None:
            self._start()
        found, ended = [], False
        try:
            line = self._lines.get(timeout=timeout)
            while line is not None:
                found += self._take(line)
                line = self._lines.get_nowait()
            self._process, ended = None, True
        except queue.Empty:
            pass
        return found, ended

    def read_whole(self) -> list[Record]:
        """Return the records that a stream has left out: what came last, if it broke off."""
        self._skip = self._taken
        lines = self._connection.read_log(self._run).splitlines(keepends=True)
        return [record for line in lines for record in self._take(line)]

    def close(self) -> None:
        """End the process that reads the log."""
        if self._process is not None:
            self._process.kill()
            self._reader.join()

    def _start(self) -> None:
        # A stream begins with the log's beginning: what was taken already comes again.
        self._skip = self._taken
        process = self._process = self._connection.follow_log(self._run)

        def pass_on() -> None:
            with process:
                assert process.stdout is not None
                for line in process.stdout:
                    self._lines.put(line)
            self._lines.put(None)

        self._reader = threading.Thread(target=pass_on, name="fl-app log", daemon=True)
        self._reader.start()

    def _take(self, line: str) -> list[Record]:
        record = read_record(line)
        if record is None:
            self.last = [*self.last, line][-LAST_LINES:]
            return []
        if self._skip > 0:
            self._skip -= 1
            return []
        self._taken += 1
        return [record]
