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
from strategies.mechanisms.packing import PackingError, pack, packed_size, unpack
from strategies.mechanisms.rng import Stream

MAX_LEVELS = 2**16 - 1
_SCALE_BYTES = 4
_MAX_SCALE = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class QuantizedVector:
    """A quantised vector: Q(v)_j = scale * sign_j * level_j / num_levels.

    Attributes
    ----------
    scale : float
        Norm of the vector, rounded up to a float32; 0 for the zero vector.
    codes : ndarray of uint32, shape (d,)
        The level of each coordinate, 0 to num_levels, plus 2^ceil(log2(s+1)) if it is negative.
    num_levels : int
        s, 1 to 65,535.
    """

    scale: float
    codes: NDArray[np.uint32]
    num_levels: int

    @property
    def levels(self) -> NDArray[np.uint32]:
        """Levels, 0 to num_levels, shape (d,)."""
        return self.codes & np.uint32(_sign_bit(self.num_levels) - 1)

    @property
    def negative(self) -> NDArray[np.bool_]:
        """Which coordinates are negative, shape (d,)."""
        return self.codes >= np.uint32(_sign_bit(self.num_levels))


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
        Formal guarantees: E[Q(v)] = v; a coordinate exactly on a level stays there; Q(0) = 0;
        |Q(v)_j - v_j| < scale / s. The scale is rounded up, so no level exceeds s.
    """
    check_num_levels(num_levels)
    norm = l2_norm(vector)
    if not norm <= _MAX_SCALE:
        raise ValueError(f"norm of the vector: {norm}; allowed: at most {_MAX_SCALE:.4g}")
    rounded = np.float32(norm)
    scale = float(rounded if float(rounded) >= norm else np.nextafter(rounded, np.float32(np.inf)))
    if scale == 0.0:
        return QuantizedVector(0.0, np.zeros(vector.shape, dtype=np.uint32), num_levels)
    # First times s, then over the scale: what is a level comes out as an integer.
    position = np.abs(vector)
    position *= num_levels
    position /= scale
    np.minimum(position, num_levels, out=position)
    lower = np.floor(position)
    position -= lower
    codes = lower.astype(np.uint32)
    codes += stream.uniform(vector.size) < position
    codes |= np.signbit(vector) * np.uint32(_sign_bit(num_levels))
    return QuantizedVector(scale, codes, num_levels)


def dequantize_qsgd(quantized: QuantizedVector) -> NDArray[np.float64]:
    """Return Q(v), float64 of shape (d,)."""
    # In this order the product is exact, and so the highest level is the scale itself.
    magnitudes = np.arange(_sign_bit(quantized.num_levels)) * quantized.scale
    magnitudes /= quantized.num_levels
    return np.concatenate([magnitudes, -magnitudes])[quantized.codes]


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
