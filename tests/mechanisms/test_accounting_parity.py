"""Every unit x sampler x relation x accountant: computed and checked elsewhere, or refused."""

import itertools
import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, pld_pmf, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from strategies.mechanisms.accounting import (
    ACCOUNTANTS,
    AccountingError,
    GaussianReleases,
    bound_epsilon,
    calibrate_noise_multiplier,
    check_accountant,
    compute_epsilon,
)

REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
UNITS = ("record", "client")
SAMPLINGS = ("none", "fixed", "poisson")
RELATIONS = ("replace_one", "add_or_remove_one", "zero_out")
DEFINED = {
    ("record", "none", "replace_one"),
    ("record", "none", "add_or_remove_one"),
    ("record", "fixed", "replace_one"),
    ("record", "poisson", "add_or_remove_one"),
    ("client", "none", "replace_one"),
    ("client", "none", "zero_out"),
    ("client", "fixed", "replace_one"),
    ("client", "poisson", "zero_out"),
}
Z, T, RATE, DELTA = 1.2, 20, 0.1, 1e-5


def gaussian_oracle() -> float:
    """Epsilon without amplification: a root of the definition, with 30 digits."""
    with mpmath.workdps(30):
        mu = mpmath.sqrt(T) / mpmath.mpf(Z)

        def excess(e: mpmath.mpf) -> mpmath.mpf:
            first = mpmath.ncdf(mu / 2 - e / mu)
            return first - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu) - DELTA

        return float(mpmath.findroot(excess, (1, 60), solver="bisect", tol=1e-25))


def library_oracle(accountant: dp_accounting.PrivacyAccountant, sampling: str) -> float:
    event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(Z)
    if sampling == "poisson":
        event = dp_accounting.PoissonSampledDpEvent(RATE, event)
    elif sampling == "fixed":
        event = dp_accounting.SampledWithoutReplacementDpEvent(1000, round(1000 * RATE), event)
    return float(accountant.compose(event, T).get_epsilon(DELTA))


def profile_oracle() -> float:
    """The library's composition of the profile of a fixed-size sample, the textbook formula."""
    grid = np.arange(-1500, 1501)
    size = np.abs(grid) * 0.004
    before = np.log1p(np.expm1(size) / RATE)
    profile = stats.norm.cdf(0.5 / Z - before * Z)
    profile = RATE * (profile - np.exp(before) * stats.norm.cdf(-0.5 / Z - before * Z))
    profile = np.where(grid < 0, 1 - np.exp(-size) * (1 - profile), profile)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(0.004, grid, profile)
    return float(pmf.self_compose(T).get_epsilon_for_delta(DELTA))


def oracle(sampling: str, accountant: str) -> float:
    if accountant == "closed_form":
        return gaussian_oracle()
    if accountant == "rdp":
        relation = {} if sampling == "poisson" else {"neighboring_relation": REPLACE_ONE}
        return library_oracle(RdpAccountant(**relation), sampling)
    if sampling == "fixed":
        return profile_oracle()
    return library_oracle(PLDAccountant(), sampling)


@pytest.mark.parametrize(
    ("unit", "sampling", "relation", "accountant"),
    list(itertools.product(UNITS, SAMPLINGS, RELATIONS, (*ACCOUNTANTS, "gdp"))),
)
def test_every_combination_is_checked_or_refused(
    unit: str, sampling: str, relation: str, accountant: str
) -> None:
    rate = 1.0 if sampling == "none" else RATE
    words = (unit, relation, sampling, rate)
    if (unit, sampling, relation) not in DEFINED:
        with pytest.raises(AccountingError, match=f"^neighboring_relation='{relation}' is not all"):
            GaussianReleases(Z, T, *words)
        with pytest.raises(AccountingError, match=f"^neighboring_relation='{relation}' is not all"):
            calibrate_noise_multiplier(
                1.0,
                DELTA,
                num_releases=T,
                unit=unit,
                neighboring_relation=relation,
                sampling=sampling,
                sample_rate=rate,
            )
        return
    releases = GaussianReleases(Z, T, *words)
    if accountant == "gdp" or (sampling == "none" and accountant == "pld"):
        with pytest.raises(AccountingError, match=f"^accountant='{accountant}' is not allowed"):
            check_accountant(accountant, releases)
        with pytest.raises(AccountingError, match=f"^accountant='{accountant}' is not allowed"):
            compute_epsilon(releases, DELTA, accountant)
        return
    check_accountant(accountant, releases)
    bound = bound_epsilon(releases, DELTA, accountant)
    assert bound.accountant == accountant
    assert bound.epsilon == pytest.approx(oracle(sampling, accountant), rel=0.01)


def attack_epsilon(z: float, rate: float, num_releases: int, delta: float) -> float:
    """What an attacker sees at least: an optimistic estimate for the Poisson sampler's own pair."""
    loss = privacy_loss_distribution.from_gaussian_mechanism(
        z,
        sampling_prob=rate,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=1e-3,
    )
    return float(loss.self_compose(num_releases).get_epsilon_for_delta(delta))


def test_the_privacy_loss_of_a_poisson_sample_is_that_of_opacus() -> None:
    opacus = pytest.importorskip("opacus.accountants")
    accountant = opacus.PRVAccountant()
    accountant.history = [(1.1, 0.02, 500)]
    expected = accountant.get_epsilon(1e-5, eps_error=0.01)
    releases = GaussianReleases(1.1, 500, "record", "add_or_remove_one", "poisson", 0.02)
    assert compute_epsilon(releases, 1e-5) == pytest.approx(expected, abs=0.011, rel=0.01)


def test_the_accountant_by_the_central_limit_theorem_would_report_too_little() -> None:
    gdp = pytest.importorskip("opacus.accountants.analysis.gdp")
    for z, rate, num_releases in ((0.8, 0.05, 50), (0.6, 0.01, 100), (1.0, 0.05, 10)):
        reported = gdp.compute_eps_poisson(
            steps=num_releases, noise_multiplier=z, sample_rate=rate, delta=1e-5
        )
        seen = attack_epsilon(z, rate, num_releases, 1e-5)
        releases = GaussianReleases(z, num_releases, "record", "add_or_remove_one", "poisson", rate)
        assert reported < 0.8 * seen
        for accountant in ACCOUNTANTS:
            assert compute_epsilon(releases, 1e-5, accountant) >= seen


def test_a_poisson_rate_for_a_cohort_of_fixed_size_would_report_too_little() -> None:
    # the reason why the sampler is part of what happened
    fixed = GaussianReleases(1.0, 100, "record", "replace_one", "fixed", 0.1)
    poisson = GaussianReleases(1.0, 100, "record", "add_or_remove_one", "poisson", 0.1)
    for accountant in ("pld", "rdp"):
        right, wrong = (compute_epsilon(r, 1e-5, accountant) for r in (fixed, poisson))
        assert wrong < 0.95 * right
    assert math.isclose(*(compute_epsilon(r, 1e-5, "closed_form") for r in (fixed, poisson)))
