import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.mechanisms.accounting import (
    ACCOUNTANTS,
    COMPARISON_ACCOUNTANTS,
    AccountingError,
    GaussianReleases,
    bound_epsilon,
    calibrate_noise_multiplier,
    compute_epsilon,
    default_accountant,
)
from strategies.mechanisms.amplification import required_before_amplification
from strategies.mechanisms.closed_form import analytic_gaussian_std, gaussian_epsilon
from strategies.mechanisms.privacy_loss import fixed_size_epsilon

REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE


FIXED = {
    "unit": "record",
    "neighboring_relation": "replace_one",
    "sampling": "fixed",
    "sample_rate": 0.3,
}


RECORD = {**FIXED, "sampling": "none", "sample_rate": 1.0}


CLIENT = {**RECORD, "unit": "client"}


POISSON = {**FIXED, "neighboring_relation": "add_or_remove_one", "sampling": "poisson"}


POISSON_CLIENT = {**POISSON, "unit": "client", "neighboring_relation": "zero_out"}


# Every accountant with every sampler that it covers.
COVERED = [
    *(("closed_form", words) for words in (RECORD, CLIENT, FIXED, POISSON)),
    *(("pld", words) for words in (FIXED, POISSON)),
    *(("rdp", words) for words in (RECORD, FIXED, POISSON)),
    ("moments", POISSON_CLIENT),
]


multipliers = st.floats(math.log(0.05), math.log(1e4)).map(math.exp)


rates = st.floats(math.log(1e-3), 0.0).map(math.exp)


counts = st.floats(0.0, math.log(3000)).map(lambda x: round(math.exp(x)))


deltas = st.floats(math.log(1e-12), math.log(0.1)).map(math.exp)


targets = st.floats(math.log(0.01), math.log(1000)).map(math.exp)


def releases(words: dict, z: float = 2.0, num_releases: int = 10) -> GaussianReleases:
    return GaussianReleases(z, num_releases, **words)


@pytest.mark.parametrize(("accountant", "words"), COVERED)
class TestEveryAccountant:
    """What has to hold whatever the accountant."""

    def test_no_release_is_free_and_no_noise_is_no_privacy(
        self, accountant: str, words: dict
    ) -> None:
        assert compute_epsilon(releases(words, 2.0, 0), 1e-5, accountant) == 0.0
        assert compute_epsilon(releases(words, 0.0, 0), 1e-5, accountant) == 0.0
        assert compute_epsilon(releases(words, 0.0, 1), 1e-5, accountant) == math.inf

    def test_is_never_negative_and_zero_for_overwhelming_noise(
        self, accountant: str, words: dict
    ) -> None:
        assert compute_epsilon(releases(words, 1e9, 10_000), 1e-3, accountant) == 0.0
        if accountant != "rdp":  # a Renyi bound never quite gets there
            assert compute_epsilon(releases(words, 3.0, 1), 0.2, accountant) == 0.0

    @settings(max_examples=20)
    @given(z=multipliers, num_releases=counts, delta=deltas, rate=rates)
    def test_is_monotone(
        self, accountant: str, words: dict, z: float, num_releases: int, delta: float, rate: float
    ) -> None:
        sampled = words["sampling"] != "none"

        def spend(z: float, num_releases: int, delta: float, rate: float) -> float:
            rated = {**words, "sample_rate": rate if sampled else 1.0}
            return compute_epsilon(releases(rated, z, num_releases), delta, accountant)

        epsilon = spend(z, num_releases, delta, rate)
        slack = epsilon * 1.005 + 1e-4
        assert epsilon >= 0.0
        assert spend(z * 1.2, num_releases, delta, rate) <= slack
        assert spend(z, num_releases, delta * 1.5, rate) <= slack
        assert spend(z, num_releases, delta, rate * 0.8) <= slack
        assert epsilon <= spend(z, num_releases + 1, delta, rate) * 1.005 + 1e-4

    @settings(max_examples=20)
    @given(z=multipliers, num_releases=counts)
    def test_is_at_most_the_sum_of_single_releases(
        self, accountant: str, words: dict, z: float, num_releases: int
    ) -> None:
        num_releases = min(num_releases, 50)
        one = compute_epsilon(releases(words, z, 1), 1e-6, accountant)
        whole = compute_epsilon(releases(words, z, num_releases), num_releases * 1e-6, accountant)
        # a Renyi bound at a larger delta uses another order
        slack = 1.05 if accountant == "rdp" else 1.005
        assert whole <= num_releases * one * slack + 1e-4

    @settings(max_examples=15)
    @given(target=targets, num_releases=counts, delta=deltas)
    def test_calibration_is_the_inverse(
        self, accountant: str, words: dict, target: float, num_releases: int, delta: float
    ) -> None:
        z = calibrate_noise_multiplier(
            target, delta, num_releases=num_releases, accountant=accountant, **words
        )
        epsilon = compute_epsilon(releases(words, z, num_releases), delta, accountant)
        assert 0.99 * target <= epsilon <= target

    @pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan, math.inf, True, "1e-5"])
    def test_refuses_a_bad_delta(self, accountant: str, words: dict, delta: float) -> None:
        with pytest.raises(AccountingError, match=r"^delta="):
            compute_epsilon(releases(words), delta, accountant)

    @pytest.mark.parametrize(
        ("argument", "value"),
        [
            ("target_epsilon", 0.0),
            ("target_epsilon", math.inf),
            ("target_epsilon", math.nan),
            ("target_epsilon", True),
            ("delta", 0.0),
            ("num_releases", 0),
            ("num_releases", 1.0),
            ("sample_rate", 0.0),
            ("unit", "user"),
            ("accountant", "gdp"),
        ],
    )
    def test_calibration_refuses_bad_arguments(
        self, accountant: str, words: dict, argument: str, value: float
    ) -> None:
        arguments = {"num_releases": 3, "accountant": accountant, **words, argument: value}
        target = arguments.pop("target_epsilon", 1.0)
        delta = arguments.pop("delta", 1e-5)
        with pytest.raises(AccountingError, match=f"^{argument}="):
            calibrate_noise_multiplier(target, delta, **arguments)


