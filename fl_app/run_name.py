"""A run's own name, by which devices remember it: Flower gives a resumed run another number."""

import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fl_app.errors import ConfigError, RunError

RUN_KEY = "run"
NAME_FILE = "run_name"
_NAME = re.compile("[0-9a-f]{32}")


def read_name(folder: Path) -> str | None:
    """Return the name of the run that was begun in a folder; None if it was not.

    Raises
    ------
    ConfigError
        If the file is damaged.
    """
    file = folder / NAME_FILE
    try:
        name = file.read_text(encoding="ascii").removesuffix("\n")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError("resume", str(file), f"a whole file ({error})") from None
    if not _NAME.fullmatch(name):
        raise ConfigError("resume", str(file), "a whole file (32 hexadecimal digits)")
    return name


def name_run(folder: Path) -> str:
    """Return a run's name, 128 random bits as hexadecimal digits; a new run is given one.

    Nobody else can name the run by chance, and it is on disk before any client hears of it.

    Raises
    ------
    ConfigError
        If the file that keeps it is damaged.
    RunError
        If it cannot be kept.
    """
    if (known := read_name(folder)) is not None:
        return known
    name = secrets.token_hex(16)
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{NAME_FILE}.", suffix=".tmp", dir=folder)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(name + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, folder / NAME_FILE)
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}") from None
    return name


def parse_name(config: Mapping[str, object], run_id: int) -> str:
    """Return the name of the run that a request belongs to; without one, Flower's number of it.

    Parameters
    ----------
    config : mapping
        The request's own.
    run_id : int
        Flower's number of the run.

    Raises
    ------
    ValueError
        If there is a name that is none: 32 digits 0-9 and a-f, which no number of Flower's has.
    """
    name = config.get(RUN_KEY)
    if name is None and RUN_KEY not in config:
        return str(run_id)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{RUN_KEY}: not a run's name, 32 hexadecimal digits")
    return name
