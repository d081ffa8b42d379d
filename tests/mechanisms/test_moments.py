"""The moments accountant against published epsilons, its own definition, and tighter ones."""

import math
from dataclasses import replace
from itertools import product

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from strategies.dp_fedpaq.parameters import DpFedPaqParameters
from strategies.mechanisms.accounting import (
    ACCOUNTANTS,
    COMPARISON_ACCOUNTANTS,
    AccountingError,
    GaussianReleases,
    bound_epsilon,
    calibrate_noise_multiplier,
    check_accountant,
    compute_epsilon,
    default_accountant,
)
from strategies.mechanisms.closed_form import gaussian_epsilon
from strategies.mechanisms.moments import log_moment, moments_epsilon
from strategies.mechanisms.parameter_checks import ParameterError

COHORT = {
    "unit": "client",
    "neighboring_relation": "zero_out",
    "sampling": "poisson",
    "sample_rate": 0.35,
}
# Z. Dai, B. K. H. Low and P. Jaillet, "Differentially private federated Bayesian optimization with
# distributed exploration", NeurIPS 2021: N = 29 agents, T = 60 iterations, delta = N^-1.1.
NUM_AGENTS, NUM_RELEASES = 29, 60
PUBLISHED_DELTA = NUM_AGENTS**-1.1
# q, z, epsilon as published there (Section 5), and what was computed independently of this program
# for the same releases: Renyi at real orders, privacy loss, and privacy loss at delta = 1e-5.
GOLDEN = [
    (0.35, 1.0, 15.17, 12.57, 10.38, 19.74),
    (0.35, 1.6, 7.12, 5.66, 4.61, 9.64),
    (0.35, 2.0, 5.14, 4.00, 3.23, 7.08),
    (0.35, 3.0, 3.05, 2.20, 1.74, 4.20),
    (0.35, 4.0, 2.16, 1.46, 1.13, 2.96),
    (0.10, 1.0, 3.75, 2.72, 2.01, 5.57),
    (0.15, 1.0, 5.98, 4.45, 3.43, 8.32),
    (0.20, 1.0, 7.69, 6.31, 4.99, 11.10),
    (0.25, 1.0, 9.82, 8.29, 6.67, 13.93),
]

multipliers = st.floats(math.log(0.05), math.log(1e4)).map(math.exp)
rates = st.floats(math.log(1e-3), 0.0).map(math.exp)
counts = st.floats(0.0, math.log(3000)).map(lambda x: round(math.exp(x)))
deltas = st.floats(math.log(1e-12), math.log(0.1)).map(math.exp)


def cohorts(q: float = 0.35, z: float = 1.0, num_releases: int = 60) -> GaussianReleases:
    return GaussianReleases(z, num_releases, **{**COHORT, "sample_rate": q})


@pytest.mark.parametrize(("q", "z", "published", "renyi", "pld", "small_delta"), GOLDEN)
def test_the_published_table(
    q: float, z: float, published: float, renyi: float, pld: float, small_delta: float
) -> None:
    releases = cohorts(q, z)
    counted = bound_epsilon(releases, PUBLISHED_DELTA, "moments")
    assert counted.accountant == "moments"
    assert counted.epsilon == pytest.approx(published, abs=0.01)
    assert bound_epsilon(releases, PUBLISHED_DELTA, "rdp").epsilon == pytest.approx(renyi, abs=0.02)
    assert bound_epsilon(releases, PUBLISHED_DELTA, "pld").epsilon == pytest.approx(pld, abs=0.02)
    assert bound_epsilon(releases, 1e-5, "pld").epsilon == pytest.approx(small_delta, abs=0.02)
    assert bound_epsilon(releases, PUBLISHED_DELTA).accountant == "pld"


@pytest.mark.parametrize(
    ("order", "z", "q"),
    [(1, 1.0, 0.35), (5, 0.7, 0.1), (32, 2.0, 0.01), (32, 1.0, 1.0), (9, 50, 0.5)],
)
def test_a_moment_is_the_integral_that_defines_it(order: int, z: float, q: float) -> None:
    """alpha(l) = ln E_P (P/Q)^l for P = (1 - q) N(0, z^2) + q N(1, z^2) and Q = N(0, z^2)."""
    with mpmath.workdps(40):
        mean = mpmath.quad(
            lambda x: (
                (1 - q + q * mpmath.exp((2 * x - 1) / (2 * z * z))) ** (order + 1)
                * mpmath.npdf(x, 0, z)
            ),
            [order * t - 12 * z for t in (0, 0.25, 0.5, 0.75, 1)] + [order + 1 + 12 * z],
        )
        assert log_moment(order, z, q) == pytest.approx(float(mpmath.log(mean)), rel=1e-9, abs=1e-9)


def test_the_mixture_against_the_single_gaussian_has_the_larger_moment() -> None:
    for z, q, order in product((0.8, 1.5), (0.1, 0.5), (1, 4)):
        single = stats.norm(0.0, z)

        def ratio(x: float, z: float = z, q: float = q) -> float:
            return 1.0 - q + q * math.exp((2.0 * x - 1.0) / (2.0 * z * z))

        reverse, _ = integrate.quad(
            lambda x, o=order, s=single, r=ratio: s.pdf(x) * r(x) ** -o, -12 * z, 12 * z
        )
        assert 0.0 <= math.log(reverse) < log_moment(order, z, q)


