"""Partitions by the partitioners of Flower Datasets, as its users know them.

The package flwr-datasets comes with the extra `hf`, and is imported only where it is used. Its
partitioners see labels and groups, never features; nothing of it that reports its use to Flower
(its FederatedDataset) takes part.
"""

import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.data.partition import Groups, Labels, Partitions, require_enough_records
from fl_app.data.records import DataError
from fl_app.errors import show

# Class and the column that it divides by, unless its arguments name another. Left out are those
# that divide columns instead of records (Vertical...) or take a function.
PARTITIONERS: dict[str, str | None] = {
    "IidPartitioner": None,
    "DirichletPartitioner": "label",
    "ShardPartitioner": "label",
    "PathologicalPartitioner": "label",
    "NaturalIdPartitioner": "group",
    "GroupedNaturalIdPartitioner": "group",
    "SquarePartitioner": None,
    "LinearPartitioner": None,
    "ExponentialPartitioner": None,
    "SizePartitioner": None,
    "InnerDirichletPartitioner": "label",
    "DistributionPartitioner": "label",
    "ContinuousPartitioner": "label",
}
HOW_TO_GET = "the package flwr-datasets is needed: pip install 'private-fl-app[hf]'"

_KEY = "data.partition.arguments"
_OURS = {"num_partitions": "num_clients", "seed": "seed"}
_log = logging.getLogger(__name__)


def partition_by_flwr_datasets(
    labels: Labels,
    groups: Groups | None,
    num_clients: int,
    rng: np.random.Generator,
    partitioner: str,
    arguments: Mapping[str, Any],
) -> Partitions:
    """Divide records with a partitioner of Flower Datasets.

    The records are shuffled first, as its FederatedDataset does by default: several partitioners
    cut the records in the order in which they come. A partitioner may leave records out, which is
    logged; each record goes to at most one client.

    Parameters
    ----------
    labels : numpy.ndarray
        int64, shape (n,): the column "label".
    groups : numpy.ndarray or None
        Integers or text, shape (n,): the column "group"; None: there is none.
    num_clients : int
        At least 1.
    rng : numpy.random.Generator
        Source of the order and of the partitioner's seed.
    partitioner : str
        A key of `PARTITIONERS`.
    arguments : mapping
        Arguments of its constructor, without num_partitions and seed, which are given here.

    Returns
    -------
    tuple of numpy.ndarray
        One sorted int64 array of record indices a client, none empty.

    Raises
    ------
    DataError
        If the package is missing, or the partitioner refuses what it is given, makes another
        number of partitions, or leaves one empty.
    """
    require_enough_records(len(labels), num_clients, 1)
    kind, dataset_class = _import_partitioner(partitioner)
    order = rng.permutation(len(labels))
    columns = {"index": order, "label": _number(labels[order])}
    if groups is not None:
        columns["group"] = _number(groups[order])
    given = _complete(kind, dict(arguments), columns, num_clients, int(rng.integers(2**32)))
    try:
        with _quiet():
            if "distribution_array" in given:
                given["distribution_array"] = np.asarray(given["distribution_array"])
            made = kind(**given)
            made.dataset = dataset_class.from_dict(columns)
            count = made.num_partitions
            found = [made.load_partition(i) for i in range(count)] if count == num_clients else []
            parts = [part.with_format("numpy")[:]["index"] for part in found]
    # Whatever a library raises for arguments that do not fit: assertions and type errors too.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise _refuse(arguments, f"{partitioner} cannot divide the records so: {reason}") from error
    if count != num_clients:
        raise DataError(
            f"num_clients: {num_clients}; {partitioner} makes {count} partitions of these records: "
            f"use num_clients={count} or other data.partition.arguments"
        )
    partitions = tuple(np.sort(np.asarray(part, dtype=np.int64)) for part in parts)
    if empty := sum(not len(part) for part in partitions):
        raise _refuse(arguments, f"{partitioner} leaves {empty} of {num_clients} clients empty")
    if left_out := len(labels) - sum(map(len, partitions)):
        _log.warning("%s leaves out %d of %d records", partitioner, left_out, len(labels))
    return partitions


def _number(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rank of each value: InnerDirichletPartitioner takes labels for 0, 1, ..."""
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)


def _import_partitioner(name: str) -> tuple[Any, Any]:
    try:
        import flwr_datasets.partitioner
        from datasets import Dataset
    except ImportError as error:
        raise DataError(f"data.partition.kind: 'flwr_datasets'; {HOW_TO_GET}") from error
    return getattr(flwr_datasets.partitioner, name), Dataset


def _complete(
    kind: Any,
    arguments: dict[str, Any],
    columns: Mapping[str, NDArray[Any]],
    num_clients: int,
    seed: int,
) -> dict[str, Any]:
    """Add what the run itself says, and check the names."""
    name = kind.__name__
    signature = inspect.signature(kind)
    for key in arguments:
        if key in _OURS:
            raise _refuse(arguments, f"{key} is not given here: it follows from {_OURS[key]}")
        if key not in signature.parameters:
            allowed = [each for each in signature.parameters if each not in _OURS]
            raise _refuse(
                arguments, f"{name} knows no {key}; it has {', '.join(allowed) or 'no arguments'}"
            )
    given = dict(arguments)
    if "partition_by" in signature.parameters:
        column = given.setdefault("partition_by", PARTITIONERS[name])
        if column not in {"label", "group"}:
            raise _refuse(arguments, f"partition_by must be label or group, not {show(column)}")
        if column not in columns:
            raise _refuse(arguments, f"{name} needs groups; this data set says whose no record is")
    ours = {"num_partitions": num_clients, "seed": seed}
    given |= {key: value for key, value in ours.items() if key in signature.parameters}
    try:
        signature.bind(**given)
    except TypeError as error:
        raise _refuse(arguments, f"{name}: {error}") from error
    return given


def _refuse(arguments: Mapping[str, Any], reason: str) -> DataError:
    return DataError(f"{_KEY}: {show(arguments)}; {reason}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep progress bars and repeated warnings off the terminal; errors are raised."""
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
