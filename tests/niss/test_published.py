"""The steps of the published algorithm: noise, shares, factors, grid, what is left in a sum."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from strategies.mechanisms.fixed_point import FixedPoint, unwrap
from strategies.mechanisms.pairwise_noise import GAUSSIAN_STD, gaussian_pair_noise
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.rng import SeededStream
from strategies.niss.published import (
    draw_neighbours,
    lacks_neighbours,
    noise_update,
    offset_update,
    plan_shares,
    published_grid,
    published_noise_multiplier,
    published_noise_std,
    residual_variance,
    resolve_tau,
    share_multiple,
    sum_received,
    sum_shares,
    weigh,
)
from tests.niss.published_clients import build_parameters

RATE = 1e-6
KEYS = [bytes([number]) * 32 for number in range(8)]


def chi_square_interval(degrees: int) -> tuple[float, float]:
    """Return what a chi-square number is outside of with probability `RATE`."""
    law = stats.chi2(degrees)
    return float(law.ppf(RATE / 2)), float(law.isf(RATE / 2))


def has_variance(values: np.ndarray, variance: float | np.ndarray) -> bool:
    """Test independent centred Gaussian numbers for their variances."""
    low, high = chi_square_interval(values.size)
    return bool(low <= np.sum(values * values / variance) <= high)


def test_the_noise_is_the_textbook_formula_of_an_even_part_of_the_target():
    """sqrt(2 ln(1.25 / 5e-7)) / 0.5 = 10.856077: epsilon 10, delta 1e-5, 20 participations."""
    parameters = build_parameters()
    assert published_noise_multiplier(parameters, 3) == pytest.approx(10.856077, abs=1e-6)
    assert published_noise_std(parameters, 3, 1) == pytest.approx(2 * 10.856077, abs=2e-6)
    assert published_noise_std(parameters, 3, 1, 0.5) == pytest.approx(10.856077, abs=1e-6)


def test_a_client_with_a_budget_of_its_own_has_noise_of_its_own():
    parameters = build_parameters(client_epsilons=((2, 5.0),))
    own, others = (published_noise_multiplier(parameters, client) for client in (2, 1))
    assert own == pytest.approx(2 * others)


@pytest.mark.parametrize(
    ("noise_std", "unit", "most", "number"),
    [
        (2.0, 1.0, 10, 4),
        (2.0 * (1 + 1e-8), 1.0, 10, 5),  # the quotient is rounded up ...
        (math.sqrt(5.0), 1.0, 10, 5),  # ... but not what rounding made of an integer
        (math.sqrt(7.0) * 0.3, 0.3, 10, 7),
        (1.1, 1.0, 10, 2),
        (0.1, 1.0, 10, 1),
        (1.0, 1.0, 1, 1),
        (2.0, 1.0, 3, 3),
        (1e9, 1e-9, 7, 7),
        (1e9, 1e-300, 7, 7),
        (1e-9, 1e14, 7, 1),
        (2.0, None, 19, 19),
    ],
)
def test_the_number_of_shares(noise_std, unit, most, number):
    shares, share_std = plan_shares(noise_std, unit, most)
    assert shares == number
    assert share_std**2 * shares == pytest.approx(noise_std**2, rel=1e-12)


@given(
    noise_std=st.floats(1e-6, 1e6),
    unit=st.one_of(st.none(), st.floats(1e-6, 1e6)),
    most=st.integers(1, 200),
)
def test_shares_are_as_few_as_the_unit_allows_and_larger_only_without_neighbours(
    noise_std, unit, most
):
    number, share_std = plan_shares(noise_std, unit, most)
    assert 1 <= number <= most
    if unit is None:
        assert number == most
        assert not lacks_neighbours(noise_std, unit, most)
        return
    assert lacks_neighbours(noise_std, unit, most) == (share_std > unit * (1 + 1e-9))
    if share_std > unit * (1 + 1e-9):
        assert number == most
    elif number > 1:
        assert noise_std / math.sqrt(number - 1) > unit * (1 - 1e-9)


@pytest.mark.parametrize(
    ("noise_std", "unit", "most"),
    [(0.0, 1.0, 2), (math.nan, 1.0, 2), (1.0, 0.0, 2), (1.0, math.inf, 2), (1.0, 1.0, 0)],
)
def test_noise_that_cannot_be_split_is_refused(noise_std, unit, most):
    with pytest.raises(ParameterError):
        plan_shares(noise_std, unit, most)


def test_weights_are_parts_of_all_records_times_the_number_of_clients():
    assert weigh({1: 0, 2: 0}, "uniform") == {1: 1.0, 2: 1.0}
    assert weigh({1: 10, 2: 30}, "examples") == {1: 0.5, 2: 1.5}
    assert weigh({1: 0, 2: 3}, "examples") == {1: 0.5, 2: 1.5}


@pytest.mark.parametrize(
    ("fields", "tau"),
    [
        ({"colluding_fraction": 0.0}, 0.0),
        ({"colluding_fraction": 0.25}, 0.5),
        ({"colluding_fraction": 0.25, "collusion_bound": "optimistic"}, 0.0),
        ({"colluding_fraction": 0.625, "collusion_bound": "optimistic"}, 0.5),
        ({"colluding_fraction": 0.3, "tau": 0.7}, 0.7),
        ({"colluding_fraction": 0.3, "tau": 0.0}, 0.0),
        ({"tau": 1.0}, 1.0),
    ],
)
def test_tau_is_given_or_reconstructed(fields, tau):
    assert resolve_tau(build_parameters(**fields)) == pytest.approx(tau, abs=1e-15)


def test_both_readings_of_theorem_3_end_at_one():
    for reading in ("conservative", "optimistic"):
        nearly = build_parameters(colluding_fraction=1 - 1e-12, collusion_bound=reading)
        assert resolve_tau(nearly) == pytest.approx(1.0)


def test_neighbours_are_others_none_twice_and_as_many_as_asked_for():
    drawn = draw_neighbours({5: 3, 7: 1, 8: 2, 11: 3}, SeededStream(b"tracker"))
    assert {client: len(set(found)) for client, found in drawn.items()} == {5: 3, 7: 1, 8: 2, 11: 3}
    assert all(client not in found for client, found in drawn.items())
    assert drawn[5] == (7, 8, 11)


def test_every_other_client_is_as_likely_a_neighbour():
    stream = SeededStream(b"many")
    met = Counter(
        neighbour
        for _ in range(3000)
        for neighbour in draw_neighbours(dict.fromkeys(range(5), 2), stream)[1]
    )
    assert set(met) == {0, 2, 3, 4}
    # Two of four, without replacement: each count has mean 1500 and variance 750.
    expected = 3000 * 2 / 4
    statistic = sum((met[each] - expected) ** 2 for each in met) / expected * 3 / 2
    assert statistic < stats.chi2(3).isf(RATE)


def test_a_share_is_at_least_as_large_as_planned():
    step = 2.0**-20
    for share_std in (1.0, 512 * step * 3, 1e-9):
        multiple = share_multiple(share_std, step)
        assert multiple * GAUSSIAN_STD * step >= share_std * (1 - 1e-9)
        assert multiple == 1 or (multiple - 1) * GAUSSIAN_STD * step < share_std
    assert share_multiple(512 * step * 3, step) == 3


def test_with_tau_0_what_one_adds_the_others_take_away_exactly():
    size, stream = 1000, SeededStream(b"unused")
    sent = sum_shares(KEYS[:3], 7, size)
    received = [sum_received([(key, 7)], size, tau=0.0, stream=stream) for key in KEYS[:3]]
    assert not np.any(sent + sum(received))
    assert np.any(sent)
    assert np.any(sent + sum(received[:2]))
    other = sum_received([(KEYS[2], 8)], size, tau=0.0, stream=stream)
    assert np.any(sent + received[0] + received[1] + other)


def test_a_received_share_is_multiplied_by_factors_of_mean_1_and_deviation_tau():
    """Given the share n, what is left of it is (1 - s) n: N(0, tau^2 n^2), and then rounded."""
    size, tau, multiple = 40_000, 0.4, 1000
    share = gaussian_pair_noise(KEYS[0], size).astype(float) * multiple
    left = share + sum_received([(KEYS[0], multiple)], size, tau=tau, stream=SeededStream(b"s"))
    some = share != 0
    assert has_variance(left[some], (tau * share[some]) ** 2)
    assert not has_variance(left[some], (1.05 * tau * share[some]) ** 2)
    assert not np.any(left[~some])


def test_each_share_and_coordinate_has_a_factor_of_its_own():
    stream = SeededStream(b"s")
    one, other = (sum_received([(KEYS[0], 1000)], 500, tau=0.5, stream=stream) for _ in "ab")
    share = gaussian_pair_noise(KEYS[0], 500) * 1000.0
    some = share != 0
    factors = [-each[some] / share[some] for each in (one, other)]
    assert abs(np.corrcoef(*factors)[0, 1]) < 4.9 / math.sqrt(500)
    assert np.unique(np.round(factors[0], 6)).size > 0.9 * some.sum()
    both = sum_received([(KEYS[0], 1000), (KEYS[1], 1000)], 500, tau=0.5, stream=SeededStream(b"s"))
    assert not np.array_equal(both, one)


def test_the_published_dp_fedavg_adds_noise_of_the_whole_deviation():
    grid, size = FixedPoint(2.0**-20), 40_000
    update = np.full(size, 0.25)
    words = noise_update(update, grid, 0.5, SeededStream(b"own"))
    noise = grid.decode(unwrap(words)) - update
    assert has_variance(noise, 0.25)
    assert not has_variance(noise, 0.29)


def test_an_upload_wraps_around_and_a_sum_does_not_notice():
    grid = FixedPoint(2.0**-10)
    noise = np.array([2**31 - 5, -(2**31)])
    one = offset_update(np.array([0.25, 0.5]), grid, [noise])
    other = offset_update(np.array([0.5, -0.25]), grid, [-noise])
    np.testing.assert_array_equal(grid.decode(unwrap(one + other)), [0.75, 0.25])


@given(
    clip=st.floats(1e-6, 1e6),
    stds=st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=5),
    tau=st.floats(0.0, 1.0),
)
def test_the_grid_has_room_for_updates_and_48_deviations_and_is_the_finest(clip, stds, tau):
    parameters = build_parameters(clipping_norm=clip, tau=tau)
    step = published_grid(parameters, stds).step
    reach = len(stds) * clip + 48 * math.sqrt((1 + tau**2) * sum(std * std for std in stds))
    assert reach + len(stds) * step <= (2**31 - 1) * step * (1 + 1e-12)
    assert reach > (2**30 - 1 - len(stds)) * step * (1 - 1e-12)


NEIGHBOURS = {0: (1, 2), 1: (0,), 2: (1,)}
VARIANCES = {0: 1.0, 1: 10.0, 2: 100.0}


@pytest.mark.parametrize(
    ("uploaded", "variance"),
    [
        ((0, 1, 2), 0.25 * (2 * 1 + 10 + 100)),
        # 0 to 1: both; 0 to 2: sender only; 1 to 0: both; 2 to 1: receiver only.
        ((0, 1), 0.25 * 1 + 1 + 0.25 * 10 + 1.25 * 100),
        # 0 to 1 gone; 0 to 2: receiver only; 1 to 0 gone; 2 to 1: sender only.
        ((2,), 1.25 * 1 + 100),
        ((), 0.0),
    ],
)
def test_what_is_left_in_a_sum(uploaded, variance):
    assert residual_variance(NEIGHBOURS, VARIANCES, uploaded, 0.5) == pytest.approx(variance)


def test_with_all_uploads_the_variance_is_that_of_theorem_2():
    neighbours = {0: (1, 2, 3), 1: (0,), 2: (0, 3), 3: (2,)}
    stds = {0: 3.0, 1: 1.0, 2: 2.0, 3: 0.5}
    variances = {client: stds[client] ** 2 / len(found) for client, found in neighbours.items()}
    for tau in (0.0, 0.3, 1.0):
        left = residual_variance(neighbours, variances, neighbours, tau)
        assert left == pytest.approx(tau**2 * sum(std**2 for std in stds.values()))
