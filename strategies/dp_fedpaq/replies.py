"""The replies of a round: what counts, what is counted and dropped."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Message

from strategies.dp_fedpaq.algorithm import Vector, decode_update
from strategies.dp_fedpaq.messages import (
    FAILED,
    REFUSED,
    REFUSED_BY_POLICY,
    STATE_LOST,
    UNANSWERED,
    UNREADABLE,
    MessageError,
    Reply,
    parse_reply,
)
from strategies.dp_fedpaq.parameters import DpFedPaqParameters
from strategies.mechanisms.clipping import l2_norm
from strategies.mechanisms.packing import PackingError
from strategies.rounds import RoundResult, payload_bytes

# Flower's own; a device whose trusted signers have not signed the code answers with this one.
NODE_UNAVAILABLE, UNVERIFIED = 5, 7
NO_ANSWER, NOT_CONNECTED, SITS_OUT = "no answer", "not connected", "sits out"
# What a code of an error says, of Flower (below 1000) and of this application.
ERRORS = {
    0: "unknown error",
    1: "could not load the code",
    2: "client app raised",
    3: "the request has expired",
    4: "the reply has expired",
    NODE_UNAVAILABLE: "lost its connection",
    6: "a mod of Flower's failed",
    UNVERIFIED: "could not verify the code",
    8: "client app crashed",
    REFUSED: "refused by the client",
    FAILED: "failed on the client",
    UNANSWERED: "could not answer",
    STATE_LOST: "could not keep its state",
    REFUSED_BY_POLICY: "refused by the device's policy",
    UNREADABLE: "reply that cannot be read",
}


@dataclass
class CollectedReplies:
    """The uploads of a round by client number, and the counts of everything else.

    Attributes
    ----------
    uploads : list of (int, bytes)
        Client number and upload, not decoded yet.
    num_valid, valid_bytes : int
        Uploads decoded so far that were valid, and their bytes.
    losses : list of float
        Training losses of the clients that may report one.
    ineligible : set of int
        Clients that sat out.
    local_failures : int
        Clients that said that their training failed.
    num_errors : int
        Replies that were errors.
    dropped : Counter of str
        Replies that were dropped, by reason.
    left_out : dict of int to str
        Clients that were asked and whose uploads are not there, and why.
    uplink_bytes, control_bytes : int
        Bytes of the arrays, and of everything else, in all replies.
    """

    uploads: list[tuple[int, bytes]] = field(default_factory=list)
    num_valid: int = 0
    valid_bytes: int = 0
    losses: list[float] = field(default_factory=list)
    ineligible: set[int] = field(default_factory=set)
    local_failures: int = 0
    num_errors: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    left_out: dict[int, str] = field(default_factory=dict)
    uplink_bytes: int = 0
    control_bytes: int = 0

    @property
    def mean_loss(self) -> float | None:
        """Mean of the reported losses; None if there is none."""
        return math.fsum(self.losses) / len(self.losses) if self.losses else None

    def drop(self, client: int, reason: str) -> None:
        """Count a reply that is of no use."""
        self.dropped[reason] += 1
        self.left_out[client] = reason

    def decode(
        self, num_parameters: int, parameters: DpFedPaqParameters, longest: float = math.inf
    ) -> Iterator[Vector]:
        """Decode one upload at a time, in the order of the client numbers.

        The sum must not depend on who answered first, nor memory on how many did. An upload whose
        L2 norm is above `longest` is dropped: added to the others, it would round their noise away.
        """
        for client, upload in sorted(self.uploads, key=lambda pair: pair[0]):
            try:
                update = decode_update(upload, num_parameters, parameters)
            except PackingError as error:
                self.drop(client, str(error))
                continue
            if math.isfinite(longest) and l2_norm(update) > longest:
                self.drop(client, "longer than any honest upload")
                continue
            self.num_valid += 1
            self.valid_bytes += len(upload)
            yield update


def collect_replies(
    group: str,
    cohort: Mapping[int, int],
    replies: Iterable[Message],
    parse: Callable[[Message], Reply] = parse_reply,
) -> CollectedReplies:
    """Sort the replies to one exchange.

    Parameters
    ----------
    group : str
        The group id of the requests, such as the round; replies to another are dropped.
    cohort : mapping of int to int
        Node id to client number of those who were asked.
    replies : iterable of Message
        In any order.
    parse : callable
        Parses one reply, or raises MessageError.
    """
    collected = CollectedReplies()
    answered: set[int] = set()
    for message in replies:
        uplink, control = payload_bytes(message)
        collected.uplink_bytes += uplink
        collected.control_bytes += control
        node = message.metadata.src_node_id
        if node not in cohort or message.metadata.group_id != group:
            collected.dropped["not asked in this round"] += 1
        elif node in answered:
            collected.dropped["second reply"] += 1
        else:
            answered.add(node)
            _sort_reply(message, cohort[node], collected, parse)
    silent = (client for node, client in cohort.items() if node not in answered)
    collected.left_out |= dict.fromkeys(silent, NO_ANSWER)
    return collected


def _sort_reply(
    message: Message,
    client: int,
    collected: CollectedReplies,
    parse: Callable[[Message], Reply],
) -> None:
    if message.has_error():
        collected.drop(client, name_error(message.error.code))
        collected.num_errors += 1
        return
    try:
        reply = parse(message)
    except MessageError as error:
        collected.drop(client, str(error))
        return
    if reply.upload is None:
        collected.ineligible.add(client)
        collected.left_out[client] = SITS_OUT
        return
    collected.uploads.append((client, reply.upload))
    collected.local_failures += reply.local_failure
    if reply.train_loss is not None:
        collected.losses.append(reply.train_loss)


def name_error(code: int) -> str:
    """Say what an error is; the code alone counts, since a reason is the client's own text."""
    return ERRORS.get(code, f"error {code}")


def describe_round(
    server_round: int,
    arrays: ArrayRecord,
    requests: Sequence[Message],
    got: CollectedReplies,
    *,
    seconds: float,
    num_sampled: int,
    with_loss: bool,
    absent: Iterable[int] = (),
) -> RoundResult:
    """Describe a round whose replies have been decoded.

    `arrays` is the model after it; `absent` are clients that should have been asked.
    """
    sizes = [payload_bytes(request) for request in requests]
    return RoundResult(
        server_round=server_round,
        arrays=arrays,
        seconds=seconds,
        num_sampled=num_sampled,
        num_replies=got.num_valid,
        num_failures=num_sampled - got.num_valid - len(got.ineligible),
        num_ineligible=len(got.ineligible),
        num_errors=got.num_errors,
        num_local_failures=got.local_failures,
        num_states_lost=got.dropped[ERRORS[STATE_LOST]],
        dropped=dict(got.dropped),
        train_loss=got.mean_loss if with_loss else None,
        uplink_bytes=got.uplink_bytes,
        downlink_bytes=sum(size for size, _ in sizes),
        update_bytes=got.valid_bytes,
        control_bytes=sum(size for _, size in sizes) + got.control_bytes,
        left_out=got.left_out | dict.fromkeys(absent, NOT_CONNECTED),
    )
