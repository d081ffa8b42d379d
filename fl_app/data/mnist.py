"""MNIST, and any set in its format, from idx files on disk. Nothing is downloaded."""

from pathlib import Path

import numpy as np

from fl_app.data.folder import require_folder
from fl_app.data.idx import read_idx
from fl_app.data.mnist_writers import read_writers
from fl_app.data.records import DataError, RawDataset, Records

NUM_CLASSES = 10
IMAGE_SHAPE = (28, 28)
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
HOW_TO_GET = (
    "A folder with "
    + ", ".join(FILES)
    + " (each plain or .gz), or a torchvision root that holds them under MNIST/raw, is needed. "
    "Download the four files from a mirror of MNIST, or once with "
    "torchvision.datasets.MNIST(root, download=True), and set data.root to the folder"
)


def read_mnist(root: str | None, writer_labels: str | None = None) -> RawDataset:
    """Read the records, pixels as stored (0 to 255), features of shape (n, 1, 28, 28).

    Parameters
    ----------
    root : str or None
        Folder with the four idx files (plain or .gz), or torchvision's root folder, where they
        lie under MNIST/raw. `~` stands for the home folder; a relative path starts at the
        current folder.
    writer_labels : str or None
        QMNIST's label file of the training images, or its folder: then the writers are the
        natural clients (see `fl_app.data.mnist_writers`).

    Raises
    ------
    DataError
        If `root` is None, a file is missing, damaged or of another format, or images and labels
        do not match.
    """
    paths = find_files(root)
    train = _read_pair(paths[FILES[0]], paths[FILES[1]])
    test = _read_pair(paths[FILES[2]], paths[FILES[3]])
    writers = None if writer_labels is None else read_writers(writer_labels, train.labels)
    return RawDataset(train, test, NUM_CLASSES, writers)


def read_own_mnist(root: str | None) -> tuple[Records, int]:
    """Read the training records alone, which may be none, and the number of classes."""
    paths = find_files(root, FILES[:2])
    return _read_pair(paths[FILES[0]], paths[FILES[1]], as_stored=True), NUM_CLASSES


def find_files(root: str | None, files: tuple[str, ...] = FILES) -> dict[str, Path]:
    """Return the path of each of the files; a plain file is preferred to its .gz."""
    folder = require_folder(root, "MNIST", HOW_TO_GET)
    missing: list[str] = []
    for candidate in (folder, folder / "MNIST" / "raw"):
        found: dict[str, Path] = {}
        for name in files:
            for path in (candidate / name, candidate / f"{name}.gz"):
                if path.is_file():
                    found[name] = path
                    break
        if len(found) == len(files):
            return found
        if found:
            missing += [str(candidate / name) for name in files if name not in found]
    what = f"lacks {', '.join(missing)}" if missing else "holds none of the files"
    raise DataError(f"data.root: {root!r} {what}. {HOW_TO_GET}")


def _read_pair(images_path: Path, labels_path: Path, as_stored: bool = False) -> Records:
    """Read a split; with `as_stored`, one without records or with other labels too."""
    images = read_idx(images_path, 3, HOW_TO_GET)
    labels = read_idx(labels_path, 1, HOW_TO_GET)
    if images.shape[1:] != IMAGE_SHAPE:
        raise DataError(
            f"data.root: {images_path} has images of {images.shape[1:]}; {IMAGE_SHAPE} is needed"
        )
    if len(images) != len(labels) or not (len(images) or as_stored):
        raise DataError(
            f"data.root: {images_path} has {len(images)} images and {labels_path} {len(labels)} "
            "labels; as many of each, and at least one, are needed"
        )
    if not as_stored and int(labels.max()) >= NUM_CLASSES:
        raise DataError(
            f"data.root: {labels_path} has label {int(labels.max())}; 0 to {NUM_CLASSES - 1} "
            "are allowed"
        )
    return Records(images[:, None].astype(np.float32), labels.astype(np.int64))
