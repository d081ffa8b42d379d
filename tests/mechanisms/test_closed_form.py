import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

from strategies.mechanisms.closed_form import (
    analytic_gaussian_delta,
    analytic_gaussian_std,
    classic_gaussian_std,
    gaussian_epsilon,
    gaussian_profile,
    require_count,
    require_real,
)

REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
ADD_OR_REMOVE_ONE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE

epsilons = st.floats(0.01, 50.0)
deltas = st.floats(1e-12, 0.1)
multipliers = st.floats(0.05, 1e4)
counts = st.integers(1, 10_000)


def reference_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """Phi(mu/2 - eps/mu) - exp(eps) Phi(-mu/2 - eps/mu), with 160 digits."""
    with mpmath.workdps(160):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.0499, 0.0501, 0.3, 1.0, 5.0, 40.0, 2000.0])
@pytest.mark.parametrize("tail", [0.0, 0.1, 1.0, 3.0, 6.0, 20.0, 35.0])
def test_profile_has_relative_precision(mu: float, tail: float) -> None:
    # tail standard deviations above the mean loss, where delta is down to 1e-267
    epsilon = mu * (0.5 * mu + tail)
    expected = reference_delta(epsilon, mu)
    assert analytic_gaussian_delta(epsilon, mu, 1.0) == pytest.approx(float(expected), rel=1e-11)


@pytest.mark.parametrize("mu", [1e-6, 0.02, 1.0, 30.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 1e-3, -1e-3, -0.5, -3.0, -800.0])
def test_profile_near_zero_and_below(mu: float, epsilon: float) -> None:
    expected = reference_delta(epsilon, mu)
    assert analytic_gaussian_delta(epsilon, mu, 1.0) == pytest.approx(
        float(expected), rel=1e-11, abs=1e-290
    )


@pytest.mark.parametrize(("epsilon", "mu"), [(0.5, 1.0), (-0.5, 1.0), (2.0, 0.7), (-1.0, 3.0)])
def test_profile_is_the_hockey_stick_divergence(epsilon: float, mu: float) -> None:
    # the definition, integrated: max(P - exp(eps) Q, 0) is positive right of x0
    x0 = epsilon / mu + mu / 2
    integral = mpmath.quad(
        lambda x: mpmath.npdf(x, mu, 1) - mpmath.exp(epsilon) * mpmath.npdf(x, 0, 1),
        [x0, x0 + 3, x0 + 8, x0 + 30],
    )
    assert analytic_gaussian_delta(epsilon, mu, 1.0) == pytest.approx(float(integral), rel=1e-10)


def test_profile_without_noise_and_with_overwhelming_noise() -> None:
    assert analytic_gaussian_delta(3.0, 1.0, 0.0) == 1.0
    assert analytic_gaussian_delta(1e6, 1.0, 1.0) == 0.0
    assert 0.0 < analytic_gaussian_delta(0.0, 1.0, 1e9) < 1e-9
    assert analytic_gaussian_delta(1.0, 1e300, 1e-300) == 1.0
    assert analytic_gaussian_delta(0.0, 1e-300, 1e300) == 0.0


def test_profile_of_an_array_has_its_shape() -> None:
    grid = np.linspace(0.0, 4.0, 12).reshape(3, 4)
    for mu in (0.01, 2.0):
        profile = gaussian_profile(grid, mu)
        assert profile.shape == (3, 4)
        assert profile[1, 2] == analytic_gaussian_delta(float(grid[1, 2]), mu, 1.0)


@given(epsilon=epsilons, delta=deltas, sensitivity=st.floats(1e-3, 1e3))
def test_std_is_the_smallest_sufficient_one(
    epsilon: float, delta: float, sensitivity: float
) -> None:
    std = analytic_gaussian_std(epsilon, delta, sensitivity)
    assert analytic_gaussian_delta(epsilon, sensitivity, std) <= delta
    assert analytic_gaussian_delta(epsilon, sensitivity, std * (1 - 1e-9)) > delta


