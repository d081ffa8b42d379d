"""Whom a round asks, on disk before anybody is asked: a killed run repeats it with the same.

Only a secret run needs it; in a seeded one the cohort is drawn the same again.
"""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fl_app.engines.relay import GridRelay
from fl_app.errors import ConfigError, RunError
from strategies.rounds import PHASE_KEY, UPLOAD_PHASE

ASKED_FILE = "asked.json"
FORMAT_VERSION = 2


class Asked(NamedTuple):
    """Whom a round has asked for uploads.

    Attributes
    ----------
    server_round : int
    uploads : dict of int to int
        By client, how many different uploads of the round it may have been asked for.
    attempt : int
        The last one, from 1; it grows where a method tries a round several times.
    """

    server_round: int
    uploads: dict[int, int]
    attempt: int

    def add(self, clients: Iterable[int], attempt: int) -> "Asked":
        """Return the note with one more attempt; asking for the same one again changes nothing."""
        if attempt == self.attempt:
            return self
        return Asked(self.server_round, dict(Counter(self.uploads) + Counter(clients)), attempt)


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

    Raises
    ------
    ConfigError
        If the folder's note is damaged.
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
        self._last = read_asked(folder)

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
            server_round, attempt = int(asked[0]), int(asked[1]) if len(asked) > 1 else 1
            if self._last is None or self._last.server_round != server_round:
                self._last = Asked(server_round, {}, 0)
            self._last = self._last.add(clients, attempt)
            write_asked(self._folder, self._last)
            self._before_sending()
        return requests


def _asks_for_upload(request: Message) -> bool:
    """Return whether a request may be answered with an upload: only these are charged."""
    return request.content["config"].get(PHASE_KEY, UPLOAD_PHASE) == UPLOAD_PHASE


def write_asked(folder: Path, asked: Asked) -> None:
    """Replace the note, which has reached the disk then; RunError if that fails."""
    values = {"format_version": FORMAT_VERSION, "round": asked.server_round}
    note = {**values, "attempt": asked.attempt, "uploads": sorted(asked.uploads.items())}
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{ASKED_FILE}.", suffix=".tmp", dir=folder)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(note, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, folder / ASKED_FILE)
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}") from None


def read_asked(folder: Path) -> Asked | None:
    """Return the last round that was noted; None if there is none.

    Raises
    ------
    ConfigError
        If the note is damaged or of an unknown format version.
    """
    file = folder / ASKED_FILE
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        version = values["format_version"]
        if version == FORMAT_VERSION:
            found = Asked(values["round"], dict(values["uploads"]), values["attempt"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError("resume", str(file), f"a whole file ({error})") from None
    if version != FORMAT_VERSION:
        raise ConfigError("format_version", version, f"{FORMAT_VERSION} ({file})")
    counts = [found.server_round, found.attempt, *found.uploads, *found.uploads.values()]
    if not all(type(count) is int for count in counts):
        raise ConfigError("resume", str(file), "a round and its clients")
    return found
