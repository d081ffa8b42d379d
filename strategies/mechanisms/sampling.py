"""Which records a client trains on in a round.

The draw is part of the privacy mechanism: amplification by sampling is void if anyone else can
predict it, so the stream must be the client's own.
"""

import numpy as np
from numpy.typing import NDArray

from strategies.mechanisms.rng import Stream

Batches = list[NDArray[np.int64]]


def draw_batches(num_records: int, batch_size: int, local_steps: int, stream: Stream) -> Batches:
    """Draw E b records without replacement, cut into exactly E disjoint batches of exactly b.

    Each record is drawn with probability p = E b / n, in at most one batch.

    Parameters
    ----------
    num_records : int
        n, at least ``local_steps * batch_size``.
    batch_size : int
        b, >= 1.
    local_steps : int
        E, >= 1.
    stream : Stream
        The client's own source of randomness.

    Returns
    -------
    list of ndarray of int64, shape (batch_size,)
    """
    needed = batch_size * local_steps
    if batch_size < 1 or local_steps < 1:
        raise ValueError(f"batch_size: {batch_size}, local_steps: {local_steps}; allowed: >= 1")
    if num_records < needed:
        raise ValueError(
            f"num_records: {num_records}; allowed: at least local_steps * batch_size = {needed}"
        )
    drawn = stream.sample_without_replacement(num_records, needed)
    return list(drawn.reshape(local_steps, batch_size))


def shuffle_epochs(num_records: int, batch_size: int, local_epochs: int, stream: Stream) -> Batches:
    """Shuffle all records anew for each epoch and cut them into batches; the last may be shorter.

    No record is left out, so nothing is amplified.

    Parameters
    ----------
    num_records : int
        n, >= 0 (0 gives no batches).
    batch_size : int
        b, >= 1.
    local_epochs : int
        Passes over the data, >= 1.
    stream : Stream
        The client's own source of randomness.
    """
    if batch_size < 1 or local_epochs < 1:
        raise ValueError(f"batch_size: {batch_size}, local_epochs: {local_epochs}; allowed: >= 1")
    batches: Batches = []
    for _ in range(local_epochs):
        order = stream.sample_without_replacement(num_records, num_records)
        batches += [order[i : i + batch_size] for i in range(0, num_records, batch_size)]
    return batches
