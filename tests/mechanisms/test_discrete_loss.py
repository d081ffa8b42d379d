import math

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import fft, special

from strategies.mechanisms.closed_form import gaussian_epsilon, gaussian_profile
from strategies.mechanisms.discrete_loss import (
    DiscreteLoss,
    _rounding,
    composed_epsilon,
    connect_the_dots,
)
from strategies.mechanisms.poisson import poisson_delta

SPACING = 0.02


def gaussian_loss(z: float, spacing: float = SPACING, reach: float = 6.0) -> DiscreteLoss:
    profile = gaussian_profile(spacing * np.arange(round(reach / spacing) + 1), 1.0 / z)
    return connect_the_dots(profile, profile, spacing)


def poisson_loss(z: float, q: float, *, adding: bool, reach: float = 6.0) -> DiscreteLoss:
    """A loss that is not symmetric: that of a Poisson sample, in either direction."""
    grid = SPACING * np.arange(round(reach / SPACING) + 1)
    here, there = (
        np.array([poisson_delta(float(e), z, q, adding=way) for e in grid])
        for way in (adding, not adding)
    )
    # the two halves need not be equally long
    return connect_the_dots(here, there[: round(reach / SPACING / 2)], SPACING)


def profile_of(loss: DiscreteLoss, epsilon: float) -> float:
    """Delta from the definition: E (1 - exp(epsilon - loss))+ plus the infinite mass."""
    above = loss.losses > epsilon
    return float(-np.expm1(epsilon - loss.losses[above]) @ loss.masses[above]) + loss.infinite


def convolved_epsilon(loss: DiscreteLoss, num_releases: int, delta: float) -> float:
    """Epsilon by plain convolution and bisection; exact for a few releases."""
    total = np.ones(1)
    for _ in range(num_releases):
        total = np.convolve(total, loss.masses)
    losses = SPACING * np.arange(total.size) + num_releases * loss.losses[0]
    infinite = 1.0 - (1.0 - loss.infinite) ** num_releases
    low, high = 0.0, float(losses[-1])
    for _ in range(80):
        middle = 0.5 * (low + high)
        above = losses > middle
        spent = float(-np.expm1(middle - losses[above]) @ total[above]) + infinite
        low, high = (middle, high) if spent > delta else (low, middle)
    return high


def test_grid_masses_are_those_of_the_library() -> None:
    reach = 150
    grid = np.arange(-reach, reach + 1)
    right = gaussian_profile(SPACING * np.arange(reach + 1), 0.7)
    left = (
        -np.expm1(-SPACING * np.arange(1, reach + 1))
        + np.exp(-SPACING * np.arange(1, reach + 1)) * right[1:]
    )
    theirs = pld_pmf.create_pmf_pessimistic_connect_dots(
        SPACING, grid, np.concatenate([left[::-1], right])
    )
    ours = connect_the_dots(right, right, SPACING)
    for k in (-140, -20, -1, 0, 1, 7, 60, 149, 150):
        epsilon = (k + 0.3) * SPACING
        expected = theirs.get_delta_for_epsilon(epsilon)
        assert profile_of(ours, epsilon) == pytest.approx(expected, rel=1e-9)


def test_grid_masses_are_those_of_the_library_for_a_loss_without_symmetry() -> None:
    reach = 150
    grid = np.arange(-reach, reach + 1)
    for adding in (False, True):
        deltas = np.array([poisson_delta(SPACING * k, 1.4, 0.3, adding=adding) for k in grid])
        theirs = pld_pmf.create_pmf_pessimistic_connect_dots(SPACING, grid, deltas)
        back = np.array(
            [poisson_delta(SPACING * k, 1.4, 0.3, adding=not adding) for k in range(reach + 1)]
        )
        ours = connect_the_dots(deltas[reach:], back, SPACING)
        for k in (-140, -20, -1, 0, 1, 7, 60, 149, 150):
            epsilon = (k + 0.3) * SPACING
            expected = theirs.get_delta_for_epsilon(epsilon)
            assert profile_of(ours, epsilon) == pytest.approx(expected, rel=1e-9, abs=1e-15)


@given(z=st.floats(0.3, 30.0), epsilon=st.floats(-3.0, 3.0))
def test_grid_is_symmetric_complete_and_never_below_the_profile(z: float, epsilon: float) -> None:
    loss = gaussian_loss(z)
    middle = loss.losses.size // 2
    plus, minus = loss.masses[middle + 1 :], loss.masses[:middle][::-1]
    assert loss.masses.sum() + loss.infinite == pytest.approx(1.0, abs=1e-12)
    assert minus == pytest.approx(plus * np.exp(-loss.losses[middle + 1 :]), rel=1e-12)
    assert min(loss.masses.min(), loss.infinite) >= 0.0
    exact = float(gaussian_profile(np.array([abs(epsilon)]), 1.0 / z)[0])
    if epsilon < 0.0:
        exact = -math.expm1(epsilon) + math.exp(epsilon) * exact
    assert profile_of(loss, epsilon) >= exact * (1 - 1e-9)


