"""What clients keep in a folder: their memories of runs, in one SQLite file.

A device has one for all runs that it takes part in; a simulated run has one for all its clients.
"""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from fl_app.errors import ConfigError, RunError
from fl_app.packed_observation import pack_observation, unpack_observation
from strategies.device_state import LedgerEntry, Observation

STATE_FILE = "devices.sqlite"
FORMAT_VERSION = 3
# How long a writer waits for the others, each of which needs far below a millisecond.
BUSY_SECONDS = 30.0

Synchronous = Literal["FULL", "OFF"]

_TABLES = """
CREATE TABLE meta (format_version INTEGER NOT NULL);
CREATE TABLE ledger (
    run TEXT NOT NULL, client INTEGER NOT NULL, method TEXT NOT NULL,
    last_round INTEGER NOT NULL, participations INTEGER NOT NULL, terms TEXT NOT NULL,
    request TEXT NOT NULL, reply BLOB NOT NULL, releases TEXT NOT NULL,
    last_attempt INTEGER NOT NULL, PRIMARY KEY (run, client, method)
);
CREATE TABLE keys (
    run TEXT NOT NULL, client INTEGER NOT NULL, name TEXT NOT NULL, key BLOB NOT NULL,
    PRIMARY KEY (run, client, name)
);
CREATE TABLE observations (
    number INTEGER PRIMARY KEY, run TEXT NOT NULL, client INTEGER NOT NULL, content TEXT NOT NULL
);
CREATE INDEX observations_of ON observations (run, client);
CREATE TABLE releases (
    number INTEGER PRIMARY KEY, run TEXT NOT NULL, client INTEGER NOT NULL, method TEXT NOT NULL,
    server_round INTEGER NOT NULL, description TEXT NOT NULL
);
CREATE INDEX releases_of ON releases (run, client, method);
CREATE TABLE runs (
    run TEXT NOT NULL, client INTEGER NOT NULL, seen REAL NOT NULL, is_over INTEGER NOT NULL,
    granted_epsilon REAL, PRIMARY KEY (run, client)
);
"""
# One row a release, in the transaction that charges it, and for good.
_ADD_RELEASE = """
BEGIN
    INSERT INTO releases (run, client, method, server_round, description)
    VALUES (NEW.run, NEW.client, NEW.method, NEW.last_round, NEW.releases);
END;
"""
_TRIGGERS = f"""
CREATE TRIGGER first_release AFTER INSERT ON ledger WHEN NEW.participations > 0 {_ADD_RELEASE}
CREATE TRIGGER next_release AFTER UPDATE ON ledger
WHEN NEW.participations > OLD.participations {_ADD_RELEASE}
CREATE TRIGGER never_deleted BEFORE DELETE ON releases
BEGIN SELECT RAISE(ABORT, 'a release stays in the ledger'); END;
CREATE TRIGGER never_changed BEFORE UPDATE ON releases
BEGIN SELECT RAISE(ABORT, 'a release stays in the ledger'); END;
"""
_VALUES = "last_round, participations, terms, request, reply, releases, last_attempt"
_WRITE_ENTRY = (
    f"INSERT INTO ledger (run, client, method, {_VALUES}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (run, client, method) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _VALUES.split(", "))
)


class ClientEntry(NamedTuple):
    """An entry of the ledger, and whose it is."""

    run: str
    client: int
    entry: LedgerEntry


class OwnBest(NamedTuple):
    """The best of a client's observations in a search, whose it is, and of how many.

    `num_useless` of them failed, or gave a value outside the objective's range.
    """

    run: str
    client: int
    num_evaluations: int
    num_useless: int
    best: Observation


