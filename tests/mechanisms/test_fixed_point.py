"""Integers modulo 2^32: exact sums, refused overflow, and what rounding adds to a sensitivity."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies.mechanisms.fixed_point import (
    FixedPoint,
    choose_step,
    pack,
    rounding_sensitivity,
    unpack,
    unwrap,
    wrap,
)
from strategies.mechanisms.offset_noise import OffsetNoise, calibrate_offset_noise
from strategies.mechanisms.packing import PackingError
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.sensitivity import whole_update_sensitivity

EXPONENTS = st.integers(-40, 10)


class TestGrid:
    @given(EXPONENTS, arrays(np.float64, st.integers(0, 20), elements=st.floats(-1e5, 1e5)))
    def test_rounds_to_the_nearest_by_at_most_half_a_step(self, exponent, vector):
        grid = FixedPoint(2.0**exponent)
        if np.abs(vector / grid.step).max(initial=0.0) >= 2**31 - 1:
            return
        numbers = grid.encode(vector)
        assert numbers.dtype == np.int64
        assert numbers.shape == vector.shape
        assert np.all(np.abs(grid.decode(numbers) - vector) <= grid.step / 2)
        assert np.array_equal(grid.encode(grid.decode(numbers)), numbers)
        assert np.array_equal(grid.encode(-vector), -numbers)

    def test_the_edges_of_32_bits(self):
        grid = FixedPoint(0.5)
        edges = np.array([-(2**31), 2**31 - 1, 0, -1]) * 0.5
        numbers = grid.encode(edges)
        assert numbers.tolist() == [-(2**31), 2**31 - 1, 0, -1]
        assert wrap(numbers).tolist() == [2**31, 2**31 - 1, 0, 2**32 - 1]
        assert unwrap(wrap(numbers)).tolist() == numbers.tolist()
        assert grid.decode(numbers).tolist() == edges.tolist()
        for too_large in (2**31, -(2**31) - 1, 2**31 - 0.5, 1e300):
            with pytest.raises(ValueError, match="allowed: -2\\^31 to 2\\^31 - 1 steps"):
                grid.encode(np.array([0.0, too_large * 0.5]))

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_what_is_not_finite_is_refused(self, bad):
        with pytest.raises(ValueError, match="not finite"):
            FixedPoint(1.0).encode(np.array([0.0, bad]))

    @pytest.mark.parametrize(
        "step", [0.0, -1.0, 3.0, 0.1, math.inf, math.nan, True, "1", 2.0**-501, 2.0**50, 1 + 2**-52]
    )
    def test_a_step_that_is_no_power_of_two_is_refused(self, step):
        with pytest.raises(ParameterError, match="step"):
            FixedPoint(step)

    def test_what_overflows_a_float_is_refused_too(self):
        with pytest.raises(ValueError, match="too large"):
            FixedPoint(2.0**-40).encode(np.array([1e300]))

    def test_scalars_and_empty_vectors(self):
        grid = FixedPoint(0.25)
        scalar = grid.encode(np.array(1.6))
        assert scalar.shape == ()
        assert grid.decode(unwrap(wrap(scalar))) == 1.5
        assert unpack(pack(wrap(scalar)), 1).tolist() == [6]
        empty = grid.encode(np.zeros(0))
        assert grid.decode(unwrap(unpack(pack(wrap(empty)), 0))).shape == (0,)


class TestWords:
    def test_bytes_are_little_endian(self):
        assert pack(np.array([1, 2**32 - 2], dtype=np.uint32)) == bytes.fromhex("01000000feffffff")

    @given(arrays(np.uint32, st.integers(0, 40)))
    def test_pack_and_unpack(self, words):
        assert np.array_equal(unpack(pack(words), words.size), words)
        assert np.array_equal(wrap(unwrap(words)), words)

    @pytest.mark.parametrize("size", [0, 1, 3, -1, True])
    def test_a_wrong_length_is_refused(self, size):
        with pytest.raises((PackingError, ParameterError)):
            unpack(b"12345678", size)

    @given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=20))
    def test_wrapping_is_reduction_modulo_2_to_the_32(self, numbers):
        words = wrap(np.array(numbers, dtype=np.int64))
        assert words.tolist() == [n % 2**32 for n in numbers]

    @settings(max_examples=30)
    @given(st.integers(1, 1000), st.integers(0, 2**32), st.integers(0, 5))
    def test_sums_of_masked_uploads_are_exact(self, uploads, seed, size):
        rng = np.random.default_rng(seed)
        limit = (2**31 - 1) // uploads
        numbers = rng.integers(-limit, limit, (uploads, size), endpoint=True)
        words = wrap(numbers)
        for _ in range(uploads):
            adds, subtracts = rng.integers(0, uploads, 2)
            mask = rng.integers(0, 2**32, size, dtype=np.uint32)
            words[adds] += mask
            words[subtracts] -= mask
        total = words.sum(axis=0, dtype=np.uint32)
        assert np.array_equal(unwrap(total), numbers.sum(axis=0))


class TestStep:
    @settings(max_examples=60, deadline=None)
    @given(
        st.floats(0.01, 100),
        st.integers(4, 200),
        st.integers(0, 2),
        st.floats(1e-3, 100),
        st.sampled_from(["gaussian", "uniform"]),
        st.floats(1.0, 50.0),
    )
    def test_the_finest_that_does_not_overflow(self, std, ready, dropouts, entry, kind, factor):
        noise = calibrate_offset_noise(
            std,
            min_ready=ready,
            colluding_fraction=0.0,
            expected_dropouts=dropouts if kind == "gaussian" else 0,
            pair_noise=kind,
        )
        largest_own = factor * noise.own_variance
        grid = choose_step(
            noise, largest_entry=entry, max_ready=ready, largest_own_variance=largest_own
        )

        def fits(step: float) -> bool:
            pair = noise.on_grid(step).pair_variance
            drops = range(ready + 1) if kind == "gaussian" else [0]
            worst = max((ready - m) * (largest_own + m * pair) for m in drops)
            return ready * (entry + step) + 12 * math.sqrt(worst) < 2**31 * step

        assert fits(grid.step)
        assert not fits(grid.step / 2)
        assert math.sqrt(noise.own_variance) >= 4 * grid.step

    def test_a_round_with_the_largest_updates_and_noise_is_decoded(self):
        noise = calibrate_offset_noise(2.0, min_ready=20, colluding_fraction=0.1)
        grid = choose_step(noise, largest_entry=1.0, max_ready=20)
        reach = 12 * math.sqrt(noise.on_grid(grid.step).largest_sum_variance(20))
        uploads = grid.encode(np.full((20, 1), 1.0 + reach / 20))
        total = unwrap(wrap(uploads).sum(axis=0, dtype=np.uint32))
        assert grid.decode(total) == pytest.approx(20 + reach, rel=1e-6)

    def test_too_little_noise_beside_the_updates_is_refused(self):
        noise = calibrate_offset_noise(1.0, min_ready=100, colluding_fraction=0.0)
        with pytest.raises(
            ParameterError, match=r"max_ready: 100; .*clipping_norm.*at least 4 steps"
        ):
            choose_step(noise, largest_entry=1e8, max_ready=100)

    def test_the_limit_is_four_steps_of_the_least_own_noise(self):
        # 2 (2^27 + 2^-3) + 12 sqrt(2) * own fits below 2^31 steps of 2^-2, not of 2^-3.
        for own, accepted in ((1.01, True), (0.99, False)):
            noise = OffsetNoise(own**2, 0.0, 2, "uniform")
            keys = {"largest_entry": 2.0**27, "max_ready": 2, "largest_own_variance": 100.0}
            if accepted:
                assert choose_step(noise, **keys) == FixedPoint(0.25)
            else:
                with pytest.raises(ParameterError, match="at least 4 steps"):
                    choose_step(noise, **keys)

    def test_a_grid_that_own_noise_does_not_smooth_is_refused(self):
        noise = calibrate_offset_noise(1.0, min_ready=6000, colluding_fraction=0.0)
        with pytest.raises(ParameterError, match="max_ready: 6000; allowed: at most"):
            choose_step(noise, largest_entry=1.0, max_ready=6000)

    def test_pair_noise_counts_as_it_is_on_the_grid(self):
        # Half of 100,000 clients vanish: 12 * 512 * 50,000 steps are a seventh of 2^31.
        step, ready = 2.0**-20, 100_000
        noise = OffsetNoise((2000 * step) ** 2, 1e-20, 2)
        for share, factor in ((0.84, 1), (0.88, 2)):
            entry = share * 2**31 * step / ready
            chosen = choose_step(noise, largest_entry=entry, max_ready=ready)
            assert chosen == FixedPoint(factor * step)

    def test_a_search_among_the_most_clients_ends(self):
        faint = OffsetNoise(1e-12, 1e-12, 2)
        with pytest.raises(ParameterError, match="max_ready: 100000"):
            choose_step(faint, largest_entry=1e-12, max_ready=100_000)

    @pytest.mark.parametrize(
        ("changes", "key"),
        [
            ({"largest_entry": 0.0}, "largest_entry"),
            ({"largest_entry": math.nan}, "largest_entry"),
            ({"max_ready": 1}, "max_ready"),
            ({"max_ready": 10.0}, "max_ready"),
            ({"max_ready": 100_001}, "max_ready"),
            ({"largest_own_variance": 1e-9}, "largest_own_variance"),
            ({"largest_own_variance": math.inf}, "largest_own_variance"),
        ],
    )
    def test_bad_numbers_are_refused(self, changes, key):
        noise = calibrate_offset_noise(1.0, min_ready=10, colluding_fraction=0.0)
        with pytest.raises(ParameterError, match=key):
            choose_step(noise, **({"largest_entry": 1.0, "max_ready": 10} | changes))


class TestRoundingSensitivity:
    @pytest.mark.parametrize(
        ("unit", "relation", "added"),
        [
            ("record", "replace_one", 0.5),
            ("record", "add_or_remove_one", 0.5),
            ("client", "replace_one", 0.5),
            ("client", "zero_out", 0.25),
        ],
    )
    def test_value(self, unit, relation, added):
        before = whole_update_sensitivity(1.0, unit=unit, neighboring_relation=relation)
        after = rounding_sensitivity(before, 0.125, 16)
        assert after.value == pytest.approx(before.value + added, rel=1e-15)
        assert after.value > before.value + added
        assert after.conditions[:-1] == before.conditions
        assert "grid of step 0.125 in each of 16 coordinates" in after.conditions[-1]
        assert (after.kind, after.unit, after.neighboring_relation) == (
            *(before.kind, unit, relation),
        )

    @pytest.mark.parametrize(("relation", "other"), [("replace_one", -0.5), ("zero_out", None)])
    def test_it_is_reached_by_two_updates_between_grid_points(self, relation, other):
        d, grid = 400, FixedPoint(2.0**-6)
        # Just above and below the middle between grid points; replaced by its opposite, or by zero.
        first = np.full(d, (7.5 + 1e-6) * grid.step)
        second = -first if other else np.zeros(d)
        exact = float(np.linalg.norm(first - second))
        before = whole_update_sensitivity(
            exact / (2 if relation == "replace_one" else 1),
            unit="client",
            neighboring_relation=relation,
        )
        moved = grid.decode(grid.encode(first)) - grid.decode(grid.encode(second))
        allowed = rounding_sensitivity(before, grid.step, d).value
        assert float(np.linalg.norm(moved)) <= allowed
        assert float(np.linalg.norm(moved)) == pytest.approx(allowed, rel=1e-6)

    @given(EXPONENTS, arrays(np.float64, (2, 9), elements=st.floats(-10, 10)))
    def test_no_two_updates_are_further_apart(self, exponent, pair):
        grid = FixedPoint(2.0**exponent)
        if np.abs(pair / grid.step).max() >= 2**31 - 1 or np.array_equal(*pair):
            return
        first, second = (grid.decode(grid.encode(v)) for v in pair)
        distance = float(np.linalg.norm(pair[0] - pair[1]))
        before = whole_update_sensitivity(
            max(distance / 2, 1e-9), unit="client", neighboring_relation="replace_one"
        )
        after = rounding_sensitivity(before, grid.step, 9)
        assert float(np.linalg.norm(first - second)) <= after.value * (1 + 1e-14)

    def test_bad_numbers_are_refused(self):
        before = whole_update_sensitivity(1.0, unit="client", neighboring_relation="zero_out")
        for step, size in ((0.0, 3), (math.inf, 3), (1.0, 0), (1.0, True)):
            with pytest.raises(ParameterError):
                rounding_sensitivity(before, step, size)
