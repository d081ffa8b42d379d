"""Noise and masks that two clients derive bit for bit from one key, on any machine.

From the key stream (AES-256 in counter mode) to the values there is integer arithmetic only, so the
two ends' vectors cancel exactly. One key serves one pair once; its stream has three parts, which do
not overlap: the words that are drawn, the words that settle ties, and the word that decides whether
the pair has an edge.

The Gaussian noise is the discrete Gaussian of parameter 512, P(n) proportional to
exp(-n^2 / (2 512^2)) on the integers, as a table of whole multiples of 2^-160, and is drawn exactly
from that table by the alias method (Walker 1977; Vose 1991):

1. Cell i = 0 .. 16383 stands for the value i - 8192. Its mass is P(i - 8192) 2^160 rounded to the
   nearest integer (half to even); what is then missing to 2^160 goes to the centre, cell 8192.
2. A cell's room is 2^146. Cells with less than that lie on one stack, the others on a second, both
   pushed from cell 0 upwards. The topmost small cell keeps its mass as threshold and is filled up
   from the topmost large cell, its alias; what has less than 2^146 left moves to the small stack.
   Cells left over are their own alias, with threshold 0.
3. A draw takes the next 32-bit word: its upper 14 bits are the cell, the lower 18 are compared with
   the threshold's upper 18 bits. Below, the value is the cell's; above, its alias's. When they are
   equal (probability 2^-18), the next two 64-bit words of the second part, the upper one first,
   decide against the threshold's lower 128 bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from strategies.mechanisms.parameter_checks import ParameterError, check_integer, check_number
from strategies.mechanisms.rng import KeyStream

KEY_SIZE = 32
GAUSSIAN_STD = 512
# Largest magnitude in the table; values beyond 7434 have less than 2^-161 each and got none of it.
GAUSSIAN_BOUND = 8192

_CELL_BITS, _HIGH_BITS, _LOW_BITS = 14, 18, 128
_CELLS = 2**_CELL_BITS
_ROOM = 2 ** (_HIGH_BITS + _LOW_BITS)
_DRAWS, _TIES, _EDGE = range(3)  # parts of a key's stream
_BLOCK = 2**14  # draws at once, so that they stay in a cache; even, as half words come in pairs


@dataclass(frozen=True)
class _AliasTable:
    """What a draw looks up; `outcomes` has a cell's alias at 2i and its own value at 2i + 1."""

    limits: NDArray[np.uint32]  # smallest word of the cell that is not surely below the threshold
    low: NDArray[np.uint64]  # the threshold's lower 128 bits, as two words
    outcomes: NDArray[np.int16]


def list_gaussian_masses() -> list[int]:
    """List the probabilities of -8192 .. 8191 times 2^160; they add up to 2^160.

    A draw has exactly this law. Its total variation distance to the discrete Gaussian is at most
    2^-146: half of 2^14 roundings by 2^-161, the same once more at the centre, and the tails
    (e^-128).

    Returns
    -------
    list of int, 16384 numbers
    """
    # `decimal` rounds each operation correctly, exp too: the same digits everywhere. In 80 digits
    # the products of up to 8192 factors are right to more than 70, the table needs 49.
    context = Context(prec=80, rounding=ROUND_HALF_EVEN)
    variance = Decimal(GAUSSIAN_STD**2)
    square = context.exp(context.divide(Decimal(-1), variance))
    factor = context.exp(context.divide(Decimal("-0.5"), variance))  # w(k+1) / w(k), k = 0
    weights, total = [Decimal(1)], Decimal(1)
    for _ in range(GAUSSIAN_BOUND):
        weights.append(context.multiply(weights[-1], factor))
        factor = context.multiply(factor, square)
        total = context.fma(Decimal(2), weights[-1], total)
    scale = context.divide(Decimal(_ROOM * _CELLS), total)
    masses = [
        int(context.to_integral_value(context.multiply(weights[abs(value)], scale)))
        for value in range(-GAUSSIAN_BOUND, GAUSSIAN_BOUND)
    ]
    masses[GAUSSIAN_BOUND] += _ROOM * _CELLS - sum(masses)
    return masses


@lru_cache(maxsize=1)
def _alias_table() -> _AliasTable:
    masses = list_gaussian_masses()
    thresholds, aliases = [0] * _CELLS, list(range(_CELLS))
    small = [cell for cell in range(_CELLS) if masses[cell] < _ROOM]
    large = [cell for cell in range(_CELLS) if masses[cell] >= _ROOM]
    while small:
        cell, donor = small.pop(), large[-1]
        thresholds[cell], aliases[cell] = masses[cell], donor
        masses[donor] -= _ROOM - masses[cell]
        if masses[donor] < _ROOM:
            small.append(large.pop())
    cells = np.arange(_CELLS, dtype=np.uint32)
    high = np.array([threshold >> _LOW_BITS for threshold in thresholds], dtype=np.uint32)
    return _AliasTable(
        limits=(cells << np.uint32(_HIGH_BITS)) | high,
        low=np.array(
            [divmod(threshold % 2**_LOW_BITS, 2**64) for threshold in thresholds], dtype=np.uint64
        ),
        outcomes=(np.stack([np.array(aliases), cells], axis=1).ravel() - GAUSSIAN_BOUND).astype(
            np.int16
        ),
    )


