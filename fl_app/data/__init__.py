"""Data sets: which there are, how they are scaled, and how they are divided among clients."""

import dataclasses
from functools import lru_cache

import numpy as np

from fl_app.data.flwr_partition import partition_by_flwr_datasets
from fl_app.data.own_records import load_own_dataset
from fl_app.data.partition import (
    Partitions,
    partition_by_dirichlet,
    partition_by_group,
    partition_by_label_shards,
    partition_by_similarity,
    partition_iid,
)
from fl_app.data.records import (
    DataError,
    FederatedDataset,
    RawDataset,
    Records,
    TooManyClientsError,
    scale_records,
)
from fl_app.data.settings import DataSettings, PartitionSettings, require_int
from fl_app.data.sources import SOURCES

__all__ = [
    "SOURCES",
    "DataError",
    "DataSettings",
    "FederatedDataset",
    "PartitionSettings",
    "RawDataset",
    "Records",
    "TooManyClientsError",
    "load_dataset",
    "load_own_dataset",
    "natural_num_clients",
]

# Keeps the partition's random numbers apart from everything else that is drawn from the seed.
PARTITION_STREAM = 0x70617274


def load_dataset(settings: DataSettings, num_clients: int | None, seed: int) -> FederatedDataset:
    """Load a data set, scale it and divide it among clients.

    The partition depends on the three arguments alone. The last few results are kept, so that
    every client of a process shares one copy of the records; those arrays are read-only.

    Parameters
    ----------
    settings : DataSettings
        What to load.
    num_clients : int or None
        At least 1, at most the number of training records; None, with partition.kind natural_id:
        all natural clients. Fewer than there are: as many of them, chosen by the seed.
    seed : int
        Of the partition, at least 0.

    Raises
    ------
    DataError
        If data is missing or damaged, or cannot be divided as asked.
    """
    if num_clients is None:
        num_clients = natural_num_clients(settings)
    require_int("num_clients", num_clients, 1)
    require_int("seed", seed, 0)
    # Absolute, because what is kept must not depend on the folder of a later call.
    return _load_divided(settings.with_absolute_paths(), num_clients, seed)


def natural_num_clients(settings: DataSettings) -> int:
    """Return how many natural clients the data have; reads them.

    Raises
    ------
    DataError
        If records are not divided by them (partition.kind), or data is missing or damaged.
    """
    if settings.partition.kind != "natural_id":
        raise DataError(
            "num_clients: null; an integer is needed unless data.partition.kind=natural_id"
        )
    return _load_natural(settings.with_absolute_paths()).num_groups


@lru_cache(maxsize=4)
def _load_divided(settings: DataSettings, num_clients: int, seed: int) -> FederatedDataset:
    bits = np.random.PCG64(np.random.SeedSequence([seed, PARTITION_STREAM]))
    rng = np.random.Generator(bits)
    natural = settings.partition.kind == "natural_id"
    raw = _load_natural(settings) if natural else _load_undivided(settings)
    partitions = _divide(raw, num_clients, rng, settings.partition)
    return FederatedDataset(settings.name, raw.train, raw.test, raw.num_classes, partitions)


def _load_natural(settings: DataSettings) -> RawDataset:
    raw = _load_undivided(settings)
    if raw.train_groups is None:
        hint = " without data.writer_labels" if settings.name == "mnist" else ""
        raise DataError(
            f"data.partition.kind: 'natural_id'; {settings.name} has no natural clients{hint}"
        )
    return raw


def _load_undivided(settings: DataSettings) -> RawDataset:
    return _load_scaled(dataclasses.replace(settings, partition=PartitionSettings()))


@lru_cache(maxsize=1)
def _load_scaled(settings: DataSettings) -> RawDataset:
    raw = SOURCES[settings.name].read(settings)
    for records in (raw.train, raw.test):
        scale_records(records, settings.scale, settings.offset)
    return raw


def _divide(
    raw: RawDataset, num_clients: int, rng: np.random.Generator, settings: PartitionSettings
) -> Partitions:
    labels = raw.train.labels
    if settings.kind == "dirichlet":
        alpha, least = settings.alpha, settings.min_records
        return partition_by_dirichlet(labels, num_clients, rng, alpha, least)
    if settings.kind == "label_shards":
        return partition_by_label_shards(labels, num_clients, rng, settings.labels_per_client)
    if settings.kind == "similarity":
        return partition_by_similarity(labels, num_clients, rng, settings.similarity)
    if settings.kind == "natural_id":
        assert raw.train_groups is not None
        return partition_by_group(raw.train_groups, num_clients, rng, raw.group_names)
    if settings.kind == "flwr_datasets":
        return partition_by_flwr_datasets(
            labels,
            raw.train_groups,
            num_clients,
            rng,
            settings.partitioner,
            settings.arguments or {},
        )
    return partition_iid(labels, num_clients, rng)
