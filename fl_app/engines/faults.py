"""Faults for experiments: messages that are lost or late, on any engine."""

from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fl_app.engines.flower_internals import Run
from strategies.mechanisms.rng import Randomness


@dataclass(frozen=True)
class FaultSettings:
    """What goes wrong between clients and server, each time independently.

    Attributes
    ----------
    loss_rate : float
        Probability in [0, 1] that a reply is lost: the client sent it, nobody got it.
    late_rate : float
        Probability in [0, 1] that a reply comes a round too late.
    seed : int
        Seed of the faults, apart from the run's.
    """

    loss_rate: float = 0.0
    late_rate: float = 0.0
    seed: int = 0


class FaultyGrid(Grid):
    """A grid that loses and delays replies of another grid.

    Which replies are hit depends on the seed, the exchange and the position of the request in it,
    and so not on the engine.
    """

    def __init__(self, grid: Grid, settings: FaultSettings) -> None:
        self._grid = grid
        self._settings = settings
        self._exchanges = 0
        self._late: list[Message] = []

    def set_run(self, run: Run) -> None:  # noqa: D102
        self._grid.set_run(run)

    @property
    def run(self) -> Run:  # noqa: D102
        return self._grid.run

    def create_message(  # noqa: D102
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:  # noqa: D102
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:  # noqa: D102
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:  # noqa: D102
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Exchange messages, then drop the lost replies and hold back the late ones."""
        requests = list(messages)
        self._exchanges += 1
        stream = Randomness("seeded", self._settings.seed).stream("faults", self._exchanges)
        draws = stream.uniform(2 * len(requests)).reshape(-1, 2)
        fate = {m.metadata.dst_node_id: draw for m, draw in zip(requests, draws, strict=True)}
        overdue, self._late = self._late, []
        yield from overdue
        for reply in self._grid.send_and_receive(requests, timeout=timeout):
            lost, late = fate.get(reply.metadata.src_node_id, (1.0, 1.0))
            if lost < self._settings.loss_rate:
                continue
            if late < self._settings.late_rate:
                self._late.append(reply)
                continue
            yield reply
