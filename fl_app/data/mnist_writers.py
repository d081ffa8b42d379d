"""Who wrote each training image of MNIST, from QMNIST's label file.

References
----------
.. [1] Yadav & Bottou, "Cold Case: The Lost MNIST Digits", NeurIPS 2019 (arXiv 1905.10498). Row i
   of the file describes training image i: eight 32-bit integers, the class first and the writer's
   number in NIST's collection third. There are 539 writers, with 19 to 131 images each.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_app.data.idx import INT32, read_idx
from fl_app.data.records import DataError

FILE = "qmnist-train-labels-idx2-int"
NUM_COLUMNS, CLASS_COLUMN, WRITER_COLUMN = 8, 0, 2
HOW_TO_GET = (
    f"{FILE} (plain or .gz) or its folder is needed: a file of QMNIST "
    "(github.com/facebookresearch/qmnist)"
)


def read_writers(path: str, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Read the writer of each training image.

    Parameters
    ----------
    path : str
        QMNIST's label file of the training images, or the folder that holds it.
    labels : numpy.ndarray
        int64, shape (n,): MNIST's labels, to check that row i describes image i.

    Returns
    -------
    numpy.ndarray
        int64, shape (n,): NIST's writer numbers.

    Raises
    ------
    DataError
        If the file is missing, damaged or of other images.
    """
    file = _find_file(path)
    rows = read_idx(file, 2, HOW_TO_GET, INT32, "data.writer_labels")
    if rows.shape != (len(labels), NUM_COLUMNS):
        raise DataError(
            f"data.writer_labels: {file} has {rows.shape[0]} rows of {rows.shape[1]}; "
            f"{len(labels)} rows, one for each training image, of {NUM_COLUMNS} are needed"
        )
    if wrong := int(np.count_nonzero(rows[:, CLASS_COLUMN] != labels)):
        raise DataError(
            f"data.writer_labels: {file} describes other images: {wrong} of its {len(rows)} "
            f"classes differ from the labels of the training images. {HOW_TO_GET}"
        )
    writers = rows[:, WRITER_COLUMN].astype(np.int64)
    if int(writers.min()) < 0:
        raise DataError(f"data.writer_labels: {file} has negative writer numbers")
    return writers


def _find_file(path: str) -> Path:
    given = Path(path).expanduser()
    for candidate in (given, given / FILE, given / f"{FILE}.gz"):
        if candidate.is_file():
            return candidate
    raise DataError(f"data.writer_labels: {path!r} ({given.absolute()}) is not there. {HOW_TO_GET}")
