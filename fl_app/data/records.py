"""Labelled records, a data set as it is stored, and one divided among clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


class DataError(ValueError):
    """Data that is missing, damaged or asked for in a way that cannot be met.

    The message names the key or file, the value found, and what is allowed or how to get the data.
    """


class TooManyClientsError(DataError):
    """Fewer records than that many clients need.

    Parameters
    ----------
    num_clients : int
    each : int
        Records that a client needs.
    num_records : int
        Of the training set.
    """

    def __init__(self, num_clients: int, each: int, num_records: int) -> None:
        self.num_clients, self.each, self.num_records = num_clients, each, num_records
        wanted = f"{each} record{'s' if each > 1 else ''} each"
        super().__init__(
            f"num_clients: {num_clients} clients with at least {wanted} need "
            f"{num_clients * each} records; the training set has {num_records}"
        )


@dataclass(frozen=True, eq=False)
class Records:
    """Labelled examples.

    Attributes
    ----------
    features : numpy.ndarray
        float32, shape (n, *feature_shape). Non-finite entries are allowed: whether a method
        projects or refuses them is its own decision.
    labels : numpy.ndarray
        int64, shape (n,), each at least 0.

    Raises
    ------
    DataError
        If a dtype or a shape differs, or a label is negative.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        _require_array("features", self.features, np.float32)
        _require_array("labels", self.labels, np.int64)
        if self.features.ndim < 2:
            raise DataError(
                f"features: shape {self.features.shape}; (n, *feature_shape) with at least one "
                "dimension for the features is needed"
            )
        if self.labels.shape != self.features.shape[:1]:
            raise DataError(
                f"labels: shape {self.labels.shape}; ({self.features.shape[0]},) is needed, one "
                "label for each row of features"
            )
        if self.labels.size and int(self.labels.min()) < 0:
            raise DataError(f"labels: {int(self.labels.min())} found; labels are 0 or more")

    def __len__(self) -> int:
        """Return the number of records."""
        return int(self.labels.shape[0])

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one record's features."""
        return tuple(self.features.shape[1:])

    def take(self, indices: NDArray[np.int64]) -> "Records":
        """Return copies of the records at `indices` (int64, shape (m,), each in [0, n))."""
        _require_indices("indices", indices, len(self))
        return Records(self.features[indices], self.labels[indices])


@dataclass(frozen=True, eq=False)
class RawDataset:
    """A data set as its source gives it: not yet scaled, not yet divided among clients.

    Attributes
    ----------
    train, test : Records
        The training records of all clients, and the public test set. At least one of each.
    num_classes : int
        Labels lie in [0, num_classes); at least 2.
    train_groups : numpy.ndarray or None
        int64, shape (len(train),), each at least 0: the natural client (writer, hospital, person)
        of each training record. None: there are no natural clients.
    group_names : tuple of str
        Name of group i at place i; empty if the groups have no names.

    Raises
    ------
    DataError
        If a value or a shape lies outside what is stated above.
    """

    train: Records
    test: Records
    num_classes: int
    train_groups: NDArray[np.int64] | None = None
    group_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in ("train", "test"):
            records = getattr(self, key)
            if not isinstance(records, Records):
                raise DataError(f"{key}: {type(records).__name__}; Records are needed")
            if not len(records):
                raise DataError(f"{key}: 0 records; at least one is needed")
        classes = self.num_classes
        if isinstance(classes, bool) or not isinstance(classes, int) or classes < 2:
            raise DataError(f"num_classes: {classes!r}; an int of at least 2 is needed")
        _require_same_kind(self.train, self.test, classes)
        if self.train_groups is not None:
            _require_groups(self.train_groups, len(self.train), self.group_names)

    @property
    def num_groups(self) -> int:
        """The number of natural clients; 0 if there are none."""
        return 0 if self.train_groups is None else len(np.unique(self.train_groups))


