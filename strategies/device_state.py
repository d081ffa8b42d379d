"""What a client keeps between messages: one interface, whatever stores it."""

import dataclasses
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from flwr.app import ConfigRecord, Context


@dataclass(frozen=True)
class LedgerEntry:
    """What one run has taken from this client so far.

    Attributes
    ----------
    method : str
        The method's name.
    last_round : int
        The latest round that was answered or begun, from 1; 0 before the first.
    participations : int
        Uploads charged, whether they arrived or not.
    terms : str
        Digest of the parameters and settings that the client agreed to; they hold for the run.
    request : str
        Digest of the last round's request: the stored reply answers this one and no other.
    reply : bytes
        The last round's upload, to be sent again unchanged; empty while there is none.
    releases : str
        What was released, for the accountant (JSON); empty before the first upload.
    last_attempt : int
        The latest attempt of the last round that was charged, from 1; 0 where rounds have one only.
    """

    method: str
    last_round: int = 0
    participations: int = 0
    terms: str = ""
    request: str = ""
    reply: bytes = field(default=b"", repr=False)
    releases: str = ""
    last_attempt: int = 0


Note = Literal["", "failed", "outside"]
NOTES: tuple[Note, ...] = get_args(Note)


@dataclass(frozen=True)
class Observation:
    """One evaluation of a client's own objective.

    Attributes
    ----------
    point : tuple of float
        In the unit of the search space.
    value : float
        What was observed there.
    note : {"", "failed", "outside"}
        Whether the evaluation failed, or gave a value outside the objective's range.
    """

    point: tuple[float, ...] = field(repr=False)
    value: float = field(repr=False)
    note: Note = field(default="", repr=False)


class DeviceState(Protocol):
    """A client's memory of one run; it is opened for a run and a client.

    A write is as durable as the store can make it when the call returns, and whole: whoever reads
    sees the old value or the new one. Keys and observations are secrets of the client.
    """

    def read_entry(self, method: str) -> LedgerEntry:
        """Return the run's entry; a fresh one if there is none."""

    def write_entry(self, entry: LedgerEntry) -> None:
        """Replace the run's entry."""

    def read_key(self, name: str) -> bytes | None:
        """Return a key that was kept under this name in this run; None if there is none."""

    def write_key(self, name: str, key: bytes) -> None:
        """Keep a key."""

    def delete_key(self, name: str) -> None:
        """Forget a key; it is no error if there is none."""

    def read_observations(self) -> list[Observation]:
        """Return the run's observations in the order in which they were added."""

    def count_observations(self) -> int:
        """Return how many observations the run has."""

    def add_observation(self, observation: Observation) -> None:
        """Append an observation."""


class ContextState:
    """A client's memory in its node's context: kept by Flower, lost when the node restarts.

    Parameters
    ----------
    context : Context
        The node's context, as its app is given it.
    """

    def __init__(self, context: Context) -> None:
        self._records = context.state

    def read_entry(self, method: str) -> LedgerEntry:
        """Return the run's entry; a fresh one if there is none."""
        record = self._records.get(f"ledger.{method}")
        if not isinstance(record, ConfigRecord):
            return LedgerEntry(method)
        return LedgerEntry(**record)  # type: ignore[arg-type]

    def write_entry(self, entry: LedgerEntry) -> None:
        """Replace the run's entry."""
        self._records[f"ledger.{entry.method}"] = ConfigRecord(dataclasses.asdict(entry))

    def read_key(self, name: str) -> bytes | None:
        """Return a key that was kept under this name in this run; None if there is none."""
        record = self._records.get("keys")
        key = record.get(name) if isinstance(record, ConfigRecord) else None
        return key if isinstance(key, bytes) else None

    def write_key(self, name: str, key: bytes) -> None:
        """Keep a key."""
        self._record("keys")[name] = key

    def delete_key(self, name: str) -> None:
        """Forget a key; it is no error if there is none."""
        self._record("keys").pop(name, None)

    def read_observations(self) -> list[Observation]:
        """Return the run's observations in the order in which they were added."""
        rows = [value for _, value in sorted(self._record("observations").items())]
        return [
            Observation(tuple(row[:-2]), row[-2], NOTES[int(row[-1])])  # type: ignore[index, arg-type]
            for row in rows
        ]

    def count_observations(self) -> int:
        """Return how many observations the run has."""
        return len(self._record("observations"))

    def add_observation(self, observation: Observation) -> None:
        """Append an observation."""
        record = self._record("observations")
        record[f"{len(record):09d}"] = [
            *(*observation.point, observation.value),
            float(NOTES.index(observation.note)),
        ]

    def _record(self, name: str) -> ConfigRecord:
        record = self._records.get(name)
        if not isinstance(record, ConfigRecord):
            record = self._records[name] = ConfigRecord()
        return record
