"""scikit-learn's digits: 1,797 real 8x8 images, bundled with the library."""

import math

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fl_app.data.records import DataError, Records

NUM_CLASSES = 10


def read_digits(test_fraction: float = 0.2) -> tuple[Records, Records]:
    """Return the training and the test records, pixels as stored (0 to 16).

    The split is public and the same in every run, so that accuracies of different seeds are
    measured on the same records. It keeps the classes' shares (see `split_stratified`).

    Parameters
    ----------
    test_fraction : float
        Share of the test set, in (0, 1). 0.2 gives 1,437 training and 360 test records.

    Returns
    -------
    train, test : Records
        Features of shape (n, 1, 8, 8).
    """
    bunch = load_digits()
    features = np.asarray(bunch.images, dtype=np.float32)[:, None, :, :]
    labels = np.asarray(bunch.target, dtype=np.int64)
    records = Records(features, labels)
    train, test = split_stratified(labels, test_fraction)
    return records.take(train), records.take(test)


def split_stratified(
    labels: NDArray[np.int64], test_fraction: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide records into training and test indices, each class at the same rate.

    The test set has ceil(test_fraction * n) records; each class gets its share of them by the
    method of largest remainders, spread evenly over the class in stored order. No random numbers
    are drawn: the split cannot change with a library's generator.

    Parameters
    ----------
    labels : numpy.ndarray
        int64, shape (n,).
    test_fraction : float
        In (0, 1).

    Returns
    -------
    train, test : numpy.ndarray
        int64 indices in increasing order; together every record once.

    Raises
    ------
    DataError
        If the fraction is not allowed or leaves a class without training or test records.
    """
    if isinstance(test_fraction, bool) or not 0 < test_fraction < 1:
        raise DataError(f"data.test_fraction: {test_fraction!r}; a number in (0, 1) is needed")
    classes, counts = np.unique(labels, return_counts=True)
    # Rounded first: 0.2 * n must not reach the next integer through its last bit alone.
    num_test = math.ceil(round(test_fraction * len(labels), 9))
    shares = counts * (num_test / len(labels))
    quotas = np.floor(shares).astype(np.int64)
    by_remainder = np.argsort(quotas - shares, kind="stable")
    quotas[by_remainder[: num_test - int(quotas.sum())]] += 1
    if np.any(quotas < 1) or np.any(quotas >= counts):
        raise DataError(
            f"data.test_fraction: {test_fraction!r} leaves a class of {int(counts.min())} records "
            "without training or test records; choose a value nearer to 0.5"
        )
    in_test = np.zeros(len(labels), dtype=bool)
    for label, count, quota in zip(classes, counts, quotas, strict=True):
        members = np.flatnonzero(labels == label)
        in_test[members[(2 * np.arange(quota) + 1) * count // (2 * quota)]] = True
    return np.flatnonzero(~in_test), np.flatnonzero(in_test)
