"""Data sets: which there are, how they are scaled, and how they are divided among clients."""

import dataclasses
import math
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from fl_app.data import digits, mnist
from fl_app.data.flwr_partition import PARTITIONERS, partition_by_flwr_datasets
from fl_app.data.partition import (
    Groups,
    Labels,
    Partitions,
    partition_by_dirichlet,
    partition_by_group,
    partition_by_label_shards,
    partition_by_similarity,
    partition_iid,
)
from fl_app.data.records import DataError, FederatedDataset, Records
from fl_app.plain_mapping import PlainMapping

__all__ = [
    "DATASETS",
    "DataError",
    "DataSettings",
    "FederatedDataset",
    "PartitionSettings",
    "Records",
    "load_dataset",
]

DATASETS: dict[str, str] = {
    "digits": "scikit-learn's handwritten digits: 1,797 real 8x8 images, bundled (the default)",
    "mnist": "MNIST from idx files in data.root: 60,000 + 10,000 images of 28x28",
}

PartitionKind = Literal[
    "iid", "dirichlet", "label_shards", "similarity", "natural_id", "flwr_datasets"
]

# Keeps the partition's random numbers apart from everything else that is drawn from the seed.
PARTITION_STREAM = 0x70617274


@dataclass(frozen=True)
class PartitionSettings:
    """How the training records are divided among clients.

    Attributes
    ----------
    kind : str
        "iid", "dirichlet", "label_shards", "similarity", "natural_id" (see
        `fl_app.data.partition`) or "flwr_datasets" (see `fl_app.data.flwr_partition`).
    alpha : float
        Concentration of the Dirichlet, positive (dirichlet only).
    min_records : int
        Records each client has at least, at least 1 (dirichlet only).
    labels_per_client : int
        Different labels a client has, at least 1 (label_shards only).
    similarity : float
        Share of the records that is dealt out at random, in [0, 1] (similarity only).
    partitioner : str
        Class of Flower Datasets, a key of `PARTITIONERS` (flwr_datasets only).
    arguments : mapping or None
        Its arguments but the number of partitions and the seed (flwr_datasets only).

    Raises
    ------
    DataError
        If a value is not allowed.
    """

    kind: PartitionKind = "iid"
    alpha: float = 0.5
    min_records: int = 1
    labels_per_client: int = 2
    similarity: float = 0.1
    partitioner: str = "IidPartitioner"
    arguments: PlainMapping | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(PartitionKind):
            raise DataError(
                f"data.partition.kind: {self.kind!r}; choose one of "
                f"{', '.join(get_args(PartitionKind))}"
            )
        if not _is_finite(self.alpha) or self.alpha <= 0:
            raise DataError(
                f"data.partition.alpha: {self.alpha!r}; a positive, finite number is needed"
            )
        _require_int("data.partition.min_records", self.min_records, 1)
        _require_int("data.partition.labels_per_client", self.labels_per_client, 1)
        if not _is_finite(self.similarity) or not 0 <= self.similarity <= 1:
            raise DataError(
                f"data.partition.similarity: {self.similarity!r}; a number in [0, 1] is needed"
            )
        if self.partitioner not in PARTITIONERS:
            raise DataError(
                f"data.partition.partitioner: {self.partitioner!r}; choose one of "
                f"{', '.join(PARTITIONERS)}"
            )
        if self.arguments is not None and not isinstance(self.arguments, PlainMapping):
            raise DataError(
                f"data.partition.arguments: {self.arguments!r}; a PlainMapping or None is needed"
            )


