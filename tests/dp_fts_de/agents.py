"""Agents for the tests: objectives, an app of a few lines, and grids that lose messages."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_app.engines.flower_internals import deliver
from fl_app.engines.in_process import InProcessGrid
from strategies.device_state import LedgerEntry, Observation
from strategies.dp_fts_de import DpFtsDeParameters
from strategies.dp_fts_de.algorithm import Broadcast
from strategies.dp_fts_de.client import train
from strategies.dp_fts_de.messages import broadcast_record, build_requests

Change = Callable[[list[Message]], list[Message]]


def make_parameters(**changes: Any) -> DpFtsDeParameters:
    given: dict[str, Any] = {
        "num_agents": 5,
        "dimension": 2,
        "noise_multiplier": 1.0,
        "num_random_features": 20,
        "num_initial": 4,
    }
    return DpFtsDeParameters(**{**given, **changes})


def objective(agent: int, point: np.ndarray) -> float:
    """Smooth, with its largest value 1 near (0.7, 0.3), a little elsewhere for each agent."""
    top = np.array([0.7, 0.3]) + 0.02 * (agent - 2)
    return float(np.exp(-4.0 * ((point - top) ** 2).sum()))


class Memory:
    """A device's state that survives whatever happens to its process."""

    def __init__(self) -> None:
        self.entry: LedgerEntry | None = None
        self.observations: list[Observation] = []

    def read_entry(self, method: str) -> LedgerEntry:
        return LedgerEntry(method) if self.entry is None else self.entry

    def write_entry(self, entry: LedgerEntry) -> None:
        self.entry = dataclasses.replace(entry)

    def read_key(self, name: str) -> bytes | None:
        raise NotImplementedError

    def write_key(self, name: str, key: bytes) -> None:
        raise NotImplementedError

    def delete_key(self, name: str) -> None:
        raise NotImplementedError

    def read_observations(self) -> list[Observation]:
        return list(self.observations)

    def count_observations(self) -> int:
        return len(self.observations)

    def add_observation(self, observation: Observation) -> None:
        self.observations.append(observation)


def make_request(
    parameters: DpFtsDeParameters,
    server_round: int = 1,
    *,
    broadcast: Broadcast | None = None,
    agent: int = 2,
    upload: bool = True,
) -> Message:
    (message,) = build_requests(
        {agent: 7},
        server_round,
        broadcast_record(broadcast),
        parameters,
        [agent] if upload else [],
        ConfigRecord(),
    )
    return deliver(message)


def make_context(agent: int = 2) -> Context:
    return Context(1, 7, {"partition-id": agent, "num-partitions": 5}, RecordDict(), {})


def make_app(**arguments: Any) -> ClientApp:
    app = ClientApp()

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        agent = int(context.node_config["partition-id"])
        return train(
            message,
            context,
            evaluate=lambda point: objective(agent, point),
            optimum=1.0,
            **arguments,
        )

    return app


class RecordingGrid(InProcessGrid):
    """Keeps every message that passes, and lets a test change the replies."""

    def __init__(
        self, num_clients: int = 5, change: Change | None = None, app: ClientApp | None = None
    ) -> None:
        super().__init__(app or make_app(), num_clients, {})
        self.requests: list[Message] = []
        self.replies: list[Message] = []
        self._change = change

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        self.requests += messages
        replies = list(super().send_and_receive(messages, timeout=timeout))
        replies = replies if self._change is None else self._change(replies)
        self.replies += replies
        return replies
