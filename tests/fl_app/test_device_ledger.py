"""A device's ledger: one row a release for good, its lock, a lost folder, and keys of past runs."""

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fl_app.device_ledger import (
    IDLE_SECONDS,
    LOCK_FILE,
    Release,
    grant,
    list_releases,
    lock_device,
    note_end,
    note_request,
)
from fl_app.device_state import STATE_FILE, FolderState, connect_state
from fl_app.errors import RunError
from strategies.device_state import LedgerEntry
from tests.fl_app.charges import HALF, ROW, charge


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir(mode=0o700)
    return tmp_path / "state"


def test_one_row_a_charge_and_none_for_another_write(folder: Path) -> None:
    with lock_device(folder):
        state = FolderState(folder, "7", 1)
        state.write_entry(LedgerEntry("niss", terms="agreed"))
        assert list_releases(folder) == []
        charge(state, 2)
        charge(state, 1, HALF, "niss")
        # Not each round asks this device.
        state.write_entry(LedgerEntry("niss", 9, 2, "agreed", releases=HALF))
    assert list_releases(folder) == [
        Release("7", 1, "dp_fedpaq", 1, ROW),
        Release("7", 1, "dp_fedpaq", 2, ROW),
        Release("7", 1, "niss", 1, HALF),
        Release("7", 1, "niss", 9, HALF),
    ]


@pytest.mark.parametrize(
    "query",
    ["DELETE FROM releases", "UPDATE releases SET description = ''"],
)
def test_a_row_stays_as_it_is(folder: Path, query: str) -> None:
    with lock_device(folder):
        charge(FolderState(folder, "7", 1), 2)
    connection = connect_state(folder, "FULL")
    with pytest.raises(sqlite3.IntegrityError, match="a release stays in the ledger"):
        connection.execute(query)
    assert len(list_releases(folder)) == 2


def test_a_grant_is_given_once(folder: Path) -> None:
    with lock_device(folder):
        note_request(folder, "7", 1, 0.0)
        assert grant(folder, "7", 1, 2.5) == 2.5
        assert grant(folder, "7", 1, 1.0) == 2.5
        note_request(folder, "7", 1, 1.0)
        assert grant(folder, "7", 1, 9.0) == 2.5
        note_request(folder, "8", 1, 2.0)
        assert grant(folder, "8", 1, 1.0) == 1.0


def keep_key(folder: Path, run: str, now: float) -> FolderState:
    note_request(folder, run, 1, now)
    state = FolderState(folder, run, 1)
    state.write_key("niss.exchange", b"\xa5" * 32)
    return state


def test_keys_go_with_the_next_run_s_first_request(folder: Path) -> None:
    with lock_device(folder):
        over, idle, busy = (
            keep_key(folder, run, now) for run, now in [("1", 9), ("2", 0), ("3", 9)]
        )
        note_end(folder, "1", 1)
        charge(over, 1)
        # Its own next request, a repeated one, leaves everything.
        note_request(folder, "1", 1, 10.0)
        assert over.read_key("niss.exchange") is not None
        note_request(folder, "4", 1, IDLE_SECONDS + 5.0)
        assert over.read_key("niss.exchange") is None
        assert idle.read_key("niss.exchange") is None
        assert busy.read_key("niss.exchange") is not None
        # What it was charged stays, and the stored reply.
        assert over.read_entry("dp_fedpaq").reply == b"upload"
        assert len(list_releases(folder)) == 1
        note_request(folder, "5", 1, 3 * IDLE_SECONDS)
    for name in os.listdir(folder):
        assert b"\xa5" * 32 not in (folder / name).read_bytes()


def test_a_run_that_lasts_longer_than_idle_ones_are_kept_goes_on(folder: Path) -> None:
    with lock_device(folder):
        long = keep_key(folder, "1", 0.0)
        note_request(folder, "1", 1, IDLE_SECONDS - 1.0)
        note_request(folder, "2", 1, IDLE_SECONDS + 1.0)
        assert long.read_key("niss.exchange") is not None


