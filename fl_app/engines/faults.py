"""Faults for experiments: messages that are lost or late, on any engine."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fl_app.engines.relay import GridRelay
from fl_app.engines.stored_reply import Blobs, restore_reply, store_reply
from strategies.mechanisms.rng import Randomness
from strategies.rounds import PHASE_KEY, UPLOAD_PHASE


@dataclass(frozen=True)
class FaultSettings:
    """What goes wrong between clients and server, for each reply by itself.

    Attributes
    ----------
    loss_rate : float
        Probability in [0, 1] that a reply is lost: the client sent it, nobody got it.
    late_rate : float
        Probability in [0, 1] that a reply that is not lost comes a round too late.
    seed : int
        Seed of the faults, apart from the run's.
    drop_after_ready : float
        Probability in [0, 1] that a client that said it is ready vanishes before its upload.
    """

    loss_rate: float = 0.0
    late_rate: float = 0.0
    seed: int = 0
    drop_after_ready: float = 0.0

    @property
    def is_faulty(self) -> bool:
        """Whether anything goes wrong at all."""
        return max(self.loss_rate, self.late_rate, self.drop_after_ready) > 0.0


Faults = tuple[list[bool], list[bool]]


def draw_faults(settings: FaultSettings, exchange: int, count: int) -> Faults:
    """Draw which of the replies of an exchange are lost, and which of the others are late.

    Parameters
    ----------
    settings : FaultSettings
    exchange : int
        Number of the exchange in the run, from 1.
    count : int
        Requests in it, >= 0. The first k fates do not depend on how many follow.

    Returns
    -------
    tuple of two lists of bool, each of length `count`
        Lost; late. No reply is both.
    """
    stream = Randomness("seeded", settings.seed).stream("faults", exchange)
    draws = stream.uniform(2 * count).reshape(-1, 2)
    lost = [bool(draw < settings.loss_rate) for draw in draws[:, 0]]
    late = [bool(draw < settings.late_rate) for draw in draws[:, 1]]
    return lost, [hit and not gone for hit, gone in zip(late, lost, strict=True)]


def _asks_for_upload(request: Message) -> bool:
    """Return whether a request is the last of a round's exchanges, of a method that has several."""
    config = request.content.get("config")
    return isinstance(config, ConfigRecord) and config.get(PHASE_KEY) == UPLOAD_PHASE


class FaultyGrid(GridRelay):
    """A grid that loses and delays replies of another grid.

    Which replies are hit depends on the seed, the exchange (counted by sendings) and the position
    of the request in it, and so not on the engine. A late reply arrives with the replies of the
    next exchange.

    Parameters
    ----------
    grid : Grid
        The grid that does the work.
    settings : FaultSettings
    """

    def __init__(self, grid: Grid, settings: FaultSettings) -> None:
        super().__init__(grid)
        self._settings = settings
        self._exchanges = 0
        self._late: list[tuple[int, Message]] = []
        self._lost_ids: set[str] = set()
        self._late_ids: set[str] = set()

    def export_state(self, client_ids: Mapping[int, int]) -> tuple[dict[str, Any], Blobs]:
        """Return the number of exchanges so far and the replies that are held back.

        Between two exchanges only; ids of messages mean nothing to another grid and stay out.

        Parameters
        ----------
        client_ids : mapping of int to int
            Node id to client number, which is the same on another grid.

        Returns
        -------
        tuple of dict and Blobs
            JSON values, and the bytes that they name.
        """
        late, blobs = [], Blobs()
        for exchange, reply in self._late:
            client = client_ids[reply.metadata.src_node_id]
            late.append([exchange, client, store_reply(reply, blobs)])
        return {"exchanges": self._exchanges, "late": late}, blobs

    def import_state(
        self, state: Mapping[str, Any], blobs: Blobs, client_ids: Mapping[int, int]
    ) -> None:
        """Take over what another grid's `export_state` returned.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it is something else.
        """
        nodes = {client: node for node, client in client_ids.items()}
        self._late = [
            (int(exchange), restore_reply(stored, blobs, nodes[client]))
            for exchange, client, stored in state["late"]
        ]
        self._exchanges = int(state["exchanges"])

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages: a new exchange."""
        requests = self._drop(list(messages))
        lost, late = self._begin(len(requests))
        identifiers = list(self._grid.push_messages(requests))
        if len(identifiers) != len(requests):
            raise RuntimeError(f"{len(requests)} messages were sent, {len(identifiers)} accepted")
        self._lost_ids.update(name for name, hit in zip(identifiers, lost, strict=True) if hit)
        self._late_ids.update(name for name, hit in zip(identifiers, late, strict=True) if hit)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come, without the lost and the late ones.

        A late reply comes with those of the next exchange, whether it is asked for or not.
        """
        arrived = self._take_overdue()
        for reply in self._grid.pull_messages(message_ids):
            request = reply.metadata.reply_to_message_id
            if request in self._lost_ids:
                self._lost_ids.discard(request)
            elif request in self._late_ids:
                self._late_ids.discard(request)
                self._late.append((self._exchanges, reply))
            else:
                arrived.append(reply)
        return arrived

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Exchange messages, then drop the lost replies and hold back the late ones."""
        requests = self._drop(list(messages))
        lost, late = self._begin(len(requests))
        nodes = [request.metadata.dst_node_id for request in requests]
        lost_nodes = {node for node, hit in zip(nodes, lost, strict=True) if hit}
        late_nodes = {node for node, hit in zip(nodes, late, strict=True) if hit}
        arrived = self._take_overdue()
        for reply in self._grid.send_and_receive(requests, timeout=timeout):
            node = reply.metadata.src_node_id
            if node in lost_nodes:
                continue
            if node in late_nodes:
                self._late.append((self._exchanges, reply))
            else:
                arrived.append(reply)
        return arrived

    def _drop(self, requests: list[Message]) -> list[Message]:
        """Return the requests without those for uploads whose clients have vanished."""
        rate = self._settings.drop_after_ready
        if not rate or not all(_asks_for_upload(request) for request in requests):
            return requests
        stream = Randomness("seeded", self._settings.seed).stream("drops", self._exchanges + 1)
        gone = stream.uniform(len(requests)) < rate
        return [request for request, hit in zip(requests, gone, strict=True) if not hit]

    def _begin(self, count: int) -> Faults:
        """Begin an exchange of `count` requests."""
        self._exchanges += 1
        return draw_faults(self._settings, self._exchanges, count)

    def _take_overdue(self) -> list[Message]:
        """Return the late replies of earlier exchanges."""
        overdue = [reply for exchange, reply in self._late if exchange < self._exchanges]
        self._late = [pair for pair in self._late if pair[0] == self._exchanges]
        return overdue
