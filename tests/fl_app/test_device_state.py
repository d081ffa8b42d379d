"""What a client keeps: the same behaviour in its node's context and in a folder."""

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from fl_app import device_state
from fl_app.device_state import (
    FolderState,
    forget_keys,
    forget_replies,
    has_entries,
    list_entries,
)
from fl_app.errors import ConfigError, RunError
from strategies.device_state import ContextState, DeviceState, LedgerEntry, Observation

ENTRY = LedgerEntry("a", 3, 2, "terms", "request", b"\x00\xff", "{}", 5)


class StateBehaviour(ABC):
    """What every state does; `make` opens the memory of another client at each number."""

    @abstractmethod
    def make(self, folder: Path, client: int) -> DeviceState: ...

    def test_an_entry_is_fresh_then_what_was_written(self, tmp_path: Path) -> None:
        assert self.make(tmp_path, 1).read_entry("a") == LedgerEntry("a")
        self.make(tmp_path, 1).write_entry(ENTRY)
        assert self.make(tmp_path, 1).read_entry("a") == ENTRY
        assert self.make(tmp_path, 1).read_entry("b") == LedgerEntry("b")
        for other in (0, 2):
            assert self.make(tmp_path, other).read_entry("a") == LedgerEntry("a")

    def test_an_entry_is_replaced_as_a_whole(self, tmp_path: Path) -> None:
        state = self.make(tmp_path, 1)
        state.write_entry(ENTRY)
        state.write_entry(LedgerEntry("a", 4))
        assert state.read_entry("a") == LedgerEntry("a", 4)
        state.write_entry(LedgerEntry("b", 9))
        assert state.read_entry("a") == LedgerEntry("a", 4)

    def test_keys_are_kept_and_forgotten(self, tmp_path: Path) -> None:
        state = self.make(tmp_path, 1)
        assert state.read_key("pair") is None
        state.delete_key("pair")
        state.write_key("pair", b"\x00\x01")
        state.write_key("other", b"")
        assert self.make(tmp_path, 1).read_key("pair") == b"\x00\x01"
        for other in (0, 2):
            assert self.make(tmp_path, other).read_key("pair") is None
        state.write_key("pair", b"\x02")
        assert state.read_key("pair") == b"\x02"
        state.delete_key("pair")
        assert state.read_key("pair") is None
        assert state.read_key("other") == b""

    def test_observations_keep_their_order(self, tmp_path: Path) -> None:
        state = self.make(tmp_path, 1)
        assert (state.read_observations(), state.count_observations()) == ([], 0)
        added = [Observation((float(i), -0.5), 2.0 * i) for i in range(12)]
        for each in added:
            self.make(tmp_path, 1).add_observation(each)
        assert self.make(tmp_path, 1).read_observations() == added
        assert self.make(tmp_path, 1).count_observations() == 12
        for other in (0, 2):
            assert self.make(tmp_path, other).read_observations() == []
            assert self.make(tmp_path, other).count_observations() == 0

    @pytest.mark.parametrize("number", [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1 / 3])
    def test_observations_come_back_bit_for_bit(self, tmp_path: Path, number: float) -> None:
        for point in ((), (number,), (1.0, number)):
            state = self.make(tmp_path / str(len(point)), 1)
            state.add_observation(Observation(point, number))
            (found,) = state.read_observations()
            assert repr((found.point, found.value)) == repr((point, number))

    def test_secrets_are_not_shown(self, tmp_path: Path) -> None:
        state = self.make(tmp_path, 1)
        state.write_key("pair", b"hidden")
        state.add_observation(Observation((0.125,), 0.375))
        shown = f"{state!r} {state} {state.read_observations()}"
        assert "hidden" not in shown
        assert "0.125" not in shown
        assert "0.375" not in shown


class TestContextState(StateBehaviour):
    @pytest.fixture(autouse=True)
    def _contexts(self) -> None:
        self.contexts: dict[tuple[Path, int], Context] = {}

    def make(self, folder: Path, client: int) -> DeviceState:
        fresh = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
        return ContextState(self.contexts.setdefault((folder, client), fresh))


