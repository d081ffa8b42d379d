"""Rounds of the server."""

from flwr.app import Message

from strategies.niss.messages import UPLOAD
from tests.niss.small_runs import (
    RecordingGrid,
)

UNIFORM = {"pair_noise": "uniform"}


class Vanishing(RecordingGrid):
    """Loses the uploads of the first clients in the first attempts of each round."""

    def __init__(self, num_clients: int, lost: int, attempts: int = 99) -> None:
        super().__init__(num_clients)
        self.lost, self.attempts = lost, attempts

    def after(self, phase: str, replies: list[Message]) -> list[Message]:
        attempt = int(self.requests[-1].content["config"]["attempt"])
        return replies[self.lost :] if phase == UPLOAD and attempt <= self.attempts else replies
