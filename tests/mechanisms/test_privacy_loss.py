import math
from itertools import combinations

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from strategies.mechanisms.amplification import published_inclusion_probability
from strategies.mechanisms.closed_form import gaussian_epsilon
from strategies.mechanisms.privacy_loss import fixed_size_delta, fixed_size_epsilon

# noise multiplier, sample rate, releases, delta
SETTINGS = [
    (4.0, 0.6, 10, 1e-5),
    (2.0, 0.2, 30, 1e-5),
    (1.0, 0.1, 100, 1e-5),
    (1.0, 0.9, 100, 1e-3),
    (0.5, 0.01, 300, 1e-4),
    (0.6, 0.001, 2000, 1e-2),
    (20.0, 0.1, 10_000, 1e-12),
    (60.0, 0.8, 10_000, 1e-9),
    (0.9, 1e-4, 10_000, 1e-6),
    (3000.0, 0.03, 400, 1e-9),
    (0.08, 0.5, 50, 1e-5),
]
# What the documentation promises.
RELATIVE, ABSOLUTE = 0.005, 1e-4

multipliers = st.floats(math.log(0.05), math.log(1e4)).map(math.exp)
rates = st.floats(math.log(1e-4), 0.0).map(math.exp)
counts = st.floats(0.0, math.log(10_000)).map(lambda x: round(math.exp(x)))
deltas = st.floats(math.log(1e-12), math.log(0.1)).map(math.exp)


# --- one release: the profile ---------------------------------------------------------------------


def mixture_delta(epsilon: float, upper: np.ndarray, lower: np.ndarray, z: float) -> float:
    """Hockey-stick divergence of two equal-weight mixtures of N(mean, z^2), by quadrature."""
    means = np.concatenate([upper, lower])
    x = np.linspace(means.min() - 12 * z, means.max() + 12 * z, 20_001)

    def density(means: np.ndarray) -> np.ndarray:
        return np.asarray(stats.norm.pdf(x[:, None], means, z).mean(axis=1))

    gap = np.maximum(density(upper) - math.exp(epsilon) * density(lower), 0.0)
    return float(integrate.simpson(gap, x=x))


def sampled_sums(values: tuple[float, ...], size: int) -> np.ndarray:
    """Sum of every sample of the given size, each as likely as the other."""
    return np.array([sum(chosen) for chosen in combinations(values, size)])


@pytest.mark.parametrize("size", [1, 3, 5])
def test_profile_bounds_real_samples_of_real_records(size: int) -> None:
    # Values in [0, 1] have replace-one sensitivity 1. Every neighbouring pair, both directions,
    # both signs of epsilon; the profile must bound all and be attained by some.
    z, rest = 0.7, [(0.0,) * 5, (1.0,) * 5, (0.0, 0.0, 0.5, 1.0, 1.0), (0.3, 0.9, 0.1, 0.6, 0.2)]
    for epsilon in (-1.0, -0.2, 0.0, 0.1, 0.5, 1.5):
        bound = fixed_size_delta(epsilon, z, size / 6)
        seen = [
            mixture_delta(epsilon, sampled_sums((a, *r), size), sampled_sums((b, *r), size), z)
            for r in rest
            for a, b in ((0.0, 1.0), (1.0, 0.0), (0.25, 1.0))
        ]
        # the kink of max(., 0) costs the quadrature up to step^2 = 1e-6
        assert max(seen) <= bound + 1e-6
        assert max(seen) == pytest.approx(bound, abs=1e-6)


def test_published_inclusion_probability_would_not_bound_them() -> None:
    # 6 records, 3 disjoint batches of 1: the same check must fail with the published p.
    z, zeros = 0.7, (0.0,) * 5
    seen = mixture_delta(0.5, sampled_sums((1.0, *zeros), 3), sampled_sums((0.0, *zeros), 3), z)
    assert fixed_size_delta(0.5, z, 0.5) >= seen - 1e-6
    assert fixed_size_delta(0.5, z, published_inclusion_probability(6, 1, 3)) < 0.9 * seen


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


# --- repeated releases: independent oracles -------------------------------------------------------