def test_every_accountant_is_covered_by_these_tests() -> None:
    assert {accountant for accountant, _ in COVERED} == {*ACCOUNTANTS, *COMPARISON_ACCOUNTANTS}


def test_epsilon_is_that_of_the_formulas() -> None:
    assert compute_epsilon(releases(CLIENT), 1e-5, "closed_form") == gaussian_epsilon(2.0, 10, 1e-5)
    pld = compute_epsilon(releases(FIXED), 1e-5, "pld")
    assert pld == fixed_size_epsilon(2.0, 0.3, 10, 1e-5)
    # without amplification: valid for the same releases, and larger
    assert compute_epsilon(releases(FIXED), 1e-5, "closed_form") == gaussian_epsilon(2.0, 10, 1e-5)
    assert pld < 0.6 * gaussian_epsilon(2.0, 10, 1e-5)


def test_auto_is_the_tightest_accountant() -> None:
    assert default_accountant("record", "fixed") == "pld"
    assert default_accountant("record", "none") == "closed_form"
    assert default_accountant("client", "none") == "closed_form"
    assert default_accountant("record", "poisson") == default_accountant("client", "fixed") == "pld"
    for words in (FIXED, RECORD, CLIENT, POISSON, POISSON_CLIENT):
        name = default_accountant(words["unit"], words["sampling"])
        expected = compute_epsilon(releases(words), 1e-5, name)
        others = [a for a in ACCOUNTANTS if a != "pld" or words["sampling"] != "none"]
        assert expected == min(compute_epsilon(releases(words), 1e-5, a) for a in others)
        assert compute_epsilon(releases(words), 1e-5, "auto") == expected
        assert compute_epsilon(releases(words), 1e-5) == expected
    with pytest.raises(AccountingError, match="sampling='shuffled' is not allowed"):
        default_accountant("client", "shuffled")


def test_sampling_everybody_changes_nothing() -> None:
    everybody = releases({**FIXED, "sample_rate": 1.0})
    assert compute_epsilon(everybody, 1e-5, "pld") == gaussian_epsilon(2.0, 10, 1e-5)


def test_without_sampling_the_rate_is_one() -> None:
    with pytest.raises(AccountingError, match=r"^sample_rate=0.5"):
        releases({**RECORD, "sample_rate": 0.5})


def test_noise_multiplier_has_one_meaning() -> None:
    # z is noise over the sensitivity of the declared relation. dp-accounting's replace-one has two:
    # its Renyi accountant takes this z, its PLD accountant takes noise over the clipping norm, half
    # the sensitivity, so 2 z. Handing it z unchanged would claim another mechanism.
    words = {**RECORD, "neighboring_relation": "replace_one"}
    ours = compute_epsilon(releases(words, 4.0, 10), 1e-5, "closed_form")

    def theirs(accountant: dp_accounting.PrivacyAccountant, z: float) -> float:
        accountant.compose(dp_accounting.GaussianDpEvent(z), 10)
        return float(accountant.get_epsilon(1e-5))

    assert theirs(PLDAccountant(REPLACE_ONE), 8.0) == pytest.approx(ours, rel=1e-3)
    assert theirs(PLDAccountant(REPLACE_ONE), 4.0) > 1.9 * ours
    # the Renyi bound is a little loose, and with z doubled it would be below the exact value
    sampled = dp_accounting.SampledWithoutReplacementDpEvent

    def renyi(z: float) -> float:
        accountant = RdpAccountant(neighboring_relation=REPLACE_ONE)
        accountant.compose(sampled(10, 10, dp_accounting.GaussianDpEvent(z)), 10)
        return float(accountant.get_epsilon(1e-5))

    assert ours < renyi(4.0) < 1.1 * ours
    assert renyi(8.0) < 0.6 * ours


