"""Normal numbers from uniform words: rectangles under the density, and what they leave.

The half-normal density g(x) = sqrt(2/pi) exp(-x^2/2) on x > 0 is cut into n rectangles of area
exactly 1/N that lie under its graph, stacked from the bottom, and a remainder. A word's lowest bits
name one of N cells, all equally likely. The first n are the rectangles: the number is uniform below
the rectangle's width, with nothing to compare or to reject. The other cells, together of the
remainder's own probability 1 - n/N (0.3%), stand for the remainder, from which a number is then
drawn by rejection.

References
----------
Marsaglia, MacLaren, Bray: A fast procedure for generating normal random variables, Communications
of the ACM 7 (1964): rectangles, wedges and tail. Marsaglia, Tsang: The ziggurat method for
generating random variables, Journal of Statistical Software 5 (2000): horizontal layers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Floats = NDArray[np.float64]
DrawWords = Callable[[int], NDArray[np.uint64]]

NUM_CELLS = 1024  # N
_BLOCK = 2**14  # words at once, so that the working arrays stay in a cache
_PEAK = math.sqrt(2.0 / math.pi)


@dataclass(frozen=True, eq=False)
class Pieces:
    """The half-normal density, cut up.

    Attributes
    ----------
    widths : ndarray of float64, shape (n,)
        w_1 > w_2 > ...: rectangle i is (0, w_i) x (y_{i-1}, y_i) with y_i - y_{i-1} = 1/(N w_i),
        y_0 = 0 and y_i <= g(w_i).
    tops : ndarray of float64, shape (n,)
        The y_i.
    tail : float
        Area under g beyond w_1, where no rectangle is.
    lefts, heights : ndarray of float64, shape (n,)
        Box i is (w_{i+1}, w_i) x (y_i, y_i + heights_i), w_{n+1} = 0: it holds what lies between
        the rectangles and the graph.
    shares : ndarray of float64, shape (n + 1,)
        Areas of the tail and of the boxes, added up.
    table : ndarray of float64, shape (N,)
        2^-52 w_i, and zeros for the cells of the remainder.
    """

    widths: Floats
    tops: Floats
    tail: float
    lefts: Floats
    heights: Floats
    shares: Floats
    table: Floats


@lru_cache(maxsize=1)
def cut_density() -> Pieces:
    """Return the pieces; what g(w_i) >= y_i asks for is checked number by number."""
    widths: list[float] = []
    tops: list[float] = []
    width, top = 6.0, 0.0
    while True:
        # From above, so that the wider of the two rectangles that fit is found.
        for _ in range(400):
            before = width
            level = (top + 1.0 / (NUM_CELLS * width)) / _PEAK
            if level >= 1.0:
                break
            width = math.sqrt(-2.0 * math.log(level))
            if before - width <= 1e-15 * width:
                break
        width *= 1.0 - 1e-13
        reached = top + 1.0 / (NUM_CELLS * width)
        if reached > _density(width):
            break
        top = reached
        widths.append(width)
        tops.append(top)
    edges, bases = np.array(widths), np.array(tops)
    lefts = np.append(edges[1:], 0.0)
    heights = _PEAK * np.exp(-0.5 * lefts * lefts) - bases
    tail = math.erfc(widths[0] / math.sqrt(2.0))
    table = np.zeros(NUM_CELLS)
    table[: edges.size] = 2.0**-52 * edges
    shares = np.cumsum(np.append(tail, (edges - lefts) * heights))
    return Pieces(edges, bases, tail, lefts, heights, shares, table)


def normal_numbers(draw: DrawWords, size: int) -> Floats:
    """Turn uniform words into independent N(0, 1) numbers.

    Parameters
    ----------
    draw : callable
        ``draw(m)`` returns the next m words of a stream, uint64, independent and uniform.
    size : int
        How many numbers.

    Returns
    -------
    ndarray of float64, shape (size,)
        Symmetric about 0. Formal guarantee: the law is N(0, 1) up to float64 rounding. A number
        inside a rectangle is uniform on 2^52 equally spaced points; areas and comparisons are
        rounded (total variation below 1e-12); the tail reaches 9.3 standard deviations.
        `size` words are used first, in order, then three for each candidate of the remainder.
    """
    pieces = cut_density()
    numbers = np.empty(size)
    pending = []
    for start in range(0, size, _BLOCK):
        words = draw(min(_BLOCK, size - start))
        cells = np.bitwise_and(words, np.uint64(NUM_CELLS - 1)).view(np.int64)
        pending.append(start + np.flatnonzero(cells >= pieces.widths.size))
        part = numbers[start : start + words.size]
        # "wrap" costs least; no index is out of range.
        np.take(pieces.table, cells, out=part, mode="wrap")
        # 53 signed bits, made odd: symmetric about 0, and exact in float64.
        signed = np.right_shift(words.view(np.int64), 11)
        np.bitwise_or(signed, 1, out=signed)
        np.multiply(part, signed, out=part)
    left = np.concatenate(pending) if pending else np.zeros(0, dtype=np.int64)
    while left.size:
        drawn = _remainder(draw, 2 * left.size + 16, pieces)[: left.size]
        numbers[left[: drawn.size]] = drawn
        left = left[drawn.size :]
    return numbers


def _remainder(draw: DrawWords, candidates: int, pieces: Pieces) -> Floats:
    """Return those of so many candidates that lie in the remainder, in order."""
    words = draw(3 * candidates).reshape(3, candidates)
    which, across, up = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    piece = np.searchsorted(pieces.shares, which * pieces.shares[-1])
    box = np.maximum(piece, 1) - 1
    left = pieces.lefts[box]
    numbers = left + across * (pieces.widths[box] - left)
    heights = pieces.tops[box] + up * pieces.heights[box]
    accepted = heights < _PEAK * np.exp(-0.5 * numbers * numbers)
    tail = piece == 0
    numbers[tail] = -ndtri(across[tail] * (0.5 * pieces.tail))
    signs = 1.0 - 2.0 * (words[0] & np.uint64(1)).astype(np.float64)
    numbers *= signs
    drawn: Floats = numbers[accepted | tail]
    return drawn


def _density(x: float) -> float:
    return _PEAK * math.exp(-0.5 * x * x)
