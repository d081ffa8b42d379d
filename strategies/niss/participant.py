"""A client while it answers one request: what it was asked, who it is, what it remembers."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import Message

from strategies.device_state import DeviceState, LedgerEntry
from strategies.dp_fedpaq.client import LocalUpdate
from strategies.dp_fedpaq.messages import REFUSED, error_reply, ineligible_reply
from strategies.mechanisms.key_agreement import PublicCard, sign_card
from strategies.niss.key_memory import DeviceTrust, KeyMemory
from strategies.niss.messages import Request
from strategies.niss.parameters import NissParameters
from strategies.niss.peers import bind_run_tag

METHOD = "niss"
USED_UP = "all its participations in the run are used up"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Participant:
    """What a client brings to one request.

    Attributes
    ----------
    message : Message
    request : Request
        The message, parsed.
    number : int
        The client's own.
    memory : DeviceState
    keys : KeyMemory
    trust : DeviceTrust
    agreed : str
        Digest of the parameters and settings of the run.
    num_records : callable
        Returns n_k; reads the data.
    local_update : callable
    max_epsilon : float or None
        The largest total epsilon that the device's owner allows.
    """

    message: Message
    request: Request
    number: int
    memory: DeviceState
    keys: KeyMemory
    trust: DeviceTrust
    agreed: str
    num_records: Callable[[], int]
    local_update: LocalUpdate
    max_epsilon: float | None

    @property
    def parameters(self) -> NissParameters:
        """The run's parameters."""
        return self.request.parameters

    @property
    def is_secret(self) -> bool:
        """Whether noise and keys come from the system's entropy."""
        return self.parameters.update.randomness == "secret"

    @property
    def asked(self) -> tuple[int, int]:
        """Round and attempt of the request."""
        return self.request.server_round, self.request.attempt

    def is_past(self, entry: LedgerEntry) -> bool:
        """Return whether the request's attempt was charged, or a later one.

        A seeded run computes its last round again: nothing of it is a release.
        """
        if self.is_secret:
            return self.is_repeat(entry)
        return self.asked[0] < entry.last_round

    def is_repeat(self, entry: LedgerEntry) -> bool:
        """Return whether the attempt was charged before: it is not charged again (seeded)."""
        return self.asked <= _charged(entry)

    def charge(self, entry: LedgerEntry, **changes: Any) -> LedgerEntry:
        """Return the entry with the request's attempt charged, once, whatever is repeated."""
        # A seeded run that goes on computes its last round again: the latest attempt stays.
        last_round, last_attempt = max(self.asked, _charged(entry))
        participations = entry.participations + (not self.is_repeat(entry))
        return replace(
            entry,
            last_round=last_round,
            last_attempt=last_attempt,
            participations=participations,
            **changes,
        )

    def run_tag(self) -> bytes:
        """Return what the run's keys are bound to."""
        return bind_run_tag(self.request.tag, self.agreed)

    def card(self) -> PublicCard:
        """Return the client's own card."""
        identity = self.trust.identity or self.keys.identity_key()
        return sign_card(self.number, self.run_tag(), identity, self.keys.exchange_key())

    def refuse(self, reason: str) -> Message:
        """Return a refusal; `reason` is a fixed sentence."""
        return refuse(self.message, reason)

    def sit_out(self, reason: str) -> Message:
        """Return word that the client sits out; why is for its own log alone."""
        # Without the round: what repeats is shown once where all clients are in one process.
        _log.warning("NISS: sits out: %s", reason)
        return ineligible_reply(self.message)


def refuse(message: Message, reason: str) -> Message:
    """Return a refusal, and log it; `reason` is a fixed sentence."""
    _log.warning("NISS: refused: %s", reason)
    return error_reply(message, REFUSED, reason)


def _charged(entry: LedgerEntry) -> tuple[int, int]:
    return entry.last_round, entry.last_attempt
