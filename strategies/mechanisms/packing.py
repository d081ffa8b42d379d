"""Packing small integers into bytes, so that b bits a number are b bits on the wire.

Numbers of `width` bits are cut into planes of 8 bits (least significant first); the last plane
holds the remaining ``width mod 8`` bits, 8 numbers to that many bytes. Each plane but a whole one
is padded with zero bits to a byte, so n numbers take at most ``ceil(n width / 8) + 1`` bytes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_WIDTH = 32

Unsigned = NDArray[np.unsignedinteger[Any]]


class PackingError(ValueError):
    """Bytes that no packed vector of the expected kind can have."""


def _planes(width: int) -> list[int]:
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"width: {width}; allowed: 1 to {MAX_WIDTH} bits")
    return [8] * (width // 8) + ([width % 8] if width % 8 else [])


def packed_size(count: int, width: int) -> int:
    """Return the number of bytes that `count` numbers of `width` bits take."""
    return sum((count * bits + 7) // 8 for bits in _planes(width))


def unsigned_type(width: int) -> type[np.unsignedinteger[Any]]:
    """Return the smallest of NumPy's unsigned types with at least `width` bits, at most 32."""
    return np.uint8 if width <= 8 else np.uint16 if width <= 16 else np.uint32


def pack(numbers: Unsigned, width: int) -> bytes:
    """Pack numbers into bytes.

    Parameters
    ----------
    numbers : ndarray of uint8, uint16 or uint32, shape (n,)
        Each below 2^width.
    width : int
        Bits a number, 1 to 32.

    Returns
    -------
    bytes
        `packed_size(n, width)` of them.
    """
    planes = _planes(width)
    if numbers.size and int(numbers.max()) >> width:
        raise ValueError(f"numbers: {int(numbers.max())}; allowed: below 2^{width}")
    parts = []
    for index, bits in enumerate(planes):
        # The cast drops the bits above the plane's own.
        plane = (numbers >> numbers.dtype.type(8 * index) if index else numbers).astype(np.uint8)
        parts.append(plane.tobytes() if bits == 8 else _pack_narrow(plane, bits))
    return b"".join(parts)


def unpack(data: bytes, count: int, width: int) -> Unsigned:
    """Unpack what `pack` packed.

    Parameters
    ----------
    data : bytes
        Exactly `packed_size(count, width)` bytes.
    count : int
        How many numbers.
    width : int
        Bits a number, 1 to 32.

    Returns
    -------
    ndarray of `unsigned_type(width)`, shape (count,)

    Raises
    ------
    PackingError
        If the length is wrong or a padding bit is set.
    """
    if len(data) != packed_size(count, width):
        raise PackingError(
            f"packed vector of {len(data)} bytes; {count} numbers of {width} bits take "
            f"{packed_size(count, width)}"
        )
    kind = unsigned_type(width)
    numbers = np.zeros(count, dtype=kind)
    start = 0
    for index, bits in enumerate(_planes(width)):
        size = (count * bits + 7) // 8
        raw = np.frombuffer(data, dtype=np.uint8, count=size, offset=start)
        plane = raw if bits == 8 else _unpack_narrow(raw, count, bits)
        numbers |= plane.astype(kind) << kind(8 * index) if index else plane
        start += size
    return numbers


# Eight numbers are one 64-bit word, the first in the lowest byte. Joining neighbours three times,
# from 8 to 16, 32 and 64 bits, moves all bits of a group to the word's lowest bytes.
_LANES = (8, 16, 32)


def _pack_narrow(plane: NDArray[np.uint8], bits: int) -> bytes:
    """Put 8 numbers of `bits` < 8 bits into `bits` bytes, the first in the lowest bits."""
    groups = np.zeros(8 * -(-plane.size // 8), dtype=np.uint8)
    groups[: plane.size] = plane
    words = groups.view("<u8")
    for lane in _LANES:
        used, low = _low_halves(lane, bits)
        upper = words >> np.uint64(lane - used)
        upper &= low << np.uint64(used)
        words &= low
        words |= upper
    return words.view(_lowest_bytes(bits))["low"].tobytes()[: (plane.size * bits + 7) // 8]


def _unpack_narrow(raw: NDArray[np.uint8], count: int, bits: int) -> NDArray[np.uint8]:
    num_groups = -(-count // 8)
    padded = np.zeros(num_groups * bits, dtype=np.uint8)
    padded[: raw.size] = raw
    words = np.zeros(num_groups, dtype="<u8")
    words.view(_lowest_bytes(bits))["low"] = padded.view(f"V{bits}")
    for lane in reversed(_LANES):
        used, low = _low_halves(lane, bits)
        upper = words & (low << np.uint64(used))
        upper <<= np.uint64(lane - used)
        words &= low
        words |= upper
    flat = words.view(np.uint8)
    if flat[count:].any():
        raise PackingError("packed vector with padding bits set")
    return flat[:count]


def _low_halves(lane: int, bits: int) -> tuple[int, np.uint64]:
    """Return the bits in use of a lane, and the mask of those bits in every second lane."""
    used = bits * lane // 8
    return used, np.uint64(sum(((1 << used) - 1) << start for start in range(0, 64, 2 * lane)))


def _lowest_bytes(bits: int) -> np.dtype[np.void]:
    """Return the type of a word of which the lowest bytes are the field ``low``."""
    return np.dtype({"names": ["low"], "formats": [f"V{bits}"], "offsets": [0], "itemsize": 8})
