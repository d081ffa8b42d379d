import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from strategies.mechanisms.clipping import clip_by_l2_norm
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.rng import SeededStream
from strategies.mechanisms.subregion_sums import (
    EmphasisSchedule,
    SubregionWeights,
    aggregate_subregions,
    subregion_mechanism,
    subregion_weights,
)
from strategies.mechanisms.subregions import assign_agents

ALPHA = 1e-6


def quarters(num_agents=29, emphasis=16.0):
    return subregion_weights(assign_agents(num_agents, 4), 4, emphasis)


def aggregate(vectors, agents, weights, name=b"noise", **options):
    options = {"clipping_norm": 1.0, "sample_rate": 1.0, "noise_multiplier": 0.0} | options
    return aggregate_subregions(vectors, agents, weights, SeededStream(name), **options)


class TestSchedule:
    def test_golden(self):
        # Ten iterations of 16, thirty in equal steps down to 1: the authors' program.
        schedule = EmphasisSchedule()
        values = [schedule.emphasis(t) for t in range(1, 60)]
        assert values[:10] == [16.0] * 10
        np.testing.assert_allclose(values[10:40], 16.0 - 0.5 * np.arange(1, 31), rtol=1e-14)
        assert values[39:] == [1.0] * 20

    def test_without_a_fall_or_a_constant_part(self):
        assert [EmphasisSchedule(3.0, 1, 0).emphasis(t) for t in (1, 2, 3)] == [3.0, 1.0, 1.0]
        assert [EmphasisSchedule(3.0, 0, 2).emphasis(t) for t in (1, 2, 3)] == [2.0, 1.0, 1.0]

    def test_bad_schedules_are_refused(self):
        for arguments in (
            (0.5, 1, 1),
            (501.0, 1, 1),
            (math.nan, 1, 1),
            (2.0, -1, 1),
            (2.0, 1, 0.5),
        ):
            with pytest.raises(ParameterError):
                EmphasisSchedule(*arguments)
        with pytest.raises(ParameterError, match="iteration"):
            EmphasisSchedule().emphasis(0)


class TestWeights:
    @pytest.mark.parametrize("emphasis", [1.0, 2.0, 4.0, 16.0, 500.0])
    @pytest.mark.parametrize(("num_agents", "num_subregions"), [(1, 1), (29, 4), (2, 8), (30, 1)])
    def test_softmax_over_all_agents(self, num_agents, num_subregions, emphasis):
        boxes = assign_agents(num_agents, num_subregions)
        weights = subregion_weights(boxes, num_subregions, emphasis).weights
        scores = np.where(boxes[:, None] == np.arange(num_subregions), emphasis, 1.0)
        expected = np.exp(scores - scores.max(axis=0))
        np.testing.assert_allclose(weights, expected / expected.sum(axis=0), rtol=1e-12)

    def test_emphasis_one_gives_everybody_the_same(self):
        assert np.array_equal(quarters(29, 1.0).weights, np.full((29, 4), 1.0 / 29))

    @pytest.mark.parametrize(("emphasis", "factor"), [(2.0, 0.59), (4.0, 0.50), (16.0, 0.50)])
    def test_golden_factor(self, emphasis, factor):
        # sqrt((1 + 3 exp(2 - 2 a)) / 4): one own box, three others.
        found = quarters(29, emphasis).sensitivity_factor
        assert found == pytest.approx(math.sqrt((1 + 3 * math.exp(2 - 2 * emphasis)) / 4))
        assert found == pytest.approx(factor, abs=0.005)

    def test_golden_factor_of_equal_weights_and_of_one_box(self):
        assert quarters(29, 1.0).sensitivity_factor == 1.0
        assert subregion_weights(np.zeros(7, dtype=int), 1, 16.0).sensitivity_factor == 1.0

    def test_a_box_that_nobody_explores_weighs_all_agents_the_same(self):
        weights = subregion_weights([0, 0, 1], 4, 16.0)
        np.testing.assert_allclose(weights.weights[:, 2:], 1 / 3, rtol=1e-12)
        # It counts fully for everybody: two such boxes and one's own.
        assert weights.sensitivity_factor == pytest.approx(math.sqrt(3 / 4), rel=1e-9)

    def test_bad_weights_are_refused(self):
        for weights in (np.empty((0, 2)), [[1.0, 0.0]], [[1.0, math.nan]], [1.0]):
            with pytest.raises(ParameterError, match="weights"):
                SubregionWeights(weights)
        for arguments in (([], 2, 1.0), ([0, 2], 2, 1.0), ([-1], 2, 1.0), ([0.0], 1, 1.0)):
            with pytest.raises(ParameterError, match="assignments"):
                subregion_weights(*arguments)
        for emphasis in (0.9, math.inf, math.nan):
            with pytest.raises(ParameterError, match="emphasis"):
                subregion_weights([0], 1, emphasis)