class Pair:
    """The dominating pair itself, written down as two densities and an atom.

    On t > 0: P has density p phi(t - mu/2) + (1 - p) phi(t + mu/2), Q has phi(t + mu/2). On t < 0
    they swap. The rest of the mass is an atom at 0 where the loss is 0. Nothing of this comes from
    the privacy profile.
    """

    def __init__(self, z: float, p: float) -> None:
        self.mu, self.p = 1.0 / z, p

    def loss(self, t: mpmath.mpf) -> mpmath.mpf:
        return mpmath.log(1 + self.p * mpmath.expm1(self.mu * t))

    def density(self, t: mpmath.mpf) -> mpmath.mpf:
        half = self.mu / 2
        return self.p * mpmath.npdf(t - half) + (1 - self.p) * mpmath.npdf(t + half)

    def delta(self, epsilon: float, points: list[float]) -> mpmath.mpf:
        """Hockey-stick divergence of one release, by quadrature of the definition."""
        e = mpmath.exp(epsilon)
        half = self.mu / 2

        def right(t: mpmath.mpf) -> mpmath.mpf:
            return max(self.density(t) - e * mpmath.npdf(t + half), 0)

        def left(t: mpmath.mpf) -> mpmath.mpf:
            return max(mpmath.npdf(t + half) - e * self.density(t), 0)

        cuts = sorted({0.0, *points, 40.0})
        return mpmath.quad(right, cuts) + mpmath.quad(left, cuts) + self.atom() * max(1 - e, 0)

    def atom(self) -> mpmath.mpf:
        # P's mass on t > 0 is p Phi(mu/2) + (1 - p) Phi(-mu/2), on t < 0 it is Phi(-mu/2)
        tail = mpmath.ncdf(-self.mu / 2)
        return 1 - self.p * (1 - tail) - (1 - self.p) * tail - tail


@pytest.mark.parametrize(("z", "p"), [(1.0, 0.1), (0.5, 0.9), (3.0, 0.4)])
@pytest.mark.parametrize("epsilon", [-0.3, 0.0, 0.05, 0.4])
def test_one_release_against_quadrature(z: float, p: float, epsilon: float) -> None:
    threshold = math.log1p(math.expm1(abs(epsilon)) / p) * z
    expected = Pair(z, p).delta(epsilon, [threshold, threshold + 3.0, threshold + 9.0])
    assert fixed_size_delta(epsilon, z, p) == pytest.approx(float(expected), rel=1e-8)


@pytest.mark.parametrize(("z", "p", "delta"), [(1.0, 0.1, 1e-5), (0.5, 0.9, 1e-3)])
def test_two_releases_against_quadrature(z: float, p: float, delta: float) -> None:
    # delta_2(eps) = E_P delta_1(eps - loss), with delta_1 in closed form with 30 digits
    pair = Pair(z, p)

    def one(epsilon: mpmath.mpf) -> mpmath.mpf:
        size = abs(epsilon)
        before = mpmath.log(1 + mpmath.expm1(size) / p)
        half = pair.mu / 2
        value = mpmath.ncdf(half - before / pair.mu)
        value = p * (value - mpmath.exp(before) * mpmath.ncdf(-half - before / pair.mu))
        return value if epsilon >= 0 else 1 - mpmath.exp(-size) * (1 - value)

    def two(epsilon: float) -> float:
        edge = math.log1p(math.expm1(epsilon) / p) * z  # where the first loss equals epsilon
        cuts = sorted([0.0, edge / 2, edge, edge + 2.0, edge + 6.0, edge + 25.0])
        total = mpmath.quad(lambda t: pair.density(t) * one(epsilon - pair.loss(t)), cuts)
        half = pair.mu / 2
        total += mpmath.quad(lambda t: mpmath.npdf(t + half) * one(epsilon + pair.loss(t)), cuts)
        return float(total + pair.atom() * one(mpmath.mpf(epsilon)))

    with mpmath.workdps(30):
        epsilon = fixed_size_epsilon(z, p, 2, delta)
        assert two(epsilon) <= delta
        assert two(epsilon * 0.999) > delta


def exact_delta(epsilon: float, z: float, p: float, num_releases: int, delta: float) -> float:
    """Delta after T releases by a Laplace inversion; no grid of losses, nothing rounded up.

    (1 - exp(-x))+ = 1/(2 pi i) int exp(s x) / (s (s + 1)) ds on Re s = theta, any theta > 0, hence
    delta_T(eps) = 1/(2 pi i) int M(s)^T exp(-s eps) / (s (s + 1)) ds with M(s) = E exp(s loss).
    M tends to the atom at 0 along the line, so the releases with no loss or one loss are taken
    out: the former contribute nothing at eps > 0, the latter T atom^(T-1) delta_1(eps). Losses
    that carry less than 1e-6 of ``delta`` are left out, which only makes the result smaller.
    """
    mu, T = 1.0 / z, num_releases
    end = mu / 2 - float(stats.norm.ppf(min(1e-6 * delta / T, 1e-3)))
    nodes, weights = np.polynomial.legendre.leggauss(40)
    panels = np.linspace(0.0, end, 61)
    middle, half = (panels[1:] + panels[:-1]) / 2, np.diff(panels) / 2
    t = (middle[:, None] + half[:, None] * nodes).ravel()
    w = (half[:, None] * weights).ravel()
    minus = w * stats.norm.pdf(t + mu / 2)
    plus = p * w * stats.norm.pdf(t - mu / 2) + (1 - p) * minus
    small = np.log1p(p * np.expm1(np.minimum(mu * t, 1)))
    loss = np.where(mu * t < 1, small, mu * t + np.log(p + (1 - p) * np.exp(-mu * t)))
    atom = 1.0 - plus.sum() - minus.sum()

    thetas = np.geomspace(0.1, 500.0, 80) / epsilon
    thetas = thetas[thetas * loss.max() < 600.0]
    grown = np.exp(np.outer(thetas, loss))
    best = np.argmin(T * np.log(atom + grown @ plus + (1 / grown) @ minus) - thetas * epsilon)
    theta = 0.8 * float(thetas[best])
    step = theta / 12.0
    s = theta + 1j * step * np.arange(4000)
    rest = np.empty(s.size, dtype=complex)
    for start in range(0, s.size, 250):
        grown = np.exp(np.outer(s[start : start + 250], loss))
        rest[start : start + 250] = grown @ plus + (1 / grown) @ minus
    values = (atom + rest) ** T - atom**T - T * atom ** (T - 1) * rest
    values *= np.exp(-s * epsilon) / (s * (s + 1))
    values[0] /= 2  # trapezoidal rule; the other half of the line is the conjugate
    single = T * atom ** (T - 1) * fixed_size_delta(epsilon, z, p)
    return float(values.sum().real) * step / math.pi + single


