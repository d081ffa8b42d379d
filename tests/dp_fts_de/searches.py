"""A whole search between one server and its agents, in this process."""

from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from strategies import DpFtsDe
from strategies.dp_fts_de.messages import (
    broadcast_record,
    parse_broadcast,
    parse_reply,
    unpack_vector,
)
from strategies.rounds import RoundResult
from tests.dp_fts_de.agents import Change, RecordingGrid


class Run:
    """A run of five agents, with all that passed."""

    def __init__(
        self,
        num_rounds: int = 3,
        change: Change | None = None,
        num_clients: int = 5,
        **changes: Any,
    ) -> None:
        given: dict[str, Any] = {
            "dimension": 2,
            "noise_multiplier": 1.0,
            "num_random_features": 20,
            "num_initial": 4,
            "release_rounds": (),
            "prior_mean": False,
        }
        self.rows: list[RoundResult] = []
        self.strategy = DpFtsDe(
            **{**given, **changes}, on_round=lambda row, _: self.rows.append(row)
        )
        self.grid = RecordingGrid(num_clients, change)
        self.num_rounds = num_rounds

    def start(self, first_round: int = 1, arrays: ArrayRecord | None = None) -> "Run":
        initial = broadcast_record(None) if arrays is None else arrays
        self.strategy.start(self.grid, initial, num_rounds=self.num_rounds, first_round=first_round)
        return self

    @property
    def broadcasts(self) -> list[np.ndarray | None]:
        found = [parse_broadcast(row.arrays) for row in self.rows]
        return [None if each is None else each.vectors for each in found]

    def uploads(self, server_round: int) -> dict[int, np.ndarray]:
        """The vectors that the agents sent in a round, by number."""
        found = {}
        for reply in self.grid.replies:
            if reply.metadata.group_id == str(server_round) and not reply.has_error():
                data, _ = parse_reply(reply)
                if data is not None:
                    found[reply.metadata.src_node_id - 1_000_000] = unpack_vector(data, 20)
        return found
