"""Small runs of NISS without settings: a training that is a formula, recorded messages."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from fl_app.engines.in_process import FIRST_NODE_ID, InProcessGrid
from strategies.dp_fedpaq.client import LocalWork
from strategies.niss import DeviceTrust, Niss
from strategies.niss.client import train
from strategies.rounds import PHASE_KEY, RoundResult

MODEL = {"w": np.zeros((3, 5), np.float32), "b": np.array(0.5), "n": np.array(3)}
SIZE = 16
FIELDS: dict[str, Any] = {
    "noise_multiplier": 1.0,
    "clipping_norm": 1.0,
    "local_steps": 2,
    "batch_size": 4,
    "unit": "client",
    "colluding_fraction": 0.0,
}
MASKS_ALONE = {"pair_noise": "uniform", "noise_multiplier": 0.0}


def local_update(work: LocalWork) -> tuple[dict[str, np.ndarray], float]:
    """Move towards a point of the client's own, so that an error in one round shows in the next."""
    moved = {
        name: (array + 0.3 * (np.sin(work.seed % 1000) - array)).astype(array.dtype)
        for name, array in work.arrays.items()
        if array.dtype.kind == "f"
    }
    return {**work.arrays, **moved}, 1.0


def make_app(
    num_records: Callable[[int], int] = lambda _: 50,
    trust: Callable[[int], DeviceTrust] = lambda _: DeviceTrust(),
    loss: Callable[[int], float] = lambda _: 1.0,
) -> ClientApp:
    app = ClientApp()

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        return train(
            message,
            context,
            num_records=num_records(number),
            local_update=lambda work: (local_update(work)[0], loss(number)),
            trust=trust(number),
        )

    return app


class RecordingGrid(InProcessGrid):
    """Keeps every message that passes, and lets a test change requests and replies."""

    def __init__(self, num_clients: int, app: ClientApp | None = None) -> None:
        super().__init__(make_app() if app is None else app, num_clients, {})
        self.requests: list[Message] = []
        self.replies: list[Message] = []

    def before(self, phase: str, requests: list[Message]) -> list[Message]:
        return requests

    def after(self, phase: str, replies: list[Message]) -> list[Message]:
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        if not messages:
            return []
        phase = phase_of(messages[0])
        messages = self.before(phase, messages)
        self.requests += messages
        replies = self.after(phase, list(super().send_and_receive(messages, timeout=timeout)))
        self.replies += replies
        return replies

    def sent(self, phase: str) -> list[Message]:
        return [each for each in self.requests if phase_of(each) == phase]


def phase_of(message: Message) -> str:
    return str(message.content["config"][PHASE_KEY])


def client_of(message: Message) -> int:
    """Return whom a request goes to, by partition."""
    return message.metadata.dst_node_id - FIRST_NODE_ID


def build(num_clients: int, rows: list[RoundResult] | None = None, **changes: Any) -> Niss:
    numbers = {FIRST_NODE_ID + index: index for index in range(num_clients)}
    keep = (lambda row, _: rows.append(row)) if rows is not None else None
    return Niss(**{**FIELDS, "client_ids": numbers, "on_round": keep, **changes})


def record(model: dict[str, np.ndarray] | None = None) -> ArrayRecord:
    return ArrayRecord({k: Array(np.asarray(v)) for k, v in (model or MODEL).items()})


@dataclass
class Run:
    """What came of a run."""

    strategy: Niss
    grid: InProcessGrid
    rows: list[RoundResult] = field(default_factory=list)
    model: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def floats(self) -> np.ndarray:
        """The model's floats as a vector, in the order of the layout."""
        from strategies.mechanisms.layout import ArrayLayout

        return ArrayLayout.of(self.model).flatten(self.model)


def start(
    grid: InProcessGrid,
    num_rounds: int = 1,
    model: dict[str, np.ndarray] | None = None,
    **changes: Any,
) -> Run:
    rows: list[RoundResult] = []
    strategy = build(len(list(grid.get_node_ids())), rows, **changes)
    result = strategy.start(grid, record(model), num_rounds=num_rounds)
    assert result.arrays is not None
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    return Run(strategy, grid, rows, arrays)
