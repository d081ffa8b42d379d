"""Which clients have missed rounds of a run, and why: told once, at its end."""

from collections import Counter
from collections.abc import Iterator, Mapping

# How many clients are named, those that missed most first.
_NAMED = 10


class LeftOut:
    """Counts of the rounds in which a client's upload was not there, by reason.

    They name who was asked: they are not for runs whose cohorts must stay secret.
    """

    def __init__(self) -> None:
        self._rounds = 0
        self._reasons: dict[int, Counter[str]] = {}

    def add(self, left_out: Mapping[int, str]) -> None:
        """Count a round, of which these clients were left out."""
        self._rounds += 1
        for client, reason in left_out.items():
            self._reasons.setdefault(client, Counter())[reason] += 1

    def describe(self) -> Iterator[str]:
        """Yield a line for each client, and one for those that are not named."""
        ordered = sorted(self._reasons.items(), key=lambda pair: (-pair[1].total(), pair[0]))
        rounds = "1 round" if self._rounds == 1 else f"{self._rounds} rounds"
        for client, reasons in ordered[:_NAMED]:
            named = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
            only = len(named) == 1
            why = ", ".join(reason if only else f"{reason} ({count})" for reason, count in named)
            yield f"client {client}: left out of {reasons.total()} of {rounds}: {why}"
        if len(ordered) > _NAMED:
            yield f"{len(ordered) - _NAMED} more clients were left out of rounds"
