"""Whom a round asks, on disk before anybody is asked: a killed run repeats it with the same.

Only a secret run needs it; in a seeded one the cohort is drawn the same again.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from flwr.app import Message
from flwr.serverapp import Grid

from fl_app.engines.relay import GridRelay
from fl_app.errors import ConfigError, RunError
from strategies.rounds import PHASE_KEY, UPLOAD_PHASE

ASKED_FILE = "asked.json"
FORMAT_VERSION = 1


class AskedJournal(GridRelay):
    """A grid that notes the clients of each round before it asks them.

    Parameters
    ----------
    grid : Grid
        The grid that does the work.
    folder : Path
        Where the note is kept.
    client_ids : mapping of int to int
        Node id to client number.
    before_sending : callable
        Called before a round is sent, after it was noted.
    """

    def __init__(
        self,
        grid: Grid,
        folder: Path,
        client_ids: Mapping[int, int],
        before_sending: Callable[[], None],
    ) -> None:
        super().__init__(grid)
        self._folder = folder
        self._client_ids = client_ids
        self._before_sending = before_sending

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Note the round, then send messages; return their ids."""
        return self._grid.push_messages(self._note(messages))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Note the round, then send messages and wait for their replies."""
        return self._grid.send_and_receive(self._note(messages), timeout=timeout)

    def _note(self, messages: Iterable[Message]) -> list[Message]:
        requests = list(messages)
        if requests and _asks_for_upload(requests[0]):
            clients = [self._client_ids[each.metadata.dst_node_id] for each in requests]
            # A group id begins with the round; the attempt follows, where a method repeats rounds.
            asked = requests[0].metadata.group_id.split(".")
            attempt = int(asked[1]) if len(asked) > 1 else 1
            write_asked(self._folder, int(asked[0]), clients, attempt)
            self._before_sending()
        return requests


def _asks_for_upload(request: Message) -> bool:
    """Return whether a request may be answered with an upload: only these are charged."""
    return request.content["config"].get(PHASE_KEY, UPLOAD_PHASE) == UPLOAD_PHASE


def write_asked(folder: Path, server_round: int, clients: list[int], attempt: int = 1) -> None:
    """Replace the note, which has reached the disk then; RunError if that fails."""
    values = {"format_version": FORMAT_VERSION, "round": server_round}
    note = {**values, "attempt": attempt, "clients": clients}
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{ASKED_FILE}.", suffix=".tmp", dir=folder)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(note, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, folder / ASKED_FILE)
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}") from None


def read_asked(folder: Path) -> tuple[int, list[int], int] | None:
    """Return the last round that was noted, its clients and the attempt; None if there is none.

    Raises
    ------
    ConfigError
        If the note is damaged or of an unknown format version.
    """
    file = folder / ASKED_FILE
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        version, server_round, clients, attempt = (
            values[key] for key in ("format_version", "round", "clients", "attempt")
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError("resume", str(file), f"a whole file ({error})") from None
    if version != FORMAT_VERSION:
        raise ConfigError("format_version", version, f"{FORMAT_VERSION} ({file})")
    if not isinstance(clients, list) or not all(
        type(n) is int for n in [server_round, attempt, *clients]
    ):
        raise ConfigError("resume", str(file), "a round and its clients")
    return server_round, clients, attempt
