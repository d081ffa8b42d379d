"""Which records a client trains on in a round.

The draw is part of the privacy mechanism: amplification by sampling is void if anyone else can
predict it, so the stream must be the client's own.
"""

import math
from numbers import Real

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


def draw_poisson_batches(
    num_records: int, sample_rate: float, num_batches: int, stream: Stream
) -> Batches:
    """Draw E independent Poisson samples: the batches of DP-SGD's local steps.

    Each record is in each batch with probability q, by itself: independent of the other records
    and of the other batches, so that it may be in several. The law is exact up to 2**-53 in q.

    Parameters
    ----------
    num_records : int
        n, >= 0.
    sample_rate : float
        q, in (0, 1]: of one batch.
    num_batches : int
        E, >= 1.
    stream : Stream
        The client's own source of randomness.

    Returns
    -------
    list of ndarray of int64
        E batches in increasing order of the records, of any size from 0 to n.
    """
    _check_poisson(num_records, sample_rate, num_batches)
    return [_draw_poisson(num_records, sample_rate, stream) for _ in range(num_batches)]


def split_poisson_sample(
    num_records: int, sample_rate: float, num_batches: int, stream: Stream
) -> Batches:
    """Draw one Poisson sample and put each of its records into one of E batches at random.

    Each record is in the round's sample with probability q, by itself, and then in each batch with
    probability 1/E: batches are disjoint. Unlike with E independent samples, a record takes part in
    at most one step. The law is exact up to 2**-53 in either probability.

    Parameters
    ----------
    num_records : int
        n, >= 0.
    sample_rate : float
        q, in (0, 1]: of the whole round.
    num_batches : int
        E, >= 1.
    stream : Stream
        The client's own source of randomness.

    Returns
    -------
    list of ndarray of int64
        E batches in increasing order of the records, of any size from 0 to n.
    """
    _check_poisson(num_records, sample_rate, num_batches)
    drawn = _draw_poisson(num_records, sample_rate, stream)
    places = (stream.uniform(len(drawn)) * num_batches).astype(np.int64)
    order = np.argsort(places, kind="stable")
    ends = np.cumsum(np.bincount(places, minlength=num_batches))[:-1]
    return np.split(drawn[order], ends)


def _draw_poisson(num_records: int, sample_rate: float, stream: Stream) -> NDArray[np.int64]:
    return np.flatnonzero(stream.uniform(num_records) < sample_rate).astype(np.int64)


def _check_poisson(num_records: int, sample_rate: float, num_batches: int) -> None:
    if num_records < 0 or num_batches < 1:
        raise ValueError(
            f"num_records: {num_records}, num_batches: {num_batches}; allowed: >= 0, >= 1"
        )
    is_real = isinstance(sample_rate, Real) and not isinstance(sample_rate, bool)
    if not is_real or not math.isfinite(sample_rate) or not 0.0 < sample_rate <= 1.0:
        raise ValueError(f"sample_rate: {sample_rate!r}; allowed: a number in (0, 1]")
