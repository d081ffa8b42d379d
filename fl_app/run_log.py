"""The log of a run; what simulated clients log is kept apart from it in secret runs.

A client that logs was asked, and what it logs comes of its data: neither belongs beside results
that are passed on. In secret runs it goes to a file in checkpoint/, which holds such things anyway.
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fl_app.engines.client_work import is_from_client
from fl_app.run_files import CHECKPOINT_FOLDER, CLIENT_LOG, LOG_FILE

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# As a line of that format begins; a traceback's do not.
_WARNING = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+ (?:WARNING|ERROR) ", re.MULTILINE)
_log = logging.getLogger(__name__)


def find_client_log(folder: Path, randomness: str) -> Path:
    """Return the file of a run's folder that has what its simulated clients log."""
    is_secret = randomness == "secret"
    return folder / CHECKPOINT_FOLDER / CLIENT_LOG if is_secret else folder / LOG_FILE


def describe_warnings(folder: Path, randomness: str) -> str | None:
    """Say how often the simulated clients of a secret run have warned; None if they have not.

    For the terminal of whoever simulates them: no file that is passed on says so.
    """
    client_log = find_client_log(folder, randomness)
    if client_log == folder / LOG_FILE or not client_log.is_file():
        return None
    text = client_log.read_text(encoding="utf-8", errors="replace")
    number = len(_WARNING.findall(text))
    return f"clients logged {number} warnings: see {client_log}" if number else None


@contextmanager
def log_to(folder: Path, randomness: str) -> Iterator[None]:
    """Write what is logged to the run's folder as well, with the traceback of a failure.

    Parameters
    ----------
    folder : Path
        The run's folder.
    randomness : str
        Of a secret run, what simulated clients log goes to a file of its own.
    """
    run_log, client_log = folder / LOG_FILE, find_client_log(folder, randomness)
    with ExitStack() as stack:
        main = stack.enter_context(_added(run_log, late=False))
        if client_log != run_log:
            main.addFilter(lambda record: not is_from_client(record))
            stack.enter_context(_added(client_log)).addFilter(is_from_client)
        try:
            yield
        except Exception:
            # Not an error to the terminal's handler: whoever started the run shows the reason.
            _log.info("the run failed", exc_info=True)
            raise


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
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Leave it: on a full disk, what the run itself cannot write says why it ends."""
