"""The calibration against the golden table, the precision matrix and its own optimum."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.mechanisms.offset_noise import (
    OffsetNoise,
    calibrate_offset_noise,
    count_colluders,
    extra_own_variance,
    star_variance,
)
from strategies.mechanisms.parameter_checks import ParameterError

# The golden table of the NISS specification (niss.md, "mode: sound"), target std 1: M, rho, h;
# s_ind^2, s_pair^2, sum variance (w = .05); m, w, s_ind^2, s_pair^2, sum variance with 0 and with m
# dropouts. Digits as printed there.
GOLDEN = """
10   0.0 10  0.105000 1.879500 1.050 1  1.00 0.20000 0.16000 2.00  3.24
10   0.3 7   0.150000 2.550000 1.500 1  1.00 0.28571 0.20408 2.86  4.41
30   0.1 27  0.038889 0.747531 1.167 2  1.44 0.09045 0.05704 2.71  5.73
100  0.0 100 0.010500 0.207795 1.050 5  2.28 0.03283 0.01391 3.28  9.73
100  0.3 70  0.015000 0.295500 1.500 5  2.30 0.04720 0.01952 4.72  13.76
100  0.5 50  0.021000 0.411180 2.100 5  2.33 0.06667 0.02667 6.67  19.00
1000 0.3 700 0.001500 0.029955 1.500 50 7.33 0.01190 0.00160 11.90 87.50
""".strip().splitlines()


def prints_as(value: float, printed: str) -> bool:
    return f"{value:.{len(printed.split('.')[1])}f}" == printed


@pytest.mark.parametrize("row", GOLDEN)
def test_golden_table(row):
    ready, rho, honest, own, pair, total, dropped, w, own_m, pair_m, total_0, total_m = row.split()
    ready, rho, honest, dropped = int(ready), float(rho), int(honest), int(dropped)
    calm = calibrate_offset_noise(1.0, min_ready=ready, colluding_fraction=rho)
    assert calm.num_honest == honest
    assert prints_as(calm.own_variance, own)
    assert prints_as(calm.pair_variance, pair)
    assert prints_as(calm.sum_variance(ready), total)
    noise = calibrate_offset_noise(
        1.0, min_ready=ready, colluding_fraction=rho, expected_dropouts=dropped
    )
    assert prints_as(noise.own_variance * honest - 1, w)
    assert prints_as(noise.own_variance, own_m)
    assert prints_as(noise.pair_variance, pair_m)
    assert prints_as(noise.sum_variance(ready, 0), total_0)
    assert prints_as(noise.sum_variance(ready, dropped), total_m)
    for each in (calm, noise):
        assert each.effective_variance == pytest.approx(1.0, rel=1e-8)


def test_the_large_cohort_limit_of_w_does_not_give_the_table():
    # sqrt(2) = 1.414 where the table has 1.44: the correction for small h is needed.
    own = (1 + math.sqrt(2)) / 27
    assert not prints_as(own, "0.09045")


def precision_matrix_variance(noise: OffsetNoise, honest: int) -> float:
    laplacian = honest * np.eye(honest) - np.ones((honest, honest))
    covariance = noise.pair_variance * laplacian + noise.own_variance * np.eye(honest)
    return 1.0 / np.linalg.inv(covariance)[0, 0]


@given(
    st.floats(1e-3, 1e3),
    st.integers(2, 60),
    st.floats(0.0, 0.9),
    st.integers(0, 60),
    st.sampled_from(["gaussian", "uniform", "sparse"]),
)
def test_the_target_is_met_and_not_by_much(target, ready, rho, dropouts, kind):
    keys = {"min_ready": ready, "colluding_fraction": rho, "expected_dropouts": dropouts}
    sparse = kind == "sparse"
    keys |= {"pair_noise": "uniform" if sparse else kind, "sparse": sparse}
    dropouts = keys["expected_dropouts"] = dropouts if kind == "gaussian" else 0
    honest = ready - math.floor(rho * ready + 1e-9)
    if honest < 2 or dropouts > max(honest - 2, 0):
        with pytest.raises(ParameterError):
            calibrate_offset_noise(target, **keys)
        return
    noise = calibrate_offset_noise(target, **keys)
    own, pair = Fraction(noise.own_variance), Fraction(noise.pair_variance)
    exact = {
        "gaussian": own * (own + honest * pair) / (own + pair),
        "uniform": honest * own,
        "sparse": Fraction(9, 10) * honest * own,
    }[kind]
    goal = Fraction(target) ** 2
    # The margin, which the costs of grid and table are set against, is always there.
    assert goal * (1 + Fraction(9, 10**10)) <= exact <= goal * (1 + Fraction(11, 10**10))
    assert noise.effective_variance >= target**2
    assert noise.effective_variance == pytest.approx(float(exact), rel=1e-14)
    if kind == "gaussian":
        assert noise.effective_variance == pytest.approx(
            precision_matrix_variance(noise, honest), rel=1e-8
        )


@given(st.integers(2, 400), st.data())
def test_no_other_split_leaves_less_noise_after_the_dropouts(honest, data):
    dropped = data.draw(st.integers(0, honest - 2))
    if dropped == 0:
        return
    noise = calibrate_offset_noise(
        1.0, min_ready=honest, colluding_fraction=0.0, expected_dropouts=dropped
    )
    best = noise.own_variance + dropped * noise.pair_variance
    for own in np.linspace(1.0 / honest, 1.0, 203)[1:-1]:
        w = own * honest - 1
        other = OffsetNoise(own, own * (1 - own) / w, honest)
        assert other.effective_variance == pytest.approx(1.0, rel=1e-9)
        assert other.own_variance + dropped * other.pair_variance >= best * (1 - 1e-9)
    assert best < 1.0  # local differential privacy


@pytest.mark.parametrize("honest", [2, 3, 10, 200])
def test_with_one_dropout_more_than_allowed_local_noise_is_best(honest):
    dropped = honest - 1
    for own in np.linspace(1.0 / honest, 1.0, 203)[1:-1]:
        pair = own * (1 - own) / (own * honest - 1)
        assert own + dropped * pair > 1.0
    with pytest.raises(ParameterError, match=f"expected_dropouts: {dropped}; .*0 to {honest - 2}"):
        calibrate_offset_noise(
            1.0, min_ready=honest, colluding_fraction=0.0, expected_dropouts=dropped
        )


@pytest.mark.parametrize(
    ("rho", "ready", "colluders"),
    [
        *((0.1, 30, 3), (0.29, 100, 29), (1 / 3, 3, 1), (0.3, 10, 3), (0.19, 10, 1)),
        *((0.0, 7, 0), (0.57, 100, 57), (0.7, 10, 7), (0.999, 10, 9), (1.0, 5, 5)),
    ],
)
def test_colluders_are_rounded_down_and_not_by_a_rounding_error(rho, ready, colluders):
    assert count_colluders(rho, ready) == colluders


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_a_fraction_of_integers_gives_the_integer_back(colluders, ready):
    if colluders <= ready:
        assert count_colluders(colluders / ready, ready) == colluders


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"target_std": 0.0}, "target_std: 0.0"),
            ({"target_std": math.nan}, "target_std: nan"),
            ({"min_ready": 1}, "min_ready: 1"),
            ({"min_ready": True}, "min_ready: True"),
            ({"min_ready": 3.0}, "min_ready: 3.0"),
            ({"colluding_fraction": -0.1}, "colluding_fraction: -0.1"),
            ({"colluding_fraction": 1.01}, "colluding_fraction: 1.01"),
            ({"colluding_fraction": 1.0}, "colluding_fraction: 1.0; .*min_ready = 10.*nobody"),
            ({"colluding_fraction": 0.9}, "colluding_fraction: 0.9; .*min_ready = 10.*nobody"),
            ({"expected_dropouts": -1}, "expected_dropouts: -1"),
            ({"expected_dropouts": 10}, "expected_dropouts: 10; allowed: 0 to 8"),
            ({"expected_dropouts": 1, "pair_noise": "uniform"}, "expected_dropouts: 1; .*uniform"),
            ({"pair_noise": "laplace"}, "pair_noise: 'laplace'"),
            ({"sparse": True}, "sparse: True"),
            ({"sparse": 1, "pair_noise": "uniform"}, "sparse: 1"),
        ],
    )
    def test_calibration(self, changes, message):
        keys = {"target_std": 1.0, "min_ready": 10, "colluding_fraction": 0.0} | changes
        with pytest.raises(ParameterError, match=message):
            calibrate_offset_noise(**keys)

    def test_eight_of_ten_colluding_leaves_two(self):
        noise = calibrate_offset_noise(1.0, min_ready=10, colluding_fraction=0.8)
        assert noise.num_honest == 2

    @pytest.mark.parametrize(
        "changes",
        [
            {"own_variance": 0.0},
            {"own_variance": math.inf},
            {"pair_variance": -1.0},
            {"num_honest": 0},
            {"pair_noise": "uniform"},
            {"pair_noise": "none"},
            {"sparse": True},
        ],
    )
    def test_fields(self, changes):
        with pytest.raises(ParameterError):
            replace(OffsetNoise(1.0, 1.0, 3), **changes)

    def test_sums(self):
        noise = OffsetNoise(1.0, 1.0, 3)
        for ready, dropped in ((0, 0), (3, 4), (3, -1), (True, 0)):
            with pytest.raises(ParameterError):
                noise.sum_variance(ready, dropped)
        with pytest.raises(ValueError, match="num_dropped: 1"):
            OffsetNoise(1.0, 0.0, 3, "uniform").sum_variance(3, 1)


@given(st.floats(1e-3, 10), st.floats(0, 10), st.integers(1, 30))
def test_other_numbers_of_honest_clients(own, pair, honest):
    noise = OffsetNoise(own, pair, 5)
    value = noise.effective_variance_against(honest)
    assert value == pytest.approx(precision_matrix_variance(noise, honest), rel=1e-6)
    assert value == pytest.approx(star_variance(own, pair, [own] * (honest - 1)), rel=1e-12)
    if honest == 1:
        assert value == pytest.approx(own)


def test_sparse_masks_count_on_no_more_and_no_fewer_honest_clients():
    noise = OffsetNoise(0.1, 0.0, 20, "uniform", sparse=True)
    assert noise.effective_variance == pytest.approx(1.8)
    assert noise.effective_variance_against(30) == noise.effective_variance
    with pytest.raises(ParameterError, match="num_honest: 19"):
        noise.effective_variance_against(19)
    assert replace(noise, sparse=False).effective_variance_against(30) == pytest.approx(3.0)


def test_more_own_noise_hides_its_owner_by_exactly_that():
    base = calibrate_offset_noise(0.7, min_ready=12, colluding_fraction=0.2)
    extra = extra_own_variance(0.7, 1.9)
    others = [base.own_variance] * (base.num_honest - 1)
    hidden = star_variance(base.own_variance + extra, base.pair_variance, others)
    assert hidden == pytest.approx(1.9**2, rel=1e-8)
    assert hidden >= 1.9**2
    # Among others who have more noise still, it is hidden better.
    assert star_variance(base.own_variance, base.pair_variance, [9.0, *others[1:]]) > 0.7**2
    assert extra_own_variance(0.7, 0.7) == 0.0
    with pytest.raises(ParameterError, match=r"target_std: 0.6; allowed: at least base_std = 0.7"):
        extra_own_variance(0.7, 0.6)


@given(st.floats(0.1, 10), st.floats(0.0, 10))
def test_extra_variance_is_never_rounded_down(base, more):
    extra = Fraction(extra_own_variance(base, base + more))
    assert extra >= Fraction(base + more) ** 2 - Fraction(base) ** 2


@given(st.floats(1e-3, 1), st.floats(0, 1), st.integers(1, 40))
def test_largest_sum_variance(own, pair, most):
    noise = OffsetNoise(own, pair, 2)
    largest = noise.largest_sum_variance(most)
    every = [noise.sum_variance(n, m) for n in range(1, most + 1) for m in range(n + 1)]
    assert largest == pytest.approx(max(every), rel=1e-12)
    uniform = OffsetNoise(own, 0.0, 2, "uniform")
    assert uniform.largest_sum_variance(most) == uniform.sum_variance(most)


def test_on_a_grid_the_pair_noise_is_a_multiple_of_512_steps_and_never_less():
    noise = calibrate_offset_noise(1.0, min_ready=100, colluding_fraction=0.1)
    for exponent in range(-30, 3):
        step = 2.0**exponent
        multiple, grid = noise.pair_multiple(step), noise.on_grid(step)
        assert multiple >= 1
        assert grid.pair_variance == (multiple * 512 * step) ** 2 >= noise.pair_variance
        assert ((multiple - 1) * 512 * step) ** 2 < noise.pair_variance
        assert grid.effective_variance >= noise.effective_variance
        assert grid.on_grid(step) == grid
    assert OffsetNoise(1.0, 0.0, 2, "uniform").pair_multiple(0.5) == 0
    # Exactly on the grid: no multiple more.
    assert OffsetNoise(1.0, (3 * 512 * 0.25) ** 2 * (1 - 1e-9), 2).pair_multiple(0.25) == 3
