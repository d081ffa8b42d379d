import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.mechanisms.amplification import (
    amplify,
    exact_inclusion_probability,
    loss_with_sampling,
    loss_without_sampling,
    published_inclusion_probability,
    published_noise_std,
    required_before_amplification,
)
from strategies.mechanisms.closed_form import analytic_gaussian_std, classic_gaussian_std

rates = st.floats(math.log(1e-6), 0.0).map(math.exp)
losses = st.floats(math.log(1e-9), math.log(1e6)).map(math.exp)


def test_inclusion_probabilities() -> None:
    # n = 600, b = 64, E = 9: .96 against the published .64
    assert exact_inclusion_probability(600, 64, 9) == 0.96
    assert published_inclusion_probability(600, 64, 9) == pytest.approx(0.6377, abs=1e-4)
    assert exact_inclusion_probability(10, 5, 2) == 1.0
    for probability in (exact_inclusion_probability, published_inclusion_probability):
        assert probability(600, 64, 1) == pytest.approx(64 / 600, rel=1e-12)


def test_inclusion_probability_is_the_frequency_of_a_real_draw() -> None:
    # 100,000 permutations of 20 records of which the first E b = 12 are used. An exact binomial
    # interval at a false-positive rate of 1e-6 is +-4.9 standard deviations.
    rng = np.random.default_rng(20_240_801)
    draws = 100_000
    hits = int((rng.permuted(np.tile(np.arange(20), (draws, 1)), axis=1)[:, :12] == 7).sum())

    def deviations(p: float) -> float:
        return abs(hits - draws * p) / math.sqrt(draws * p * (1 - p))

    assert deviations(exact_inclusion_probability(20, 4, 3)) < 4.9
    assert deviations(published_inclusion_probability(20, 4, 3)) > 4.9


@given(n=st.integers(1, 500), b=st.integers(1, 50), e=st.integers(1, 20))
def test_published_inclusion_probability_is_never_the_larger(n: int, b: int, e: int) -> None:
    n = max(n, b * e)
    published, exact = (
        published_inclusion_probability(n, b, e),
        exact_inclusion_probability(n, b, e),
    )
    assert published <= exact * (1 + 1e-12)
    assert e == 1 or published < exact


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("batch_size", (10, 0, 1)),
        ("batch_size", (10, 2.0, 1)),
        ("local_steps", (10, 1, -1)),
        ("local_steps", (10, 1, True)),
        ("num_records", (5, 3, 2)),
        ("num_records", (math.nan, 3, 2)),
    ],
)
def test_inclusion_probabilities_refuse_impossible_draws(name: str, arguments: tuple) -> None:
    for probability in (exact_inclusion_probability, published_inclusion_probability):
        with pytest.raises(ValueError, match=f"^{name}="):
            probability(*arguments)


def test_amplify_by_hand() -> None:
    # ln(1 + (3 - 1) / 4) = ln 1.5 for exp(epsilon0) = 3 and p = 1/4
    epsilon, delta = amplify(math.log(3.0), 0.008, 0.25)
    assert epsilon == pytest.approx(math.log(1.5), rel=1e-14)
    assert delta == pytest.approx(0.002, rel=1e-14)
    assert amplify(2.0, 1e-5, 1.0) == (2.0, 1e-5)
    assert amplify(0.0, 0.0, 0.3) == (0.0, 0.0)
    # far beyond exp's range: epsilon0 + ln p
    assert amplify(5000.0, 0.0, 0.5)[0] == pytest.approx(5000.0 - math.log(2.0), rel=1e-14)


@given(epsilon=losses, delta=st.floats(0.0, 1.0), p=rates)
def test_required_before_amplification_is_the_exact_inverse(
    epsilon: float, delta: float, p: float
) -> None:
    delta *= p
    epsilon0, delta0 = required_before_amplification(epsilon, delta, p)
    assert epsilon0 >= epsilon * (1 - 1e-14)
    assert amplify(epsilon0, delta0, p) == pytest.approx((epsilon, delta), rel=1e-9, abs=0.0)


