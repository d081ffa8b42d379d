import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from scipy import stats

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
    (0.7, 1e-6, 10_000, 1e-5),
    (2.0, 0.9999, 20, 1e-5),
    (0.5, 1.0 - 1e-9, 3, 1e-6),
]
RELATIVE = 0.005  # what the documentation promises


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


def attack_delta(epsilon: float, z: float, p: float, record: int, replacement: int, rest: float):
    """Hockey-stick divergence of two real releases, with 50 digits.

    All records but one are ``rest``, a number in [0, 1]; the release is the noisy sum less what
    the rest always adds. The ratio of the densities is monotone, so the divergence is a difference
    of two normal distribution functions beyond its crossing, which bisection finds.
    """
    with mpmath.workdps(50):
        z, p, v = (mpmath.mpf(x) for x in (z, p, rest))
        e = mpmath.exp(mpmath.mpf(epsilon))
        sign = 1 if record > replacement else -1

        def density(x: mpmath.mpf, value: int) -> mpmath.mpf:
            return p * mpmath.npdf(x, value, z) + (1 - p) * mpmath.npdf(x, v, z)

        def above(x: mpmath.mpf, value: int) -> mpmath.mpf:
            far = p * mpmath.ncdf(sign * (value - x) / z)
            return far + (1 - p) * mpmath.ncdf(sign * (v - x) / z)

        high = sign * 100 * (z * z + 1)
        low = -high
        for _ in range(110):
            middle = (low + high) / 2
            reached = density(middle, record) >= e * density(middle, replacement)
            low, high = (low, middle) if reached else (middle, high)
        return max(above(high, record) - e * above(high, replacement), mpmath.mpf(0))


@pytest.mark.parametrize("p", [1e-9, 1e-4, 0.5, 0.9999, 1.0 - 1e-9])
@pytest.mark.parametrize("z", [0.4, 5.0])
def test_one_release_bounds_real_neighbours_at_rates_near_zero_and_one(z: float, p: float) -> None:
    for epsilon in (-0.5, 0.0, 0.5 * p, 2.0):
        bound = fixed_size_delta(epsilon, z, p)
        seen = [
            float(attack_delta(epsilon, z, p, *pair, rest))
            for pair in ((1, 0), (0, 1))
            for rest in (0.0, 0.3, 1.0)
        ]
        assert max(seen) <= bound * (1 + 1e-9)
        assert max(seen) == pytest.approx(bound, rel=1e-6, abs=1e-300)  # and some attain it
    for delta in (1e-3 * p, 1e-7 * p):
        epsilon = fixed_size_epsilon(z, p, 1, delta)
        assert float(attack_delta(epsilon, z, p, 1, 0, 0.0)) <= delta * (1 + 1e-9)
        assert float(attack_delta(epsilon * (1 - 1e-6), z, p, 1, 0, 0.0)) > delta


@pytest.mark.parametrize(
    ("z", "p", "delta"), [(1.0, 0.1, 1e-5), (0.5, 0.9, 1e-3), (0.4, 2e-3, 2.5e-3)]
)
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
        assert two(epsilon * (1 - RELATIVE)) > delta


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
