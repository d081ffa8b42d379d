"""Who has registered: the cards that the server passes on, and who masks with whom."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from strategies.mechanisms.key_agreement import CARD_SIZE, KeyAgreementError, PublicCard
from strategies.niss.parameters import NissParameters

Group = tuple[int, bytes]


@dataclass(frozen=True)
class Roster:
    """The clients that have registered, replaced after each registration.

    Attributes
    ----------
    cards : mapping of int to PublicCard
        By the server's client number.
    trust : mapping of int to bytes
        Digest of each client's trust list; empty bytes for trust on first use.
    """

    cards: Mapping[int, PublicCard] = field(default_factory=dict)
    trust: Mapping[int, bytes] = field(default_factory=dict)

    def add(self, client: int, card: PublicCard, trust: bytes) -> "Roster":
        """Return the roster with a client more, or unchanged if its keys or number are taken."""
        for known, other in self.cards.items():
            if known == client or card.number == other.number or card.identity == other.identity:
                return self
        return Roster({**self.cards, client: card}, {**self.trust, client: trust})

    def missing(self, clients: Iterable[int]) -> list[int]:
        """Return who of the clients has not registered."""
        return [client for client in clients if client not in self.cards]

    @property
    def has_trust_lists(self) -> bool:
        """Whether every client that has registered says that it has a trust list."""
        return bool(self.trust) and all(self.trust.values())

    def split(self, ready: Iterable[int], parameters: NissParameters) -> dict[Group, list[int]]:
        """Return the ready clients by circle and trust list: these mask towards each other.

        Groups in which fewer are ready than their circle asks for are left out.
        """
        groups: dict[Group, list[int]] = {}
        least: dict[Group, int] = {}
        for client in sorted(ready):
            circle = parameters.circle_of(self.cards[client].number)
            group = (circle.index, self.trust[client])
            groups.setdefault(group, []).append(client)
            least[group] = circle.min_ready
        return {group: members for group, members in groups.items() if len(members) >= least[group]}

    def export(self) -> list[list[Any]]:
        """Return JSON values."""
        return [
            [client, card.to_bytes().hex(), self.trust[client].hex()]
            for client, card in sorted(self.cards.items())
        ]

    @classmethod
    def restore(cls, values: Any) -> "Roster":
        """Return what `export` returned, or the same after a detour through JSON.

        Raises
        ------
        ValueError
            If it is something else.
        """
        try:
            rows = [(int(c), bytes.fromhex(card), bytes.fromhex(t)) for c, card, t in values]
            if any(len(card) != CARD_SIZE for _, card, _ in rows):
                raise ValueError("a card of another length")
            return cls(
                {client: PublicCard.from_bytes(card) for client, card, _ in rows},
                {client: trust for client, _, trust in rows},
            )
        except (TypeError, ValueError, KeyAgreementError) as error:
            raise ValueError(f"no roster: {error}") from None
