"""The bundled digits, and what loading a data set promises."""

import dataclasses
import re

import numpy as np
import pytest

from fl_app.data import (
    DataError,
    DataSettings,
    FederatedDataset,
    PartitionSettings,
    Records,
    load_dataset,
)
from fl_app.data.digits import read_digits

# Records per digit of the set, from scikit-learn's description of it (UCI "optdigits", test part).
RECORDS_PER_DIGIT = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def make_records(num_records: int = 6, num_classes: int = 3) -> Records:
    features = np.arange(2 * num_records, dtype=np.float32).reshape(num_records, 2)
    return Records(features, np.arange(num_records, dtype=np.int64) % num_classes)


def test_digits_have_the_published_sizes_and_pixels():
    raw = read_digits()
    train, test = raw.train, raw.test
    assert (len(train), len(test)) == (1437, 360)
    assert train.feature_shape == test.feature_shape == (1, 8, 8)
    per_digit = np.bincount(train.labels) + np.bincount(test.labels)
    assert per_digit.tolist() == RECORDS_PER_DIGIT
    for records in (train, test):
        assert (records.features.min(), records.features.max()) == (0, 16)
        assert np.array_equal(records.features, np.rint(records.features))


def test_digits_test_set_keeps_the_shares_of_the_digits():
    test = read_digits().test
    shares = np.array(RECORDS_PER_DIGIT) * 360 / 1797
    assert np.all(np.abs(np.bincount(test.labels) - shares) < 1)


def test_loading_scales_with_the_public_constants():
    dataset = load_dataset(DataSettings(scale=4.0, offset=1.5), 3, 0)
    raw = read_digits().train
    assert np.allclose(dataset.train.features, raw.features / 4 - 1.5, rtol=0, atol=1e-6)
    assert dataset.train.features.dtype == np.float32
    assert dataset.num_classes == 10
    assert dataset.name == "digits"


def test_the_partition_follows_the_seed_and_the_test_set_does_not():
    first, second = (load_dataset(DataSettings(), 10, seed) for seed in (0, 1))
    assert not np.array_equal(first.partitions[0], second.partitions[0])
    assert np.array_equal(first.test.features, second.test.features)
    assert np.array_equal(first.test.labels, second.test.labels)


def test_the_same_arguments_give_the_same_partition_without_the_cache():
    settings = DataSettings(partition=PartitionSettings("dirichlet", alpha=0.1))
    first = load_dataset(settings, 12, 5).partitions
    for other in range(6):  # pushes the first result out of the cache
        load_dataset(DataSettings(), 2 + other, 0)
    again = load_dataset(settings, 12, 5).partitions
    assert first is not again
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_loaded_arrays_are_shared_and_read_only():
    other = DataSettings(partition=PartitionSettings("dirichlet"))
    one, two = load_dataset(DataSettings(), 10, 0), load_dataset(other, 20, 0)
    assert one.train.features is two.train.features
    with pytest.raises(ValueError, match="read-only"):
        one.train.features[0] = 0


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        ("iid", lambda data: np.ptp(data.partition_sizes()) <= 1),
        ("dirichlet", lambda data: np.ptp(data.partition_sizes()) > 20),
        ("label_shards", lambda data: all(label_count(data, i) == 2 for i in range(10))),
    ],
)
def test_settings_choose_the_partition(kind, check):
    settings = PartitionSettings(kind, alpha=0.1, labels_per_client=2)
    assert check(load_dataset(DataSettings(partition=settings), 10, 0))


def label_count(dataset: FederatedDataset, client: int) -> int:
    return len(np.unique(dataset.partition(client).labels))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "digit"),
        ("root", ""),
        ("scale", 0.0),
        ("scale", float("inf")),
        ("scale", True),
        ("scale", 1e-40),
        ("offset", float("nan")),
        ("offset", 1e39),
        ("test_fraction", 1.0),
        ("writer_labels", ""),
        ("path", "reader"),
        ("path", "my-module:read"),
        ("window", 0),
        ("stride", 1.5),
        ("num_test_subjects", True),
    ],
)
def test_data_settings_name_the_bad_key_and_value(key, value):
    with pytest.raises(DataError, match=re.escape(f"data.{key}: {value!r};")):
        DataSettings(**{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kind", "random"),
        ("alpha", 0.0),
        ("alpha", float("inf")),
        ("min_records", 0),
        ("min_records", True),
        ("labels_per_client", 0),
        ("labels_per_client", 1.5),
    ],
)
def test_partition_settings_name_the_bad_key_and_value(key, value):
    with pytest.raises(DataError, match=re.escape(f"data.partition.{key}: {value!r};")):
        PartitionSettings(**{key: value})


@pytest.mark.parametrize(("clients", "seed"), [(0, 0), (True, 0), (1438, 0), (2, -1), (2, 1.0)])
def test_loading_refuses_bad_numbers_of_clients_and_seeds(clients, seed):
    with pytest.raises(DataError, match=r"num_clients: |seed: "):
        load_dataset(DataSettings(), clients, seed)


def test_a_client_gets_copies_of_its_own_records():
    dataset = load_dataset(DataSettings(), 7, 3)
    records = dataset.partition(4)
    assert np.array_equal(records.features, dataset.train.features[dataset.partitions[4]])
    assert np.array_equal(records.labels, dataset.train.labels[dataset.partitions[4]])
    assert not np.shares_memory(records.features, dataset.train.features)
    for index in (-1, 7, True):
        with pytest.raises(DataError, match="partition"):
            dataset.partition(index)


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (np.zeros((3, 2)), np.zeros(3, np.int64)),
        (np.zeros((3, 2), np.float32), np.zeros(3, np.int32)),
        (np.zeros((3, 2), np.float32), np.zeros(2, np.int64)),
        (np.zeros(3, np.float32), np.zeros(3, np.int64)),
        (np.zeros((2, 2), np.float32), np.array([0, -1])),
        ([[1.0]], np.zeros(1, np.int64)),
    ],
)
def test_records_refuse_other_types_and_shapes(features, labels):
    with pytest.raises(DataError, match=r"features: |labels: "):
        Records(features, labels)


@pytest.mark.parametrize("indices", [np.array([6]), np.array([-1]), np.zeros((1, 1), np.int64)])
def test_taking_records_refuses_indices_outside(indices):
    with pytest.raises(DataError, match="indices"):
        make_records().take(indices)


def test_taking_no_records_gives_none():
    assert len(make_records().take(np.empty(0, np.int64))) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"partitions": ()},
        {"partitions": (np.array([0, 1]), np.array([1, 2]))},
        {"partitions": (np.array([0, 0]),)},
        {"partitions": (np.array([6]),)},
        {"num_classes": 2},
        {"test": Records(np.zeros((1, 3), np.float32), np.zeros(1, np.int64))},
    ],
)
def test_a_dataset_refuses_shared_records_and_values_outside(changes):
    dataset = FederatedDataset("x", make_records(), make_records(), 3, (np.arange(4),))
    assert dataset.num_partitions == 1
    with pytest.raises(DataError, match=r"partitions|label|features"):
        dataclasses.replace(dataset, **changes)


def test_a_folder_beside_bundled_data_is_refused_and_not_ignored():
    with pytest.raises(DataError, match=r"^data\.root: 'there'; digits are bundled and need null"):
        DataSettings(root="there")
