"""What the rounds of a run add up to: replaced after each round, kept in checkpoints."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Tally:
    """What happened so far.

    Attributes
    ----------
    num_rounds : int
        Rounds begun.
    uploads : mapping of int to int
        Uploads asked of each client; one that may have been sent counts.
    fewest_uploads : int or None
        The smallest number of uploads that a published round summed; None before the first.
    complete : bool
        Whether every client that was asked uploaded, in every round.
    uplink_bytes : int
        Of all replies.
    """

    num_rounds: int = 0
    uploads: Mapping[int, int] = field(default_factory=dict)
    fewest_uploads: int | None = None
    complete: bool = True
    uplink_bytes: int = 0

    def begin_round(self, asked: Iterable[int]) -> "Tally":
        """Count a round before its clients are asked: each may upload, and is charged."""
        uploads = Counter(self.uploads) + Counter(asked)
        return replace(self, num_rounds=self.num_rounds + 1, uploads=uploads)

    def charge(self, asked: Iterable[int]) -> "Tally":
        """Charge one more upload to each of these clients, before they are asked for it."""
        return replace(self, uploads=Counter(self.uploads) + Counter(asked))

    def add_replies(
        self, num_drawn: int, ineligible: Iterable[int], num_valid: int, uplink_bytes: int
    ) -> "Tally":
        """Take the charge back from whoever said that it sits out; count what arrived."""
        return replace(
            self,
            uploads=Counter(self.uploads) - Counter(set(ineligible)),
            complete=self.complete and num_valid == num_drawn,
            uplink_bytes=self.uplink_bytes + uplink_bytes,
        )

    def end_round(self, *, complete: bool, uplink_bytes: int) -> "Tally":
        """Count what arrived in a round of several exchanges."""
        return replace(
            self,
            complete=self.complete and complete,
            uplink_bytes=self.uplink_bytes + uplink_bytes,
        )

    def repeat_uploads(self, num_asked: int, upload_bytes: int) -> "Tally":
        """Count the uplink of a round that was sent, and that is about to be sent again."""
        return replace(self, uplink_bytes=self.uplink_bytes + num_asked * upload_bytes)

    def publish(self, num_summed: int) -> "Tally":
        """Count a round whose sum changed the model."""
        fewest = num_summed if self.fewest_uploads is None else self.fewest_uploads
        return replace(self, fewest_uploads=min(fewest, num_summed))

    def export(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "uploads": sorted(self.uploads.items())}

    @classmethod
    def restore(cls, values: Any) -> "Tally":
        """Return what `export` returned, or the same after a detour through JSON.

        Raises
        ------
        ValueError
            If it is something else.
        """
        try:
            tally = cls(**{**values, "uploads": dict(values["uploads"])})
        except (KeyError, TypeError, ValueError):
            tally = None
        if tally is None or not tally._is_sound() or values.keys() != asdict(tally).keys():
            raise ValueError("state of a strategy: what export_state returns is needed")
        return tally

    def _is_sound(self) -> bool:
        counts = [self.num_rounds, self.uplink_bytes, *self.uploads, *self.uploads.values()]
        counts += [] if self.fewest_uploads is None else [self.fewest_uploads]
        whole = all(type(count) is int and count >= 0 for count in counts)
        return whole and type(self.complete) is bool
