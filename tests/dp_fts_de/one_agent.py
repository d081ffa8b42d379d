"""One agent and the requests that it gets, for the tests of its answers."""

from typing import Any

import numpy as np
from flwr.app import Message

from strategies.dp_fts_de import DpFtsDeParameters
from strategies.dp_fts_de.algorithm import Broadcast
from strategies.dp_fts_de.client import train
from strategies.dp_fts_de.messages import parse_reply
from strategies.dp_fts_de.progress import Progress
from tests.dp_fts_de.agents import (
    Memory,
    make_context,
    make_request,
    objective,
)


class Agent:
    """Agent 2 with its device's state, which counts the evaluations and may be killed in one."""

    def __init__(self, **arguments: Any) -> None:
        self.memory = Memory()
        self.points: list[np.ndarray] = []
        self.kill_at: int | None = None
        self.arguments = arguments

    def evaluate(self, point: np.ndarray) -> float:
        self.points.append(point)
        if self.kill_at == len(self.points):
            raise KeyboardInterrupt
        return objective(2, point)

    def answer(self, message: Message, **arguments: Any) -> Message:
        given = {"evaluate": self.evaluate, **self.arguments, **arguments}
        return train(message, make_context(), state=self.memory, **given)

    def values(self) -> list[float]:
        return [each.value for each in self.memory.observations]


def content(reply: Message) -> tuple[bytes | None, Progress | None]:
    assert not reply.has_error(), reply.error
    return parse_reply(reply)


def broadcast(parameters: DpFtsDeParameters, release_round: int, seed: int = 0) -> Broadcast:
    shape = (parameters.num_subregions, parameters.num_random_features)
    return Broadcast(np.random.default_rng(seed).normal(size=shape), release_round)


def run_rounds(parameters: DpFtsDeParameters, agent: Agent, rounds: range) -> list[bytes | None]:
    return [
        content(
            agent.answer(
                make_request(
                    parameters, t, broadcast=broadcast(parameters, t - 1, t) if t > 1 else None
                )
            )
        )[0]
        for t in rounds
    ]
