"""What a run shows: a live line on a terminal, elsewhere a line a round; only of this run."""

import io
import json
import os
import pty
import threading
import time

import pytest
from rich.console import Console

from fl_app import progress
from fl_app.progress import show_progress
from fl_app.run_files import METRICS_FILE

ROW = {"test_accuracy": 0.5, "test_loss": 1.25, "uplink_bytes": 2048, "epsilon": 3.0}


class Terminal:
    """A pseudo-terminal, and all that is written to it."""

    def __init__(self):
        self._reader, writer = pty.openpty()
        self._file = os.fdopen(writer, "w", encoding="utf-8")
        self.console = Console(file=self._file, width=100)
        self._written = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        while True:
            try:
                part = os.read(self._reader, 4096)
            except OSError:  # Linux's way to say that the other end is closed
                return
            if not part:
                return
            self._written += part

    @property
    def text(self) -> str:
        return self._written.decode("utf-8", errors="replace")

    def close(self) -> str:
        self._file.close()
        self._thread.join(timeout=10)
        os.close(self._reader)
        return self.text

    def wait_for(self, words: str) -> bool:
        deadline = time.monotonic() + 10
        while words not in self.text and time.monotonic() < deadline:
            time.sleep(0.01)
        return words in self.text


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.01)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def is_following() -> bool:
    return any(thread.name == progress.THREAD for thread in threading.enumerate())


def append(folder, server_round: int, **changes) -> None:
    with (folder / METRICS_FILE).open("a") as file:
        file.write(json.dumps({"round": server_round, **ROW, **changes}) + "\n")


def test_each_round_is_shown_on_a_terminal(tmp_path):
    terminal = Terminal()
    with show_progress(tmp_path, 20, terminal.console):
        assert terminal.wait_for("starting")
        append(tmp_path, 0)
        assert terminal.wait_for("0/20")
        append(tmp_path, 7)
        assert terminal.wait_for("7/20")
        assert terminal.wait_for("accuracy 0.5000  loss 1.2500")
    text = terminal.close()
    assert "epsilon 3.00" in text
    assert "2.05 kB" in text


def test_the_last_round_is_shown_though_it_came_at_the_very_end(tmp_path):
    terminal = Terminal()
    with show_progress(tmp_path, 20, terminal.console):
        append(tmp_path, 20)
    assert "20/20" in terminal.close()


def test_values_that_are_not_known_are_left_out(tmp_path):
    terminal = Terminal()
    with show_progress(tmp_path, 20, terminal.console):
        append(tmp_path, 3, test_accuracy=None, test_loss=None, epsilon=None)
    text = terminal.close()
    assert "3/20" in text
    assert "accuracy" not in text
    assert "epsilon none" in text


def test_what_is_waited_for_is_shown_until_the_first_round(tmp_path):
    terminal = Terminal()
    with show_progress(tmp_path, 20, terminal.console) as tell:
        tell("waiting for devices: 1 of [2]")
        assert terminal.wait_for("waiting for devices: 1 of [2]")
        append(tmp_path, 1)
        assert terminal.wait_for("1/20")
    terminal.close()


class Pipe(io.StringIO):
    """A file that can be waited for; what was not flushed is not there."""

    there = ""

    def flush(self):
        self.there = self.getvalue()

    def wait_for(self, words: str) -> bool:
        deadline = time.monotonic() + 10
        while words not in self.there and time.monotonic() < deadline:
            time.sleep(0.01)
        return words in self.there


def test_elsewhere_there_is_a_line_a_round(tmp_path):
    file = Pipe()
    with show_progress(tmp_path, 3, Console(file=file, width=20)) as tell:
        tell("waiting for devices: 1 of 2")
        assert file.there == "waiting for devices: 1 of 2\n"
        append(tmp_path, 0, num_sampled=0, num_replies=0, epsilon=0.0)
        assert file.wait_for("round 0/3  accuracy")
        append(tmp_path, 1, num_sampled=3, num_replies=2)
        append(tmp_path, 2, num_sampled=None, num_replies=None)
        append(tmp_path, 3, num_sampled=3, num_replies=None)
    rest = "accuracy 0.5000  loss 1.2500  up 2.05 kB  epsilon 3.00"
    assert file.there.splitlines()[1:] == [
        f"round 0/3  {rest.replace('3.00', '0')}",
        f"round 1/3  2 of 3 replies  {rest}",
        f"round 2/3  {rest}",  # secret figures are not there to be shown
        f"round 3/3  {rest}",
    ]
    assert not is_following()