@pytest.mark.parametrize(("z", "p", "num_releases", "delta"), SETTINGS)
def test_many_releases_against_laplace_inversion(
    z: float, p: float, num_releases: int, delta: float
) -> None:
    epsilon = fixed_size_epsilon(z, p, num_releases, delta)
    assert exact_delta(epsilon, z, p, num_releases, delta) <= delta  # never too small
    assert exact_delta((1 - RELATIVE) * epsilon, z, p, num_releases, delta) > delta


def test_laplace_inversion_knows_the_answer_without_sampling() -> None:
    for z, num_releases, delta in ((2.0, 7, 1e-5), (30.0, 2000, 1e-11)):
        epsilon = gaussian_epsilon(z, num_releases, delta)
        found = exact_delta(epsilon, z, 1.0, num_releases, delta)
        assert found == pytest.approx(delta, rel=1e-5)


# --- parity with dp-accounting --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("z", "p", "num_releases", "delta", "step"),
    [
        (4.0, 0.6, 10, 1e-5, 2e-3),
        (2.0, 0.2, 30, 1e-5, 3e-3),
        (1.0, 0.1, 100, 1e-5, 5e-3),
        (50.0, 0.05, 500, 1e-6, 1e-4),
    ],
)
def test_agrees_with_the_library_on_the_same_profile(
    z: float, p: float, num_releases: int, delta: float, step: float
) -> None:
    # The whole symmetric profile on a fixed grid, through the library's own discretisation and
    # composition. Both are upper bounds of the same number.
    reach = math.ceil(4.0 * gaussian_epsilon(z, 1, 1e-9 * delta) / step)
    reach = min(reach, math.ceil(math.log1p(p * math.expm1(reach * step)) / step))
    grid = np.arange(-reach, reach + 1)
    profile = [fixed_size_delta(k * step, z, p) for k in grid]
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(step, grid, profile)
    theirs = pmf.self_compose(num_releases).get_epsilon_for_delta(delta)
    assert fixed_size_epsilon(z, p, num_releases, delta) == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize(
    ("z", "p", "num_releases", "delta"),
    [(4.0, 0.6, 10, 1e-5), (2.0, 0.2, 30, 1e-5), (1.0, 0.1, 100, 1e-5), (0.7, 0.05, 20, 1e-6)],
)
def test_lies_between_a_real_attack_and_the_renyi_bound(
    z: float, p: float, num_releases: int, delta: float
) -> None:
    # Below: all records but one are 0, so that a release is (1 - p) N(0) + p N(1) against N(0); the
    # library composes that pair with an optimistic estimate. Above: Renyi accounting for sampling
    # without replacement, where the noise multiplier is noise over replace-one sensitivity.
    epsilon = fixed_size_epsilon(z, p, num_releases, delta)
    attack = privacy_loss_distribution.from_gaussian_mechanism(
        z,
        sampling_prob=p,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=1e-3,
    ).self_compose(num_releases)
    assert attack.get_epsilon_for_delta(delta) <= epsilon
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        10_000, round(10_000 * p), dp_accounting.GaussianDpEvent(z)
    )
    accountant.compose(event, num_releases)
    renyi = accountant.get_epsilon(delta)
    assert epsilon <= min(renyi, gaussian_epsilon(z, num_releases, delta))
    # The twin: with half the noise, the bound between the two is broken.
    assert fixed_size_epsilon(z / 2, p, num_releases, delta) > renyi


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
