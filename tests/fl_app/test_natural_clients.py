"""Natural clients: what a raw data set promises, and the partition by them."""

import dataclasses

import numpy as np
import pytest

from fl_app.data import (
    SOURCES,
    DataError,
    DataSettings,
    PartitionSettings,
    RawDataset,
    Records,
    load_dataset,
    natural_num_clients,
)
from fl_app.data.sources import Source

NATURAL = PartitionSettings("natural_id")
GROUPS = np.array([7, 3, 7, 9, 3, 7, 1, 9], dtype=np.int64)


def make_raw(groups: np.ndarray | None = GROUPS, names: tuple[str, ...] = ()) -> RawDataset:
    features = np.arange(16, dtype=np.float32).reshape(8, 2)
    labels = np.arange(8, dtype=np.int64) % 2
    test = Records(features[:2].copy(), labels[:2].copy())
    return RawDataset(Records(features, labels), test, 2, groups, names)


@pytest.fixture
def source(monkeypatch):
    """A source that counts how often it is read."""
    reads = []

    def read(settings: DataSettings) -> RawDataset:
        reads.append(settings)
        return make_raw(GROUPS.copy())

    name = f"counted-{id(reads)}"  # what is kept between calls knows no other source of that name
    monkeypatch.setitem(SOURCES, name, Source("counts", read))
    return DataSettings(name, scale=1.0, offset=0.0, partition=NATURAL), reads


def test_each_client_has_the_records_of_one_group(source):
    settings, _ = source
    assert natural_num_clients(settings) == 4
    partitions = load_dataset(settings, None, 0).partitions
    assert [each.tolist() for each in partitions] == [[6], [1, 4], [0, 2, 5], [3, 7]]


def test_fewer_clients_are_groups_chosen_by_the_seed(source):
    settings, _ = source
    whole = {tuple(each) for each in load_dataset(settings, 4, 0).partitions}
    seen = set()
    for seed in range(100):
        chosen = [tuple(each) for each in load_dataset(settings, 2, seed).partitions]
        assert len(set(chosen)) == 2
        assert set(chosen) <= whole
        assert [GROUPS[each[0]] for each in chosen] == sorted(GROUPS[each[0]] for each in chosen)
        seen.add(tuple(chosen))
    assert len(seen) == 6  # all pairs; 6 (5/6)^100 = 7e-8 bounds the chance that one is missed


def test_all_clients_do_not_depend_on_the_seed(source):
    settings, _ = source
    first, second = (load_dataset(settings, 4, seed).partitions for seed in (0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_data_are_read_once_and_shared(source):
    settings, reads = source
    natural_num_clients(settings)
    one, two = load_dataset(settings, 4, 0), load_dataset(settings, 2, 1)
    iid = load_dataset(dataclasses.replace(settings, partition=PartitionSettings()), 3, 0)
    assert len(reads) == 1
    assert one.train.features is two.train.features is iid.train.features
    for array in (one.train.features, one.train.labels, one.test.features, one.test.labels):
        assert not array.flags.writeable


def test_more_clients_than_groups_are_refused(source, monkeypatch):
    settings, _ = source
    with pytest.raises(DataError, match=r"num_clients: 5; the data have 4 groups$"):
        load_dataset(settings, 5, 0)
    named = make_raw(np.array([0, 1] * 4), ("north", "south"))
    monkeypatch.setitem(SOURCES, "named", Source("has names", lambda _: named))
    with pytest.raises(DataError, match=r"have 2 groups \(north, south\)$"):
        load_dataset(dataclasses.replace(settings, name="named"), 5, 0)


def test_data_without_natural_clients_say_so():
    settings = DataSettings(partition=NATURAL)
    for use in (natural_num_clients, lambda given: load_dataset(given, 3, 0)):
        with pytest.raises(DataError, match=r"'natural_id'; digits has no natural clients$"):
            use(settings)


def test_an_open_number_of_clients_needs_natural_clients():
    for use in (natural_num_clients, lambda given: load_dataset(given, None, 0)):
        with pytest.raises(DataError, match=r"num_clients: null; .*natural_id"):
            use(DataSettings())


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("digits", "path", "mine:read"),
        ("digits", "writer_labels", "here"),
        ("user", "window", 64),
        ("mnist", "num_test_subjects", 1),
    ],
)
def test_a_key_of_another_source_is_refused(name, key, value):
    owner = next(source for source, row in SOURCES.items() if key in row.keys)
    with pytest.raises(DataError, match=f"^data.{key}: {value!r}; it belongs to {owner}"):
        DataSettings(name, **{key: value})


def empty(shape: tuple[int, ...]) -> Records:
    return Records(np.zeros((0, *shape), np.float32), np.zeros(0, np.int64))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": empty((2,)), "train_groups": None}, "train: 0 records"),
        ({"test": empty((2,))}, "test: 0 records"),
        ({"test": make_raw().test.features}, "test: ndarray"),
        ({"test": Records(np.zeros((1, 3), np.float32), np.zeros(1, np.int64))}, "test: features"),
        ({"test": Records(np.zeros((1, 2), np.float32), np.full(1, 2))}, "test: label 2"),
        ({"num_classes": 1}, "num_classes: 1"),
        ({"num_classes": True}, "num_classes: True"),
        ({"num_classes": 2.0}, "num_classes: 2.0"),
        ({"train_groups": GROUPS.astype(np.int32)}, "train_groups: int32"),
        ({"train_groups": GROUPS.tolist()}, "train_groups: list"),
        ({"train_groups": GROUPS[:7]}, r"train_groups: shape \(7,\); \(8,\)"),
        ({"train_groups": GROUPS - 2}, "train_groups: -1"),
        ({"group_names": ("a",) * 9}, "group_names: 9 names; group 9"),
    ],
)
def test_a_raw_data_set_refuses_what_does_not_fit(changes, message):
    with pytest.raises(DataError, match=f"^{message}"):
        dataclasses.replace(make_raw(), **changes)


def test_the_number_of_groups_counts_those_with_records():
    assert make_raw(names=("a",) * 10).num_groups == 4
    assert make_raw(None).num_groups == 0