@dataclass(frozen=True)
class DataSettings:
    """Which data set, and how it is prepared.

    The features become value / scale - offset, the same for every record. Both constants are
    public and configured: a mean or a deviation taken from client data would leak.

    Attributes
    ----------
    name : str
        A key of `DATASETS`.
    root : str or None
        Folder of the user's own copy, for sets that are not bundled.
    scale : float
        What features are divided by, in [1e-30, 1e30]. 16 for the digits, 255 for MNIST.
    offset : float
        What is subtracted after that, in [-1e30, 1e30].
    partition : PartitionSettings
        How training records are divided among clients.
    test_fraction : float
        Share of the public test set, in (0, 1), for sets without one of their own (digits).

    Raises
    ------
    DataError
        If a value is not allowed.
    """

    name: str = "digits"
    root: str | None = None
    scale: float = 16.0
    offset: float = 0.3
    partition: PartitionSettings = field(default_factory=PartitionSettings)
    test_fraction: float = 0.2

    def __post_init__(self) -> None:
        if self.name not in DATASETS:
            raise DataError(f"data.name: {self.name!r}; choose one of {', '.join(DATASETS)}")
        if self.root is not None and (not isinstance(self.root, str) or not self.root):
            raise DataError(f"data.root: {self.root!r}; a path or null is needed")
        # The limits keep both within float32, in which features are computed.
        if not _is_finite(self.scale) or not 1e-30 <= self.scale <= 1e30:
            raise DataError(f"data.scale: {self.scale!r}; a number in [1e-30, 1e30] is needed")
        if not _is_finite(self.offset) or abs(self.offset) > 1e30:
            raise DataError(f"data.offset: {self.offset!r}; a number in [-1e30, 1e30] is needed")
        if not _is_finite(self.test_fraction) or not 0 < self.test_fraction < 1:
            raise DataError(
                f"data.test_fraction: {self.test_fraction!r}; a number in (0, 1) is needed"
            )


def load_dataset(settings: DataSettings, num_clients: int, seed: int) -> FederatedDataset:
    """Load a data set, scale it and divide it among clients.

    The partition depends on the three arguments alone. The last few results are kept, so that
    every client of a process shares one copy of the records; those arrays are read-only.

    Parameters
    ----------
    settings : DataSettings
        What to load.
    num_clients : int
        At least 1, at most the number of training records.
    seed : int
        Of the partition, at least 0.

    Raises
    ------
    DataError
        If data is missing or damaged, or cannot be divided as asked.
    """
    _require_int("num_clients", num_clients, 1)
    _require_int("seed", seed, 0)
    if settings.root is not None:
        # Absolute, because what is kept must not depend on the folder of a later call.
        root = str(Path(settings.root).expanduser().absolute())
        settings = dataclasses.replace(settings, root=root)
    return _load_divided(settings, num_clients, seed)


@lru_cache(maxsize=4)
def _load_divided(settings: DataSettings, num_clients: int, seed: int) -> FederatedDataset:
    whole = dataclasses.replace(settings, partition=PartitionSettings())
    train, test, num_classes = _load_scaled(whole)
    bits = np.random.PCG64(np.random.SeedSequence([seed, PARTITION_STREAM]))
    rng = np.random.Generator(bits)
    partitions = _divide(train.labels, num_clients, rng, settings.partition)
    return FederatedDataset(settings.name, train, test, num_classes, partitions)


@lru_cache(maxsize=1)
def _load_scaled(settings: DataSettings) -> tuple[Records, Records, int]:
    if settings.name == "digits":
        train, test = digits.read_digits(settings.test_fraction)
        num_classes = digits.NUM_CLASSES
    else:
        train, test = mnist.read_mnist(settings.root)
        num_classes = mnist.NUM_CLASSES
    for records in (train, test):
        np.divide(records.features, np.float32(settings.scale), out=records.features)
        np.subtract(records.features, np.float32(settings.offset), out=records.features)
        records.features.flags.writeable = False
        records.labels.flags.writeable = False
    return train, test, num_classes


def _divide(
    labels: Labels,
    num_clients: int,
    rng: np.random.Generator,
    settings: PartitionSettings,
    groups: Groups | None = None,
) -> Partitions:
    if settings.kind == "dirichlet":
        alpha, least = settings.alpha, settings.min_records
        return partition_by_dirichlet(labels, num_clients, rng, alpha, least)
    if settings.kind == "label_shards":
        return partition_by_label_shards(labels, num_clients, rng, settings.labels_per_client)
    if settings.kind == "similarity":
        return partition_by_similarity(labels, num_clients, rng, settings.similarity)
    if settings.kind == "natural_id":
        if groups is None:
            raise DataError(
                "data.partition.kind: 'natural_id'; this data set does not say whose a record is; "
                "choose another kind"
            )
        return partition_by_group(groups, num_clients)
    if settings.kind == "flwr_datasets":
        return partition_by_flwr_datasets(
            labels, groups, num_clients, rng, settings.partitioner, settings.arguments or {}
        )
    return partition_iid(labels, num_clients, rng)


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _require_int(key: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DataError(f"{key}: {value!r}; an int of at least {least} is needed")
