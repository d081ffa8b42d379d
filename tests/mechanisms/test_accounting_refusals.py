"""What no accountant can count is refused by name."""

import math
from dataclasses import replace

import pytest

from strategies.mechanisms.accounting import (
    AccountingError,
    calibrate_noise_multiplier,
    check_accountant,
    compute_epsilon,
)
from tests.mechanisms.test_accounting import (
    CLIENT,
    COVERED,
    FIXED,
    POISSON,
    POISSON_CLIENT,
    RECORD,
    releases,
)


@pytest.mark.parametrize(
    ("accountant", "words"),
    [
        ("pld", RECORD),
        ("pld", CLIENT),
        ("gdp", FIXED),
        ("prv", POISSON),
        ("", FIXED),
        (None, FIXED),
    ],
)
def test_accountants_that_do_not_match_the_sampler_are_refused(
    accountant: str, words: dict
) -> None:
    message = (
        f"accountant={accountant!r} is not allowed with sampling={words['sampling']!r}: .*'auto'"
    )
    with pytest.raises(AccountingError, match=message):
        check_accountant(accountant, releases(words))
    with pytest.raises(AccountingError, match=message):
        compute_epsilon(releases(words), 1e-5, accountant)
    with pytest.raises(AccountingError, match=message):
        calibrate_noise_multiplier(1.0, 1e-5, num_releases=3, accountant=accountant, **words)


def test_matching_accountants_are_accepted() -> None:
    for accountant, words in COVERED:
        check_accountant(accountant, releases(words))
        check_accountant("auto", releases(words))


@pytest.mark.parametrize(
    ("unit", "sampling", "relations"),
    [
        ("record", "none", {"replace_one", "add_or_remove_one"}),
        ("record", "fixed", {"replace_one"}),
        ("client", "none", {"replace_one", "zero_out"}),
        ("client", "fixed", {"replace_one"}),
        ("record", "poisson", {"add_or_remove_one"}),
        ("client", "poisson", {"zero_out"}),
        ("record", "shuffled", set()),
        ("user", "none", set()),
        ("record", None, set()),
    ],
)
def test_only_defined_combinations_can_be_described(
    unit: str, sampling: str, relations: set[str]
) -> None:
    for relation in ("replace_one", "add_or_remove_one", "zero_out", "", "replace_special"):
        words = {"unit": unit, "sampling": sampling, "sample_rate": 1.0}
        if relation in relations:
            releases({**words, "neighboring_relation": relation})
        else:
            with pytest.raises(AccountingError, match="is not allowed"):
                releases({**words, "neighboring_relation": relation})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("noise_multiplier", -0.1),
        ("noise_multiplier", math.nan),
        ("noise_multiplier", math.inf),
        ("noise_multiplier", True),
        ("noise_multiplier", "1"),
        ("num_releases", -1),
        ("num_releases", 2.0),
        ("num_releases", True),
        ("sample_rate", 0.0),
        ("sample_rate", -0.5),
        ("sample_rate", 1.5),
        ("sample_rate", math.nan),
        ("sample_rate", None),
    ],
)
def test_bad_numbers_are_refused_by_name(field: str, value: float) -> None:
    for words in (FIXED, RECORD, CLIENT, POISSON, POISSON_CLIENT):
        with pytest.raises(AccountingError, match=f"^{field}="):
            replace(releases(words), **{field: value})