def test_a_run_that_is_over_for_one_number_of_a_device_goes_on_for_another(folder: Path) -> None:
    with lock_device(folder):
        kept = [FolderState(folder, "1", client) for client in (1, 2)]
        for client, state in zip((1, 2), kept, strict=True):
            note_request(folder, "1", client, 9.0)
            state.write_key("niss.exchange", b"\xa5" * 32)
        note_end(folder, "1", 1)
        note_request(folder, "2", 1, 10.0)
    assert [state.read_key("niss.exchange") is None for state in kept] == [True, False]


@pytest.mark.parametrize("synchronous", ["FULL", "OFF"])
def test_a_deleted_key_is_in_no_file_when_the_process_ends_at_once(
    folder: Path, synchronous: str
) -> None:
    """A device's processes never close the file. The twin: what a simulation leaves to its end."""
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom fl_app.device_state import FolderState\n"
        "state = FolderState(Path(sys.argv[1]), '1', 0, sys.argv[2])\n"
        "state.write_key('niss.exchange', b'\\xa5' * 32)\n"
        "state.delete_key('niss.exchange')\nos._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(folder), synchronous], check=True)
    found = {name for name in os.listdir(folder) if b"\xa5" * 32 in (folder / name).read_bytes()}
    assert found == (set() if synchronous == "FULL" else {"devices.sqlite-wal"})


def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    with (
        pytest.raises(RunError, match=r"ledger is lost.*empty folder"),
        lock_device(tmp_path / "lost"),
    ):
        pass
    assert not (tmp_path / "lost").exists()
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="not a folder"), lock_device(tmp_path / "file"):
        pass


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_may_change_is_refused(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    with pytest.raises(RunError, match="chmod 700"), lock_device(folder):
        pass


def test_a_ledger_that_is_gone_is_not_begun_anew(folder: Path) -> None:
    with lock_device(folder):
        charge(FolderState(folder, "7", 1), 1)
    for name in (STATE_FILE, f"{STATE_FILE}-wal", f"{STATE_FILE}-shm"):
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(RunError, match=r"ledger is lost.*empty folder"), lock_device(folder):
        pass
    assert os.listdir(folder) == [LOCK_FILE]


def test_a_killed_beginning_is_no_loss(folder: Path) -> None:
    (folder / f".{STATE_FILE}.abc.tmp").touch()
    with lock_device(folder):
        assert list_releases(folder) == []


COUNTER = """
    import sys, pathlib
    from fl_app.device_ledger import lock_device, list_releases
    from fl_app.device_state import FolderState
    from strategies.device_state import LedgerEntry
    from dataclasses import asdict, replace
    folder = pathlib.Path(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(300):
        with lock_device(folder):
            state = FolderState(folder, "7", 1, "OFF")
            entry = state.read_entry("m")
            if len(list_releases(folder)) >= 500:
                continue
            count = entry.participations + 1
            state.write_entry(replace(entry, last_round=count, participations=count))
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_keep_one_ledger(folder: Path) -> None:
    """A limit of 500 that each looks at before it charges: neither loses nor exceeds one."""
    processes = [start(COUNTER, str(folder)) for _ in range(2)]
    for each in processes:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in processes:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    for each in processes:
        each.communicate(timeout=100)
        assert each.returncode == 0
    assert [each.server_round for each in list_releases(folder)] == list(range(1, 501))


HOLDER = """
    import sys, pathlib
    from fl_app.device_ledger import lock_device
    with lock_device(pathlib.Path(sys.argv[1])):
        print("locked", flush=True)
        sys.stdin.readline()
"""


def test_a_killed_process_leaves_no_lock(folder: Path) -> None:
    holder = start(HOLDER, str(folder))
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    with open(folder / LOCK_FILE, "ab") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with lock_device(folder):
        assert list_releases(folder) == []