@settings(max_examples=30)
@given(
    z=st.floats(0.3, 30.0),
    q=st.floats(1e-4, 0.999),
    adding=st.booleans(),
    epsilon=st.floats(-4.0, 4.0),
)
def test_grid_without_symmetry_is_complete_and_never_below_the_profile(
    z: float, q: float, adding: bool, epsilon: float
) -> None:
    loss = poisson_loss(z, q, adding=adding)
    assert loss.masses.sum() + loss.infinite == pytest.approx(1.0, abs=1e-12)
    assert loss.masses.min() >= 0.0
    exact = poisson_delta(epsilon, z, q, adding=adding)
    assert profile_of(loss, epsilon) >= exact * (1 - 1e-9)
    on_grid = SPACING * round(epsilon / SPACING)
    if -2.9 < on_grid < 5.9:
        exact = poisson_delta(on_grid, z, q, adding=adding)
        assert profile_of(loss, on_grid) == pytest.approx(exact, rel=1e-9, abs=1e-13)


def test_grid_touches_the_profile_at_its_points() -> None:
    loss = gaussian_loss(1.3)
    points = SPACING * np.array([0, 1, 17, 200])
    for epsilon, exact in zip(points, gaussian_profile(points, 1.0 / 1.3), strict=True):
        assert profile_of(loss, float(epsilon)) == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize("theta", [1e-3, 0.5, 40.0, 1e4])
@pytest.mark.parametrize(
    "loss", [gaussian_loss(2.0), poisson_loss(1.0, 0.3, adding=True)], ids=["symmetric", "adding"]
)
def test_log_moments_and_tilt(loss: DiscreteLoss, theta: float) -> None:
    expected = special.logsumexp(theta * loss.losses, b=loss.masses)
    moment = float(loss.log_moments(np.array([1.0, theta]))[1])
    assert moment == pytest.approx(expected, rel=1e-12, abs=1e-15)
    tilted = loss.tilted_masses(theta, moment)
    assert tilted.sum() == pytest.approx(1.0, rel=1e-9)
    zero = int(np.argmin(np.abs(loss.losses)))
    if tilted[zero] > 0.0:
        ratio = tilted[zero + 5] * loss.masses[zero] / (tilted[zero] * loss.masses[zero + 5])
        assert ratio == pytest.approx(math.exp(theta * loss.losses[zero + 5]), rel=1e-9)


@pytest.mark.parametrize("num_releases", [1, 2, 5, 12])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
def test_composition_is_plain_convolution(num_releases: int, delta: float) -> None:
    for loss in (
        gaussian_loss(2.0),
        poisson_loss(1.0, 0.3, adding=False, reach=9.0),
        poisson_loss(1.0, 0.3, adding=True, reach=9.0),
    ):
        exact = convolved_epsilon(loss, num_releases, delta)
        found = composed_epsilon(
            loss, SPACING, num_releases, delta, tilt=3.0, tail_tilt=5.0, low=0.0
        )
        assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-4) + 1e-6


@pytest.mark.parametrize("tilt", [0.05, 0.5, 1.5, 8.0])
@pytest.mark.parametrize("tail_factor", [1.1, 2.0, 6.0])
@pytest.mark.parametrize("low", [0.0, 3.0, 12.0, 60.0])
def test_a_poor_window_is_still_a_bound(tilt: float, tail_factor: float, low: float) -> None:
    # 400 releases at z = 8 are one release at z = 0.4, whose epsilon is known.
    exact = gaussian_epsilon(0.4, 1, 1e-6)
    found = composed_epsilon(
        gaussian_loss(8.0, spacing=0.01, reach=1.2),
        0.01,
        400,
        1e-6,
        tilt=tilt,
        tail_tilt=tail_factor * tilt,
        low=low,
    )
    assert found >= exact
    assert tilt != 1.5 or found < exact * 1.01


def test_small_delta_after_many_releases_is_a_bound() -> None:
    # The untilted transform of the library is off by more than delta here.
    for delta in (1e-9, 1e-12, 1e-15, 1e-30, 1e-100):
        exact = gaussian_epsilon(1.0, 1, delta)
        tilt = 0.5 * math.sqrt(-2 * math.log(delta))
        loss = gaussian_loss(100.0, spacing=1e-3, reach=0.2 + 0.01 * 2 * tilt)
        found = composed_epsilon(loss, 1e-3, 10_000, delta, tilt=tilt, tail_tilt=2 * tilt, low=0.0)
        assert exact <= found <= exact * (1.005 if delta > 1e-50 else 1.1)


def test_rounding_bound_covers_the_error_of_the_transform() -> None:
    # against the same transform in extended precision, where the platform has it
    if np.finfo(np.longdouble).eps >= np.finfo(np.float64).eps:
        pytest.skip("long double is no wider than double here")
    loss = gaussian_loss(30.0, spacing=2e-3, reach=0.4)
    size = 4096
    masses = np.zeros(size)
    masses[np.rint(loss.losses / 2e-3).astype(int) % size] = loss.masses
    for num_releases in (2, 60, 10_000):
        power = fft.rfft(masses) ** num_releases
        wide = fft.irfft(fft.rfft(masses.astype(np.longdouble)) ** num_releases, size)
        error = float(np.abs(fft.irfft(power, size) - wide).max())
        bound = _rounding(masses, power, num_releases)
        assert error <= bound
        assert bound <= 1e5 * max(error, 1e-19)


def test_infinite_losses_that_use_up_delta_leave_no_epsilon() -> None:
    loss = gaussian_loss(0.5, reach=1.0)
    assert loss.infinite > 0.1
    assert composed_epsilon(loss, SPACING, 3, 0.05, tilt=1.0, tail_tilt=2.0, low=0.0) == math.inf


def test_epsilon_is_zero_when_delta_is_already_met() -> None:
    loss = gaussian_loss(50.0)
    assert composed_epsilon(loss, SPACING, 2, 0.1, tilt=1.0, tail_tilt=2.0, low=0.0) == 0.0
