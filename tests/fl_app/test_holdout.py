"""The public test set of data that come without one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_app.data import DataError
from fl_app.data.holdout import choose_test_groups, split_stratified


@given(
    counts=st.lists(st.integers(4, 60), min_size=1, max_size=8),
    fraction=st.floats(0.3, 0.7),
    order=st.randoms(use_true_random=False),
)
def test_stratified_split_uses_every_record_once_and_keeps_shares(counts, fraction, order):
    values = [label for label, count in enumerate(counts) for _ in range(count)]
    order.shuffle(values)
    labels = np.array(values, dtype=np.int64)
    train, test = split_stratified(labels, fraction)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(len(labels)))
    assert abs(len(test) - fraction * len(labels)) < 1 + 1e-6
    in_test = np.bincount(labels[test], minlength=len(counts))
    assert np.all(np.abs(in_test - np.array(counts) * len(test) / len(labels)) < 1)


def test_stratified_split_takes_test_records_from_all_over_a_class():
    labels = np.zeros(100, dtype=np.int64)
    assert split_stratified(labels, 0.1)[1].tolist() == list(range(5, 100, 10))


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan"), True, 1e-4, 0.9999])
def test_stratified_split_refuses_fractions_that_empty_a_class(fraction):
    with pytest.raises(DataError, match=r"data\.test_fraction"):
        split_stratified(np.arange(20, dtype=np.int64) % 2, fraction)


@given(num_groups=st.integers(2, 60), data=st.data())
def test_held_out_groups_are_spread_over_the_ids(num_groups, data):
    num_test = data.draw(st.integers(1, num_groups - 1))
    groups = np.repeat(3 * np.arange(num_groups), 2)[::-1]
    places = choose_test_groups(groups, num_test, "key") // 3
    assert len(np.unique(places)) == num_test
    gaps = np.diff(places)
    assert gaps.size == 0 or gaps.max() - gaps.min() <= 1
    assert abs(places[0] - (num_groups - 1 - places[-1])) <= 1


def test_held_out_groups_are_the_same_ones_always():
    groups = np.arange(1, 24, dtype=np.int64)
    assert choose_test_groups(groups, 5, "key").tolist() == [3, 7, 12, 17, 21]


def test_not_all_groups_can_be_held_out():
    with pytest.raises(DataError, match="key: 3; 1 to 2 of 3"):
        choose_test_groups(np.array([5, 1, 9, 9]), 3, "key")