class TestMechanism:
    @pytest.mark.parametrize(("exact", "factor"), [(True, math.sqrt(1 / 4)), (False, 1.0)])
    def test_sensitivity_and_noise(self, exact, factor):
        mechanism = subregion_mechanism(
            quarters(), clipping_norm=22.0, sample_rate=0.35, noise_multiplier=1.6, exact=exact
        )
        assert mechanism.sensitivity.value == pytest.approx(factor * 22.0 / 0.35)
        assert mechanism.noise_std == pytest.approx(1.6 * factor * 22.0 / 0.35)
        assert mechanism.noise_multiplier == 1.6
        assert mechanism.sensitivity.neighboring_relation == "zero_out"
        assert mechanism.sensitivity.unit == "client"

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("clipping_norm", 0.0),
            ("clipping_norm", math.inf),
            ("sample_rate", 0.0),
            ("sample_rate", 1.01),
            ("noise_multiplier", -1.0),
            ("noise_multiplier", math.nan),
        ],
    )
    def test_bad_parameters_are_refused(self, key, value):
        options = {"clipping_norm": 1.0, "sample_rate": 0.5, "noise_multiplier": 1.0, key: value}
        with pytest.raises(ParameterError, match=key):
            subregion_mechanism(quarters(), **options)


@st.composite
def settings(draw):
    """Any weights, any senders and vectors, one of whom is dropped."""
    num_agents, num_subregions = draw(st.integers(1, 8)), draw(st.sampled_from([1, 2, 3, 4, 8]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.booleans()):
        weights = SubregionWeights(rng.uniform(0.01, 1.0, (num_agents, num_subregions)))
    else:
        boxes = rng.integers(0, num_subregions, num_agents)
        weights = subregion_weights(boxes, num_subregions, draw(st.floats(1.0, 20.0)))
    agents = rng.permutation(num_agents)[: draw(st.integers(1, num_agents))]
    sizes = 10.0 ** rng.uniform(-2, 3, (len(agents), 1))
    vectors = sizes * rng.standard_normal((len(agents), draw(st.integers(1, 5))))
    return weights, agents, vectors, draw(st.floats(0.05, 1.0)), draw(st.floats(0.1, 50.0))


@given(settings())
def test_one_agent_moves_the_scaled_sums_by_at_most_the_sensitivity(setting):
    weights, agents, vectors, q, s = setting
    options = {"clipping_norm": s, "sample_rate": q}
    whole = aggregate(vectors, agents, weights, **options)
    for absent in range(len(agents)):
        rest = np.delete(vectors, absent, axis=0), np.delete(agents, absent)
        without = aggregate(*rest, weights, **options)
        zeroed = vectors.copy()
        zeroed[absent] = 0.0
        # Dropped and zeroed are the same neighbour: nothing is divided by who is present.
        np.testing.assert_allclose(
            aggregate(zeroed, agents, weights, **options), without, rtol=1e-9, atol=1e-12 * s
        )
        moved = float(np.linalg.norm((whole - without) / weights.largest[:, None]))
        exact, published = (
            subregion_mechanism(weights, noise_multiplier=1.0, exact=flag, **options)
            for flag in (True, False)
        )
        assert moved <= exact.sensitivity.value * (1 + 1e-9)
        assert exact.sensitivity.value <= published.sensitivity.value == s / q


@given(settings())
def test_some_agent_attains_the_exact_sensitivity(setting):
    weights, _, _, q, s = setting
    vector = np.array([[3.0 * s, 4.0 * s]])
    options = {"clipping_norm": s, "sample_rate": q}
    reached = max(
        float(np.linalg.norm(aggregate(vector, [n], weights, **options) / weights.largest[:, None]))
        for n in range(weights.num_agents)
    )
    mechanism = subregion_mechanism(weights, noise_multiplier=1.0, **options)
    assert reached == pytest.approx(mechanism.sensitivity.value, rel=1e-9)


def test_sums_by_hand():
    weights = SubregionWeights(np.array([[0.5, 0.1], [0.2, 0.6], [0.3, 0.3]]))
    vectors = np.array([[30.0, 40.0], [0.3, 0.0]])
    sums = aggregate(vectors, [2, 0], weights, clipping_norm=math.sqrt(2) * 5, sample_rate=0.5)
    clipped = np.array([3.0, 4.0])
    np.testing.assert_allclose(sums[0], 2 * (0.3 * clipped + 0.5 * vectors[1]), rtol=1e-12)
    np.testing.assert_allclose(sums[1], 2 * (0.3 * clipped + 0.1 * vectors[1]), rtol=1e-12)


def test_no_clipping_no_noise_everybody_is_the_plain_mean():
    vectors = 1e3 * np.random.default_rng(0).standard_normal((29, 10))
    sums = aggregate(vectors, np.arange(29), quarters(29, 1.0), clipping_norm=None)
    np.testing.assert_allclose(sums, np.tile(vectors.mean(axis=0), (4, 1)), rtol=1e-9, atol=1e-9)


def test_each_vector_is_clipped_by_itself():
    rng = np.random.default_rng(1)
    vectors, weights = rng.standard_normal((29, 6)) * 5, quarters(29, 3.0)
    bounded = [clip_by_l2_norm(v, 2.0 / math.sqrt(4)) for v in vectors]
    expected = weights.weights.T @ np.array(bounded) / 0.35
    sums = aggregate(vectors, np.arange(29), weights, clipping_norm=2.0, sample_rate=0.35)
    np.testing.assert_allclose(sums, expected, rtol=1e-10, atol=1e-12)


def test_the_order_of_arrival_changes_no_bit():
    vectors = np.random.default_rng(2).standard_normal((20, 7))
    order = np.random.default_rng(3).permutation(20)
    options = {"noise_multiplier": 1.0}
    one = aggregate(vectors, np.arange(20), quarters(), **options)
    other = aggregate(vectors[order], order, quarters(), **options)
    assert np.array_equal(one, other)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_broken_vector_counts_as_zero(bad):
    vectors = np.ones((3, 4))
    broken = vectors.copy()
    broken[1, 2] = bad
    sums = aggregate(broken, [0, 1, 2], quarters(), noise_multiplier=1.0)
    expected = aggregate(vectors[[0, 2]], [0, 2], quarters(), noise_multiplier=1.0)
    np.testing.assert_allclose(sums, expected, rtol=1e-12)


def whitened_noise(vectors, agents, exact=True, emphasis=3.0):
    """Return the noise of one release over what its standard deviation should be, box by box."""
    weights = quarters(29, emphasis)
    options = {"clipping_norm": 22.0, "sample_rate": 0.35, "exact": exact}
    noisy = aggregate(vectors, agents, weights, noise_multiplier=1.6, **options)
    plain = aggregate(vectors, agents, weights, noise_multiplier=0.0, **options)
    factor = math.sqrt((1 + 3 * math.exp(2 - 2 * emphasis)) / 4) if exact else 1.0
    largest = weights.weights.max(axis=0)
    return (noisy - plain) / (1.6 * largest * factor * 22.0 / 0.35)[:, None]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("num_present", [0, 5])
def test_the_noise_of_each_box_even_of_an_empty_round(num_present, exact):
    size = 100_000
    z = whitened_noise(np.ones((num_present, size)), np.arange(num_present), exact)
    assert z.shape == (4, size)
    low, high = stats.chi2.ppf(ALPHA / 20, size), stats.chi2.isf(ALPHA / 20, size)
    for box in range(4):
        squares = float(np.sum(z[box] ** 2))
        assert low <= squares <= high
        for twin in (0.98, 1.02):
            assert not low <= twin**2 * squares <= high
        assert abs(z[box].sum()) / math.sqrt(size) <= stats.norm.isf(ALPHA / 20)
    # The boxes' noises are independent: sums and differences have variance 2.
    for i in range(4):
        for j in range(i):
            assert low <= 0.5 * float(np.sum((z[i] + z[j]) ** 2)) <= high


@pytest.mark.parametrize(
    ("key", "vectors", "agents", "options"),
    [
        ("agents", np.ones((2, 3)), [1, 1], {}),
        ("agents", np.ones((2, 3)), [1, 29], {}),
        ("agents", np.ones((2, 3)), [-1, 2], {}),
        ("agents", np.ones((2, 3)), [0.0, 1.0], {}),
        ("agents", np.ones((2, 3)), [0], {}),
        ("vectors", np.ones(3), [0], {}),
        ("vectors", np.ones((0, 0)), [], {}),
        (
            "noise_multiplier",
            np.ones((1, 3)),
            [0],
            {"clipping_norm": None, "noise_multiplier": 1.0},
        ),
        ("sample_rate", np.ones((1, 3)), [0], {"sample_rate": 0.0}),
    ],
)
def test_bad_input_is_refused(key, vectors, agents, options):
    with pytest.raises(ParameterError, match=key):
        aggregate(vectors, agents, quarters(), **options)
