"""CIFAR-10 through torchvision, from the user's own copy.

torchvision unpickles these files, which may run code that they hold. It does so only after their
MD5 sums are the published ones, so only the published files, or a user with write access to the
folder in that very moment, get that far; this application itself unpickles nothing.

References
----------
.. [1] A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

import numpy as np

from fl_app.data.folder import require_folder
from fl_app.data.records import DataError, RawDataset, Records

NUM_CLASSES = 10
HOW_TO_GET = (
    "A folder that holds cifar-10-batches-py is needed. Unpack cifar-10-python.tar.gz of "
    "www.cs.toronto.edu/~kriz/cifar.html in it, or call once "
    "torchvision.datasets.CIFAR10(root, download=True), and set data.root to the folder"
)


def read_cifar10(root: str | None) -> RawDataset:
    """Read the images, pixels as stored (0 to 255), features of shape (n, 3, 32, 32).

    Parameters
    ----------
    root : str or None
        Folder that holds cifar-10-batches-py.

    Raises
    ------
    DataError
        If a file is missing or is not the published one.
    """
    folder = require_folder(root, "CIFAR-10", HOW_TO_GET)
    return RawDataset(_read(str(folder), True), _read(str(folder), False), NUM_CLASSES)


def read_own_cifar10(root: str | None) -> tuple[Records, int]:
    """Read the training images alone, and the number of classes."""
    folder = require_folder(root, "CIFAR-10", HOW_TO_GET)
    return _read(str(folder), True), NUM_CLASSES


def _read(root: str, train: bool) -> Records:
    from torchvision.datasets import CIFAR10

    try:
        images = CIFAR10(root, train=train, download=False)
    # RuntimeError is torchvision's for a missing file or another sum.
    except (RuntimeError, OSError) as error:
        raise DataError(
            f"data.root: {root!r} lacks a file of CIFAR-10, or one is not the published file. "
            f"{HOW_TO_GET}"
        ) from error
    features = np.ascontiguousarray(images.data.transpose(0, 3, 1, 2), dtype=np.float32)
    return Records(features, np.array(images.targets, dtype=np.int64))