class FolderState:
    """A client's memory of one run in a folder's file; see `strategies.device_state.DeviceState`.

    Several processes, and the threads of each, may read and write at once. Whatever was written is
    found again after the process was killed in the moment after.

    Parameters
    ----------
    folder : Path
        Created if missing, readable by its owner only, as is the file in it.
    run : str
        Name of the run; other runs' memories in the same file are apart.
    client : int
        Number of the client in the run.
    synchronous : {"FULL", "OFF"}
        FULL: a write has reached the disk when the call returns, and outlives a loss of power.
        OFF: it outlives the end of the process, however that comes; enough for a simulation, and
        a hundred times faster.

    Raises
    ------
    RunError
        If the folder or the file cannot be read or written; so do all methods.
    ConfigError
        If the file is of an unknown format version.
    """

    def __init__(
        self, folder: Path, run: str, client: int, synchronous: Synchronous = "FULL"
    ) -> None:
        self._folder = folder
        self._whose = (run, client)
        self._synchronous = synchronous
        create_state(folder)
        self._connection = connect_state(folder, synchronous)

    def read_entry(self, method: str) -> LedgerEntry:
        """Return the run's entry; a fresh one if there is none."""
        query = f"SELECT {_VALUES} FROM ledger WHERE run = ? AND client = ? AND method = ?"
        rows = self._execute(query, *self._whose, method)
        return LedgerEntry(method, *rows[0]) if rows else LedgerEntry(method)

    def write_entry(self, entry: LedgerEntry) -> None:
        """Replace the run's entry."""
        values = [getattr(entry, name) for name in _VALUES.split(", ")]
        self._execute(_WRITE_ENTRY, *self._whose, entry.method, *values)

    def read_key(self, name: str) -> bytes | None:
        """Return a key that was kept under this name in this run; None if there is none."""
        query = "SELECT key FROM keys WHERE run = ? AND client = ? AND name = ?"
        rows = self._execute(query, *self._whose, name)
        return bytes(rows[0][0]) if rows else None

    def write_key(self, name: str, key: bytes) -> None:
        """Keep a key."""
        self._execute("INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?)", *self._whose, name, key)

    def delete_key(self, name: str) -> None:
        """Forget a key; it is no error if there is none.

        With FULL it is gone from SQLite's log, too, when the call returns: a device's processes
        end without closing the file. A simulation cuts the log when it ends (`forget_keys`).
        """
        query = "DELETE FROM keys WHERE run = ? AND client = ? AND name = ?"
        self._execute(query, *self._whose, name)
        if self._synchronous == "FULL":
            self._execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def read_observations(self) -> list[Observation]:
        """Return the run's observations in the order in which they were added."""
        query = "SELECT content FROM observations WHERE run = ? AND client = ? ORDER BY number"
        rows = self._execute(query, *self._whose)
        return [unpack_observation(content, self._folder / STATE_FILE) for (content,) in rows]

    def count_observations(self) -> int:
        """Return how many observations the run has."""
        query = "SELECT count(*) FROM observations WHERE run = ? AND client = ?"
        return int(self._execute(query, *self._whose)[0][0])

    def add_observation(self, observation: Observation) -> None:
        """Append an observation."""
        query = "INSERT INTO observations (run, client, content) VALUES (?, ?, ?)"
        self._execute(query, *self._whose, pack_observation(observation))

    def _execute(self, query: str, *values: Any) -> list[Any]:
        with named_failures(self._folder):
            return self._connection.execute(query, values).fetchall()


