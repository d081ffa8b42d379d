"""Partitions: every record exactly once, whatever is asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_app.data import DataError, DataSettings, PartitionSettings, load_dataset
from fl_app.data.digits import read_digits
from fl_app.data.partition import (
    partition_by_dirichlet,
    partition_by_group,
    partition_by_label_shards,
    partition_by_similarity,
    partition_iid,
)


def make_rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def make_labels(counts: list[int]) -> np.ndarray:
    return np.repeat(np.arange(len(counts), dtype=np.int64), counts)


def assert_every_record_once(partitions, num_records, num_clients):
    assert len(partitions) == num_clients
    assert all(part.dtype == np.int64 for part in partitions)
    assert np.array_equal(np.sort(np.concatenate(partitions)), np.arange(num_records))


@given(num_records=st.integers(1, 300), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_iid_sizes_differ_by_at_most_one(num_records, share, seed):
    num_clients = max(1, round(share * num_records))
    partitions = partition_iid(np.zeros(num_records, np.int64), num_clients, make_rng(seed))
    assert_every_record_once(partitions, num_records, num_clients)
    assert np.ptp([len(part) for part in partitions]) <= 1


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    share=st.floats(0, 1),
    min_records=st.integers(1, 4),
    log_alpha=st.floats(-300, 300),
    seed=st.integers(0, 2**32),
)
def test_dirichlet_uses_every_record_once_and_keeps_the_minimum(
    counts, share, min_records, log_alpha, seed
):
    labels = make_labels([count + min_records for count in counts])
    num_clients = max(1, round(share * (len(labels) // min_records)))
    partitions = partition_by_dirichlet(
        labels, num_clients, make_rng(seed), 10.0**log_alpha, min_records
    )
    assert_every_record_once(partitions, len(labels), num_clients)
    assert min(len(part) for part in partitions) >= min_records


def test_dirichlet_ends_with_a_thousand_clients_on_the_digits():
    raw = read_digits()
    labels = np.concatenate([raw.train.labels, raw.test.labels])
    partitions = partition_by_dirichlet(labels, 1000, make_rng(), alpha=0.01)
    assert_every_record_once(partitions, 1797, 1000)
    assert min(len(part) for part in partitions) == 1


def load_dirichlet(min_records: int):
    partition = PartitionSettings("dirichlet", alpha=0.01, min_records=min_records)
    return load_dataset(DataSettings(partition=partition), 1000, 0)


def test_a_thousand_clients_of_a_small_set_have_their_minimum_or_are_refused_by_name():
    sizes = load_dirichlet(1).partition_sizes()
    assert (sizes.sum(), sizes.min(), len(sizes)) == (1437, 1, 1000)
    with pytest.raises(DataError, match="num_clients: 1000 clients with at least 2 records each"):
        load_dirichlet(2)


def test_dirichlet_top_up_takes_from_the_largest_clients_only():
    labels = make_labels([900])
    before = partition_by_dirichlet(labels, 40, make_rng(3), alpha=0.2, min_records=1)
    after = partition_by_dirichlet(labels, 40, make_rng(3), alpha=0.2, min_records=15)
    small = np.array([len(part) for part in before])
    topped = np.array([len(part) for part in after])
    givers = topped < small
    assert topped.min() == 15
    assert givers.any()
    # Water level: no giver ends more than one record below a client that gave nothing.
    assert topped.max() - topped[givers].min() <= 1
    assert small[givers].min() >= topped[~givers].max()


def test_dirichlet_top_up_moves_random_records():
    # With this alpha each label goes to one of the two clients as a whole; the one that gives
    # must give of all its labels. A label of 100 keeps all with probability below 1e-7.
    labels, num_moves = make_labels([100] * 10), 0
    for seed in range(6):
        before = partition_by_dirichlet(labels, 2, make_rng(seed), alpha=1e-4)
        after = partition_by_dirichlet(labels, 2, make_rng(seed), alpha=1e-4, min_records=490)
        giver = int(np.argmax([len(part) for part in before]))
        if len(before[giver]) > 510:
            num_moves += 1
            had = np.bincount(labels[before[giver]], minlength=10)
            kept = np.bincount(labels[after[giver]], minlength=10)
            assert np.all(kept[had > 0] < had[had > 0])
    assert num_moves


def extreme_shares(alpha: float, num_draws: int = 2000) -> int:
    """Count partitions of one label between two clients that give the first less than a tenth."""
    rng, labels = make_rng(11), make_labels([1000])
    sizes = [len(partition_by_dirichlet(labels, 2, rng, alpha)[0]) for _ in range(num_draws)]
    return sum(size < 100 for size in sizes)


def test_dirichlet_shares_follow_alpha():
    # A client's share is Beta(1/2, 1/2); exact binomial test, false-positive rate 1e-6. The twin
    # with alpha = 1 must fail.
    expected = stats.beta(0.5, 0.5).cdf(0.0995)
    assert stats.binomtest(extreme_shares(0.5), 2000, expected).pvalue > 1e-6
    assert stats.binomtest(extreme_shares(1.0), 2000, expected).pvalue < 1e-6


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(40, 90), min_size=1, max_size=8),
    num_clients=st.integers(1, 40),
    data=st.data(),
    seed=st.integers(0, 2**32),
)
def test_label_shards_give_each_client_different_labels_in_near_equal_parts(
    counts, num_clients, data, seed
):
    num_classes = len(counts)
    least = -(-num_classes // num_clients)
    labels_per_client = data.draw(st.integers(least, num_classes))
    labels = make_labels(counts)
    partitions = partition_by_label_shards(labels, num_clients, make_rng(seed), labels_per_client)
    assert_every_record_once(partitions, len(labels), num_clients)
    held = np.array([np.bincount(labels[part], minlength=num_classes) for part in partitions])
    assert np.all(np.count_nonzero(held, axis=1) == labels_per_client)
    parts_per_class = np.count_nonzero(held, axis=0)
    assert np.ptp(parts_per_class) <= 1
    for column in held.T:
        assert np.ptp(column[column > 0]) <= 1


def test_label_shards_pair_labels_at_random():
    # 200 clients, 10 labels: 45 pairs are possible, and a sorted deal would give only a few.
    labels = make_labels([400] * 10)
    partitions = partition_by_label_shards(labels, 200, make_rng(), 2)
    pairs = {tuple(np.unique(labels[part])) for part in partitions}
    assert len(pairs) > 35


@pytest.mark.parametrize(
    ("num_clients", "labels_per_client", "message"),
    [
        (5, 4, "3 different labels"),
        (30, 2, "20 parts of label"),
        (1, 2, "cannot hold"),
        (31, 1, "training set has 30"),
        (0, 1, "at least 1"),
    ],
)
def test_label_shards_say_what_cannot_be_done(num_clients, labels_per_client, message):
    labels = make_labels([10, 10, 10])
    with pytest.raises(DataError, match=message):
        partition_by_label_shards(labels, num_clients, make_rng(), labels_per_client)


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    share=st.floats(0, 1),
    similarity=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_similarity_gives_everybody_as_many_records(counts, share, similarity, seed):
    labels = make_rng(seed).permutation(make_labels(counts))
    num_clients = max(1, round(share * len(labels)))
    partitions = partition_by_similarity(labels, num_clients, make_rng(seed), similarity)
    assert_every_record_once(partitions, len(labels), num_clients)
    assert np.ptp([len(part) for part in partitions]) <= 1


def labels_held(labels: np.ndarray, partitions) -> np.ndarray:
    return np.array([np.bincount(labels[part], minlength=10) for part in partitions])


def test_similarity_0_sorts_by_label_and_1_is_iid():
    labels = make_rng(1).permutation(make_labels([100] * 10))
    held = labels_held(labels, partition_by_similarity(labels, 20, make_rng(), 0.0))
    assert np.count_nonzero(held, axis=1).tolist() == [1] * 20
    assert held.argmax(axis=1).tolist() == sorted(held.argmax(axis=1))
    # As evenly as a shuffle deals them: a chi-square test, false-positive rate 1e-6, and its twin
    # with a tenth sorted.
    held = labels_held(labels, partition_by_similarity(labels, 20, make_rng(), 1.0))
    assert stats.chi2_contingency(held).pvalue > 1e-6
    held = labels_held(labels, partition_by_similarity(labels, 20, make_rng(), 0.5))
    assert stats.chi2_contingency(held).pvalue < 1e-6


@pytest.mark.parametrize(("similarity", "num_labels"), [(0.0, 2), (1.0, 10)])
def test_the_settings_say_how_similar_the_clients_are(similarity, num_labels):
    partition = PartitionSettings("similarity", similarity=similarity)
    dataset = load_dataset(DataSettings(partition=partition), 10, 0)
    held = labels_held(dataset.train.labels, dataset.partitions)
    assert np.count_nonzero(held, axis=1).max() == num_labels


def far_from_the_run(similarity: float) -> int:
    """Count records that lie far from where their client's run of sorted records can lie.

    1,000 records, each with a label of its own, 20 clients of 50. Client c's run lies near the
    labels 50 c to 50 c + 50, so of the 16 in the middle what is 100 labels away was dealt out.
    """
    labels = make_rng(2).permutation(np.arange(1000, dtype=np.int64))
    partitions = partition_by_similarity(labels, 20, make_rng(), similarity)
    assert [len(part) for part in partitions] == [50] * 20
    away = [np.abs(labels[part] - (50 * client + 25)) for client, part in enumerate(partitions)]
    return sum(int(np.sum(each > 125)) for each in away[2:-2])


def test_similarity_is_the_share_that_is_dealt_out():
    # Of the 16 * 15 records dealt out to them, three in four lie that far away: exact binomial
    # test, false-positive rate 1e-6, and its twins with another share.
    assert stats.binomtest(far_from_the_run(0.3), 240, 0.75).pvalue > 1e-6
    assert stats.binomtest(far_from_the_run(0.2), 240, 0.75).pvalue < 1e-6
    assert stats.binomtest(far_from_the_run(0.4), 320, 0.75).pvalue > 1e-6
    assert far_from_the_run(0.0) == 0


def test_similarity_draws_which_records_are_sorted():
    labels = make_labels([100, 100])
    first = [partition_by_similarity(labels, 4, make_rng(seed), 0.0)[0] for seed in range(2)]
    assert all(np.all(part < 100) for part in first)
    assert not np.array_equal(*first)


@pytest.mark.parametrize("names", [[3, 1, 7], ["site b", "a", "x"]])
def test_natural_id_makes_each_group_one_client_in_their_order(names):
    groups = np.array([names[index] for index in (0, 1, 1, 2, 0, 1)])
    partitions = partition_by_group(groups, 3, make_rng())
    assert_every_record_once(partitions, 6, 3)
    assert [part.tolist() for part in partitions] == [[1, 2, 5], [0, 4], [3]]


def test_fewer_clients_than_groups_are_chosen_and_more_are_refused():
    groups = np.array([0, 5, 5, 9])
    whole = {(0,), (1, 2), (3,)}
    seen = set()
    for seed in range(40):
        partitions = partition_by_group(groups, 2, make_rng(seed))
        chosen = tuple(tuple(part.tolist()) for part in partitions)
        assert set(chosen) <= whole
        assert chosen == tuple(sorted(chosen))
        seen.add(chosen)
    assert len(seen) == 3
    with pytest.raises(DataError, match=r"num_clients: 4; the data have 3 groups \(a, b, c\)$"):
        partition_by_group(groups, 4, make_rng(), ("a", "b", "c"))


def test_natural_id_needs_groups():
    settings = DataSettings(partition=PartitionSettings("natural_id"))
    with pytest.raises(DataError, match=r"data\.partition\.kind: 'natural_id'"):
        load_dataset(settings, 3, 0)


@pytest.mark.parametrize(
    "partition", [partition_iid, partition_by_dirichlet, partition_by_similarity]
)
def test_more_clients_than_records_are_refused(partition):
    with pytest.raises(DataError, match=r"num_clients: 11 .* has 10"):
        partition(make_labels([10]), 11, make_rng())
    with pytest.raises(DataError, match="num_clients: 0"):
        partition(make_labels([10]), 0, make_rng())


def test_dirichlet_refuses_a_minimum_that_cannot_be_met():
    with pytest.raises(DataError, match="at least 4 records each need 12 records"):
        partition_by_dirichlet(make_labels([11]), 3, make_rng(), 1.0, 4)


def test_dirichlet_refuses_an_alpha_that_overflows():
    with pytest.raises(DataError, match=r"data\.partition\.alpha: 1e\+308"):
        partition_by_dirichlet(make_labels([100]), 3, make_rng(), 1e308)


@pytest.mark.parametrize(
    "partition",
    [partition_iid, partition_by_dirichlet, partition_by_label_shards, partition_by_similarity],
)
def test_the_generator_alone_decides(partition):
    labels = make_labels([50, 50, 50])
    first, again, other = (partition(labels, 6, make_rng(seed)) for seed in (4, 4, 5))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
