"""Runs of the strategy on a grid that records what is sent."""

from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from fl_app.engines.in_process import InProcessGrid
from strategies.dp_fedpaq import DpFedPaq
from strategies.dp_fedpaq.client import LocalWork, train

MODEL = {"w": np.zeros((3, 5), np.float32), "b": np.array(0.5), "n": np.array(3)}


def local_update(work: LocalWork) -> tuple[dict[str, np.ndarray], float]:
    floats = {name: array for name, array in work.arrays.items() if array.dtype.kind == "f"}
    return {
        name: (array + np.sin(work.seed)).astype(array.dtype) for name, array in floats.items()
    }, 1.0


def make_app(num_records: int = 50) -> ClientApp:
    app = ClientApp()

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        return train(message, context, num_records=num_records, local_update=local_update)

    return app


class RecordingGrid(InProcessGrid):
    """Keeps every message that passes, and lets a test change the replies."""

    def __init__(self, app: ClientApp, num_clients: int) -> None:
        super().__init__(app, num_clients, {})
        self.requests: list[Message] = []
        self.replies: list[Message] = []

    def change(self, replies: list[Message]) -> list[Message]:
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        self.requests += messages
        replies = self.change(list(super().send_and_receive(messages, timeout=timeout)))
        self.replies += replies
        return replies


def strategy(**changes: object) -> DpFedPaq:
    values: dict[str, object] = {
        "noise_multiplier": 1.0,
        "clipping_norm": 1.0,
        "local_steps": 2,
        "batch_size": 4,
        "unit": "client",
    }
    return DpFedPaq(**{**values, **changes})  # type: ignore[arg-type]


def record(model: dict[str, np.ndarray] = MODEL) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})


def start(chosen: DpFedPaq, grid: InProcessGrid, num_rounds: int = 2) -> dict[str, np.ndarray]:
    result = chosen.start(grid, record(), num_rounds=num_rounds)
    assert result.arrays is not None
    return {name: array.numpy() for name, array in result.arrays.items()}