def test_of_many_rounds_a_hundred_have_a_line(tmp_path):
    file = Pipe()
    with show_progress(tmp_path, 250, Console(file=file)):
        for server_round in range(251):
            append(tmp_path, server_round)
    numbers = [int(line.split()[1].partition("/")[0]) for line in file.there.splitlines()]
    assert numbers == [*range(0, 250, 3), 250]


def test_elsewhere_a_run_that_goes_on_shows_its_new_rounds(tmp_path):
    for server_round in range(3):
        append(tmp_path, server_round)
    for resume, first in ((True, 3), (False, 0)):
        file = Pipe()
        with show_progress(tmp_path, 9, Console(file=file), resume=resume):
            append(tmp_path, 3)
        assert file.there.startswith(f"round {first}/9 ")
        assert file.there.splitlines()[-1].startswith("round 3/9 ")


def test_a_pipe_that_nobody_reads_ends_nothing(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    file = os.fdopen(writer, "w")
    with show_progress(tmp_path, 9, Console(file=file)) as tell:
        tell("waiting")
        append(tmp_path, 1)
    assert not is_following()
    with pytest.raises(BrokenPipeError):
        file.close()


def test_a_sweep_s_jobs_show_nothing_elsewhere(tmp_path):
    file = io.StringIO()
    with show_progress(tmp_path, 20, Console(file=file), lines=False) as tell:
        append(tmp_path, 1)
        tell("waiting")
        assert not is_following()
    assert file.getvalue() == ""


def test_the_rounds_of_an_earlier_run_in_the_folder_are_not_shown(tmp_path):
    for server_round in range(15):
        append(tmp_path, server_round)
    terminal = Terminal()
    with show_progress(tmp_path, 20, terminal.console):
        assert terminal.wait_for("starting")
        time.sleep(0.1)
        # As a new run does: the file is emptied, then written from the start.
        (tmp_path / METRICS_FILE).write_text("")
        append(tmp_path, 2)
        assert terminal.wait_for("2/20")
    assert "14/20" not in terminal.close()


def test_a_line_that_is_being_written_is_waited_for(tmp_path):
    whole = json.dumps({"round": 4, **ROW}) + "\n"
    terminal = Terminal()
    with show_progress(tmp_path, 20, terminal.console), (tmp_path / METRICS_FILE).open("w") as file:
        for part in (whole[:9], whole[9:-1]):
            file.write(part)
            file.flush()
            time.sleep(0.05)
        assert "4/20" not in terminal.text
        file.write("\n")
        file.flush()
        assert terminal.wait_for("4/20")
    terminal.close()


def test_a_long_file_is_read_from_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "TAIL_BYTES", 300)
    terminal = Terminal()
    with show_progress(tmp_path, 99, terminal.console):
        for server_round in range(99):
            append(tmp_path, server_round)
        assert terminal.wait_for("98/99")
    terminal.close()


def test_a_run_that_fails_ends_the_display(tmp_path):
    terminal = Terminal()
    with pytest.raises(RuntimeError), show_progress(tmp_path, 9, terminal.console):  # noqa: PT012
        assert is_following()
        raise RuntimeError("the run failed")
    assert not is_following()
    assert "\x1b[?25h" in terminal.close(), "the cursor is shown again"


def test_a_search_tells_its_best_value_and_its_releases(tmp_path):
    terminal = Terminal()
    nothing = {"test_accuracy": None, "test_loss": None}
    with show_progress(tmp_path, 20, terminal.console):
        append(tmp_path, 3, **nothing, best_value_mean=0.8125, num_releases=2)
    text = terminal.close()
    assert "best value 0.8125  2 releases so far" in text
    assert "accuracy" not in text


@pytest.mark.parametrize(("count", "words"), [(0, ""), (1, "1 release so far  "), (None, "")])
def test_releases_are_a_sum_and_said_to_be(tmp_path, count, words):
    file = Pipe()
    with show_progress(tmp_path, 20, Console(file=file)):
        append(tmp_path, 3, test_accuracy=None, test_loss=None, num_releases=count)
    assert file.there == f"round 3/20  {words}up 2.05 kB  epsilon 3.00\n"