class TestFolderState(StateBehaviour):
    def make(self, folder: Path, client: int) -> DeviceState:
        return FolderState(folder / "state", "run", client, "OFF")

    def test_runs_are_apart(self, tmp_path: Path) -> None:
        one, other = (FolderState(tmp_path, name, 1, "OFF") for name in ("one", "other"))
        one.write_entry(ENTRY)
        one.write_key("pair", b"1")
        one.add_observation(Observation((1.0,), 1.0))
        assert other.read_entry("a") == LedgerEntry("a")
        assert (other.read_key("pair"), other.read_observations()) == (None, [])

    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
    def test_only_the_owner_may_read(self, tmp_path: Path, umask: int) -> None:
        before = os.umask(umask)
        try:
            self.make(tmp_path, 1).write_entry(ENTRY)
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
        files = list((tmp_path / "state").iterdir())
        assert {file.name for file in files} == {
            f"devices.sqlite{end}" for end in ("", "-wal", "-shm")
        }
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}

    def test_the_file_of_an_earlier_run_is_not_written_to(self, tmp_path: Path) -> None:
        self.make(tmp_path, 1).write_entry(ENTRY)
        for file in (tmp_path / "state").iterdir():
            file.unlink()
        assert self.make(tmp_path, 1).read_entry("a") == LedgerEntry("a")
        self.make(tmp_path, 1).write_entry(ENTRY)
        assert [each.client for each in list_entries(tmp_path / "state")] == [1]

    @pytest.mark.parametrize("synchronous", ["FULL", "OFF"])
    def test_as_durable_as_asked_for(self, tmp_path: Path, synchronous: str) -> None:
        state = FolderState(tmp_path, "run", 1, synchronous)  # type: ignore[arg-type]
        (level,) = state._connection.execute("PRAGMA synchronous").fetchone()
        (mode,) = state._connection.execute("PRAGMA journal_mode").fetchone()
        assert (level, mode) == ({"FULL": 2, "OFF": 0}[synchronous], "wal")

    @pytest.mark.parametrize("version", [4, 2, None])
    def test_an_unknown_version_is_refused(self, tmp_path: Path, version: int | None) -> None:
        self.make(tmp_path, 1)
        file = tmp_path / "state" / "devices.sqlite"
        device_state._open.cache_clear()
        connection = sqlite3.connect(file)
        connection.execute("DELETE FROM meta")
        if version is not None:
            connection.execute("INSERT INTO meta VALUES (?)", (version,))
        connection.commit()
        connection.close()
        with pytest.raises(ConfigError, match=r"format_version: \w+; allowed: 3 \(.*\.sqlite\)"):
            self.make(tmp_path, 1)
        with pytest.raises(ConfigError, match="format_version"):
            list_entries(tmp_path / "state")

    @pytest.mark.parametrize("content", [b"", b"not a database", bytes(10_000)])
    def test_a_damaged_file_is_one_line(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "devices.sqlite").write_bytes(content)
        with pytest.raises(RunError, match=r"^\S*devices.sqlite: .+$"):
            self.make(tmp_path, 1)

    def test_a_folder_that_cannot_be_written_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "state").write_text("")
        with pytest.raises(RunError, match=r"^\S*devices.sqlite: (File|Not).+$"):
            self.make(tmp_path, 1)
        with pytest.raises(RunError, match="No such file"):
            list_entries(tmp_path / "nowhere")
        assert not has_entries(tmp_path / "nowhere")

    def test_the_ledger_can_be_listed_and_replies_forgotten(self, tmp_path: Path) -> None:
        folder = tmp_path / "state"
        entries = {3: LedgerEntry("a", 5, reply=b"x"), 1: LedgerEntry("a", 4, 2, reply=b"y")}
        for client, entry in entries.items():
            self.make(tmp_path, client)
            assert has_entries(folder) is (client != 3)
            self.make(tmp_path, client).write_entry(entry)
        listed = [(each.run, each.client, each.entry.last_round) for each in list_entries(folder)]
        assert listed == [("run", 1, 4), ("run", 3, 5)]
        forget_replies(folder, 4)
        assert self.make(tmp_path, 3).read_entry("a") == entries[3]
        assert self.make(tmp_path, 1).read_entry("a") == LedgerEntry("a", 4, 2)

    def test_the_disk_does_not_grow_with_forgotten_replies(self, tmp_path: Path) -> None:
        sizes = []
        for number in range(1, 21):
            state = self.make(tmp_path, number)
            state.write_entry(LedgerEntry("a", number, reply=bytes(200_000)))
            forget_replies(tmp_path / "state", number)
            sizes.append(sum(file.stat().st_size for file in (tmp_path / "state").iterdir()))
        assert sizes[-1] < 6_000_000 + sizes[0]

    def test_a_killed_process_has_kept_what_it_wrote(self, tmp_path: Path) -> None:
        """However soon after: the process dies on the statement that follows."""
        program = (
            "import os, signal, sys\nfrom pathlib import Path\n"
            "from fl_app.device_state import FolderState\n"
            "from strategies.device_state import LedgerEntry, Observation\n"
            "state = FolderState(Path(sys.argv[1]), 'run', 1, sys.argv[2])\n"
            "state.write_key('pair', b'1')\nstate.add_observation(Observation((1.0,), 2.0))\n"
            "state.write_entry(LedgerEntry('a', 3, 2, 'terms', 'request', b'\\0\\xff', '{}', 5))\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        for synchronous in ("FULL", "OFF"):
            folder = tmp_path / synchronous
            words = [sys.executable, "-c", program, str(folder), synchronous]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert done.returncode == -signal.SIGKILL, done.stderr
            state = FolderState(folder, "run", 1)
            assert state.read_entry("a") == ENTRY
            assert state.read_key("pair") == b"1"
            assert state.read_observations() == [Observation((1.0,), 2.0)]

    def test_several_processes_write_at_once(self, tmp_path: Path) -> None:
        """All of them may create the file, and nothing that one writes is lost to another."""
        program = (
            "import sys\nfrom pathlib import Path\n"
            "from fl_app.device_state import FolderState\n"
            "from strategies.device_state import LedgerEntry\n"
            "sys.stdin.readline()\n"
            "for number in range(1, 101):\n"
            "    state = FolderState(Path(sys.argv[1]), 'run', int(sys.argv[2]), 'OFF')\n"
            "    entry = state.read_entry('a')\n"
            "    assert entry.participations == number - 1\n"
            "    state.write_entry(LedgerEntry('a', number, number, reply=bytes(5000)))\n"
        )
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", program, str(tmp_path / "state"), str(client)],
                stdin=subprocess.PIPE,
            )
            for client in range(4)
        ]
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write(b"\n")
            writer.stdin.flush()
        for writer in writers:
            writer.communicate()
        assert [writer.returncode for writer in writers] == [0] * 4
        counts = [each.entry.participations for each in list_entries(tmp_path / "state")]
        assert counts == [100] * 4
        assert not list((tmp_path / "state").glob(".*"))

    def test_threads_share_a_connection(self, tmp_path: Path) -> None:
        def write(client: int) -> None:
            for number in range(1, 51):
                state = self.make(tmp_path, client)
                if state.read_entry("a").participations == number - 1:
                    state.write_entry(LedgerEntry("a", number, number))

        threads = [threading.Thread(target=write, args=(client,)) for client in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counts = [each.entry.participations for each in list_entries(tmp_path / "state")]
        assert counts == [50] * 4

    def test_a_forked_process_opens_its_own_connection(self, tmp_path: Path) -> None:
        parent = self.make(tmp_path, 1)
        parent.write_entry(ENTRY)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                state = self.make(tmp_path, 1)
                shared = state._connection is parent._connection  # type: ignore[attr-defined]
                state.write_entry(LedgerEntry("a", 4))
                os.write(writer, json.dumps([shared]).encode())
            finally:
                os._exit(0)
        os.close(writer)
        assert json.loads(os.read(reader, 100) or b"null") == [False]
        os.close(reader)
        os.waitpid(child, 0)
        assert parent.read_entry("a") == LedgerEntry("a", 4)


KEY = bytes(range(100, 132))


def holds_key(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir() if KEY in each.read_bytes()]


def test_a_forgotten_key_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one that was deleted, with an SQLite that overwrites nothing of its own accord."""
    connect = sqlite3.connect

    def careless(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.execute("PRAGMA secure_delete = OFF")
        return connection

    monkeypatch.setattr(sqlite3, "connect", careless)
    state = FolderState(tmp_path, "run", 1, "OFF")
    state.write_key("pair", KEY)
    assert holds_key(tmp_path)
    state.delete_key("pair")
    state.write_key("other", KEY)
    assert forget_keys(tmp_path)
    assert state.read_key("other") is None
    assert holds_key(tmp_path) == []


def test_whether_the_log_could_be_emptied_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_state, "BUSY_SECONDS", 0.01)
    state = FolderState(tmp_path, "run", 1, "OFF")
    state.write_key("pair", KEY)
    reader = sqlite3.connect(tmp_path / device_state.STATE_FILE, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT key FROM keys").fetchall() == [(KEY,)]
    assert forget_keys(tmp_path) is False
    assert state.read_key("pair") is None
    assert holds_key(tmp_path)
    reader.execute("COMMIT")
    assert forget_keys(tmp_path) is True
    assert holds_key(tmp_path) == []
    reader.close()