@dataclass(frozen=True, eq=False)
class FederatedDataset:
    """Training records divided among clients, and public test records.

    Attributes
    ----------
    name : str
        Name of the source.
    train, test : Records
        Records of all clients, and the test set the server holds.
    num_classes : int
        Labels lie in [0, num_classes).
    partitions : tuple of numpy.ndarray
        int64 indices into `train`, one array a client. A record belongs to at most one client:
        a guarantee per record would not hold for a record that two clients upload.

    Raises
    ------
    DataError
        If a label, an index or a shape lies outside what is stated above.
    """

    name: str
    train: Records
    test: Records
    num_classes: int
    partitions: tuple[NDArray[np.int64], ...]

    def __post_init__(self) -> None:
        _require_same_kind(self.train, self.test, self.num_classes)
        _require_disjoint(self.partitions, len(self.train))

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one record's features."""
        return self.train.feature_shape

    @property
    def num_partitions(self) -> int:
        """The number of clients."""
        return len(self.partitions)

    def partition_sizes(self) -> NDArray[np.int64]:
        """Return each client's number of records, int64, shape (num_partitions,)."""
        return np.array([len(indices) for indices in self.partitions], dtype=np.int64)

    def partition(self, index: int) -> Records:
        """Return a copy of one client's records; nothing is kept between calls.

        Parameters
        ----------
        index : int
            The client, in [0, num_partitions).

        Raises
        ------
        DataError
            If there is no such client.
        """
        if isinstance(index, bool) or not 0 <= index < self.num_partitions:
            raise DataError(f"partition: {index!r}; an int in [0, {self.num_partitions}) is needed")
        return self.train.take(self.partitions[index])


def scale_records(records: Records, scale: float, offset: float) -> None:
    """Let the features become value / scale - offset, in place, and make the arrays read-only."""
    np.divide(records.features, np.float32(scale), out=records.features)
    np.subtract(records.features, np.float32(offset), out=records.features)
    records.features.flags.writeable = False
    records.labels.flags.writeable = False


def _require_same_kind(train: Records, test: Records, num_classes: int) -> None:
    if train.feature_shape != test.feature_shape:
        raise DataError(
            f"test: features of shape {test.feature_shape}; the training records' "
            f"{train.feature_shape} is needed"
        )
    for key, records in (("train", train), ("test", test)):
        if len(records) and int(records.labels.max()) >= num_classes:
            raise DataError(
                f"{key}: label {int(records.labels.max())}; labels lie in [0, {num_classes})"
            )


def _require_groups(groups: NDArray[np.int64], num_records: int, names: tuple[str, ...]) -> None:
    _require_array("train_groups", groups, np.int64)
    if groups.shape != (num_records,):
        raise DataError(
            f"train_groups: shape {groups.shape}; ({num_records},) is needed, one for each "
            "training record"
        )
    if int(groups.min()) < 0:
        raise DataError(f"train_groups: {int(groups.min())} found; groups are 0 or more")
    if names and int(groups.max()) >= len(names):
        raise DataError(
            f"group_names: {len(names)} names; group {int(groups.max())} has none of them"
        )


def _require_array(key: str, value: Any, dtype: type[np.generic]) -> None:
    if not isinstance(value, np.ndarray) or value.dtype != dtype:
        found = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise DataError(f"{key}: {found}; a NumPy array of {np.dtype(dtype)} is needed")


def _require_indices(key: str, indices: NDArray[np.int64], num_records: int) -> None:
    _require_array(key, indices, np.int64)
    if indices.ndim != 1:
        raise DataError(f"{key}: shape {indices.shape}; one dimension is needed")
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < num_records:
        raise DataError(
            f"{key}: values in [{int(indices.min())}, {int(indices.max())}]; "
            f"[0, {num_records}) is allowed"
        )


def _require_disjoint(partitions: Sequence[NDArray[np.int64]], num_records: int) -> None:
    if not partitions:
        raise DataError("partitions: none; at least one client is needed")
    for client, indices in enumerate(partitions):
        _require_indices(f"partitions[{client}]", indices, num_records)
    uses = np.bincount(np.concatenate(partitions), minlength=num_records)
    if uses.size and int(uses.max()) > 1:
        raise DataError(
            f"partitions: record {int(uses.argmax())} appears {int(uses.max())} times; "
            "a record belongs to at most one client"
        )