@pytest.mark.parametrize("epsilon", [0.0, 1e-8, 0.01, 1.0, 30.0, 1000.0, 1e6])
@pytest.mark.parametrize("delta", [1e-100, 1e-12, 1e-5, 0.1, 0.6, 0.99])
def test_std_at_the_edges(epsilon: float, delta: float) -> None:
    std = analytic_gaussian_std(epsilon, delta, 2.0)
    assert reference_delta(epsilon, 2.0 / std) <= delta * (1 + 1e-11)
    assert reference_delta(epsilon, 2.0 / (std * (1 - 1e-9))) > delta


def test_std_agrees_with_dp_accounting() -> None:
    for epsilon, delta in ((0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-9)):
        expected = gaussian_mechanism.get_sigma_gaussian(epsilon, delta)
        assert analytic_gaussian_std(epsilon, delta, 1.0) == pytest.approx(expected, rel=1e-6)


@given(epsilon=epsilons, delta=deltas)
def test_std_falls_with_epsilon_and_delta_and_scales_with_sensitivity(
    epsilon: float, delta: float
) -> None:
    std = analytic_gaussian_std(epsilon, delta, 1.0)
    assert analytic_gaussian_std(epsilon * 1.01, delta, 1.0) < std
    assert analytic_gaussian_std(epsilon, delta * 1.01, 1.0) < std
    assert analytic_gaussian_std(epsilon, delta, 8.0) == pytest.approx(8.0 * std, rel=1e-12)


@given(z=multipliers, num_releases=counts, delta=deltas)
def test_epsilon_is_the_smallest_one(z: float, num_releases: int, delta: float) -> None:
    epsilon = gaussian_epsilon(z, num_releases, delta)
    spread = math.sqrt(num_releases)
    assert epsilon >= 0.0
    assert analytic_gaussian_delta(epsilon, spread, z) <= delta
    if epsilon > 0.0:
        assert analytic_gaussian_delta(epsilon * (1 - 1e-9), spread, z) > delta


@given(z=multipliers, num_releases=counts, delta=deltas)
def test_epsilon_is_monotone(z: float, num_releases: int, delta: float) -> None:
    epsilon = gaussian_epsilon(z, num_releases, delta)
    assert gaussian_epsilon(z * 1.01, num_releases, delta) <= epsilon
    assert gaussian_epsilon(z, num_releases, min(delta * 1.01, 0.5)) <= epsilon
    assert gaussian_epsilon(z, num_releases + 1, delta) >= epsilon


@pytest.mark.parametrize(("z", "num_releases"), [(2.0, 1), (2.0, 3), (8.0, 60)])
def test_epsilon_agrees_with_dp_accounting(z: float, num_releases: int) -> None:
    # The add-or-remove accountant divides by the sensitivity, the replace-one accountant by the
    # clipping norm, half of it: a multiplier of ours has to be doubled for the latter.
    def reported(relation: dp_accounting.NeighboringRelation, multiplier: float) -> float:
        accountant = PLDAccountant(relation)
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier), num_releases)
        return float(accountant.get_epsilon(1e-5))

    epsilon = gaussian_epsilon(z, num_releases, 1e-5)
    assert reported(ADD_OR_REMOVE_ONE, z) == pytest.approx(epsilon, rel=1e-3)
    assert reported(REPLACE_ONE, 2.0 * z) == pytest.approx(epsilon, rel=1e-3)
    assert reported(REPLACE_ONE, z) > 1.5 * epsilon


def test_epsilon_of_nothing_and_of_everything() -> None:
    assert gaussian_epsilon(1.0, 0, 1e-5) == 0.0
    assert gaussian_epsilon(0.0, 0, 1e-5) == 0.0
    assert gaussian_epsilon(0.0, 1, 1e-5) == math.inf
    assert gaussian_epsilon(1e-200, 1, 1e-5) == math.inf
    # total variation distance 2 Phi(1/(2z)) - 1 = 0.0399 is within delta
    assert gaussian_epsilon(10.0, 1, 0.04) == 0.0
    assert gaussian_epsilon(10.0, 1, 0.039) > 0.0


