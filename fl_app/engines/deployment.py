"""The deployment engine: a run on a SuperLink that is there already, and on its devices.

Flower's own commands carry the run to the SuperLink and its log back. The run does not depend on
this process once it is submitted; what it leaves comes back as `submitted_run` says.
"""

import logging
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fl_app.engines.bundle import write_bundle
from fl_app.engines.connection import Connection, RunLog
from fl_app.engines.flower import to_toml
from fl_app.engines.signed_bundle import name_app
from fl_app.engines.submitted_run import (
    FOLDER,
    MARK_FILE,
    OUTCOME,
    PROGRESS,
    WARNING,
    RebuiltStore,
    Record,
    mark_folder,
)
from fl_app.errors import ConfigError, RunError
from fl_app.interruption import stop_on_signals
from fl_app.named_code import name_again
from fl_app.run_config import to_yaml
from fl_app.run_files import LOG_FILE
from fl_app.settings import RunSettings

POLL_SECONDS = 0.25
# How long a SuperLink that does not answer is waited for, once the run is on it.
RECONNECT_SECONDS = 120.0
RETRY_SECONDS = 2.0
STOP_FILE = ".stop"
MOST_CHARACTERS = 1000  # of a line that the log brings

_log = logging.getLogger(__name__)


def run_deployment(
    settings: RunSettings,
    folder: Path,
    resume: bool = False,
    tell: Callable[[str], None] = _log.info,
) -> None:
    """Run the settings on a SuperLink's devices, and wait until the run has ended.

    The first Ctrl-C ends the run after the round (at once, if its folder is on another machine),
    the second one at once.

    Parameters
    ----------
    settings : RunSettings
        With `engine.superlink` and `num_clients` set; paths in it hold where the devices run.
    folder : Path
        The run's folder here, absolute.
    resume : bool
        Whether the run that was begun in the folder goes on; the SuperLink must see the folder.
    tell : callable
        Called with a line on how the run gets on, of what the rounds do not show.

    Raises
    ------
    ConfigError
        If no SuperLink is named.
    RunError
        If the SuperLink refuses the run or cannot be reached, or the run fails, for its own reason.
    """
    name = settings.engine.superlink
    if name is None:
        rule = "the name of a SuperLink in $FLWR_HOME/config.toml ([superlink.NAME])"
        raise ConfigError("engine.superlink", None, rule)
    connection = Connection(name)
    store = RebuiltStore(folder, resume)
    # Writing is the ServerApp's part from here on, where it sees the folder.
    store.close()
    folder = store.folder
    stop = folder / STOP_FILE
    try:
        run = _submit(connection, settings, folder, resume)
        tell(f"run {run} is on SuperLink {name}")
        _Follower(connection, run, store, settings, tell).follow()
    finally:
        (folder / MARK_FILE).unlink(missing_ok=True)
        stop.unlink(missing_ok=True)


def _submit(connection: Connection, settings: RunSettings, folder: Path, resume: bool) -> str:
    with tempfile.TemporaryDirectory(prefix="fl-app-") as name:
        bundle, run_config = Path(name, "bundle"), Path(name, "run.toml")
        write_bundle(bundle)
        run_config.write_text(
            to_toml(
                {
                    "settings": settings.to_json(),
                    "output-dir": str(folder),
                    "resume": resume,
                    "stop-file": str(folder / STOP_FILE),
                    "mark": mark_folder(folder),
                }
            ),
            encoding="utf-8",
        )
        # The SuperLink has the signed code of that name and version; this code says the name only.
        app = name_app(bundle) if settings.engine.signed else str(bundle)
        return connection.start_run(app, run_config)


class _Follower:
    """Waits for the end of a run, and keeps what comes back of it."""

    def __init__(
        self,
        connection: Connection,
        run: str,
        store: RebuiltStore,
        settings: RunSettings,
        tell: Callable[[str], None],
    ) -> None:
        self._connection, self._run, self._store = connection, run, store
        self._settings, self._tell = settings, tell
        self._log = RunLog(connection, run)
        self._ended: str | None = None
        self._elsewhere: str | None = None
        self._asked = threading.Event()

    def follow(self) -> None:
        """Return when the run is complete; RunError if it has failed."""
        try:
            with stop_on_signals(self._asked.is_set, self._asked.set, signal.SIGINT):
                self._wait()
        except KeyboardInterrupt:
            self._connection.stop_run(self._run)
            raise
        finally:
            self._log.close()
        if self._ended:
            self._keep_log()
            raise RunError(self._ended)
        if self._elsewhere is not None:
            print(f"the model is on the SuperLink's machine: {self._elsewhere}")

    def _wait(self) -> None:
        stopping = False
        while self._ended is None:
            records, over = self._log.read(POLL_SECONDS)
            self._keep(records)
            if self._asked.is_set() and not stopping:
                stopping = True
                self._stop()
            if over and self._ended is None:
                self._look_after()

    def _keep(self, records: list[Record]) -> None:
        for record in records:
            if record.kind == OUTCOME:
                self._ended = _as_line(record.text)
            elif record.kind == WARNING:
                _log.warning("%s", _as_line(record.text))
            elif record.kind == PROGRESS:
                self._tell(_as_line(record.text))
            elif record.kind == FOLDER:
                away = Path(record.text) != self._store.folder
                self._elsewhere = _as_line(record.text) if away else None
                if away:
                    self._store.write_config(to_yaml(self._settings))
            elif self._elsewhere is not None:
                self._store.take(record)

    def _stop(self) -> None:
        """End the run: after the round, if its folder is seen here, and otherwise at once."""
        if self._elsewhere is None:
            (self._store.folder / STOP_FILE).touch()
        else:
            self._connection.stop_run(self._run)

    def _look_after(self) -> None:
        """Find out why the log ended before the run said how it ended."""
        deadline = time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                status = self._connection.status(self._run)
                break
            except RunError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)
        if not status.startswith("finished"):
            return
        self._keep(self._log.read_whole())
        if self._ended is None:
            again = name_again(Path(self._elsewhere or self._store.folder), self._settings)
            self._ended = (
                f"the run ended without a word of its ServerApp ({status}): it was stopped or "
                f"killed; fl-app run {again} goes on, where the SuperLink sees that folder"
            )

    def _keep_log(self) -> None:
        text = "".join(self._log.last)
        with (self._store.folder / LOG_FILE).open("a", encoding="utf-8") as file:
            file.write(f"\nThe end of the log of run {self._run} on the SuperLink:\n{text}\n")


def _as_line(text: str) -> str:
    """Return a text that whoever wrote the log chose, as one line that moves no terminal."""
    return "".join(each if each.isprintable() else " " for each in text[:MOST_CHARACTERS])
