"""The idx format of MNIST's files.

Two zero bytes, a type code, the number of dimensions, then each dimension as a big-endian 32-bit
integer, then the values in row-major order, big-endian.
"""

import gzip
import math
import zlib
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.data.records import DataError

UNSIGNED_BYTE = 0x08
INT32 = 0x0C
_TYPES: dict[int, tuple[np.dtype[Any], str]] = {
    UNSIGNED_BYTE: (np.dtype(np.uint8), "unsigned bytes"),
    INT32: (np.dtype(">i4"), "32-bit integers"),
}


def read_idx(
    path: Path,
    num_dimensions: int,
    how_to_get: str,
    type_code: int = UNSIGNED_BYTE,
    key: str = "data.root",
) -> NDArray[Any]:
    """Read one idx file.

    Parameters
    ----------
    path : pathlib.Path
        A plain file, or a gzip file if its name ends in .gz.
    num_dimensions : int
        The number of dimensions that is expected.
    how_to_get : str
        Where the file comes from, for the message if it cannot be read.
    type_code : int
        The type that is expected: `UNSIGNED_BYTE` or `INT32`.
    key : str
        The setting that led to the file, for messages.

    Returns
    -------
    numpy.ndarray
        uint8, or big-endian int32.

    Raises
    ------
    DataError
        If the file cannot be read, is not an idx file of that kind, or is shorter or longer than
        its header says.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            return _parse_idx(file, f"{key}: {path}", num_dimensions, type_code)
    except (OSError, EOFError, zlib.error) as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"{key}: {path} cannot be read: {reason}. {how_to_get}") from error


def _parse_idx(
    file: BufferedReader | gzip.GzipFile, name: str, num_dimensions: int, type_code: int
) -> NDArray[Any]:
    dtype, kind = _TYPES[type_code]
    magic = bytes([0, 0, type_code, num_dimensions])
    header = file.read(4 + 4 * num_dimensions)
    if header[:4] != magic:
        raise DataError(
            f"{name} starts with {header[:4].hex(' ')!r}; an idx file of {kind} with "
            f"{num_dimensions} dimension(s) starts with {magic.hex(' ')!r}"
        )
    if len(header) < 4 + 4 * num_dimensions:
        raise DataError(f"{name} ends within its header; get the file again")
    shape = tuple(int(size) for size in np.frombuffer(header[4:], dtype=">u4"))
    size = math.prod(shape) * dtype.itemsize
    # In parts and not by `size` at once: a damaged header must not reserve that much memory.
    values = bytearray()
    while len(values) <= size and (part := file.read(1 << 24)):
        values += part
    if len(values) != size:
        found = "ends after" if len(values) < size else "has at least"
        raise DataError(
            f"{name} {found} {len(values)} bytes of values; its header says {shape}, {size} bytes. "
            "Get the file again"
        )
    return np.frombuffer(values, dtype=dtype).reshape(shape)
