"""Human activity from a phone's motion sensors: 23 people, each a natural client.

A record is a window of rows cut from one person's one execution. With a stride shorter than the
window, a row lies in several records: what is guaranteed for a record is then not guaranteed for a
row, let alone for a person. Choose data.stride = data.window for windows without a common row.

References
----------
.. [1] M. Matey-Sanz, S. Casteleyn & C. Granell, "Dataset of inertial measurements of smartphones
   and smartwatches for human activity recognition", Data in Brief 51, 109809, 2023 (CC BY 4.0;
   Zenodo record 8398688).
"""

import zipfile
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.data.folder import require_files
from fl_app.data.holdout import choose_test_groups
from fl_app.data.records import DataError, RawDataset, Records

FILE = "sp_raw.npz"
ACTIVITIES = ("SEATED", "STANDING_UP", "WALKING", "TURNING", "SITTING_DOWN")
NUM_CHANNELS = 6
# Acceleration in m/s^2 becomes multiples of standard gravity; rotation stays in rad/s.
UNITS = np.array([9.80665, 9.80665, 9.80665, 1.0, 1.0, 1.0], dtype=np.float32)
HOW_TO_GET = (
    f"A folder with {FILE} is needed: the data set's smartphone files (Zenodo record 8398688), one "
    "after the other, as four arrays written by numpy.savez_compressed: x (rows, 6) float32 with "
    f"acceleration and rotation, y (0 to {len(ACTIVITIES) - 1} for {', '.join(ACTIVITIES)}), "
    "subject, execution"
)


def read_har_geotec(
    root: str | None, window: int = 128, stride: int = 64, num_test_subjects: int = 5
) -> RawDataset:
    """Read the windows; nobody has records in both the training and the test set.

    A window's label is the activity of most of its rows (the smallest label of a tie). Windows
    across two activities are kept: standing up and sitting down are so short that few windows of
    them are without one.

    Parameters
    ----------
    root : str or None
        Folder with sp_raw.npz.
    window : int
        Rows of a window, at least 1; about 10 ms each.
    stride : int
        Rows from one window's beginning to the next one's, at least 1.
    num_test_subjects : int
        People whose windows are the public test set, at least 1: chosen evenly over the sorted
        numbers, the same in every run.

    Returns
    -------
    RawDataset
        Features of shape (n, 6, window): three axes of acceleration in multiples of standard
        gravity, three of rotation in rad/s. A group is a person's number in the data set.

    Raises
    ------
    DataError
        If the file is missing, damaged or of other arrays, or no windows are left.
    """
    (path,) = require_files(root, (FILE,), "har_geotec", HOW_TO_GET)
    x, y, subject, execution = _read_arrays(path)
    starts = _find_starts(subject, execution, window, stride)
    test_subjects = choose_test_groups(subject, num_test_subjects, "data.num_test_subjects")
    in_test = np.isin(subject[starts], test_subjects)
    if not in_test.any() or in_test.all():
        raise DataError(
            f"data.window: {window}; no windows are left for the "
            f"{'training' if in_test.any() else 'test'} set; choose a shorter window"
        )
    train, test = (_cut(x, y, chosen, window) for chosen in (starts[~in_test], starts[in_test]))
    return RawDataset(train, test, len(ACTIVITIES), subject[starts[~in_test]])


def read_own_har_geotec(
    root: str | None, window: int = 128, stride: int = 64
) -> tuple[Records, int]:
    """Read the windows of everybody in the file, and the number of classes."""
    (path,) = require_files(root, (FILE,), "har_geotec", HOW_TO_GET)
    x, y, subject, execution = _read_arrays(path)
    return _cut(x, y, _find_starts(subject, execution, window, stride), window), len(ACTIVITIES)


def _read_arrays(path: Path) -> tuple[NDArray[Any], ...]:
    try:
        with np.load(path, allow_pickle=False) as file:
            x, y, subject, execution = (file[key] for key in ("x", "y", "subject", "execution"))
    # zipfile and NumPy say in many ways that a file is damaged; MemoryError: a header that claims
    # more than there is.
    except (
        *(OSError, EOFError, KeyError, ValueError, TypeError, NotImplementedError, MemoryError),
        *(RuntimeError, zipfile.BadZipFile, zlib.error),
    ) as error:
        raise DataError(
            f"data.root: {path} cannot be read ({type(error).__name__}). {HOW_TO_GET}"
        ) from error
    if x.dtype != np.float32 or x.ndim != 2 or x.shape[1] != NUM_CHANNELS:
        raise DataError(
            f"data.root: {path}, x: {x.dtype} of shape {x.shape}; float32 of shape "
            f"(rows, {NUM_CHANNELS}) is needed"
        )
    integers = []
    for key, values in (("y", y), ("subject", subject), ("execution", execution)):
        if values.dtype.kind not in "iu" or values.shape != x.shape[:1]:
            raise DataError(
                f"data.root: {path}, {key}: {values.dtype} of shape {values.shape}; integers of "
                f"shape {x.shape[:1]} are needed"
            )
        integers.append(values.astype(np.int64))
    if not len(x) or not np.isfinite(x).all():
        raise DataError(f"data.root: {path}, x: no rows, or some not finite; get the file again")
    labels = integers[0]
    if int(labels.min()) < 0 or int(labels.max()) >= len(ACTIVITIES):
        raise DataError(
            f"data.root: {path}, y: labels outside 0 to {len(ACTIVITIES) - 1}; get the file again"
        )
    return x, *integers


def _find_starts(
    subject: NDArray[np.int64], execution: NDArray[np.int64], window: int, stride: int
) -> NDArray[np.int64]:
    """Return the first row of each window that lies within one (subject, execution)."""
    changes = (np.diff(subject) != 0) | (np.diff(execution) != 0)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(subject)]
    starts = [np.arange(begin, end - window + 1, stride) for begin, end in pairwise(bounds)]
    return np.concatenate(starts).astype(np.int64)


def _cut(
    x: NDArray[np.float32], y: NDArray[np.int64], starts: NDArray[np.int64], window: int
) -> Records:
    rows = starts[:, None] + np.arange(window)
    features = np.ascontiguousarray((x[rows] / UNITS).transpose(0, 2, 1))
    votes = np.stack([(y[rows] == label).sum(axis=1) for label in range(len(ACTIVITIES))])
    return Records(features, votes.argmax(axis=0).astype(np.int64))
