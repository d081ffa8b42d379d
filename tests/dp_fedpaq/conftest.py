from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fl_app.engines.flower_internals import deliver, identify_process
from strategies.dp_fedpaq import DpFedPaqParameters
from strategies.dp_fedpaq.client import LocalWork
from strategies.dp_fedpaq.messages import request_config


@pytest.fixture(autouse=True)
def _identity() -> None:
    identify_process(1)


@pytest.fixture
def make_request() -> Callable[..., Message]:
    def build(
        parameters: DpFedPaqParameters,
        server_round: int = 1,
        arrays: dict[str, np.ndarray] | None = None,
    ) -> Message:
        model = {"w": np.zeros(4, dtype=np.float32)} if arrays is None else arrays
        content = RecordDict(
            {
                "arrays": ArrayRecord({k: _array(v) for k, v in model.items()}),
                "config": request_config(server_round, parameters, ConfigRecord()),
            }
        )
        message = Message(content, dst_node_id=7, message_type="train", group_id=str(server_round))
        return deliver(message)

    return build


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f"


def _array(values: np.ndarray) -> Array:
    return Array(np.asarray(values))


@pytest.fixture
def context() -> Context:
    return Context(1, 7, {"partition-id": 3, "num-partitions": 5}, RecordDict(), {})


class Trainer:
    """A local training that adds `step` to every parameter, and counts its calls."""

    def __init__(self, step: float = 1.0, error: Exception | None = None) -> None:
        self.step, self.error = step, error
        self.work: list[LocalWork] = []

    def __call__(self, work: LocalWork) -> tuple[dict[str, np.ndarray], float | None]:
        self.work.append(work)
        if self.error is not None:
            raise self.error
        floats = {
            name: array + self.step for name, array in work.arrays.items() if _is_float(array)
        }
        return {**work.arrays, **floats}, 0.25


@pytest.fixture
def make_trainer() -> type[Trainer]:
    return Trainer
