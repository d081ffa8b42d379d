import itertools
import math

import pytest

from strategies.mechanisms.accounting import (
    AccountingError,
    GaussianReleases,
    bound_epsilon,
    calibrate_noise_multiplier,
)

SAMPLERS = {
    "none": ("record", "replace_one"),
    "fixed": ("record", "replace_one"),
    "poisson": ("record", "add_or_remove_one"),
}
TARGETS = (0.01, 0.1, 1.0, 8.0, 100.0, 1000.0)
RATES = (1e-4, 0.02, 0.7, 0.999)


def is_hardly_ever_drawn(rate: float, num_releases: int, delta: float) -> bool:
    return rate < 1.0 and -math.expm1(num_releases * math.log1p(-rate)) <= delta


def check(
    target: float, delta: float, num_releases: int, sampling: str, rate: float, accountant: str
) -> None:
    unit, relation = SAMPLERS[sampling]
    words = {
        "unit": unit,
        "neighboring_relation": relation,
        "sampling": sampling,
        "sample_rate": rate,
    }

    def calibrate() -> float:
        return calibrate_noise_multiplier(
            target, delta, num_releases=num_releases, accountant=accountant, **words
        )

    if is_hardly_ever_drawn(rate, num_releases, delta):
        with pytest.raises(AccountingError, match=r"^target_delta="):
            calibrate()
        return
    z = calibrate()
    bound = bound_epsilon(GaussianReleases(z, num_releases, **words), delta, accountant)
    assert 0.99 * target <= bound.epsilon <= target
    assert bound.accountant in (accountant, "closed_form")


def settings_of(accountants: dict[str, tuple[str, ...]]) -> list[tuple]:
    """Every target, sampler, rate, number of releases and delta."""
    return [
        (target, delta, num_releases, sampling, rate, accountant)
        for sampling, names in accountants.items()
        for accountant in names
        for target, rate, num_releases, delta in itertools.product(
            TARGETS, RATES if sampling != "none" else (1.0,), (1, 20, 10_000), (1e-12, 1e-5, 1e-2)
        )
        if accountant == "pld" or not is_hardly_ever_drawn(rate, num_releases, delta)
    ]


# The default accountants: 486 settings.
DEFAULTS = settings_of({"none": ("closed_form",), "fixed": ("pld",), "poisson": ("pld",)})
OTHERS = settings_of(
    {"none": ("rdp",), "fixed": ("rdp", "closed_form"), "poisson": ("rdp", "closed_form")}
)


@pytest.mark.parametrize("setting", DEFAULTS[::11], ids=str)
def test_calibration_meets_its_target(setting: tuple) -> None:
    check(*setting)


@pytest.mark.parametrize("setting", OTHERS[::29], ids=str)
def test_calibration_of_other_accountants_meets_its_target(setting: tuple) -> None:
    check(*setting)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLERS)
def test_calibration_over_the_whole_grid(sampling: str) -> None:
    assert len(DEFAULTS) >= 200
    for setting in DEFAULTS:
        if setting[3] == sampling:
            check(*setting)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLERS)
def test_calibration_of_other_accountants_over_the_whole_grid(sampling: str) -> None:
    for setting in OTHERS:
        if setting[3] == sampling:
            check(*setting)


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_a_renyi_bound_that_cannot_reach_the_target_yields_to_no_amplification(
    sampling: str,
) -> None:
    # At rate 0.7 and epsilon 0.01 the order would be above 2,000, where the Renyi bound for a
    # sample of fixed size is above that without amplification.
    unit, relation = SAMPLERS[sampling]
    words = {"unit": unit, "neighboring_relation": relation, "sampling": sampling}
    z = calibrate_noise_multiplier(
        0.01, 1e-5, num_releases=20, sample_rate=0.7, accountant="rdp", **words
    )
    releases = GaussianReleases(z, 20, sample_rate=0.7, **words)
    bound = bound_epsilon(releases, 1e-5, "rdp")
    assert bound.accountant == ("closed_form" if sampling == "fixed" else "rdp")
    assert 0.0099 <= bound.epsilon <= 0.01
