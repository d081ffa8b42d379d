"""The partitioners of Flower Datasets, as partitions of this application."""

import logging
import os
import random
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.data import DataError, DataSettings, PartitionSettings, load_dataset
from fl_app.data.digits import read_digits
from fl_app.data.flwr_partition import PARTITIONERS, partition_by_flwr_datasets
from fl_app.plain_mapping import PlainMapping

library = pytest.importorskip("flwr_datasets.partitioner", reason="needs the extra hf")

LABELS = read_digits().train.labels
GROUPS = np.array([f"writer {index % 10}" for index in range(len(LABELS))])
# What each needs to divide the digits among ten clients.
ARGUMENTS = {
    "IidPartitioner": {},
    "DirichletPartitioner": {"alpha": 0.5},
    "ShardPartitioner": {"num_shards_per_partition": 2},
    "PathologicalPartitioner": {
        "num_classes_per_partition": 2,
        "class_assignment_mode": "deterministic",
    },
    "NaturalIdPartitioner": {},
    "GroupedNaturalIdPartitioner": {"group_size": 1},
    "SquarePartitioner": {},
    "LinearPartitioner": {},
    "ExponentialPartitioner": {},
    "SizePartitioner": {"partition_sizes": [100] * 9 + [537]},
    "InnerDirichletPartitioner": {"alpha": 0.5, "partition_sizes": [100] * 9 + [537]},
    "DistributionPartitioner": {
        "distribution_array": [[1.0, 3.0]] * 10,
        "num_unique_labels_per_partition": 2,
        "preassigned_num_samples_per_label": 5,
    },
    "ContinuousPartitioner": {"strictness": 0.5},
}


def divide(name: str, arguments: dict | None = None, seed: int = 0, num_clients: int = 10, **other):
    rng = np.random.Generator(np.random.PCG64(seed))
    given = {"labels": LABELS, "groups": GROUPS, **other}
    chosen = ARGUMENTS[name] if arguments is None else arguments
    return partition_by_flwr_datasets(
        given["labels"], given["groups"], num_clients, rng, name, chosen
    )


def assert_every_record_once(partitions, num_records=1437):
    assert all(part.dtype == np.int64 and len(part) for part in partitions)
    assert np.array_equal(np.sort(np.concatenate(partitions)), np.arange(num_records))


def test_every_partitioner_that_divides_records_by_plain_arguments_is_offered():
    excluded = {
        *("Partitioner", "IdToSizeFncPartitioner"),
        *("VerticalEvenPartitioner", "VerticalSizePartitioner"),
    }
    assert set(PARTITIONERS) == set(library.__all__) - excluded == set(ARGUMENTS)


@pytest.mark.parametrize("name", sorted(set(PARTITIONERS) - {"ExponentialPartitioner"}))
def test_a_partition_has_every_record_once_follows_the_seed_and_draws_nothing_global(name):
    if name == "ShardPartitioner":  # shards of one size leave a rest
        labels, groups = LABELS[:1420], GROUPS[:1420]
    else:
        labels, groups = LABELS, GROUPS
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    first, again, other = (divide(name, seed=s, labels=labels, groups=groups) for s in (0, 0, 1))
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert torch.equal(torch.get_rng_state(), before[2])
    assert len(first) == 10
    assert_every_record_once(first, len(labels))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    if PARTITIONERS[name] != "group":
        assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_the_partitioner_s_own_draws_follow_the_seed():
    first, other = (
        sorted(len(part) for part in divide("DirichletPartitioner", seed=seed)) for seed in (0, 1)
    )
    assert first != other


def test_exponential_sizes_need_few_clients():
    partitions = divide("ExponentialPartitioner", num_clients=5)
    assert_every_record_once(partitions)
    with pytest.raises(DataError, match=r"data\.partition\.arguments: \{\}; Exponential.* greater"):
        divide("ExponentialPartitioner")


