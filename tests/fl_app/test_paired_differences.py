"""Intervals of paired differences: what they cover, and what they would not without clusters."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fl_app.report.paired_differences import estimate_mean, share_harmed

REPETITIONS = 20_000
FALSE_ALARM = 1e-6  # of each assertion below


def count_covered(clustered, num_seeds=8, num_agents=10, truth=-0.3):
    """Count intervals that hold the truth; seeds shift all their agents, as much as agents vary."""
    rng = np.random.default_rng(5)
    seeds = np.repeat(np.arange(num_seeds), num_agents)
    covered = 0
    for _ in range(REPETITIONS):
        shift = rng.normal(size=num_seeds)[seeds]
        estimate = estimate_mean(
            truth + shift + rng.normal(size=seeds.size), seeds if clustered else None
        )
        covered += estimate.low <= truth <= estimate.high
    return covered


def test_an_interval_clustered_by_seed_covers_the_truth_in_95_of_100():
    assert stats.binomtest(count_covered(clustered=True), REPETITIONS, 0.95).pvalue > FALSE_ALARM


def test_an_interval_that_takes_agents_for_independent_does_not():
    covered = count_covered(clustered=False)
    assert stats.binomtest(covered, REPETITIONS, 0.95, alternative="less").pvalue < FALSE_ALARM


def test_clusters_of_equal_size_give_the_interval_of_their_means():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(6, 4))
    ours = estimate_mean(values.ravel(), np.repeat(np.arange(6), 4))
    low, high = stats.t.interval(0.95, 5, values.mean(), stats.sem(values.mean(axis=1)))
    assert (ours.low, ours.high) == pytest.approx((low, high), rel=1e-12)
    assert (ours.num_values, ours.num_clusters) == (24, 6)


def test_independent_values_give_student_s_interval():
    values = np.random.default_rng(2).normal(size=9)
    ours = estimate_mean(values, level=0.9)
    low, high = stats.t.interval(0.9, 8, values.mean(), stats.sem(values))
    assert (ours.mean, ours.low, ours.high) == pytest.approx((values.mean(), low, high), rel=1e-12)


def test_clusters_of_unequal_size_by_hand():
    # mean 3; residuals -2, -1 | 3; sums -3 | 3; sqrt(2 / 1 * 18) / 3 = 2; t of 1 degree = 12.706
    ours = estimate_mean([1, 2, 6], [7, 7, 9])
    assert (ours.mean, ours.half_width) == pytest.approx((3.0, 2 * 12.7062047364), rel=1e-10)


def test_a_single_cluster_has_no_interval():
    ours = estimate_mean([1.0, 2.0], [4, 4])
    assert (ours.mean, ours.half_width, ours.low, ours.high) == (1.5, None, None, None)
    assert estimate_mean([1.0]).half_width is None
    assert estimate_mean([1.0, 1.0]).half_width == 0.0


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 5)), min_size=2),
    st.floats(-1e3, 1e3),
    st.sampled_from([-1.0, 0.25, 8.0]),
)
def test_an_interval_moves_and_scales_with_its_values(pairs, shift, scale):
    values, clusters = np.array([value for value, _ in pairs]), [group for _, group in pairs]
    first = estimate_mean(values, clusters)
    second = estimate_mean(scale * values + shift, clusters)
    assert second.mean == pytest.approx(scale * first.mean + shift, rel=1e-9, abs=1e-6)
    if first.half_width is not None:
        assert second.half_width == pytest.approx(abs(scale) * first.half_width, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize(
    ("values", "clusters", "level"),
    [
        ([], None, 0.95),
        ([1.0, math.nan], None, 0.95),
        ([1e308, -1e308], None, 0.95),
        ([1e308, 1e308], None, 0.95),
        ([1.0, 2.0], [1], 0.95),
        ([[1.0, 2.0]], None, 0.95),
        ([1.0, 2.0], None, 1.0),
        ([1.0, 2.0], None, math.nan),
    ],
)
def test_values_without_a_mean_are_refused(values, clusters, level):
    with pytest.raises(ValueError, match=r"must|level"):
        estimate_mean(values, clusters, level)


def test_an_agent_is_harmed_if_it_loses_more_than_the_tolerance():
    assert share_harmed([-0.02, -0.01, 0.0, 0.5], 0.01) == 0.25
    assert share_harmed([], 0.01) is None
