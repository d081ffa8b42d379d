"""The public test set of data that come without one: which records it gets.

No random numbers are drawn: the split is public, the same in every run, and cannot change with a
library's generator.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fl_app.data.records import DataError

Indices = NDArray[np.int64]


def split_stratified(labels: NDArray[np.int64], test_fraction: float) -> tuple[Indices, Indices]:
    """Divide records into training and test indices, each class at the same rate.

    The test set has ceil(test_fraction * n) records; each class gets its share of them by the
    method of largest remainders, spread evenly over the class in stored order.

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
        in_test[np.flatnonzero(labels == label)[_spread(int(quota), int(count))]] = True
    return np.flatnonzero(~in_test), np.flatnonzero(in_test)


def choose_test_groups(groups: NDArray[np.int64], num_test: int, key: str) -> NDArray[np.int64]:
    """Choose the groups that the test set consists of, spread evenly over the sorted ids.

    Parameters
    ----------
    groups : numpy.ndarray
        int64, shape (n,): the group of each record.
    num_test : int
        How many, at least 1 and fewer than there are groups.
    key : str
        The setting's name, for the message.

    Returns
    -------
    numpy.ndarray
        int64 ids in increasing order.

    Raises
    ------
    DataError
        If all groups, or more, would be held out.
    """
    ids = np.unique(groups)
    if num_test >= len(ids):
        raise DataError(f"{key}: {num_test}; 1 to {len(ids) - 1} of {len(ids)} can be held out")
    return ids[_spread(num_test, len(ids))]


def _spread(num_chosen: int, count: int) -> Indices:
    """Return the middles of `num_chosen` equal parts of range(count)."""
    return (2 * np.arange(num_chosen) + 1) * count // (2 * num_chosen)