@settings(deadline=None, max_examples=20)
@given(
    num_records=st.integers(1, 200),
    share=st.floats(0, 1),
    num_labels=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_iid_is_a_partition_whatever_the_sizes(num_records, share, num_labels, seed):
    num_clients = max(1, round(share * num_records))
    labels = np.arange(num_records, dtype=np.int64) % num_labels
    partitions = divide("IidPartitioner", {}, seed, num_clients, labels=labels, groups=None)
    assert len(partitions) == num_clients
    assert_every_record_once(partitions, num_records)
    assert np.ptp([len(part) for part in partitions]) <= 1


def test_iid_parts_are_shuffled_before_they_are_cut():
    labels = np.sort(LABELS)
    held = [len(np.unique(labels[part])) for part in divide("IidPartitioner", labels=labels)]
    assert min(held) == 10


def test_the_records_of_a_group_stay_together():
    partitions = divide("NaturalIdPartitioner")
    assert [{str(name) for name in GROUPS[part]} for part in partitions] == [
        {f"writer {index}"} for index in range(10)
    ]
    grouped = divide("GroupedNaturalIdPartitioner", {"group_size": 2}, num_clients=5)
    assert [len(set(GROUPS[part])) for part in grouped] == [2] * 5


def test_labels_are_those_that_the_arguments_ask_for():
    held = [len(np.unique(LABELS[part])) for part in divide("PathologicalPartitioner")]
    assert held == [2] * 10
    by_group = divide(
        "PathologicalPartitioner", {**ARGUMENTS["PathologicalPartitioner"], "partition_by": "group"}
    )
    assert [len(set(GROUPS[part])) for part in by_group] == [2] * 10


def test_labels_with_gaps_are_divided_too():
    # InnerDirichletPartitioner takes labels for 0, 1, ... and would leave the last ones out.
    labels = np.repeat(np.array([2, 5, 9], dtype=np.int64), 100)
    arguments = {"alpha": 100.0, "partition_sizes": [150, 150]}
    partitions = divide("InnerDirichletPartitioner", arguments, 0, 2, labels=labels)
    assert_every_record_once(partitions, 300)


def test_a_thousand_clients_with_a_small_alpha_are_refused_by_name():
    with pytest.raises(
        DataError, match=r"^data\.partition\.arguments: \{alpha: 0\.01\}; Dirichlet"
    ):
        divide("DirichletPartitioner", {"alpha": 0.01}, num_clients=1000)
    arguments = {"alpha": 0.01, "min_partition_size": 0}
    with pytest.raises(DataError, match=r"leaves \d+ of 1000 clients empty"):
        divide("DirichletPartitioner", arguments, num_clients=1000)


def test_records_left_out_are_logged(caplog):
    with caplog.at_level(logging.WARNING, "fl_app"):
        partitions = divide("SizePartitioner", {"partition_sizes": [10] * 10})
    assert sum(map(len, partitions)) == 100
    assert caplog.messages == ["SizePartitioner leaves out 1337 of 1437 records"]


REFUSED = [
    ("IidPartitioner", {"alpha": 1}, "IidPartitioner knows no alpha; it has no arguments"),
    ("DirichletPartitioner", {"beta": 1}, "knows no beta; it has partition_by, alpha, min_"),
    ("DirichletPartitioner", {}, "missing a required argument: 'alpha'"),
    ("DirichletPartitioner", {"alpha": -1.0}, "strictly greater than zero"),
    ("DirichletPartitioner", {"alpha": "big"}, "The given alpha format"),
    ("DirichletPartitioner", {"alpha": 1, "seed": 3}, "seed is not given here"),
    ("IidPartitioner", {"num_partitions": 3}, "follows from num_clients"),
    ("DirichletPartitioner", {"alpha": 1, "partition_by": "index"}, "must be label or group"),
    ("ShardPartitioner", {"shard_size": 2.5}, "shard_size"),
    ("ShardPartitioner", {}, "shard_size needs to be specified"),
    ("GroupedNaturalIdPartitioner", {"group_size": 0}, "cannot divide the records so"),
    ("SizePartitioner", {"partition_sizes": [1] * 9 + [0]}, "greater than zero"),
    ("DistributionPartitioner", {**ARGUMENTS["DistributionPartitioner"],
                                 "distribution_array": [[1.0], [1.0, 2.0]]}, "cannot divide"),
    ("PathologicalPartitioner", {"num_classes_per_partition": 11}, "greater than the number"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "message"), REFUSED)
def test_what_the_library_refuses_names_the_key_and_the_reason(name, arguments, message):
    with pytest.raises(DataError) as caught:
        divide(name, arguments)
    assert str(caught.value).startswith("data.partition.arguments: {")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("NaturalIdPartitioner", {}),
        ("GroupedNaturalIdPartitioner", {"group_size": 3}),
        ("SizePartitioner", {"partition_sizes": [5, 5]}),
    ],
)
def test_another_number_of_partitions_than_clients_is_refused(name, arguments):
    with pytest.raises(DataError, match=r"num_clients: 7; .* use num_clients=\d+"):
        divide(name, arguments, num_clients=7)


def test_a_set_without_groups_is_refused_where_groups_are_needed():
    with pytest.raises(DataError, match="this data set says whose no record is"):
        divide("NaturalIdPartitioner", groups=None)


def test_more_clients_than_records_are_refused():
    with pytest.raises(DataError, match="num_clients: 2000"):
        divide("IidPartitioner", num_clients=2000)


def test_nothing_is_printed(capfd):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        divide("NaturalIdPartitioner")
        with pytest.raises(DataError):
            divide("DirichletPartitioner", {"alpha": 0.01}, num_clients=1000)
    assert [each for each in shown if "min_partition_size" in str(each.message)] == []
    assert capfd.readouterr() == ("", "")


def test_settings_with_arguments_load_and_are_cached_apart():
    def load(**arguments):
        partition = PartitionSettings(
            "flwr_datasets",
            partitioner="DirichletPartitioner",
            arguments=PlainMapping(arguments),
        )
        return load_dataset(DataSettings(partition=partition), 10, 0).partition_sizes()

    wide, narrow = load(alpha=0.3), load(alpha=100.0)
    assert wide.sum() == narrow.sum() == 1437
    assert np.std(wide) > 2 * np.std(narrow)


def test_the_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    with pytest.raises(DataError, match=r"data\.partition\.kind: .*'private-fl-app\[hf\]'"):
        divide("IidPartitioner")


@pytest.mark.slow
def test_the_command_line_and_a_default_run_load_nothing_of_it(tmp_path):
    program = (
        "import sys, fl_app.cli\n"
        "first = {'datasets', 'flwr_datasets', 'pandas'} & set(sys.modules)\n"
        "try:\n"
        "    fl_app.cli.main(['run', 'num_rounds=1', 'num_clients=2'])\n"
        "except SystemExit as ended:\n"
        "    then = {'datasets', 'flwr_datasets'} & set(sys.modules)\n"
        "    print(ended.code, sorted(first), sorted(then))\n"
    )
    # pandas is loaded by scikit-learn where it is installed.
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "0 [] []"
