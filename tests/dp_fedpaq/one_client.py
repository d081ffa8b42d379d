"""One client and its memory, for the tests of its answers."""

from collections.abc import Callable

import numpy as np
from flwr.app import Context, Message

from strategies.device_state import ContextState, LedgerEntry
from strategies.dp_fedpaq import DpFedPaqParameters
from strategies.dp_fedpaq.algorithm import decode_update
from strategies.dp_fedpaq.messages import parse_reply

Make = Callable[..., Message]


def parameters(**changes: object) -> DpFedPaqParameters:
    values: dict[str, object] = {
        "num_participations": 3,
        "noise_multiplier": 1.0,
        "clipping_norm": 1.0,
        "local_steps": 2,
        "batch_size": 4,
        "quantizer": "none",
    }
    return DpFedPaqParameters(**{**values, **changes})  # type: ignore[arg-type]


def never() -> int:
    raise AssertionError("data was read")


def ledger(context: Context) -> LedgerEntry:
    return ContextState(context).read_entry("dp_fedpaq")


def update_of(reply: Message, chosen: DpFedPaqParameters, size: int) -> np.ndarray:
    upload = parse_reply(reply).upload
    assert upload is not None
    return decode_update(upload, size, chosen)
