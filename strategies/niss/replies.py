"""A round while it goes on: who was asked, who masks with whom, and what came of it."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import ArrayRecord, Message

from strategies.dp_fedpaq.algorithm import Vector
from strategies.dp_fedpaq.messages import STATE_LOST
from strategies.dp_fedpaq.replies import ERRORS, NOT_CONNECTED, CollectedReplies
from strategies.mechanisms.fixed_point import unpack
from strategies.mechanisms.layout import ArrayLayout
from strategies.mechanisms.packing import PackingError
from strategies.niss.algorithm import Words
from strategies.niss.attempt_noise import AttemptNoise
from strategies.niss.roster import Group
from strategies.rounds import RoundResult, payload_bytes

WORD_BYTES = 4
# A client tells nobody which.
WHY_SIT_OUT = (
    "too few records, their participations are used up (max_participations), or the noise that "
    "they need has no room"
)
OWN_METRICS = (
    *("residual_noise_std", "num_dropped_after_ready", "num_attempts", "registration_bytes"),
)
_NOTHING = np.zeros(0)


@dataclass
class OpenRound:
    """One round, and its latest attempt.

    Attributes
    ----------
    number : int
        From 1; 0 before the first.
    drawn : tuple of int
        Clients asked in the round.
    attempt : int
        From 1; 0 before the first.
    arrays, start, layout
        The global model: as sent, as a vector, and how one becomes the other.
    cohort : dict of int to int
        Node id to client number of those asked for an upload in this attempt.
    groups : mapping
        Client numbers by circle and trust list: those of a group mask towards each other.
    noise : AttemptNoise or None
        What the ready set was told about its noise.
    sent : list of Message
        Requests for uploads so far.
    num_valid, num_dropped : int
        Uploads that arrived in this attempt, and ready clients whose did not.
    lost_before : int
        Ready clients whose uploads did not arrive in the attempts before.
    num_published : int
        Uploads whose average changed the model.
    residual_std : float or None
        Standard deviation of the noise in that average, a coordinate.
    ineligible : set of int
        Clients that sat out.
    uplink_bytes, control_bytes, registration_bytes : int
        Bytes of all replies' arrays; of everything else; of the registrations among that.
    num_errors, local_failures, losses, dropped, left_out
        As in `CollectedReplies`, of the latest attempt.
    """

    number: int = 0
    drawn: tuple[int, ...] = ()
    attempt: int = 0
    arrays: ArrayRecord | None = None
    start: Vector = field(default_factory=lambda: _NOTHING)
    layout: ArrayLayout = field(default_factory=lambda: ArrayLayout((), (), ()))
    cohort: dict[int, int] = field(default_factory=dict)
    groups: Mapping[Group, list[int]] = field(default_factory=dict)
    noise: AttemptNoise | None = None
    sent: list[Message] = field(default_factory=list)
    num_valid: int = 0
    num_dropped: int = 0
    lost_before: int = 0
    num_published: int = 0
    residual_std: float | None = None
    ineligible: set[int] = field(default_factory=set)
    uplink_bytes: int = 0
    control_bytes: int = 0
    registration_bytes: int = 0
    valid_bytes: int = 0
    num_errors: int = 0
    local_failures: int = 0
    losses: list[float] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    left_out: dict[int, str] = field(default_factory=dict)

    def next_attempt(self, arrays: ArrayRecord, start: Vector, layout: ArrayLayout) -> "OpenRound":
        """Return the round at its next attempt: traffic adds up, the rest begins anew."""
        return OpenRound(
            number=self.number,
            drawn=self.drawn,
            attempt=self.attempt + 1,
            arrays=arrays,
            start=start,
            layout=layout,
            sent=self.sent,
            uplink_bytes=self.uplink_bytes,
            control_bytes=self.control_bytes,
            registration_bytes=self.registration_bytes,
            lost_before=self.lost_before + self.num_dropped,
        )

    def with_groups(
        self,
        cohort: dict[int, int],
        groups: Mapping[Group, list[int]],
        noise: AttemptNoise,
    ) -> "OpenRound":
        """Return the round with its ready set named."""
        return replace(self, cohort=cohort, groups=groups, noise=noise)

    def add(self, got: CollectedReplies) -> None:
        """Count the replies to one exchange."""
        self.uplink_bytes += got.uplink_bytes
        self.control_bytes += got.control_bytes
        self.num_errors += got.num_errors
        self.local_failures += got.local_failures
        self.losses += got.losses
        self.ineligible |= got.ineligible
        self.dropped += got.dropped
        self.left_out |= got.left_out

    def explain(self, num_ready: int, num_asked: int) -> str:
        """Say why clients that are ready are not asked for an upload."""
        words = f"{num_ready} of {len(self.drawn)} clients are ready, {num_asked} can hide among "
        words += "enough others (min_ready)"
        if self.ineligible:
            words += f"; {len(self.ineligible)} sit out: {WHY_SIT_OUT}"
        return words

    def miss(self, connected: Iterable[int]) -> None:
        """Note who is not there to be asked."""
        self.left_out |= dict.fromkeys(set(self.drawn).difference(connected), NOT_CONNECTED)

    @property
    def is_complete(self) -> bool:
        """Whether everybody who was drawn is in the published average."""
        return self.num_published == len(self.drawn)

    def describe(self, arrays: ArrayRecord, *, seconds: float, with_loss: bool) -> RoundResult:
        """Describe the round once it is over; `arrays` is the model after it."""
        sizes = [payload_bytes(request) for request in self.sent]
        dropped = self.lost_before + self.num_dropped
        own = (self.residual_std, dropped, self.attempt, self.registration_bytes)
        loss = math.fsum(self.losses) / len(self.losses) if self.losses else None
        return RoundResult(
            server_round=self.number,
            arrays=arrays,
            seconds=seconds,
            num_sampled=len(self.drawn),
            num_replies=self.num_published,
            num_failures=len(self.drawn) - self.num_published - len(self.ineligible),
            num_ineligible=len(self.ineligible),
            num_errors=self.num_errors,
            num_local_failures=self.local_failures,
            num_states_lost=self.dropped[ERRORS[STATE_LOST]],
            dropped=dict(self.dropped),
            train_loss=loss if with_loss else None,
            uplink_bytes=self.uplink_bytes,
            downlink_bytes=sum(size for size, _ in sizes),
            update_bytes=self.num_published * WORD_BYTES * self.start.size,
            control_bytes=sum(size for _, size in sizes) + self.control_bytes,
            own=dict(zip(OWN_METRICS, own, strict=True)),
            left_out=self.left_out,
        )


def read_words(got: CollectedReplies, size: int, summed: list[int]) -> Iterator[Words]:
    """Decode one upload at a time, in the order of the client numbers.

    Parameters
    ----------
    got : CollectedReplies
        An upload of another length is counted there and dropped.
    size : int
        d.
    summed : list of int
        Filled with the clients whose uploads were read.
    """
    for client, upload in sorted(got.uploads, key=lambda pair: pair[0]):
        try:
            words = unpack(upload, size)
        except PackingError:
            got.drop(client, "upload of another length")
            continue
        summed.append(client)
        yield words
