"""Published and derived figures of DP-FedPaq's privacy, digit for digit.

Sources: the authors' published experiments for the column "authors' form"; for the others a
calculation from arXiv:1805.06530 (analytic Gaussian), arXiv:1807.01647 (amplification) and
dp-accounting's composition of the profile on a grid of 1e-4 and its Renyi accountant, made before
this code was written.
"""

import math

import pytest

from strategies.mechanisms.accounting import GaussianReleases, compute_epsilon
from strategies.mechanisms.amplification import (
    amplify,
    exact_inclusion_probability,
    published_inclusion_probability,
    published_noise_std,
    required_before_amplification,
)
from strategies.mechanisms.closed_form import analytic_gaussian_std, classic_gaussian_std
from strategies.mechanisms.privacy_loss import fixed_size_epsilon
from strategies.mechanisms.renyi import fixed_size_renyi_epsilon


@pytest.mark.parametrize(("delta", "std"), [(1e-5, 3.7306), (1e-3, 2.5747)])
def test_analytic_gaussian_noise_at_epsilon_one(delta: float, std: float) -> None:
    assert analytic_gaussian_std(1.0, delta, 1.0) == pytest.approx(std, abs=5e-5)


# Noise times the number of records n, at delta 1e-3, for the published sensitivity C / n.
@pytest.mark.parametrize(
    (
        "epsilon",
        "gamma",
        "clipping_norm",
        "authors",
        "classic",
        "analytic",
        "unamplified",
        "digits",
    ),
    [
        # sqrt(2 ln 1250) 2 / 0.2 is 37.7648; the first table printed 37.77
        (0.2, 0.6, 2.0, 43.66, 23.17, 12.60, 37.76, 2),
        (1.0, 0.8, 2.0, 11.89, 6.48, 4.48, 7.55, 2),
        (1.0, 0.2, 0.5, 0.665, 0.735, 0.555, 1.888, 3),
        (2.0, 0.2, 0.5, 0.332, 0.475, 0.397, 0.944, 3),
    ],
)
def test_noise_with_amplification(
    epsilon: float,
    gamma: float,
    clipping_norm: float,
    authors: float,
    classic: float,
    analytic: float,
    unamplified: float,
    digits: int,
) -> None:
    delta = 1e-3
    before = required_before_amplification(epsilon, delta, gamma)
    assert round(published_noise_std(epsilon, delta, gamma, clipping_norm), digits) == authors
    assert round(classic_gaussian_std(*before, clipping_norm), digits) == classic
    assert round(analytic_gaussian_std(*before, clipping_norm), digits) == analytic
    assert round(classic_gaussian_std(epsilon, delta, clipping_norm), digits) == unamplified


# At delta 1e-5: n, E b, z, T, epsilon by Renyi accounting without replacement, by PLD from the
# profile, and without amplification.
@pytest.mark.parametrize(
    ("num_records", "drawn", "z", "num_releases", "renyi", "pld", "unamplified"),
    [
        (600, 360, 4.0, 10, 3.673, 2.014, 3.341),
        (600, 120, 2.0, 30, 5.894, 2.820, 14.83),
        (143, 128, 4.0, 20, 9.457, 4.447, 4.983),
        (1000, 100, 1.0, 100, 14.05, 7.805, 91.82),
    ],
)
def test_composition_over_a_run(
    num_records: int,
    drawn: int,
    z: float,
    num_releases: int,
    renyi: float,
    pld: float,
    unamplified: float,
) -> None:
    rate = drawn / num_records
    releases = GaussianReleases(z, num_releases, "record", "replace_one", "fixed", rate)
    assert compute_epsilon(releases, 1e-5, "pld") == pytest.approx(pld, abs=1e-3)
    assert compute_epsilon(releases, 1e-5, "closed_form") == pytest.approx(unamplified, rel=5e-4)
    found = fixed_size_renyi_epsilon(z, rate, num_releases, 1e-5)
    assert round(found, 3 if renyi < 10 else 2) == renyi
    # the cross-check is the smaller of this and no amplification
    expected = pytest.approx(min(renyi, unamplified), rel=5e-4)
    assert compute_epsilon(releases, 1e-5, "rdp") == expected


def test_published_inclusion_probability_turns_epsilon_one_into_one_point_three_five() -> None:
    # n = 600, b = 64, E = 9, delta 1e-3: .64 against .96. Noise for epsilon 1 by the published p,
    # counted with the real one.
    published = published_inclusion_probability(600, 64, 9)
    exact = exact_inclusion_probability(600, 64, 9)
    assert (round(published, 2), round(exact, 2)) == (0.64, 0.96)
    before = required_before_amplification(1.0, 1e-3, published)
    z = analytic_gaussian_std(*before, 1.0)
    assert fixed_size_epsilon(z, exact, 1, 1e-3) == pytest.approx(1.35, abs=0.005)
    # The formula alone, without the change of delta, moves epsilon to 1.28.
    assert amplify(before[0], 0.0, exact)[0] == pytest.approx(1.277, abs=5e-4)
    # The exact p gives noise that holds.
    z = analytic_gaussian_std(*required_before_amplification(1.0, 1e-3, exact), 1.0)
    assert fixed_size_epsilon(z, exact, 1, 1e-3) == pytest.approx(1.0, rel=1e-9)


def test_classic_noise_fails_from_about_seven_and_a_half() -> None:
    for epsilon, sufficient in ((7.3, True), (7.6, False)):
        enough = analytic_gaussian_std(epsilon, 1e-3, 1.0)
        assert (classic_gaussian_std(epsilon, 1e-3, 1.0) >= enough) is sufficient
    assert math.isclose(classic_gaussian_std(1.0, 1e-3, 1.0), math.sqrt(2 * math.log(1250)))