def create_state(folder: Path) -> None:
    """Create a folder's file, unless it is there; RunError if that fails.

    Whoever else looks sees no file or a whole one.
    """
    target = folder / STATE_FILE
    if target.exists():
        return
    with named_failures(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Only its owner may read it, and so the files that SQLite will put beside it.
        descriptor, name = tempfile.mkstemp(prefix=f".{STATE_FILE}.", suffix=".tmp", dir=folder)
        temporary = Path(name)
        try:
            os.close(descriptor)
            connection = sqlite3.connect(temporary, isolation_level=None)
            # Stays with the file: readers and the writer do not wait for each other, and what a
            # killed process has written is there.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_TABLES + _TRIGGERS)
            connection.execute("INSERT INTO meta VALUES (?)", (FORMAT_VERSION,))
            connection.close()
            try:
                os.link(temporary, target)
            except FileExistsError:
                return  # another process was faster
        finally:
            temporary.unlink(missing_ok=True)


def list_entries(folder: Path) -> list[ClientEntry]:
    """Return the ledger of a folder, by run, client and method, without the stored replies.

    Raises
    ------
    RunError
        If there is no file, or it cannot be read.
    ConfigError
        If it is of an unknown format version.
    """
    values = _VALUES.replace("reply", "x''")
    query = f"SELECT run, client, method, {values} FROM ledger ORDER BY run, client, method"
    connection = connect_state(folder, "OFF")
    with named_failures(folder):
        rows = connection.execute(query).fetchall()
    return [ClientEntry(run, client, LedgerEntry(*rest)) for run, client, *rest in rows]


def list_best(folder: Path) -> list[OwnBest]:
    """Return each client's best observation in each search; errors as above.

    Searches come in the order in which they began, clients in that of their numbers.

    They are secrets of the folder's owner.
    """
    connection = connect_state(folder, "OFF")
    with named_failures(folder):
        rows = connection.execute("SELECT run, client, content FROM observations ORDER BY number")
        found: dict[tuple[str, int], list[Observation]] = {}
        for run, client, content in rows:
            found.setdefault((run, client), []).append(
                unpack_observation(content, folder / STATE_FILE)
            )
    runs = {run: place for place, run in enumerate(dict.fromkeys(run for run, _ in found))}
    return [
        OwnBest(
            *(*whose, len(seen), sum(bool(each.note) for each in seen)),
            max(seen, key=lambda each: each.value),
        )
        for whose, seen in sorted(found.items(), key=lambda item: (runs[item[0][0]], item[0][1]))
    ]


def count_observations(folder: Path) -> dict[tuple[str, int], int]:
    """Return how many observations each client of each run has; RunError if one is damaged."""
    connection = connect_state(folder, "OFF")
    found: dict[tuple[str, int], int] = {}
    with named_failures(folder):
        rows = connection.execute("SELECT run, client, content FROM observations")
        for run, client, content in rows:
            unpack_observation(content, folder / STATE_FILE)
            found[run, client] = found.get((run, client), 0) + 1
    return found


def has_entries(folder: Path) -> bool:
    """Return whether any client of a folder has an entry; False if there is no file."""
    if not (folder / STATE_FILE).exists():
        return False
    connection = connect_state(folder, "OFF")
    with named_failures(folder):
        return bool(connection.execute("SELECT EXISTS (SELECT 1 FROM ledger)").fetchone()[0])


def forget_replies(folder: Path, up_to_round: int) -> None:
    """Forget the stored replies of rounds that no one will ask for again.

    Parameters
    ----------
    folder : Path
        Of a simulated run: all clients in it are those of one run.
    up_to_round : int
        The last round of which nothing will be asked again.
    """
    connection = connect_state(folder, "OFF")
    with named_failures(folder):
        connection.execute(
            "UPDATE ledger SET reply = x'' WHERE last_round <= ? AND reply != x''", (up_to_round,)
        )


def forget_keys(folder: Path) -> bool:
    """Forget all keys, at the end of a simulated run: whoever finds the folder learns no noise.

    Returns
    -------
    bool
        Whether they are gone from the log of what was written, too: not if another process reads.
    """
    connection = connect_state(folder, "OFF")
    with named_failures(folder):
        connection.execute("DELETE FROM keys")
        busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    return not busy


def connect_state(folder: Path, synchronous: Synchronous) -> sqlite3.Connection:
    """Return this process's connection to a folder's file."""
    with named_failures(folder):
        file = folder / STATE_FILE
        status = file.stat()
        return _open(file, synchronous, os.getpid(), status.st_dev, status.st_ino)


# By process, since a connection must not be used beyond a fork, and by the file's identity, since
# the file of an earlier run may have been removed.
@lru_cache(maxsize=8)
def _open(file: Path, synchronous: Synchronous, *_: int) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(file))}?mode=rw",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,  # each statement is a transaction
        check_same_thread=False,  # SQLite's own lock does
    )
    rows = connection.execute("SELECT format_version FROM meta").fetchall()
    if rows != [(FORMAT_VERSION,)]:
        found = rows[0][0] if rows else None
        raise ConfigError("format_version", found, f"{FORMAT_VERSION} ({file})")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    # What is deleted is overwritten.
    connection.execute("PRAGMA secure_delete = ON")
    return connection


@contextmanager
def named_failures(folder: Path) -> Iterator[None]:
    """Turn failures of the disk and of SQLite, whose texts hold no values, into one line."""
    try:
        yield
    except sqlite3.Error as error:
        raise RunError(f"{folder / STATE_FILE}: {error}") from None
    except OSError as error:
        raise RunError(f"{folder / STATE_FILE}: {error.strerror}") from None
