"""The server keeps nothing of a round but its figures."""

import gc
import tracemalloc
from collections import deque

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_app.engines.in_process import InProcessGrid
from strategies import DpFtsDe
from strategies.dp_fts_de.messages import broadcast_record, pack_vector, step_reply
from strategies.rounds import RoundResult

AGENTS, EARLY = 40, 6
VECTOR = pack_vector(np.random.default_rng(0).normal(size=100))


def bytes_kept_each_round(keep: deque[Message], late: int) -> float:
    """The growth of memory until a later round, a round; `keep` gets each reply."""
    app, held = ClientApp(), {}

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        keep.append(reply := step_reply(message, VECTOR, None))
        return reply

    def note(row: RoundResult, _: object) -> None:
        if row.server_round in (EARLY, late):
            gc.collect()
            held[row.server_round] = tracemalloc.get_traced_memory()[0]

    strategy = DpFtsDe(
        dimension=2,
        num_subregions=16,
        release_rounds=(),
        noise_multiplier=1.0,
        randomness="secret",
        on_round=note,
    )
    tracemalloc.start()
    try:
        strategy.start(InProcessGrid(app, AGENTS, {}), broadcast_record(None), num_rounds=late + 1)
    finally:
        tracemalloc.stop()
    return (held[late] - held[EARLY]) / (late - EARLY)


def test_memory_does_not_grow_with_the_rounds() -> None:
    # The weights of all agents are 5,120 bytes, the packed vectors of a round 16,000.
    assert bytes_kept_each_round(deque(maxlen=0), 14) < 3000
    assert bytes_kept_each_round(deque(), 8) > 16_000