def test_classic_noise() -> None:
    # sqrt(2 ln(1.25e5)) / 0.5 * 3
    assert classic_gaussian_std(0.5, 1e-5, 3.0) == pytest.approx(29.0689, abs=1e-4)


@given(epsilon=st.floats(0.01, 0.999), delta=deltas)
def test_classic_noise_is_enough_below_one(epsilon: float, delta: float) -> None:
    assert classic_gaussian_std(epsilon, delta, 1.0) > analytic_gaussian_std(epsilon, delta, 1.0)


@pytest.mark.parametrize(("delta", "limit"), [(0.1, 5.8), (1e-3, 7.5), (1e-5, 8.5), (1e-10, 9.9)])
def test_classic_noise_is_too_small_from_the_documented_epsilon(delta: float, limit: float) -> None:
    for epsilon, enough in ((limit - 0.2, True), (limit + 0.1, False), (2 * limit, False)):
        spent = analytic_gaussian_delta(epsilon, 1.0, classic_gaussian_std(epsilon, delta, 1.0))
        assert (spent <= delta) is enough


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0, True, "1", None])
def test_bad_arguments_are_refused_by_name(bad: float) -> None:
    for name, call in (
        ("sensitivity", lambda: analytic_gaussian_delta(1.0, bad, 1.0)),
        ("noise_std", lambda: analytic_gaussian_delta(1.0, 1.0, bad)),
        ("epsilon", lambda: analytic_gaussian_std(bad, 1e-5, 1.0)),
        ("delta", lambda: analytic_gaussian_std(1.0, bad, 1.0)),
        ("sensitivity", lambda: analytic_gaussian_std(1.0, 1e-5, bad)),
        ("noise_multiplier", lambda: gaussian_epsilon(bad, 1, 1e-5)),
        ("num_releases", lambda: gaussian_epsilon(1.0, bad, 1e-5)),
        ("delta", lambda: gaussian_epsilon(1.0, 1, bad)),
        ("epsilon", lambda: classic_gaussian_std(bad, 1e-5, 1.0)),
    ):
        with pytest.raises(ValueError, match=f"^{name}={bad!r} is not allowed"):
            call()


@pytest.mark.parametrize("delta", [0.0, 1.0, 1.5])
def test_delta_lies_strictly_between_zero_and_one(delta: float) -> None:
    for call in (
        lambda: analytic_gaussian_std(1.0, delta, 1.0),
        lambda: gaussian_epsilon(1.0, 1, delta),
        lambda: classic_gaussian_std(1.0, delta, 1.0),
    ):
        with pytest.raises(ValueError, match="delta"):
            call()


def test_require_real_ends_and_message() -> None:
    assert require_real("x", np.float32(0.5), 0.0, 1.0) == 0.5
    assert require_real("x", 1, 0.0, 1.0, closed="upper") == 1.0
    assert require_real("x", 0, 0.0, 1.0, closed="lower") == 0.0
    for value, closed in ((0.0, "upper"), (0.0, "neither"), (1.0, "lower"), (1.0, "neither")):
        with pytest.raises(ValueError, match=r"x=.* is not allowed: a finite number in .0, 1. is"):
            require_real("x", value, 0.0, 1.0, closed=closed)
    with pytest.raises(CallersError):
        require_real("x", 2.0, 0.0, 1.0, error=CallersError)


class CallersError(ValueError):
    """Stands for a caller's own exception."""


def test_require_count() -> None:
    assert require_count("n", np.int64(3), 3) == 3
    for value in (2, 3.0, True, "3"):
        with pytest.raises(ValueError, match="an integer of at least 3 is needed"):
            require_count("n", value, 3)  # type: ignore[arg-type]
