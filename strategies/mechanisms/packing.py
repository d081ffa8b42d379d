"""Packing small integers into bytes, so that b bits a number are b bits on the wire.

Numbers of `width` bits are cut into planes of 8 bits (least significant first); the last plane
holds the remaining ``width mod 8`` bits, 8 numbers to that many bytes. Each plane but a whole one
is padded with zero bits to a byte, so n numbers take at most ``ceil(n width / 8) + 1`` bytes.
"""

import numpy as np
from numpy.typing import NDArray

MAX_WIDTH = 32


class PackingError(ValueError):
    """Bytes that no packed vector of the expected kind can have."""


def _planes(width: int) -> list[int]:
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"width: {width}; allowed: 1 to {MAX_WIDTH} bits")
    return [8] * (width // 8) + ([width % 8] if width % 8 else [])


def packed_size(count: int, width: int) -> int:
    """Return the number of bytes that `count` numbers of `width` bits take."""
    return sum((count * bits + 7) // 8 for bits in _planes(width))


def pack(numbers: NDArray[np.uint32], width: int) -> bytes:
    """Pack numbers into bytes.

    Parameters
    ----------
    numbers : ndarray of uint32, shape (n,)
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
        plane = ((numbers >> np.uint32(8 * index)) & np.uint32(0xFF)).astype(np.uint8)
        parts.append(plane.tobytes() if bits == 8 else _pack_narrow(plane, bits))
    return b"".join(parts)


def unpack(data: bytes, count: int, width: int) -> NDArray[np.uint32]:
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
    ndarray of uint32, shape (count,)

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
    numbers = np.zeros(count, dtype=np.uint32)
    start = 0
    for index, bits in enumerate(_planes(width)):
        size = (count * bits + 7) // 8
        raw = np.frombuffer(data, dtype=np.uint8, count=size, offset=start)
        plane = raw if bits == 8 else _unpack_narrow(raw, count, bits)
        numbers |= plane.astype(np.uint32) << np.uint32(8 * index)
        start += size
    return numbers


def _pack_narrow(plane: NDArray[np.uint8], bits: int) -> bytes:
    """Put 8 numbers of `bits` < 8 bits into `bits` bytes, the first in the lowest bits."""
    groups = np.zeros((-(-plane.size // 8), 8), dtype=np.uint8)
    groups.reshape(-1)[: plane.size] = plane
    joined = np.zeros(len(groups), dtype="<u8")
    for position in range(8):
        joined |= groups[:, position].astype("<u8") << np.uint64(bits * position)
    raw = joined.view(np.uint8).reshape(-1, 8)[:, :bits].tobytes()
    return raw[: (plane.size * bits + 7) // 8]


def _unpack_narrow(raw: NDArray[np.uint8], count: int, bits: int) -> NDArray[np.uint8]:
    num_groups = -(-count // 8)
    padded = np.zeros(num_groups * bits, dtype=np.uint8)
    padded[: raw.size] = raw
    wide = np.zeros((num_groups, 8), dtype=np.uint8)
    wide[:, :bits] = padded.reshape(-1, bits)
    joined = wide.reshape(-1).view("<u8")
    mask = np.uint64((1 << bits) - 1)
    groups = np.empty((num_groups, 8), dtype=np.uint8)
    for position in range(8):
        groups[:, position] = (joined >> np.uint64(bits * position)) & mask
    flat = groups.reshape(-1)
    if flat[count:].any():
        raise PackingError("packed vector with padding bits set")
    return flat[:count]
