"""Cosines of many angles at once, by a polynomial: NumPy computes them one after the other.

With t the angle in turns, less the nearest integer, cos(2 pi t) is a smooth function of t^2 in
[0, 1/4]: its Chebyshev interpolant of degree 10 is exact but for rounding.
"""

import math

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_COEFFICIENTS = [
    float(each)
    for each in Chebyshev.interpolate(
        lambda squares: np.cos(2.0 * math.pi * np.sqrt(np.maximum(squares, 0.0))), 10, [0.0, 0.25]
    )
    .convert(kind=Polynomial)
    .coef
]
# So many at a time stay in a processor's cache.
_PIECE = 2**14


def cosines_of_turns(turns: Floats) -> Floats:
    """Return cos(2 pi t), of the shape of t.

    Parameters
    ----------
    turns : ndarray of float64
        t, C-contiguous and finite, of any shape. The sine is that of t - 1/4.

    Returns
    -------
    ndarray of float64
        Within 2e-14 of the cosine of 2 pi t as it was rounded.
    """
    found = np.empty(turns.shape)
    source, target = turns.ravel(), found.reshape(-1)
    squares = np.empty(min(_PIECE, source.size))
    for start in range(0, source.size, _PIECE):
        piece, sums = source[start : start + _PIECE], target[start : start + _PIECE]
        square = squares[: piece.size]
        np.rint(piece, out=square)
        np.subtract(piece, square, out=square)
        np.multiply(square, square, out=square)
        np.multiply(square, _COEFFICIENTS[-1], out=sums)
        for coefficient in _COEFFICIENTS[-2:0:-1]:
            sums += coefficient
            sums *= square
        sums += _COEFFICIENTS[0]
    return found
