"""The log of a run; of a simulation's secret run it has the server's own words alone.

A client that logs was asked, and what it logs comes of its data; how long it took tells that it was
asked, too. None of that belongs beside results that are passed on. In secret runs everything but
what is known to be the server's goes to a file in checkpoint/, which holds such things anyway: of
whom a library's line, a thread's or a traceback is, nobody knows.
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fl_app.engines.client_work import client_at_work, is_from_client
from fl_app.run_files import CHECKPOINT_FOLDER, CLIENT_LOG, LOG_FILE

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# As a line of that format begins; a traceback's do not.
_WARNING = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+ (?:WARNING|ERROR) ", re.MULTILINE)
# Whose lines say nothing of single clients, or of how many were asked where that is secret.
_SERVERS = frozenset(
    [
        *(f"fl_app.{name}" for name in ("recorded_run", "federated_run", "search_run")),
        *(f"fl_app.{name}" for name in ("roll_call", "server_app", "interruption", "run_log")),
        *(f"strategies.{name}.server" for name in ("dp_fedpaq", "niss", "dp_fts_de")),
        "strategies.rounds",
    ]
)
_log = logging.getLogger(__name__)


def find_client_log(folder: Path, randomness: str) -> Path:
    """Return the file of a run's folder that has what its simulated clients log."""
    is_secret = randomness == "secret"
    return folder / CHECKPOINT_FOLDER / CLIENT_LOG if is_secret else folder / LOG_FILE


def describe_warnings(folder: Path, randomness: str) -> str | None:
    """Say how many warnings a secret run keeps apart; None if there are none.

    For the terminal of whoever simulates them: no file that is passed on says so.
    """
    client_log = find_client_log(folder, randomness)
    if client_log == folder / LOG_FILE or not client_log.is_file():
        return None
    text = client_log.read_text(encoding="utf-8", errors="replace")
    number = len(_WARNING.findall(text))
    return f"{number} warnings of clients and their work: see {client_log}" if number else None


@contextmanager
def log_to(folder: Path, randomness: str) -> Iterator[None]:
    """Write what is logged to the run's folder as well, with the traceback of a failure.

    Parameters
    ----------
    folder : Path
        The run's folder.
    randomness : str
        Of a secret run, all but the server's own words goes to a file of its own; "seeded" for a
        run on devices, whose logs are their own.
    """
    run_log, client_log = folder / LOG_FILE, find_client_log(folder, randomness)
    with ExitStack() as stack:
        main = stack.enter_context(_added(run_log, late=False))
        if client_log != run_log:
            main.addFilter(_is_server_s)
            stack.enter_context(_added(client_log)).addFilter(lambda each: not _is_server_s(each))
        try:
            yield
        except Exception:
            # Not an error to the terminal's handler: whoever started the run shows the reason.
            if client_log == run_log:
                _log.info("the run failed", exc_info=True)
            else:
                _log.info("the run failed; why is in %s", find_client_log(Path(), randomness))
                with client_at_work():  # what raised it may quote the data
                    _log.info("the run failed", exc_info=True)
            raise


def _is_server_s(record: logging.LogRecord) -> bool:
    return record.name in _SERVERS and not is_from_client(record)


@contextmanager
def log_client_to(folder: Path, randomness: str) -> Iterator[None]:
    """Write what a client of Flower's own simulation logs to the run's folder.

    Its process tells nobody else what it logs. Several may append at the same time, a record each.
    """
    with _added(find_client_log(folder, randomness)):
        yield


@contextmanager
def _added(file: Path, late: bool = True) -> Iterator[logging.Handler]:
    # Late: a file that nothing is written to is not made.
    ours = [logging.getLogger(name) for name in ("fl_app", "strategies")]
    before = [logger.level for logger in ours]
    handler = _LogFile(file, encoding="utf-8", delay=late)
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter(_FORMAT))
    logging.getLogger().addHandler(handler)
    for logger in ours:
        logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        for logger, level in zip(ours, before, strict=True):
            logger.setLevel(level)
        logging.getLogger().removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


class _LogFile(logging.FileHandler):
    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or leave it: the file is opened with the first one, which may fail too."""
        with contextlib.suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Leave it: on a full disk, what the run itself cannot write says why it ends."""
