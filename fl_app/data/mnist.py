"""MNIST, and any set in its format, from idx files on disk. Nothing is downloaded."""

import gzip
import math
import zlib
from io import BufferedReader
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_app.data.records import DataError, Records

NUM_CLASSES = 10
IMAGE_SHAPE = (28, 28)
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
# The idx format: two zero bytes, a type code, the number of dimensions, then each dimension as a
# big-endian 32-bit integer, then the values in row-major order.
UNSIGNED_BYTE = 0x08

HOW_TO_GET = (
    "A folder with "
    + ", ".join(FILES)
    + " (each plain or .gz), or a torchvision root that holds them under MNIST/raw, is needed. "
    "Download the four files from a mirror of MNIST, or once with "
    "torchvision.datasets.MNIST(root, download=True), and set data.root to the folder"
)


def read_mnist(root: str | None) -> tuple[Records, Records]:
    """Read the training and the test records, pixels as stored (0 to 255).

    Parameters
    ----------
    root : str or None
        Folder with the four idx files (plain or .gz), or torchvision's root folder, where they
        lie under MNIST/raw. `~` stands for the home folder; a relative path starts at the
        current folder.

    Returns
    -------
    train, test : Records
        Features of shape (n, 1, 28, 28).

    Raises
    ------
    DataError
        If `root` is None, a file is missing, damaged or of another format, or images and labels
        do not match.
    """
    paths = find_files(root)
    train = _read_pair(paths[FILES[0]], paths[FILES[1]])
    test = _read_pair(paths[FILES[2]], paths[FILES[3]])
    return train, test


def find_files(root: str | None) -> dict[str, Path]:
    """Return the path of each of `FILES`; a plain file is preferred to its .gz."""
    if root is None:
        raise DataError(f"data.root: null; MNIST does not come with this application. {HOW_TO_GET}")
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise DataError(f"data.root: {root!r} is not a folder ({folder.absolute()}). {HOW_TO_GET}")
    missing: list[str] = []
    for candidate in (folder, folder / "MNIST" / "raw"):
        found: dict[str, Path] = {}
        for name in FILES:
            for path in (candidate / name, candidate / f"{name}.gz"):
                if path.is_file():
                    found[name] = path
                    break
        if len(found) == len(FILES):
            return found
        if found:
            missing += [str(candidate / name) for name in FILES if name not in found]
    what = f"lacks {', '.join(missing)}" if missing else "holds none of the files"
    raise DataError(f"data.root: {root!r} {what}. {HOW_TO_GET}")


def read_idx(path: Path, num_dimensions: int) -> NDArray[np.uint8]:
    """Read one idx file of unsigned bytes.

    Parameters
    ----------
    path : pathlib.Path
        A plain file, or a gzip file if its name ends in .gz.
    num_dimensions : int
        The number of dimensions that is expected.

    Raises
    ------
    DataError
        If the file cannot be read, is not an idx file of that kind, or is shorter or longer than
        its header says.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            return _parse_idx(file, path, num_dimensions)
    except (OSError, EOFError, zlib.error) as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"data.root: {path} cannot be read: {reason}. {HOW_TO_GET}") from error


def _parse_idx(
    file: BufferedReader | gzip.GzipFile, path: Path, num_dimensions: int
) -> NDArray[np.uint8]:
    magic = bytes([0, 0, UNSIGNED_BYTE, num_dimensions])
    header = file.read(4 + 4 * num_dimensions)
    if header[:4] != magic:
        raise DataError(
            f"data.root: {path} starts with {header[:4].hex(' ')!r}; an idx file of unsigned bytes "
            f"with {num_dimensions} dimension(s) starts with {magic.hex(' ')!r}"
        )
    if len(header) < 4 + 4 * num_dimensions:
        raise DataError(f"data.root: {path} ends within its header; get the file again")
    shape = tuple(int(size) for size in np.frombuffer(header[4:], dtype=">u4"))
    size = math.prod(shape)
    # In parts and not by `size` at once: a damaged header must not reserve that much memory.
    values = bytearray()
    while len(values) <= size and (part := file.read(1 << 24)):
        values += part
    if len(values) != size:
        kind = "ends after" if len(values) < size else "has at least"
        raise DataError(
            f"data.root: {path} {kind} {len(values)} bytes of values; its header says {shape}, "
            f"{size} bytes. Get the file again"
        )
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


def _read_pair(images_path: Path, labels_path: Path) -> Records:
    images = read_idx(images_path, 3)
    labels = read_idx(labels_path, 1)
    if images.shape[1:] != IMAGE_SHAPE:
        raise DataError(
            f"data.root: {images_path} has images of {images.shape[1:]}; {IMAGE_SHAPE} is needed"
        )
    if len(images) != len(labels) or not len(images):
        raise DataError(
            f"data.root: {images_path} has {len(images)} images and {labels_path} {len(labels)} "
            "labels; as many of each, and at least one, are needed"
        )
    if int(labels.max()) >= NUM_CLASSES:
        raise DataError(
            f"data.root: {labels_path} has label {int(labels.max())}; 0 to {NUM_CLASSES - 1} "
            "are allowed"
        )
    return Records(images[:, None].astype(np.float32), labels.astype(np.int64))