@given(loss=losses, p=rates, q=rates)
def test_amplification_is_monotone_and_composes(loss: float, p: float, q: float) -> None:
    # A sample of a sample is a sample.
    x = np.array([loss])
    assert loss_with_sampling(loss_with_sampling(x, p), q) == pytest.approx(
        loss_with_sampling(x, p * q), rel=1e-9
    )
    assert loss_with_sampling(x, min(p, q)) <= loss_with_sampling(x, max(p, q)) * (1 + 1e-12)
    assert loss_without_sampling(x, 1.0) == pytest.approx(x, rel=1e-14)


def test_required_delta_is_at_most_one() -> None:
    assert required_before_amplification(1.0, 0.5, 0.1)[1] == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1, True, "1"])
def test_bad_arguments_are_refused_by_name(bad: float) -> None:
    for name, call in (
        ("epsilon0", lambda: amplify(bad, 0.1, 0.5)),
        ("delta0", lambda: amplify(1.0, bad, 0.5)),
        ("p", lambda: amplify(1.0, 0.1, bad)),
        ("epsilon", lambda: required_before_amplification(bad, 0.1, 0.5)),
        ("delta", lambda: required_before_amplification(1.0, bad, 0.5)),
        ("p", lambda: required_before_amplification(1.0, 0.1, bad)),
        ("epsilon", lambda: published_noise_std(bad, 1e-3, 0.5, 1.0)),
        ("delta", lambda: published_noise_std(1.0, bad, 0.5, 1.0)),
        ("gamma", lambda: published_noise_std(1.0, 1e-3, bad, 1.0)),
        ("sensitivity", lambda: published_noise_std(1.0, 1e-3, 0.5, bad)),
    ):
        with pytest.raises(ValueError, match=f"^{name}={bad!r} is not allowed"):
            call()
    with pytest.raises(ValueError, match=r"delta=0.2 .* \(0, 0.125\)"):
        published_noise_std(1.0, 0.2, 0.1, 1.0)  # the logarithm would be negative
    with pytest.raises(ValueError, match=r"^p=0\.0 is"):
        amplify(1.0, 0.1, 0.0)


@pytest.mark.parametrize(("gamma", "ratio"), [(1e-4, 2.513), (0.1, 3.02), (0.2, 3.80), (0.3, 5.23)])
def test_published_noise_is_too_small_from_the_documented_epsilon(
    gamma: float, ratio: float
) -> None:
    for factor, too_small in ((0.99, False), (1.01, True)):
        epsilon = factor * ratio * gamma
        delta = 1e-5 * gamma
        exact = classic_gaussian_std(*required_before_amplification(epsilon, delta, gamma), 1.0)
        assert (published_noise_std(epsilon, delta, gamma, 1.0) < exact) is too_small


def test_published_noise_can_exceed_what_no_amplification_needs() -> None:
    for gamma, more in ((0.5, False), (0.56, True), (1.0, True)):
        published = published_noise_std(0.5, 1e-3, gamma, 1.0)
        assert (published > classic_gaussian_std(0.5, 1e-3, 1.0)) is more


def test_published_noise_can_miss_what_is_really_needed() -> None:
    # Not only beside the textbook noise: the exact mechanism needs .555 where it gives less.
    epsilon0, delta0 = required_before_amplification(4.0, 1e-3, 0.2)
    needed = analytic_gaussian_std(epsilon0, delta0, 1.0)
    assert published_noise_std(4.0, 1e-3, 0.2, 1.0) < needed


@pytest.mark.parametrize("p", [1e-12, 1e-9, 1e-3, 0.5, 1.0 - 1e-9])
def test_losses_keep_their_relative_precision(p: float) -> None:
    # at a small rate a loss of 5 turns into one of 1e-7: ln(p + (1 - p) exp(-5)) + 5 cancels
    losses = np.array([1e-9, 0.3, 0.999, 1.001, 5.3, 40.0, 499.0, 501.0, 2000.0])
    with mpmath.workdps(40):
        sampled = [float(mpmath.log1p(mpmath.mpf(p) * mpmath.expm1(x))) for x in losses]
        unsampled = [float(mpmath.log1p(mpmath.expm1(x) / mpmath.mpf(p))) for x in losses]
    assert loss_with_sampling(losses, p) == pytest.approx(sampled, rel=1e-14, abs=0.0)
    assert loss_without_sampling(losses, p) == pytest.approx(unsampled, rel=1e-14, abs=0.0)