class _GaussianStream:
    """The Gaussian numbers of one key, in order; all but the last draw in even numbers."""

    def __init__(self, key: bytes) -> None:
        self._table = _alias_table()
        self._draws = KeyStream(key, _DRAWS)
        self._ties = KeyStream(key, _TIES)

    def draw(self, size: int) -> NDArray[np.int16]:
        words = self._draws.half_words(size)
        cells = np.right_shift(words, _HIGH_BITS, dtype=np.int64)
        limits = self._table.limits.take(cells, mode="clip")
        own = words < limits
        tied = np.flatnonzero(words == limits)
        if tied.size:
            upper, lower = self._ties.words(2 * tied.size).reshape(-1, 2).T
            most, least = self._table.low[cells[tied]].T
            own[tied] = (upper < most) | ((upper == most) & (lower < least))
        cells <<= 1
        cells += own
        return self._table.outcomes.take(cells, mode="clip")


def _check_keys(*keys: bytes) -> None:
    for key in keys:
        if not isinstance(key, bytes) or len(key) != KEY_SIZE:
            found = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
            raise ParameterError("key", found, f"{KEY_SIZE} bytes")
    if len(set(keys)) < len(keys):
        raise ParameterError("keys", "a repeated key", "each key once")


def _add_up(
    added: Sequence[bytes],
    subtracted: Sequence[bytes],
    size: int,
    open_draw: Callable[[bytes], Callable[[int], NDArray[Any]]],
    dtype: DTypeLike,
) -> NDArray[Any]:
    """Sum the keys' vectors block by block, so that memory does not grow with their number."""
    _check_keys(*added, *subtracted)
    check_integer("size", size, 0)
    terms: list[tuple[np.ufunc, Callable[[int], NDArray[Any]]]]
    terms = [(np.add, open_draw(key)) for key in added]
    terms += [(np.subtract, open_draw(key)) for key in subtracted]
    total = np.zeros(size, dtype=dtype)
    for start in range(0, size, _BLOCK):
        part = total[start : start + _BLOCK]
        for accumulate, draw in terms:
            accumulate(part, draw(part.size), out=part)
    return total


_sum_gaussians = partial(_add_up, open_draw=lambda key: _GaussianStream(key).draw)
_sum_masks = partial(
    _add_up, open_draw=lambda key: KeyStream(key, _DRAWS).half_words, dtype=np.uint32
)


def gaussian_pair_noise(key: bytes, size: int) -> NDArray[np.int16]:
    """Draw a pair's Gaussian noise: the discrete Gaussian of parameter (and deviation) 512.

    Parameters
    ----------
    key : bytes
        32 secret bytes, for this pair and this use only.
    size : int
        How many coordinates, >= 0. A shorter vector is the beginning of a longer one.

    Returns
    -------
    ndarray of int16, shape (size,)
        Independent numbers of -8192 .. 8191 with the law of `list_gaussian_masses`: over all
        coordinates within size * 2^-146 of the discrete Gaussian in total variation, to whoever
        cannot tell AES-256-CTR from random bits.

    Raises
    ------
    ParameterError
        The key does not have 32 bytes, or the size is no integer >= 0.
    """
    return _sum_gaussians([key], [], size, dtype=np.int16)


def uniform_masks(key: bytes, size: int) -> NDArray[np.uint32]:
    """Draw a pair's masks: independent and uniform on 0 .. 2^32 - 1.

    Parameters
    ----------
    key : bytes
        32 secret bytes, for this pair and this use only.
    size : int
        How many coordinates, >= 0.

    Returns
    -------
    ndarray of uint32, shape (size,)

    Raises
    ------
    ParameterError
        The key does not have 32 bytes, or the size is no integer >= 0.
    """
    return _sum_masks([key], [], size)


def sum_pair_noise(
    added: Sequence[bytes], subtracted: Sequence[bytes], size: int
) -> NDArray[np.int64]:
    """Sum the Gaussian noise of some keys and take away that of others.

    Of each pair, one end adds and the other subtracts, so the pair's noise leaves the sum of both
    uploads exactly.

    Parameters
    ----------
    added, subtracted : sequence of bytes
        Keys of 32 bytes, all different.
    size : int
        How many coordinates, >= 0.

    Returns
    -------
    ndarray of int64, shape (size,)
        At most 8192 (len(added) + len(subtracted)) in magnitude.

    Raises
    ------
    ParameterError
        A key does not have 32 bytes or occurs twice, or the size is no integer >= 0.
    """
    return _sum_gaussians(added, subtracted, size, dtype=np.int64)


def sum_uniform_masks(
    added: Sequence[bytes], subtracted: Sequence[bytes], size: int
) -> NDArray[np.uint32]:
    """Sum the masks of some keys and take away those of others, modulo 2^32.

    Parameters
    ----------
    added, subtracted : sequence of bytes
        Keys of 32 bytes, all different.
    size : int
        How many coordinates, >= 0.

    Returns
    -------
    ndarray of uint32, shape (size,)

    Raises
    ------
    ParameterError
        A key does not have 32 bytes or occurs twice, or the size is no integer >= 0.
    """
    return _sum_masks(added, subtracted, size)


def has_edge(key: bytes, probability: float) -> bool:
    """Tell whether a pair has an edge in the round's random graph; both ends find the same.

    Neither end, nor anybody in between, chooses the graph or learns an edge without the key. The
    decision is independent of the noise and masks of the same key.

    Parameters
    ----------
    key : bytes
        32 secret bytes, for this pair and this use only.
    probability : float
        0 to 1; met up to 2^-64, exactly at 0 and 1.

    Returns
    -------
    bool

    Raises
    ------
    ParameterError
        The key does not have 32 bytes, or the probability is not within 0 .. 1.
    """
    _check_keys(key)
    check_number("probability", probability, positive=False, below=np.nextafter(1.0, 2.0))
    # A power of two scales a float exactly, and int() then takes the floor.
    return int(KeyStream(key, _EDGE).words(1)[0]) < int(float(probability) * 2.0**64)
