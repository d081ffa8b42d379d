"""One relation for all releases: that of an exchange, against exact numbers and integrals."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from strategies.mechanisms.accounting import GaussianReleases, bound_epsilon
from strategies.mechanisms.exchange import (
    count_rare_draws,
    exchange_epsilon,
    exchange_noise_multiplier,
)

UNSAMPLED = [("record", "add_or_remove_one"), ("client", "zero_out")]


def poisson(z: float, rate: float, count: int = 1) -> GaussianReleases:
    return GaussianReleases(z, count, "record", "add_or_remove_one", "poisson", rate)


@pytest.mark.parametrize(("unit", "relation"), UNSAMPLED)
@pytest.mark.parametrize(("z", "count"), [(1.0, 1), (3.0, 20), (40.0, 1000)])
def test_without_sampling_it_is_a_gaussian_of_twice_the_distance(
    unit: str, relation: str, z: float, count: int
) -> None:
    """Oracle: Google's accounting library, at sensitivity 2."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    found = exchange_epsilon(GaussianReleases(z, count, unit, relation, "none", 1.0), 1e-5)
    oracle = pld.from_gaussian_mechanism(z / math.sqrt(count), sensitivity=2.0)
    assert found == pytest.approx(oracle.get_epsilon_for_delta(1e-5), rel=1e-3)
    same = GaussianReleases(z / 2.0, count, unit, "replace_one", "none", 1.0)
    assert found == pytest.approx(bound_epsilon(same, 1e-5).epsilon, rel=1e-12)


def test_what_is_replaced_already_is_counted_as_it_is() -> None:
    for sampling, rate in (("none", 1.0), ("fixed", 0.1)):
        releases = GaussianReleases(1.5, 10, "record", "replace_one", sampling, rate)
        assert exchange_epsilon(releases, 1e-5) == bound_epsilon(releases, 1e-5).epsilon
    assert exchange_epsilon(poisson(0.0, 0.1), 1e-5) == math.inf
    assert exchange_epsilon(poisson(1.0, 0.1, 0), 1e-5) == 0.0


def exact_delta(epsilon: float, z: float, rate: float, count: int) -> float:
    """Integrate what `count` sampled releases show if a record is exchanged for its opposite.

    The record moves each sum by 1 one way, the other record the other way: losses on a fine grid,
    each rounded down so that the answer is none too large, convolved.
    """
    step, most = 2e-3, 40.0
    at = np.linspace(-14.0 * z - 1.0, 14.0 * z + 1.0, 200_001)
    width = at[1] - at[0]
    middle = (1.0 - rate) * norm.pdf(at, scale=z)
    first = middle + rate * norm.pdf(at, 1.0, z)
    second = middle + rate * norm.pdf(at, -1.0, z)
    loss = np.clip(np.floor(np.log(first / second) / step) * step, -most, most)
    size = round(2 * most / step) + 1
    places = np.rint((loss + most) / step).astype(int)
    masses = np.bincount(places, first * width, size)
    total = masses
    for _ in range(count - 1):
        total = _convolve(total, masses)
    losses = np.arange(total.size) * step - most * count
    above = losses > epsilon
    return float(np.sum(total[above] * -np.expm1(epsilon - losses[above])))


def _convolve(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    size = one.size + other.size - 1
    return np.fft.irfft(np.fft.rfft(one, size) * np.fft.rfft(other, size), size)


CASES = [(1.0, 0.1, 1), (2.0, 0.3, 1), (0.6, 0.02, 1), (1.0, 0.1, 4), (2.0, 0.5, 6), (0.8, 0.05, 8)]


@pytest.mark.parametrize(("z", "rate", "count"), CASES)
def test_sampled_releases_against_the_integral(z: float, rate: float, count: int) -> None:
    """What is counted holds; what the declared relation says does not (the twin)."""
    delta = 1e-5
    releases = poisson(z, rate, count)
    found = exchange_epsilon(releases, delta)
    assert exact_delta(found, z, rate, count) <= delta
    # Less than what is exact by a factor would not be.
    declared = bound_epsilon(releases, delta).epsilon
    assert exact_delta(declared, z, rate, count) > delta
    unsampled = GaussianReleases(z / 2.0, count, "record", "replace_one", "none", 1.0)
    assert declared < found <= bound_epsilon(unsampled, delta).epsilon


@pytest.mark.parametrize(("z", "rate", "count"), [(2.0, 0.01, 100), (1.0, 0.01, 1500)])
def test_two_steps_are_where_sampling_helps(z: float, rate: float, count: int) -> None:
    """The smallest e with (1 + exp(e)) d(e) <= delta, found by a search of its own."""
    releases, delta = poisson(z, rate, count), 1e-5
    tries = np.geomspace(1e-12, delta / 2.0, 400)
    pairs = [(bound_epsilon(releases, float(each)).epsilon, float(each)) for each in tries]
    best = min(e for e, d in pairs if (1.0 + math.exp(e)) * d <= delta)
    found = exchange_epsilon(releases, delta)
    assert 2.0 * best * 0.98 <= found <= 2.0 * best * 1.02


@settings(max_examples=60, deadline=None)
@given(
    z=st.floats(0.3, 30.0),
    rate=st.floats(1e-7, 1.0),
    count=st.integers(1, 300),
    log_delta=st.floats(-20.0, -3.0),
)
def test_it_never_falls_below_what_is_declared(
    z: float, rate: float, count: int, log_delta: float
) -> None:
    delta = math.exp(log_delta)
    releases = poisson(z, rate, count)
    counted = count_rare_draws(releases, delta)
    drawn = -math.expm1(count * math.log1p(-counted.sample_rate)) if counted.sample_rate < 1 else 1
    assert drawn >= 2.0 * delta * (1.0 - 1e-6)
    assert counted.sample_rate >= rate
    found = exchange_epsilon(releases, delta)
    assert found >= bound_epsilon(counted, delta).epsilon
    assert found >= bound_epsilon(releases, delta).epsilon - 1e-4


@pytest.mark.parametrize("rate", [1e-9, 1e-5, 0.9e-5])
def test_a_draw_that_is_rarer_than_delta_needs_noise_all_the_same(rate: float) -> None:
    assert bound_epsilon(poisson(1e-12, rate), 1e-5).epsilon == 0.0
    assert exchange_epsilon(poisson(1e-12, rate), 1e-5) > 1e6
    assert exchange_epsilon(poisson(0.1, rate), 1e-5) > 30.0


@pytest.mark.parametrize(
    "planned",
    [
        GaussianReleases(1.0, 10, "record", "replace_one", "fixed", 0.1),
        GaussianReleases(1.0, 10, "client", "zero_out", "none", 1.0),
        GaussianReleases(1.0, 10, "client", "zero_out", "poisson", 0.3),
        poisson(1.0, 0.05, 30),
    ],
)
@pytest.mark.parametrize("target", [0.5, 4.0])
def test_noise_for_a_target(planned: GaussianReleases, target: float) -> None:
    z = exchange_noise_multiplier(target, 1e-5, planned)
    assert 0.94 * target <= exchange_epsilon(replace(planned, noise_multiplier=z), 1e-5) <= target


def test_noise_for_a_target_that_rare_draws_meet_at_once() -> None:
    z = exchange_noise_multiplier(4.0, 1e-5, poisson(1.0, 1e-7, 3))
    assert exchange_epsilon(poisson(z, 1e-7, 3), 1e-5) <= 4.0
    # Where little more epsilon needs much less noise, the search stops at what is enough.
    assert exchange_epsilon(poisson(0.98 * z, 1e-7, 3), 1e-5) > 4.0
