import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from strategies.mechanisms.clipping import clip_by_l2_norm, l2_norm, replace_non_finite

TINY = 5e-324  # the smallest subnormal float64
HUGE = float(np.finfo(np.float64).max)

finite_arrays = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    elements=st.floats(allow_nan=False, allow_infinity=False),
)
moderate_vectors = hnp.arrays(
    np.float64, st.integers(1, 40), elements=st.floats(-1e3, 1e3, allow_subnormal=False)
)
radii = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)


def squared_norm(v):
    """The squared norm as an exact rational number: an oracle that knows no rounding."""
    return sum((Fraction(float(x)) ** 2 for x in np.ravel(v)), Fraction(0))


def within(v, radius):
    return squared_norm(v) <= Fraction(radius) ** 2


class TestL2Norm:
    @pytest.mark.parametrize(
        ("v", "norm"),
        [
            ([3.0, 4.0], 5.0),
            ([[1.0, 2.0], [2.0, 4.0]], 5.0),
            (np.float64(-2.0), 2.0),
            ([], 0.0),
            ([0.0, -0.0], 0.0),
            ([3e200, 4e200], 5e200),
            ([3e-200, 4e-200], 5e-200),
            ([TINY * 3, TINY * 4], TINY * 5),
            ([1e308, 1e308], math.sqrt(2) * 1e308),
            ([HUGE, HUGE], math.inf),
            (np.array([3, 4], dtype=np.int32), 5.0),
        ],
    )
    def test_values(self, v, norm):
        assert l2_norm(v) == pytest.approx(norm, rel=1e-15, abs=0.0)

    @pytest.mark.parametrize("v", [[math.nan, 1.0], [math.inf], ["a"], [True, False], [1j]])
    def test_bad_input_is_refused(self, v):
        with pytest.raises(ValueError, match="v must"):
            l2_norm(v)

    @given(moderate_vectors)
    def test_error_is_within_the_documented_bound(self, v):
        norm = Fraction(l2_norm(v))
        slack = Fraction(v.size + 8, 2**53)
        true_square = squared_norm(v)
        assert (norm * (1 - slack)) ** 2 <= true_square <= (norm * (1 + slack)) ** 2


class TestClipGuarantees:
    @given(finite_arrays, radii)
    @example(np.array([3.0, 4.0]), 5.0)
    @example(np.array([TINY, TINY]), TINY)  # the true norm exceeds C, its rounding does not
    @example(np.array([TINY]), 1e308)
    @example(np.array([1e-233, 1.0]), 1.0)  # the excess, 1e-466, is no float64
    @example(np.array([HUGE, TINY]), HUGE)
    @example(np.array([HUGE, HUGE, -HUGE]), HUGE)
    @example(np.array([1e200, -1e200]), 1e-200)
    @example(np.full(3, 1e-320), 1e-320)
    def test_norm_is_at_most_the_radius_and_inside_is_untouched(self, v, radius):
        clipped = clip_by_l2_norm(v, radius)
        assert clipped.shape == v.shape
        assert clipped.dtype == np.float64
        assert within(clipped, radius)
        if within(v, radius):
            assert np.array_equal(clipped, v)

    @given(finite_arrays, radii)
    def test_clipping_twice_is_clipping_once(self, v, radius):
        once = clip_by_l2_norm(v, radius)
        assert np.array_equal(clip_by_l2_norm(once, radius), once)

    @pytest.mark.parametrize("size", [2, 7, 100, 1000])
    def test_a_radius_one_ulp_off_the_rounded_norm_is_decided_exactly(self, size):
        # Radii around the rounded norm: some must leave v alone, some must not.
        rng = np.random.default_rng(size)
        decisions = set()
        for _ in range(5):
            v = rng.standard_normal(size)
            for ulps in range(-8, 9):
                radius = l2_norm(v) * (1 + ulps * 2.0**-52)
                clipped = clip_by_l2_norm(v, radius)
                assert within(clipped, radius)
                assert np.array_equal(clipped, v) == within(v, radius)
                decisions.add(within(v, radius))
        assert decisions == {True, False}

    @given(moderate_vectors, st.floats(1e-3, 1e3))
    def test_outside_the_ball_the_norm_is_nearly_the_radius_and_the_direction_is_kept(
        self, v, radius
    ):
        clipped = clip_by_l2_norm(v, radius)
        if within(v, radius):
            return
        slack = 6 * (v.size + 8) * 2.0**-53
        assert squared_norm(clipped) >= (Fraction(radius) * Fraction(1 - slack)) ** 2
        np.testing.assert_allclose(
            clipped, v * (radius / l2_norm(v)), rtol=1e-13, atol=1e-322 * max(1.0, radius)
        )

    @given(moderate_vectors, st.floats(1e-3, 1e3), st.integers(0, 2**32 - 1))
    def test_clipping_does_not_move_two_vectors_apart(self, v, radius, seed):
        w = v + np.random.default_rng(seed).standard_normal(v.size)
        apart = l2_norm(clip_by_l2_norm(v, radius) - clip_by_l2_norm(w, radius))
        assert apart <= l2_norm(v - w) + 1e-13 * radius

    def test_a_million_entries(self):
        v = np.random.default_rng(1).standard_normal(1_000_000)
        clipped = clip_by_l2_norm(v, 0.7)
        assert 0.7 * (1 - 1e-8) <= l2_norm(clipped) <= 0.7
        np.testing.assert_array_equal(clip_by_l2_norm(clipped, 0.7), clipped)


