"""The bound on integer pair noise beside continuous noise, against sums over the lattice."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.mechanisms.offset_noise import OffsetNoise, calibrate_offset_noise
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.smoothing import (
    LEAST_SMOOTHING,
    check_smoothing,
    smoothing,
    smoothing_error,
)

T = 512


def normal(x, variance):
    return mpmath.exp(-(x**2) / (2 * variance)) / mpmath.sqrt(2 * mpmath.pi * variance)


@mpmath.workdps(40)
def gaussian_quotient(own: float, peers: int, y: tuple[float, ...]) -> mpmath.mpf:
    """Density of (Y_k, Y_1, ..) over the Gaussian one, from the definition; c = step = 1."""
    own = mpmath.mpf(own)
    pmf_scale = 1 / (T * mpmath.sqrt(2 * mpmath.pi))  # the theta function's other terms: e^-5e6
    covariance = np.diag([float(own) + T**2 * peers] + [float(own) + T**2] * peers)
    covariance[0, 1:] = covariance[1:, 0] = -(T**2)
    a = np.eye(peers) / T**2 + (np.eye(peers) + 1.0) / float(own)
    centre = np.linalg.solve(a, (y[0] - np.array(y[1:])) / float(own))
    reach = math.ceil(10 * math.sqrt(float(np.linalg.inv(a).max()))) + 1
    ranges = [range(round(m) - reach, round(m) + reach + 1) for m in centre]
    total = mpmath.mpf(0)
    for n in itertools.product(*ranges):
        exponent = (y[0] - sum(n)) ** 2 / (2 * own)
        exponent += sum(
            (y[j + 1] + n[j]) ** 2 / (2 * own) + n[j] ** 2 / (2 * T**2) for j in range(peers)
        )
        if exponent < 400:
            total += mpmath.exp(-exponent)
    total *= pmf_scale**peers / mpmath.sqrt(2 * mpmath.pi * own) ** (peers + 1)
    matrix = mpmath.matrix(covariance.tolist())
    vector = mpmath.matrix(list(y))
    form = (vector.T * mpmath.lu_solve(matrix, vector))[0]
    density = mpmath.exp(-form / 2) / mpmath.sqrt(
        (2 * mpmath.pi) ** (peers + 1) * mpmath.det(matrix)
    )
    return total / density


@mpmath.workdps(40)
def uniform_quotient(own: float, honest: int, total: float, fractions: tuple[float, ...]):
    """Density of (S, fractions) over that of N(0, h s^2) times a uniform one; step = 1."""
    own, reach = mpmath.mpf(own), math.ceil(12 * math.sqrt(own)) + 2
    density = mpmath.mpf(0)
    for n in itertools.product(range(-reach, reach + 1), repeat=honest - 1):
        y = [f + i for f, i in zip(fractions, n, strict=True)]
        exponent = (sum(v**2 for v in y) + (total - sum(y)) ** 2) / (2 * own)
        if exponent < 400:
            density += mpmath.exp(-exponent)
    density /= mpmath.sqrt(2 * mpmath.pi * own) ** honest
    return density / normal(mpmath.mpf(total), honest * own)


def points(dimension: int, count: int) -> list[tuple[float, ...]]:
    """Points of which some lie on the lattice, where the quotient is largest for one peer."""
    draws = np.random.default_rng(dimension).uniform(-1.5, 1.5, (count, dimension))
    draws[0] = 0.0
    draws[1] = [1.0] + [0.0] * (dimension - 1)
    draws[2] = 0.5
    return [tuple(map(float, row)) for row in draws]


# own variance in steps^2, honest peers: lambda = own / (peers + 1), nearly.
@pytest.mark.parametrize(
    ("own", "peers"), [(0.1, 1), (0.4, 1), (1.0, 1), (0.1, 2), (0.5, 2), (0.1, 3), (0.3, 3)]
)
def test_gaussian_pairs_on_a_grid_are_as_close_as_the_bound_says(own, peers):
    noise = OffsetNoise(own, float(T**2), peers + 1)
    scale = smoothing(noise, 1.0, peers + 1)
    assert scale == pytest.approx(own / (peers + 1), rel=1e-4)
    bound = smoothing_error(scale, num_peers=peers)
    found = max(abs(gaussian_quotient(own, peers, y) - 1) for y in points(peers + 1, 8))
    assert found <= bound * (1 + 1e-9)
    # Not vacuous: reached by one peer; for more, the shortest vector has (h - 1) lambda.
    shortest = 2 * (peers + 1) * math.exp(-2 * math.pi**2 * peers * scale)
    assert found >= min(0.4 * shortest, 0.5)
    if peers == 1:
        assert found == pytest.approx(bound, rel=1e-3)
    # A twin: the smallest eigenvalue mistaken for that of the other directions is no bound.
    assert found > smoothing_error(own, num_peers=peers)


@pytest.mark.parametrize(
    ("own", "honest"), [(0.2, 2), (0.8, 2), (2.0, 2), (0.3, 3), (0.9, 3), (0.4, 4)]
)
def test_the_sum_under_uniform_masks_is_as_close_as_the_bound_says(own, honest):
    noise = OffsetNoise(own, 0.0, honest, "uniform")
    bound = smoothing_error(smoothing(noise, 1.0, honest), num_peers=honest - 1)
    found = max(abs(uniform_quotient(own, honest, y[0], y[1:]) - 1) for y in points(honest, 6))
    assert found <= bound * (1 + 1e-9)
    if honest == 2:
        assert found == pytest.approx(bound, rel=1e-3)
    assert found > smoothing_error(own, num_peers=honest - 1)


def test_without_own_noise_enough_the_grid_shows():
    # The quotient is far from 1, so the condition is needed, not only sufficient.
    quotients = [float(gaussian_quotient(0.02, 1, y)) for y in points(2, 8)]
    assert max(quotients) > 2.0
    assert min(quotients) < 0.1


@given(st.floats(0.01, 5.0), st.integers(0, 2000), st.integers(0, 10**6), st.integers(0, 100))
def test_error_is_the_power_of_the_theta_function(scale, peers, coordinates, rounds):
    value = smoothing_error(
        scale, num_peers=peers, num_coordinates=coordinates, num_participations=rounds
    )
    with mpmath.workdps(60):
        theta = mpmath.jtheta(3, 0, mpmath.exp(-2 * mpmath.pi**2 * mpmath.mpf(scale)))
        exact = theta ** (peers * coordinates * rounds) - 1
    assert value >= float(exact) if exact < 1e300 else value == math.inf or value > 1e290
    if 0 < exact < 1e6:
        assert value == pytest.approx(float(exact), rel=1e-6)


def test_at_the_least_smoothing_nothing_is_lost():
    assert LEAST_SMOOTHING == 3.5
    assert smoothing_error(3.5, num_peers=1) == pytest.approx(1.99e-30, rel=0.01)
    assert (
        smoothing_error(3.5, num_peers=999, num_coordinates=10**7, num_participations=1000) < 1e-16
    )


@pytest.mark.parametrize("dropouts", [0, 5])
def test_a_grid_that_is_too_coarse_is_refused(dropouts):
    noise = calibrate_offset_noise(
        1.0, min_ready=100, colluding_fraction=0.1, expected_dropouts=dropouts
    )
    check_smoothing(noise, 2.0**-20, max_ready=100)
    coarse = math.sqrt(noise.own_variance) / 2
    with pytest.raises(ParameterError, match="max_ready: 100; allowed: at most 1 clients"):
        check_smoothing(noise, coarse, max_ready=100)


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_the_most_clients_that_a_refusal_names_are_accepted(kind):
    noise = calibrate_offset_noise(1.0, min_ready=50, colluding_fraction=0.0, pair_noise=kind)
    step = 2.0**-12 if kind == "gaussian" else 2.0**-7
    with pytest.raises(ParameterError) as refusal:
        check_smoothing(noise, step, max_ready=10**6)
    most = int(refusal.value.allowed.split()[2])
    check_smoothing(noise, step, max_ready=most)
    with pytest.raises(ParameterError):
        check_smoothing(noise, step, max_ready=most + 2)


def test_the_width_of_the_pair_noise_itself_is_counted():
    step = 2.0**-12
    noise = OffsetNoise(1.0, (T * step) ** 2, 2)
    most = math.floor((1 / LEAST_SMOOTHING - 1 / T**2) / step**2)
    check_smoothing(noise, step, max_ready=most)
    with pytest.raises(ParameterError, match=f"at most {most} clients"):
        check_smoothing(noise, step, max_ready=most + 1)


def test_gaussian_pairs_carry_about_3700_clients_however_fine_the_grid():
    for honest, fine in ((3700, True), (3800, False)):
        noise = calibrate_offset_noise(1.0, min_ready=honest, colluding_fraction=0.0)
        assert (smoothing(noise, 2.0**-30, honest) >= LEAST_SMOOTHING) is fine


def test_bad_numbers_are_refused():
    noise = OffsetNoise(1.0, 1.0, 3)
    for step, honest in ((0.0, 3), (math.nan, 3), (1.0, 0), (1.0, True)):
        with pytest.raises(ParameterError):
            smoothing(noise, step, honest)
    for keys in ({"num_peers": -1}, {"num_peers": 1, "num_coordinates": 1.5}):
        with pytest.raises(ParameterError):
            smoothing_error(1.0, **keys)