@settings(max_examples=40)
@given(z=multipliers, q=rates, num_releases=counts, delta=deltas)
def test_is_never_below_the_other_accountants(
    z: float, q: float, num_releases: int, delta: float
) -> None:
    releases = cohorts(q, z, num_releases)
    least = compute_epsilon(releases, delta, "moments") * 1.005 + 1e-4
    assert compute_epsilon(releases, delta, "pld") <= least
    # the same moments with a better last step, at more orders
    assert compute_epsilon(releases, delta, "rdp") <= least


@settings(max_examples=40)
@given(z=multipliers, q=rates, num_releases=counts, delta=deltas)
def test_is_monotone(z: float, q: float, num_releases: int, delta: float) -> None:
    epsilon = moments_epsilon(z, q, num_releases, delta)
    assert epsilon >= -math.log(delta) / 32
    assert moments_epsilon(z * 1.2, q, num_releases, delta) <= epsilon
    assert moments_epsilon(z, q, num_releases, delta * 1.5) < epsilon
    assert moments_epsilon(z, q * 0.8, num_releases, delta) <= epsilon + 1e-9
    assert moments_epsilon(z, q, num_releases + 1, delta) > epsilon
    assert moments_epsilon(z, q, num_releases, delta, max_order=64) <= epsilon


@pytest.mark.parametrize("target", [0.05, 0.5, 2.0, 15.17, 300.0])
def test_calibration_is_the_inverse(target: float) -> None:
    for num_releases, delta in ((1, 1e-5), (60, PUBLISHED_DELTA), (2000, 1e-9)):
        arguments = {"num_releases": num_releases, "accountant": "moments", **COHORT}
        z = calibrate_noise_multiplier(target, delta, **arguments)
        epsilon = compute_epsilon(cohorts(z=z, num_releases=num_releases), delta, "moments")
        assert 0.99 * target <= epsilon <= target


def test_the_ends_of_the_range() -> None:
    assert moments_epsilon(1.0, 0.3, 0, 1e-5) == moments_epsilon(0.0, 0.3, 0, 1e-5) == 0.0
    assert moments_epsilon(0.0, 0.3, 1, 1e-5) == moments_epsilon(1e-200, 0.3, 1, 1e-5) == math.inf
    # without sampling alpha(l) = l (l + 1) / (2 z^2)
    assert log_moment(7, 2.0, 1.0) == pytest.approx(7.0, rel=1e-9)
    assert moments_epsilon(1e9, 1e-9, 1000, 1e-3) == pytest.approx(-math.log(1e-3) / 32, rel=1e-6)
    # where it says no more than what holds without sampling, it does not answer
    assert bound_epsilon(cohorts(z=1e9), 1e-3, "moments").epsilon == 0.0
    bound = bound_epsilon(cohorts(q=1.0), 1e-5, "moments")
    assert bound.accountant == "closed_form"
    assert bound.epsilon == gaussian_epsilon(1.0, 60, 1e-5)


def test_auto_never_stands_for_it() -> None:
    assert COMPARISON_ACCOUNTANTS == ("moments",)
    assert not set(COMPARISON_ACCOUNTANTS) & set(ACCOUNTANTS)
    assert default_accountant("client", "poisson") == "pld"
    assert bound_epsilon(cohorts(), 1e-5, "auto") == bound_epsilon(cohorts(), 1e-5, "pld")


@pytest.mark.parametrize(
    "words",
    [
        {"unit": "record", "neighboring_relation": "add_or_remove_one"},
        {"sampling": "fixed", "neighboring_relation": "replace_one"},
        {"sampling": "none", "sample_rate": 1.0},
        {"sampling": "none", "sample_rate": 1.0, "neighboring_relation": "replace_one"},
        {"unit": "record", "sampling": "fixed", "neighboring_relation": "replace_one"},
    ],
)
def test_is_refused_where_it_is_not_defined(words: dict[str, object]) -> None:
    other = replace(cohorts(), **words)
    for use in (check_accountant, lambda name, given: bound_epsilon(given, 1e-5, name)):
        with pytest.raises(AccountingError, match=r"^accountant='moments' is not allowed with"):
            use("moments", other)
    check_accountant("moments", cohorts())


def test_no_method_offers_it_where_it_is_not_defined() -> None:
    with pytest.raises(ParameterError, match="accountant: 'moments'"):
        DpFedPaqParameters(num_participations=1, accountant="moments")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("noise_multiplier", value) for value in (-1.0, math.nan, math.inf, True, "1")),
        *(("sample_rate", value) for value in (0.0, 1.1, math.nan, False)),
        *(("num_releases", value) for value in (-1, 1.0, True)),
        *(("delta", value) for value in (0.0, 1.0, math.nan)),
        *(("max_order", value) for value in (0, 1025, 2.0, True)),
    ],
)
def test_bad_arguments_are_refused_by_name(name: str, value: object) -> None:
    arguments = {"noise_multiplier": 1.0, "sample_rate": 0.3, "num_releases": 5, "delta": 1e-5}
    with pytest.raises(ValueError, match=f"^{name}="):
        moments_epsilon(**{**arguments, name: value})