class TestClipEdgeCases:
    """One test for each line of the table in the docstring."""

    def test_none_leaves_the_vector_unchanged(self):
        v = np.array([1e200, -3.0])
        assert clip_by_l2_norm(v, None) is v

    def test_the_input_is_returned_or_left_alone(self):
        v = np.array([3.0, 4.0])
        assert clip_by_l2_norm(v, 5.0) is v
        for radius in (1.0, 0.0):
            assert not np.shares_memory(clip_by_l2_norm(v, radius), v)
        assert np.array_equal(v, [3.0, 4.0])

    def test_radius_zero_gives_zeros(self):
        assert np.array_equal(clip_by_l2_norm([1.0, -2.0, TINY, HUGE], 0.0), np.zeros(4))

    @pytest.mark.parametrize("radius", [math.inf, -math.inf, -1.0, -TINY, math.nan, True, "1", 1j])
    def test_bad_radius_is_refused(self, radius):
        with pytest.raises(ValueError, match="clipping_norm must be"):
            clip_by_l2_norm([1.0], radius)

    @pytest.mark.parametrize("radius", [1.0, None])
    @pytest.mark.parametrize("v", [[math.nan, 1.0], [math.inf, 1.0], [-math.inf]])
    def test_non_finite_entries_are_refused(self, v, radius):
        with pytest.raises(ValueError, match="finite"):
            clip_by_l2_norm(v, radius)

    def test_zero_vector_stays_zero(self):
        for radius in (0.0, TINY, 1.0, HUGE):
            assert np.array_equal(clip_by_l2_norm(np.zeros(3), radius), np.zeros(3))

    def test_norm_equal_to_the_radius_is_unchanged(self):
        assert np.array_equal(clip_by_l2_norm([3.0, 4.0], 5.0), [3.0, 4.0])

    def test_zero_dimensional_array(self):
        clipped = clip_by_l2_norm(np.array(-7.0), 2.0)
        assert isinstance(clipped, np.ndarray)
        assert clipped.shape == ()
        assert -2.0 <= float(clipped) <= -2.0 * (1 - 1e-14)
        assert float(clip_by_l2_norm(np.array(-7.0), 8.0)) == -7.0

    def test_empty_array(self):
        assert clip_by_l2_norm(np.empty((0, 3)), 1.0).shape == (0, 3)

    def test_huge_entries_do_not_overflow(self):
        np.testing.assert_allclose(clip_by_l2_norm([3e200, -4e200], 10.0), [6.0, -8.0], rtol=1e-14)
        np.testing.assert_allclose(
            clip_by_l2_norm([HUGE] * 4, 1.0), [0.5] * 4, rtol=1e-14
        )  # norm 2 HUGE
        np.testing.assert_allclose(
            clip_by_l2_norm([3e200, 4e200], 1e-200), [6e-201, 8e-201], rtol=1e-14
        )  # C / norm = 2e-401

    def test_subnormal_entries_do_not_underflow(self):
        assert np.array_equal(clip_by_l2_norm([TINY, -TINY], 1.0), [TINY, -TINY])
        clipped = clip_by_l2_norm([3e-310, 4e-310], 1e-310)
        np.testing.assert_allclose(clipped, [0.6e-310, 0.8e-310], rtol=1e-12)
        assert within(clipped, 1e-310)

    def test_subnormal_radius_rounds_into_the_ball(self):
        # The projection of (1, 1) is .7 TINY an entry, which rounds to TINY: outside the ball.
        assert np.array_equal(clip_by_l2_norm([1.0, 1.0], TINY), [0.0, 0.0])
        assert np.array_equal(clip_by_l2_norm([1.0], TINY), [TINY])

    def test_whatever_the_callers_floating_point_settings(self):
        with np.errstate(all="raise"):
            assert within(clip_by_l2_norm([1.0, TINY, 1e-200], 1e-300), 1e-300)
            assert within(clip_by_l2_norm([TINY], 1e308), 1e308)
            assert l2_norm([HUGE, HUGE]) == math.inf


class TestReplaceNonFinite:
    @given(finite_arrays)
    def test_finite_arrays_are_returned_as_they_are(self, v):
        replaced = replace_non_finite(v)
        assert np.array_equal(replaced, v)
        assert replaced is v

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("position", [0, 3])
    def test_one_bad_entry_zeroes_the_whole_vector(self, bad, position):
        v = np.array([1.0, -2.0, 3.0, 4.0])
        v[position] = bad
        replaced = replace_non_finite(v)
        assert np.array_equal(replaced, np.zeros(4))
        assert clip_by_l2_norm(replaced, 1.0).shape == (4,)

    def test_zero_dimensional_and_integer_arrays(self):
        assert replace_non_finite(np.array(math.nan)).shape == ()
        assert replace_non_finite(np.array([1, 2])).dtype == np.float64

    def test_non_numeric_input_is_refused(self):
        with pytest.raises(ValueError, match="real numbers"):
            replace_non_finite(["a"])
