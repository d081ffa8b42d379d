import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from strategies.mechanisms.amplification import published_inclusion_probability
from strategies.mechanisms.closed_form import gaussian_epsilon
from strategies.mechanisms.privacy_loss import fixed_size_delta, fixed_size_epsilon

# What the documentation promises.
RELATIVE, ABSOLUTE = 0.005, 1e-4

multipliers = st.floats(math.log(0.05), math.log(1e4)).map(math.exp)
rates = st.floats(math.log(1e-4), 0.0).map(math.exp)
counts = st.floats(0.0, math.log(10_000)).map(lambda x: round(math.exp(x)))
deltas = st.floats(math.log(1e-12), math.log(0.1)).map(math.exp)


# --- one release: the profile ---------------------------------------------------------------------


AXIS = np.linspace(-9.0, 14.0, 20_001)  # 12 noise standard deviations around sums in [0, 5]
NOISE = 0.7


def released_density(values: tuple[float, ...], size: int) -> np.ndarray:
    """Density on AXIS of the noisy sum of a uniform sample, without replacement, of the values."""
    sums = Counter(sum(chosen) for chosen in combinations(values, size))
    density = sum(count * stats.norm.pdf(AXIS, mean, NOISE) for mean, count in sums.items())
    return np.asarray(density / sums.total())


def divergence(upper: np.ndarray, lower: np.ndarray, epsilon: float) -> float:
    """Hockey-stick divergence; the kink of max(., 0) costs the quadrature up to step^2 = 1.4e-6."""
    gap = np.maximum(upper - math.exp(epsilon) * lower, 0.0)
    return float(integrate.simpson(gap, x=AXIS))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_profile_bounds_real_samples_of_real_records(size: int) -> None:
    # Values in [0, 1] have replace-one sensitivity 1. Neighbouring data sets in both directions,
    # both signs of epsilon: the profile must bound all of them and be attained by some.
    pairs = []
    for rest in ((0.0,) * 5, (1.0,) * 5, (0.0, 0.0, 0.5, 1.0, 1.0), (0.3, 0.9, 0.1, 0.6, 0.2)):
        low, middle, high = (released_density((v, *rest), size) for v in (0.0, 0.25, 1.0))
        pairs += [(low, high), (high, low), (middle, high), (high, middle)]
    for epsilon in (-1.0, -0.2, 0.0, 0.1, 0.5, 1.5):
        bound = fixed_size_delta(epsilon, NOISE, size / 6)
        largest = max(divergence(upper, lower, epsilon) for upper, lower in pairs)
        assert largest <= bound + 2e-6
        assert largest == pytest.approx(bound, abs=2e-6)


def test_published_inclusion_probability_would_not_bound_them() -> None:
    # 6 records, 3 disjoint batches of 1: the same check must fail with the published p.
    one, none = (released_density((value, *(0.0,) * 5), 3) for value in (1.0, 0.0))
    seen = divergence(one, none, 0.5)
    assert fixed_size_delta(0.5, NOISE, 0.5) >= seen - 2e-6
    assert fixed_size_delta(0.5, NOISE, published_inclusion_probability(6, 1, 3)) < 0.9 * seen


@pytest.mark.parametrize("epsilon", [-0.7, -0.1, 0.0, 0.3, 1.0])
def test_profile_bounds_three_inputs_at_equal_distance(epsilon: float) -> None:
    # In the plane the record, its replacement and all other records can be 1 apart from one
    # another, so that the outputs with and without the record differ in both data sets.
    x, y = np.meshgrid(np.linspace(-8.0, 9.0, 1201), np.linspace(-8.0, 9.0, 1201))
    corners = [(0.0, 0.0), (1.0, 0.0), (0.5, math.sqrt(0.75))]
    record, replacement, rest = (
        stats.norm.pdf(x, a, NOISE) * stats.norm.pdf(y, b, NOISE) for a, b in corners
    )
    for p in (0.1, 0.5, 0.9):
        upper, lower = p * record + (1 - p) * rest, p * replacement + (1 - p) * rest
        gap = np.maximum(upper - math.exp(epsilon) * lower, 0.0)
        seen = float(gap.sum()) * (17.0 / 1200) ** 2
        assert seen <= fixed_size_delta(epsilon, NOISE, p) + 1e-5


@given(z=multipliers, p=rates)
def test_profile_belongs_to_a_symmetric_dominating_pair(z: float, p: float) -> None:
    # Convex in exp(epsilon), falling, at least (1 - exp(epsilon))+, and equal to its own mirror
    # image: the conditions under which a pair with this profile exists, in both directions.
    scale = 1.0 / z if z > 1.0 else 1.0
    alphas = np.exp(np.linspace(-3.0, 3.0, 121) * scale)
    profile = np.array([fixed_size_delta(math.log(a), z, p) for a in alphas])
    slopes = np.diff(profile) / np.diff(alphas)
    noise = 4e-16 / np.diff(alphas)
    assert np.all(slopes <= noise)
    assert np.all(slopes >= -1.0 - noise)
    assert np.all(np.diff(slopes) >= -(noise[1:] + noise[:-1]))
    assert np.all(profile >= np.maximum(1.0 - alphas, 0.0) - 1e-15)
    assert profile == pytest.approx(1.0 - alphas * (1.0 - profile[::-1]), rel=1e-9, abs=1e-14)


