"""What a device's folder says of all its runs: each release, which runs are over, and its lock."""

import fcntl
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fl_app.device_state import STATE_FILE, connect_state, create_state, named_failures
from fl_app.errors import RunError

LOCK_FILE = "devices.lock"
# A run that has not asked for anything for so long is taken to be over.
IDLE_SECONDS = 86_400.0
# With less on the disk nothing is begun: what is charged and cannot be kept is lost to both.
LEAST_FREE_BYTES = 16 * 2**20
_HOW = (
    "(the device takes part in nothing; to begin anew, make an empty folder, name it as state-dir, "
    "and lower max-epsilon by what was spent before)"
)


class Release(NamedTuple):
    """One upload that left a device, or may have.

    Attributes
    ----------
    run : str
    client : int
    method : str
    server_round : int
    description : str
        What it released, for the accountant (JSON).
    """

    run: str
    client: int
    method: str
    server_round: int
    description: str


@contextmanager
def lock_device(folder: Path) -> Iterator[None]:
    """Keep other processes and threads out while one request is answered.

    Between looking at what is left of a budget and charging it, nobody else may charge. The lock
    ends with the process, however that ends.

    Raises
    ------
    RunError
        If the folder is missing or others may change it, if its disk is full, or if its ledger is
        gone: a device does not begin anew by itself. In an empty folder it begins.
    """
    with named_failures(folder):
        _begin_folder(folder)
        if shutil.disk_usage(folder).free < LEAST_FREE_BYTES:
            raise RunError(f"{folder}: less than {LEAST_FREE_BYTES >> 20} MiB free on the disk")
        file = open(folder / LOCK_FILE, "ab")  # noqa: SIM115 - closed below
    with file:
        with named_failures(folder):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _begin_folder(folder: Path) -> None:
    try:
        mode = folder.stat().st_mode
    except FileNotFoundError:
        raise RunError(
            f"{folder}: no such folder: the ledger is lost, or there never was one {_HOW}"
        ) from None
    if not stat.S_ISDIR(mode) or mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RunError(f"{folder}: not a folder that its owner alone may write to (chmod 700)")
    if (folder / STATE_FILE).exists():
        return
    # What another process is about to put here does not count.
    found = [each.name for each in folder.iterdir() if not each.name.startswith(f".{STATE_FILE}.")]
    if found and not (folder / STATE_FILE).exists():
        raise RunError(
            f"{folder / STATE_FILE}: missing beside other files: the ledger is lost {_HOW}"
        )
    create_state(folder)


def list_releases(folder: Path) -> list[Release]:
    """Return all releases of a folder, oldest first; errors as of `FolderState`."""
    query = "SELECT run, client, method, server_round, description FROM releases ORDER BY number"
    connection = connect_state(folder, "OFF")
    with named_failures(folder):
        return [Release(*row) for row in connection.execute(query)]


def note_request(folder: Path, run: str, client: int, now: float) -> None:
    """Note that a run asks something, and forget the keys of other runs that are over.

    Parameters
    ----------
    folder : Path
    run : str
    client : int
    now : float
        Seconds since 1970.
    """
    connection = connect_state(folder, "FULL")
    with named_failures(folder):
        connection.execute(
            "INSERT INTO runs VALUES (?, ?, ?, 0, NULL) "
            "ON CONFLICT (run, client) DO UPDATE SET seen = excluded.seen",
            (run, client, now),
        )
        gone = connection.execute(
            "DELETE FROM keys WHERE run != ? AND NOT EXISTS (SELECT 1 FROM runs WHERE "
            "runs.run = keys.run AND runs.client = keys.client AND NOT is_over AND seen > ?)",
            (run, now - IDLE_SECONDS),
        ).rowcount
        if gone > 0:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def note_end(folder: Path, run: str, client: int) -> None:
    """Note that a run has had its last round: the next run's first request ends it."""
    connection = connect_state(folder, "FULL")
    with named_failures(folder):
        connection.execute(
            "UPDATE runs SET is_over = 1 WHERE run = ? AND client = ?", (run, client)
        )


def grant(folder: Path, run: str, client: int, epsilon: float) -> float:
    """Grant a run an epsilon, once; return what it was granted first.

    A client that adds noise of its own for what is left must do so for the same in all rounds.
    """
    connection = connect_state(folder, "FULL")
    with named_failures(folder):
        where = (run, client)
        connection.execute(
            "UPDATE runs SET granted_epsilon = ? "
            "WHERE run = ? AND client = ? AND granted_epsilon IS NULL",
            (epsilon, *where),
        )
        query = "SELECT granted_epsilon FROM runs WHERE run = ? AND client = ?"
        return float(connection.execute(query, where).fetchone()[0])
