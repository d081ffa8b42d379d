"""The exchanges of a round, on the server's side: cards, nonces, and the requests for uploads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from strategies.dp_fedpaq.messages import Reply
from strategies.dp_fedpaq.replies import CollectedReplies, collect_replies
from strategies.niss.messages import (
    READY,
    REGISTER,
    UPLOAD,
    Request,
    build_request,
    exchange_group,
    parse_card,
    parse_ready,
    split_card,
    split_ready,
)
from strategies.niss.parameters import NissParameters
from strategies.niss.peers import ReadyPeer, pack_ready_set
from strategies.niss.replies import OpenRound
from strategies.niss.roster import Roster
from strategies.rounds import payload_bytes


@dataclass(frozen=True)
class Line:
    """What the server talks to clients with, in one round.

    Attributes
    ----------
    grid : Grid
    config : ConfigRecord
        The application's own entries for each request.
    parameters : NissParameters
    tag : bytes
        The run's.
    timeout : float
        Seconds that an exchange waits for replies.
    """

    grid: Grid
    config: ConfigRecord
    parameters: NissParameters
    tag: bytes
    timeout: float

    def register(self, current: OpenRound, nodes: Mapping[int, int], roster: Roster) -> Roster:
        """Exchange cards with the clients that have not registered in this run.

        Parameters
        ----------
        current : OpenRound
            Counts what is sent.
        nodes : mapping of int to int
            Node id to client number of the round's clients.
        roster : Roster

        Returns
        -------
        Roster
            With whoever registered, under the server's own number where that matters.
        """
        current.miss(nodes.values())
        missing = set(roster.missing(nodes.values()))
        new = {node: client for node, client in nodes.items() if client in missing}
        got = self._ask(REGISTER, current, new, parse_card)
        current.registration_bytes += got.control_bytes
        for client, reply in sorted(got.uploads):
            card, trust = split_card(reply)
            # A client computes its noise by its own number, the server the epsilon by its own.
            if card.number == client or not self.parameters.is_personal:
                roster = roster.add(client, card, trust)
        return roster

    def ask_ready(
        self, current: OpenRound, nodes: Mapping[int, int], roster: Roster
    ) -> dict[int, tuple[bytes, int]]:
        """Return nonce and n_k (0: not told) of each registered client that is ready, by number."""
        known = {node: client for node, client in nodes.items() if client in roster.cards}
        got = self._ask(READY, current, known, parse_ready)
        return {client: split_ready(reply) for client, reply in got.uploads}

    def build_upload_requests(
        self,
        current: OpenRound,
        arrays: ArrayRecord,
        roster: Roster,
        nonces: Mapping[int, bytes],
    ) -> list[Message]:
        """Build the requests for uploads: each client is named its group's other clients."""
        group_of = {client: members for members in current.groups.values() for client in members}
        requests = []
        assert current.noise is not None
        for node, client in current.cohort.items():
            others = [peer for peer in group_of[client] if peer != client]
            peers = (ReadyPeer(roster.cards[peer], nonces[peer]) for peer in others)
            fields = current.noise.describe(client, others)
            request = self._request(UPLOAD, current, ready_set=pack_ready_set(peers), **fields)
            requests.append(build_request(node, self.config, request, arrays))
        return requests

    def _ask(
        self,
        phase: str,
        current: OpenRound,
        nodes: Mapping[int, int],
        parse: Callable[[Message], Reply],
    ) -> CollectedReplies:
        """Ask nodes the same and collect what they say."""
        if not nodes:
            return CollectedReplies()
        request = self._request(phase, current)
        messages = [build_request(node, self.config, request) for node in nodes]
        replies = self.grid.send_and_receive(messages, timeout=self.timeout)
        group = exchange_group(phase, current.number, current.attempt)
        got = collect_replies(group, nodes, replies, parse)
        got.control_bytes += sum(payload_bytes(each)[1] for each in messages)
        current.add(got)
        return got

    def _request(self, phase: str, current: OpenRound, **fields: Any) -> Request:
        return Request(phase, current.number, current.attempt, self.parameters, self.tag, **fields)