def test_profile_with_everybody_sampled_is_the_gaussian_one() -> None:
    for epsilon in (-2.0, 0.0, 1.0):
        expected = stats.norm.cdf(0.25 - 2 * epsilon)
        expected -= math.exp(epsilon) * stats.norm.cdf(-0.25 - 2 * epsilon)
        assert fixed_size_delta(epsilon, 2.0, 1.0) == pytest.approx(expected, rel=1e-12)


# --- limits, monotonicity, refusals ---------------------------------------------------------------


def test_limits() -> None:
    for z, num_releases, delta in ((1.0, 1, 1e-5), (0.3, 40, 1e-3), (80.0, 9999, 1e-9)):
        unsampled = gaussian_epsilon(z, num_releases, delta)
        assert fixed_size_epsilon(z, 1.0, num_releases, delta) == unsampled
        almost = fixed_size_epsilon(z, 1.0 - 1e-9, num_releases, delta)
        assert almost == pytest.approx(unsampled, rel=RELATIVE)
    assert fixed_size_epsilon(1.0, 0.3, 0, 1e-5) == 0.0
    assert fixed_size_epsilon(0.0, 0.3, 0, 1e-5) == 0.0
    assert fixed_size_epsilon(0.0, 0.3, 1, 1e-5) == math.inf
    assert fixed_size_epsilon(0.0, 1e-9, 1, 0.1) == math.inf  # no noise is never private
    assert fixed_size_epsilon(1e4, 0.01, 3, 0.1) == 0.0


@given(z=multipliers, p=rates, delta=deltas)
def test_one_release_is_the_inverse_of_the_profile(z: float, p: float, delta: float) -> None:
    epsilon = fixed_size_epsilon(z, p, 1, delta)
    assert fixed_size_delta(epsilon, z, p) <= delta * (1 + 1e-9)
    if epsilon > 1e-9:
        assert fixed_size_delta(epsilon * (1 - 1e-7), z, p) > delta * (1 - 1e-9)


@settings(max_examples=60)
@given(z=multipliers, p=rates, num_releases=counts, delta=deltas)
def test_is_monotone_in_every_argument(z: float, p: float, num_releases: int, delta: float) -> None:
    def at_most(smaller: float, larger: float) -> bool:
        return smaller <= larger * (1 + RELATIVE) + ABSOLUTE

    epsilon = fixed_size_epsilon(z, p, num_releases, delta)
    assert 0.0 <= epsilon <= gaussian_epsilon(z, num_releases, delta)
    assert at_most(fixed_size_epsilon(z * 1.3, p, num_releases, delta), epsilon)
    assert at_most(fixed_size_epsilon(z, p * 0.7, num_releases, delta), epsilon)
    assert at_most(epsilon, fixed_size_epsilon(z, p, num_releases + 3, delta))
    assert at_most(fixed_size_epsilon(z, p, num_releases, delta * 2), epsilon)


@settings(max_examples=60)
@given(z=multipliers, p=rates, first=st.integers(1, 500), second=st.integers(1, 500))
def test_splitting_a_run_never_helps(z: float, p: float, first: int, second: int) -> None:
    # Basic composition: (e1 + e2, d1 + d2) is valid, so the composed bound must not exceed it.
    whole = fixed_size_epsilon(z, p, first + second, 2e-6)
    parts = fixed_size_epsilon(z, p, first, 1e-6) + fixed_size_epsilon(z, p, second, 1e-6)
    assert whole <= parts * (1 + RELATIVE) + ABSOLUTE


@pytest.mark.parametrize("z", [1e-120, 1e-6, 1e-3, 0.01, 1e6, 1e12, 1e150])
@pytest.mark.parametrize("p", [1e-12, 1e-4, 0.3, 1.0 - 1e-15])
@pytest.mark.parametrize("num_releases", [2, 1000, 10**6])
def test_stays_a_bound_far_outside_the_usual_range(z: float, p: float, num_releases: int) -> None:
    with np.errstate(all="raise", under="ignore"):
        epsilon = fixed_size_epsilon(z, p, num_releases, 1e-8)
    assert 0.0 <= epsilon <= gaussian_epsilon(z, num_releases, 1e-8)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("noise_multiplier", (-1.0, 0.5, 1, 1e-5)),
        ("noise_multiplier", (math.nan, 0.5, 1, 1e-5)),
        ("noise_multiplier", (True, 0.5, 1, 1e-5)),
        ("sample_rate", (1.0, 0.0, 1, 1e-5)),
        ("sample_rate", (1.0, 1.0001, 1, 1e-5)),
        ("sample_rate", (1.0, math.inf, 1, 1e-5)),
        ("num_releases", (1.0, 0.5, -1, 1e-5)),
        ("num_releases", (1.0, 0.5, 2.0, 1e-5)),
        ("num_releases", (1.0, 0.5, True, 1e-5)),
        ("delta", (1.0, 0.5, 1, 0.0)),
        ("delta", (1.0, 0.5, 1, 1.0)),
    ],
)
def test_bad_arguments_are_refused_by_name(name: str, arguments: tuple) -> None:
    fixed_size_epsilon(1.0, 0.5, 1, 1e-5)  # an equal good call in the cache must not hide them
    with pytest.raises(ValueError, match=f"^{name}="):
        fixed_size_epsilon(*arguments)


def test_profile_refuses_bad_arguments_by_name() -> None:
    for name, arguments in (
        ("epsilon", (math.inf, 1.0, 0.5)),
        ("noise_multiplier", (1.0, 0.0, 0.5)),
        ("sample_rate", (1.0, 1.0, 0.0)),
    ):
        with pytest.raises(ValueError, match=f"^{name}="):
            fixed_size_delta(*arguments)
