"""QSGD: unbiased stochastic quantisation on a grid scaled by the vector's norm.

References
----------
Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD, NeurIPS 2017, arXiv 1610.02132, Section 3.1.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.mechanisms.clipping import l2_norm
from strategies.mechanisms.packing import (
    PackingError,
    Unsigned,
    pack,
    packed_size,
    unpack,
    unsigned_type,
)
from strategies.mechanisms.rng import Stream

MAX_LEVELS = 2**16 - 1
_SCALE_BYTES = 4
_MAX_SCALE = float(np.finfo(np.float32).max)
_BLOCK = 2**14  # coordinates at once, so that the working arrays stay in a cache; even


@dataclass(frozen=True)
class QuantizedVector:
    """A quantised vector: Q(v)_j = scale * sign_j * level_j / num_levels.

    Attributes
    ----------
    scale : float
        Norm of the vector, rounded up to a float32; 0 for the zero vector.
    codes : ndarray of the smallest unsigned type that holds them, shape (d,)
        The level of each coordinate, 0 to num_levels, plus 2^ceil(log2(s+1)) if it is negative.
    num_levels : int
        s, 1 to 65,535.
    """

    scale: float
    codes: Unsigned
    num_levels: int

    @property
    def levels(self) -> Unsigned:
        """Levels, 0 to num_levels, shape (d,)."""
        return self.codes & self.codes.dtype.type(_sign_bit(self.num_levels) - 1)

    @property
    def negative(self) -> NDArray[np.bool_]:
        """Which coordinates are negative, shape (d,)."""
        return self.codes >= self.codes.dtype.type(_sign_bit(self.num_levels))


def check_num_levels(num_levels: int) -> None:
    """Raise ValueError unless 1 <= num_levels <= 65,535."""
    if isinstance(num_levels, bool) or not isinstance(num_levels, int):
        raise ValueError(f"num_levels: {num_levels!r}; allowed: an integer")
    if not 1 <= num_levels <= MAX_LEVELS:
        raise ValueError(f"num_levels: {num_levels}; allowed: 1 to {MAX_LEVELS}")


def code_width(num_levels: int) -> int:
    """Return the bits of one coordinate: a sign and ceil(log2(s + 1)) for the level."""
    return 1 + num_levels.bit_length()


def _sign_bit(num_levels: int) -> int:
    return 1 << num_levels.bit_length()


def qsgd_num_bits(num_parameters: int, num_levels: int) -> int:
    """Return the fixed-width size of one upload, beta = 32 + d (1 + ceil(log2(s + 1))) bits."""
    return 32 + num_parameters * code_width(num_levels)


def qsgd_variance_factor(num_parameters: int, num_levels: int) -> float:
    """Return q with E||Q(v) - v||^2 <= q ||v||^2: min(d / s^2, sqrt(d) / s)."""
    return min(num_parameters / num_levels**2, math.sqrt(num_parameters) / num_levels)


def quantize_qsgd(vector: NDArray[np.float64], num_levels: int, stream: Stream) -> QuantizedVector:
    """Round each coordinate at random to one of its two neighbouring levels.

    Parameters
    ----------
    vector : ndarray of float64, shape (d,)
        Finite; its norm at most the largest float32.
    num_levels : int
        s, 1 to 65,535.
    stream : Stream
        Source of the rounding's randomness.

    Returns
    -------
    QuantizedVector
        Formal guarantees, with the levels on the whole line, -s to s: a coordinate at
        u = s v_j / scale gets the level floor(u + (k + 1/2) / 2^32), k a uniform 32-bit word. So
        E[Q(v)] = v to within 2^-32 of a level; a coordinate exactly on a level stays there;
        Q(0) = 0; |Q(v)_j - v_j| < scale / s. The scale is rounded up, so no level exceeds s.
    """
    check_num_levels(num_levels)
    norm = l2_norm(vector)
    if not norm <= _MAX_SCALE:
        raise ValueError(f"norm of the vector: {norm}; allowed: at most {_MAX_SCALE:.4g}")
    rounded = np.float32(norm)
    scale = float(rounded if float(rounded) >= norm else np.nextafter(rounded, np.float32(np.inf)))
    codes = np.zeros(vector.shape, dtype=unsigned_type(code_width(num_levels)))
    if scale > 0.0:
        for start in range(0, vector.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            _quantize_block(vector[part], codes[part], scale, num_levels, stream)
    return QuantizedVector(scale, codes, num_levels)


def _quantize_block(
    vector: NDArray[np.float64], codes: Unsigned, scale: float, num_levels: int, stream: Stream
) -> None:
    # First times s, then over the scale: what is a level comes out as an integer.
    position = vector * num_levels
    position /= scale
    # Moved up by s, so that dropping the fraction is rounding down. An integer of 17 bits and a
    # fraction of 33 are exact: no sum reaches the next integer by rounding.
    position += num_levels + 2.0**-33
    fractions = stream.half_words(vector.size).astype(np.float64)
    fractions *= 2.0**-32
    position += fractions
    shifted = position.astype(codes.dtype)
    kind = codes.dtype.type
    # The largest coordinate may lie above the scale by the rounding of the norm.
    np.minimum(shifted, kind(2 * num_levels), out=shifted)
    negative = shifted < kind(num_levels)
    np.subtract(shifted, kind(num_levels), out=codes)
    _negate(codes, negative)
    codes |= negative.astype(kind) << kind(num_levels.bit_length())


def _negate(values: Unsigned, where: NDArray[np.bool_]) -> None:
    """Negate some values in place, modulo 2^bits: (v ^ -1) - (-1) is -v, and (v ^ 0) - 0 is v.

    The same as NumPy's ``negative(..., where=...)``, several times as fast.
    """
    ones_or_zeros = np.negative(where.astype(values.dtype))
    values ^= ones_or_zeros
    values -= ones_or_zeros


def dequantize_qsgd(quantized: QuantizedVector) -> NDArray[np.float64]:
    """Return Q(v), float64 of shape (d,)."""
    levels, negative = quantized.levels, quantized.negative
    _negate(levels, negative)
    signed = levels.view(levels.dtype.name.removeprefix("u"))
    # In this order the product is exact, and so the highest level is the scale itself.
    values: NDArray[np.float64] = np.multiply(signed, quantized.scale, dtype=np.float64)
    values /= quantized.num_levels
    return values


def pack_qsgd(quantized: QuantizedVector) -> bytes:
    """Serialise: the scale as a little-endian float32, then one code a coordinate."""
    scale = np.array(quantized.scale, dtype="<f4")
    return scale.tobytes() + pack(quantized.codes, code_width(quantized.num_levels))


def unpack_qsgd(data: bytes, num_parameters: int, num_levels: int) -> QuantizedVector:
    """Parse and check what `pack_qsgd` wrote.

    Raises
    ------
    PackingError
        If the length is wrong, the scale is negative or not finite, or a level exceeds s.
    """
    check_num_levels(num_levels)
    width = code_width(num_levels)
    expected = _SCALE_BYTES + packed_size(num_parameters, width)
    if len(data) != expected:
        raise PackingError(f"upload of {len(data)} bytes; allowed: {expected}")
    scale = float(np.frombuffer(data, dtype="<f4", count=1)[0])
    if not (math.isfinite(scale) and scale >= 0.0):
        raise PackingError(f"upload with scale {scale}; allowed: finite and >= 0")
    codes = unpack(data[_SCALE_BYTES:], num_parameters, width)
    quantized = QuantizedVector(scale, codes, num_levels)
    highest = int(quantized.levels.max(initial=0))
    if highest > num_levels:
        raise PackingError(f"upload with level {highest}; allowed: 0 to {num_levels}")
    return quantized