def test_calibration_without_sampling_is_exact() -> None:
    for target, delta, num_releases in ((1.0, 1e-5, 1), (0.01, 1e-12, 10_000), (1000.0, 0.1, 3)):
        z = calibrate_noise_multiplier(target, delta, num_releases=num_releases, **CLIENT)
        exact = math.sqrt(num_releases) * analytic_gaussian_std(target, delta, 1.0)
        assert z == pytest.approx(exact, rel=1e-9)
        assert gaussian_epsilon(z, num_releases, delta) <= target


def test_calibration_of_one_sampled_release_is_the_inverse_amplification() -> None:
    z = calibrate_noise_multiplier(1.0, 1e-3, num_releases=1, **FIXED)
    exact = analytic_gaussian_std(*required_before_amplification(1.0, 1e-3, 0.3), 1.0)
    assert exact <= z <= 1.01 * exact


@settings(max_examples=40)
@given(target=targets, num_releases=counts, delta=deltas, rate=rates)
def test_sampling_never_needs_more_noise(
    target: float, num_releases: int, delta: float, rate: float
) -> None:
    arguments = {"num_releases": num_releases, **FIXED, "sample_rate": rate}
    unamplified = calibrate_noise_multiplier(target, delta, accountant="closed_form", **arguments)
    try:
        amplified = calibrate_noise_multiplier(target, delta, accountant="pld", **arguments)
    except AccountingError:
        assert -math.expm1(num_releases * math.log1p(-rate)) <= delta
    else:
        assert 0.0 < amplified <= unamplified


def test_a_delta_that_allows_publishing_the_record_is_refused() -> None:
    # Drawn with probability 1 - 0.99^5 = 0.049: at delta 0.05 no noise at all is (0, 0.05)-private.
    words = {**FIXED, "sample_rate": 0.01}
    with pytest.raises(AccountingError, match=r"^target_delta=0.05 .* probability 0.049 in 5"):
        calibrate_noise_multiplier(1.0, 0.05, num_releases=5, **words)
    assert calibrate_noise_multiplier(1.0, 0.048, num_releases=5, **words) > 0.1


def test_sampling_that_does_not_help_is_not_counted_and_the_answer_says_so() -> None:
    # 128 of 143 records, z 4, 20 releases: a Renyi bound of 9.457, and 4.983 without amplification
    words = {**FIXED, "sample_rate": 128 / 143}
    bound = bound_epsilon(releases(words, 4.0, 20), 1e-5, "rdp")
    assert bound.accountant == "closed_form"
    assert bound.epsilon == gaussian_epsilon(4.0, 20, 1e-5)
    assert bound_epsilon(releases(words, 4.0, 20), 1e-5, "pld").accountant == "pld"
    for words in (FIXED, POISSON, RECORD, CLIENT):
        for accountant in ACCOUNTANTS:
            if accountant != "pld" or words["sampling"] != "none":
                assert bound_epsilon(releases(words, 0.5, 20), 1e-5, accountant).accountant in (
                    accountant,
                    "closed_form",
                )
    # out of the range of its numbers, whatever it is asked for
    for words in (FIXED, POISSON):
        for accountant in ("pld", "rdp"):
            bound = bound_epsilon(releases(words, 1e-6, 3), 1e-5, accountant)
            assert bound.accountant == "closed_form"
            assert bound.epsilon == gaussian_epsilon(1e-6, 3, 1e-5)


def test_without_sampling_a_renyi_bound_stays_one() -> None:
    bound = bound_epsilon(releases(RECORD, 2.0, 10), 1e-5, "rdp")
    assert bound.accountant == "rdp"
    assert bound.epsilon > gaussian_epsilon(2.0, 10, 1e-5)


def test_a_cohort_of_clients_is_counted_like_a_sample_of_records() -> None:
    fixed_client = {**FIXED, "unit": "client"}
    for accountant in ACCOUNTANTS:
        for one, other in ((FIXED, fixed_client), (POISSON, POISSON_CLIENT)):
            assert compute_epsilon(releases(one), 1e-5, accountant) == compute_epsilon(
                releases(other), 1e-5, accountant
            )
