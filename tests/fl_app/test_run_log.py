"""What a run's log holds: of a secret simulation nothing but the server's own words."""

import logging
import threading
from pathlib import Path

import pytest

from fl_app.engines.client_work import client_at_work
from fl_app.run_log import describe_warnings, find_client_log, log_to

SERVER = logging.getLogger("strategies.dp_fedpaq.server")
OTHERS = ("asyncio", "flwr", "userlib", "fl_app.engines.in_process", "fl_app.data.flwr_partition")


def read(folder: Path) -> tuple[str, str]:
    apart = folder / "checkpoint" / "clients.log"
    return (folder / "run.log").read_text(), apart.read_text() if apart.exists() else ""


def prepare(folder: Path) -> Path:
    (folder / "checkpoint").mkdir()
    return folder


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("randomness", ["secret", "seeded"])
def test_a_line_that_is_not_known_to_be_the_server_s_is_apart(
    tmp_path: Path, name: str, randomness: str
) -> None:
    """A library's error about a task that a client left, or the time that one client took."""
    with log_to(prepare(tmp_path), randomness):
        SERVER.info("round 1: the server's")
        logging.getLogger(name).warning("my secret")
    run_log, apart = read(tmp_path)
    assert "the server's" in run_log
    assert ("my secret" in run_log, "my secret" in apart) == (
        (False, True) if randomness == "secret" else (True, False)
    )


def test_what_a_client_s_thread_says_later_is_apart(tmp_path: Path) -> None:
    late = threading.Event()

    def speak() -> None:
        late.wait(10)
        logging.getLogger("userlib").error("my secret")

    with log_to(prepare(tmp_path), "secret"):
        with client_at_work():
            thread = threading.Thread(target=speak)
            thread.start()
        late.set()
        thread.join()
        SERVER.warning("the server's")
    run_log, apart = read(tmp_path)
    assert ("my secret" in run_log, "my secret" in apart) == (False, True)
    assert ("the server's" in run_log, "the server's" in apart) == (True, False)


@pytest.mark.parametrize("randomness", ["secret", "seeded"])
def test_why_a_run_failed_may_quote_the_data(tmp_path: Path, randomness: str) -> None:
    with pytest.raises(RuntimeError), log_to(prepare(tmp_path), randomness):
        raise RuntimeError("no figures") from ValueError("row 17: my secret")
    run_log, apart = read(tmp_path)
    assert "the run failed" in run_log
    told = apart if randomness == "secret" else run_log
    assert "row 17: my secret" in told
    assert ("my secret" in run_log) == (randomness == "seeded")


def test_a_log_that_cannot_be_opened_ends_nothing(tmp_path: Path) -> None:
    # There is no folder for it.
    with log_to(tmp_path, "secret"), client_at_work():
        logging.getLogger("fl_app.evaluation_log").warning("evaluation 1 failed")
    assert not (tmp_path / "checkpoint").exists()
    assert describe_warnings(tmp_path, "secret") is None


def test_warnings_are_counted_for_whoever_simulates(tmp_path: Path) -> None:
    with log_to(prepare(tmp_path), "secret"), client_at_work():
        for level in (logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger("fl_app.client_app").log(level, "said\nWARNING in a second line")
    told = describe_warnings(tmp_path, "secret")
    assert told == (
        f"2 warnings of clients and their work: see {find_client_log(tmp_path, 'secret')}"
    )
    assert describe_warnings(tmp_path, "seeded") is None
