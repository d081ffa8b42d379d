import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from strategies.mechanisms.closed_form import analytic_gaussian_delta, gaussian_epsilon
from strategies.mechanisms.composition import sampled_epsilon
from strategies.mechanisms.poisson import _directions, poisson_delta, poisson_epsilon
from strategies.mechanisms.privacy_loss import fixed_size_epsilon

# What the documentation promises.
RELATIVE, ABSOLUTE = 0.005, 1e-4

multipliers = st.floats(math.log(0.05), math.log(1e4)).map(math.exp)
rates = st.one_of(
    st.floats(math.log(1e-4), 0.0).map(math.exp),
    st.floats(math.log(1e-9), math.log(0.5)).map(lambda x: 1.0 - math.exp(x)),
)
counts = st.floats(0.0, math.log(10_000)).map(lambda x: round(math.exp(x)))
deltas = st.floats(math.log(1e-12), math.log(0.1)).map(math.exp)


# --- one release: the two profiles ----------------------------------------------------------------


def exact_delta(epsilon: float, z: float, q: float, adding: bool) -> mpmath.mpf:
    """Hockey-stick divergence of the two distributions, with 40 digits and no formula of ours.

    The ratio p(x)/q(x) rises with x, so the set where it exceeds exp(epsilon) is a half-line; its
    end is found by bisection.
    """
    with mpmath.workdps(40):
        z, q, e = mpmath.mpf(z), mpmath.mpf(q), mpmath.exp(mpmath.mpf(epsilon))

        def ratio(x: mpmath.mpf) -> mpmath.mpf:
            return 1 - q + q * mpmath.exp((2 * x - 1) / (2 * z * z))

        sign = -1 if adding else 1  # where P/Q exceeds e: above the end, or below it
        level = 1 / e if adding else e
        low, high = -100 * z * z - 100 * z, 100 * z * z + 100 * z
        for _ in range(130):
            middle = (low + high) / 2
            low, high = (middle, high) if ratio(middle) < level else (low, middle)
        absent = mpmath.ncdf(-sign * high / z)
        present = q * mpmath.ncdf(-sign * (high - 1) / z) + (1 - q) * absent
        first, second = (absent, present) if adding else (present, absent)
        return max(first - e * second, mpmath.mpf(0))


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("q", [1e-6, 0.01, 0.3, 0.9, 1 - 1e-6])
@pytest.mark.parametrize("z", [0.3, 20.0])
@pytest.mark.parametrize("epsilon", [-1.0, -0.003, 0.0, 1e-7, 0.2, 3.0])
def test_one_release_against_forty_digits(epsilon: float, z: float, q: float, adding: bool) -> None:
    expected = float(exact_delta(epsilon, z, q, adding))
    found = poisson_delta(epsilon, z, q, adding=adding)
    assert found == pytest.approx(expected, rel=1e-8, abs=1e-290 if epsilon >= 0 else 1e-15)


def test_profile_with_everybody_drawn_is_the_gaussian_one() -> None:
    for epsilon in (-2.0, 0.0, 1.0):
        for adding in (False, True):
            expected = analytic_gaussian_delta(epsilon, 1.0, 2.0)
            assert poisson_delta(epsilon, 2.0, 1.0, adding=adding) == pytest.approx(expected)


@given(z=multipliers, q=rates, epsilon=st.floats(0.0, 20.0))
def test_in_one_release_removing_loses_more_than_adding(z: float, q: float, epsilon: float) -> None:
    removing = poisson_delta(epsilon, z, q)
    assert 0.0 <= poisson_delta(epsilon, z, q, adding=True) <= removing * (1 + 1e-9) <= 1 + 1e-9


@given(z=multipliers, q=rates, epsilon=st.floats(-5.0, 5.0))
def test_the_two_directions_mirror_each_other(z: float, q: float, epsilon: float) -> None:
    removing = poisson_delta(epsilon, z, q)
    adding = poisson_delta(-epsilon, z, q, adding=True)
    assert removing == pytest.approx(1 - math.exp(epsilon) * (1 - adding), rel=1e-7, abs=1e-12)


def test_profile_bounds_a_real_sum_over_real_samples() -> None:
    # Values in [0, 1], every record drawn with q or not: both directions, all subsets enumerated.
    axis = np.linspace(-8.0, 12.0, 20_001)
    noise, q = 0.8, 0.35

    def density(values: tuple[float, ...]) -> np.ndarray:
        total = np.zeros_like(axis)
        for drawn in range(2 ** len(values)):
            chosen = [v for k, v in enumerate(values) if drawn >> k & 1]
            weight = q ** len(chosen) * (1 - q) ** (len(values) - len(chosen))
            total += weight * stats.norm.pdf(axis, sum(chosen), noise)
        return total

    def divergence(upper: np.ndarray, lower: np.ndarray, epsilon: float) -> float:
        gap = np.maximum(upper - math.exp(epsilon) * lower, 0.0)
        return float(np.trapezoid(gap, axis))

    for epsilon in (-0.6, 0.0, 0.2, 1.0):
        seen = {False: 0.0, True: 0.0}
        for rest in ((0.0, 0.0), (1.0, 0.5), (0.3, 0.9, 1.0)):
            present, absent = density((1.0, *rest)), density(rest)
            seen[False] = max(seen[False], divergence(present, absent, epsilon))
            seen[True] = max(seen[True], divergence(absent, present, epsilon))
        for adding, largest in seen.items():
            bound = poisson_delta(epsilon, noise, q, adding=adding)
            assert largest == pytest.approx(bound, abs=2e-6)
            # the twin: a smaller rate would not bound it
            assert poisson_delta(epsilon, noise, 0.9 * q, adding=adding) < largest - 1e-3 or (
                epsilon < 0.0 or largest < 1e-2
            )


# --- repeated releases ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("z", "q", "delta"), [(1.0, 0.1, 1e-5), (0.5, 0.9, 1e-3), (2.0, 0.3, 0.01)]
)
def test_two_releases_against_quadrature(z: float, q: float, delta: float) -> None:
    # delta_2(epsilon) = E_P delta_1(epsilon - loss), each direction, delta_1 with 40 digits
    def two(epsilon: float, adding: bool) -> float:
        with mpmath.workdps(20):

            def integrand(x: mpmath.mpf) -> mpmath.mpf:
                ratio = 1 - q + q * mpmath.exp((2 * x - 1) / (2 * z * z))
                here = mpmath.npdf(x, 0, z) * (1 if adding else ratio)
                loss = -mpmath.log(ratio) if adding else mpmath.log(ratio)
                return here * poisson_delta(float(epsilon - loss), z, q, adding=adding)

            cuts = [-12 * z, -4 * z, -z, 0, 0.5, 1, 1 + z, 1 + 4 * z, 1 + 12 * z]
            return float(mpmath.quad(integrand, cuts, maxdegree=7))

    epsilon = poisson_epsilon(z, q, 2, delta)
    assert max(two(epsilon, False), two(epsilon, True)) <= delta * (1 + 1e-9)
    assert max(two(epsilon * (1 - RELATIVE), way) for way in (False, True)) > delta


def inverted_delta(epsilon: float, z: float, q: float, num_releases: int, adding: bool) -> float:
    """Delta after T releases by a Laplace inversion; no grid of losses, nothing rounded up.

    (1 - exp(-x))+ = 1/(2 pi i) int exp(s x) / (s (s + 1)) ds on Re s = theta, any theta > 0, hence
    delta_T(epsilon) = 1/(2 pi i) int M(s)^T exp(-s epsilon) / (s (s + 1)) ds, M(s) = E exp(s loss).
    """
    nodes, weights = np.polynomial.legendre.leggauss(20)
    panels = np.linspace(-14.0 * z, 1.0 + 14.0 * z, 61)
    middle, half = (panels[1:] + panels[:-1]) / 2, np.diff(panels) / 2
    x = (middle[:, None] + half[:, None] * nodes).ravel()
    w = (half[:, None] * weights).ravel()
    loss = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * z * z))
    here = w * stats.norm.pdf(x, 0, z)
    if adding:
        loss = -loss
    else:
        here = here * np.exp(loss)
    thetas = np.geomspace(0.1, 300.0, 80) / epsilon
    thetas = thetas[thetas * np.abs(loss).max() < 600.0]
    best = np.argmin(
        num_releases * np.log(np.exp(np.outer(thetas, loss)) @ here) - thetas * epsilon
    )
    theta = 0.8 * float(thetas[best])
    step = theta / 12.0
    s = theta + 1j * step * np.arange(1600)
    moments = np.concatenate([np.exp(np.outer(part, loss)) @ here for part in np.split(s, 16)])
    values = moments**num_releases * np.exp(-s * epsilon) / (s * (s + 1))
    values[0] /= 2  # trapezoidal rule; the other half of the line is the conjugate
    assert abs(values[-1]) < 1e-6 * abs(values[0])
    return float(values.sum().real) * step / math.pi


@pytest.mark.parametrize(
    ("z", "q", "num_releases", "delta"),
    [
        (4.0, 0.6, 10, 1e-5),
        (2.0, 0.2, 30, 1e-5),
        (1.0, 0.1, 100, 1e-5),
        (20.0, 0.1, 10_000, 1e-12),  # where the library's self_compose rounds delta away
        (60.0, 0.8, 10_000, 1e-9),
        (300.0, 0.03, 400, 1e-9),
        (3.0, 0.99, 40, 1e-8),
    ],
)
def test_many_releases_against_laplace_inversion(
    z: float, q: float, num_releases: int, delta: float
) -> None:
    epsilon = poisson_epsilon(z, q, num_releases, delta)
    for adding in (False, True):
        assert inverted_delta(epsilon, z, q, num_releases, adding) <= delta  # never too small
    assert inverted_delta((1 - RELATIVE) * epsilon, z, q, num_releases, False) > delta


@pytest.mark.parametrize(
    ("z", "q", "num_releases", "delta"),
    [(4.0, 0.6, 10, 1e-5), (1.0, 0.1, 100, 1e-5), (20.0, 0.1, 10_000, 1e-12)],
)
def test_adding_alone_against_laplace_inversion(
    z: float, q: float, num_releases: int, delta: float
) -> None:
    # hidden behind removing, which always turned out larger, but composed all the same
    epsilon = sampled_epsilon(z, q, num_releases, delta, lambda *args: _directions(*args)[1:])
    assert inverted_delta(epsilon, z, q, num_releases, True) <= delta
    assert inverted_delta((1 - RELATIVE) * epsilon, z, q, num_releases, True) > delta


def test_laplace_inversion_knows_the_answer_without_sampling() -> None:
    for z, num_releases, delta in ((2.0, 7, 1e-5), (30.0, 2000, 1e-11)):
        epsilon = gaussian_epsilon(z, num_releases, delta)
        for adding in (False, True):
            found = inverted_delta(epsilon, z, 1.0 - 1e-15, num_releases, adding)
            assert found == pytest.approx(delta, rel=1e-5)


@pytest.mark.parametrize(
    ("z", "q", "num_releases", "delta"),
    [
        (4.0, 0.6, 10, 1e-5),
        (2.0, 0.2, 30, 1e-5),
        (1.0, 0.1, 100, 1e-5),
        (1.0, 0.01, 1000, 1e-5),
        pytest.param(0.5, 0.01, 300, 1e-4, marks=pytest.mark.slow),
        pytest.param(0.6, 0.001, 2000, 1e-3, marks=pytest.mark.slow),
        pytest.param(1.0, 0.9, 3, 1e-7, marks=pytest.mark.slow),
    ],
)
def test_lies_between_the_estimates_of_the_library(
    z: float, q: float, num_releases: int, delta: float
) -> None:
    def estimate(pessimistic: bool) -> float:
        loss = privacy_loss_distribution.from_gaussian_mechanism(
            z,
            sampling_prob=q,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            value_discretization_interval=1e-3 if pessimistic else 2e-4,
        )
        return float(loss.self_compose(num_releases).get_epsilon_for_delta(delta))

    epsilon = poisson_epsilon(z, q, num_releases, delta)
    assert estimate(False) <= epsilon == pytest.approx(estimate(True), rel=0.01)
    # the twin: half the noise that is claimed is seen
    assert poisson_epsilon(2 * z, q, num_releases, delta) < estimate(False)


@settings(max_examples=60)
@given(z=multipliers, q=rates, num_releases=counts, delta=deltas)
def test_is_monotone_in_every_argument(z: float, q: float, num_releases: int, delta: float) -> None:
    def at_most(smaller: float, larger: float) -> bool:
        return smaller <= larger * (1 + RELATIVE) + ABSOLUTE

    epsilon = poisson_epsilon(z, q, num_releases, delta)
    assert 0.0 <= epsilon <= gaussian_epsilon(z, num_releases, delta)
    # the pair of a fixed-size sample dominates this one in both directions
    assert at_most(epsilon, fixed_size_epsilon(z, q, num_releases, delta))
    assert at_most(poisson_epsilon(z * 1.3, q, num_releases, delta), epsilon)
    assert at_most(poisson_epsilon(z, q * 0.7, num_releases, delta), epsilon)
    assert at_most(epsilon, poisson_epsilon(z, q, num_releases + 3, delta))
    assert at_most(poisson_epsilon(z, q, num_releases, delta * 2), epsilon)


@settings(max_examples=60)
@given(z=multipliers, q=rates, first=st.integers(1, 500), second=st.integers(1, 500))
def test_splitting_a_run_never_helps(z: float, q: float, first: int, second: int) -> None:
    whole = poisson_epsilon(z, q, first + second, 2e-6)
    parts = poisson_epsilon(z, q, first, 1e-6) + poisson_epsilon(z, q, second, 1e-6)
    assert whole <= parts * (1 + RELATIVE) + ABSOLUTE


@given(z=multipliers, q=rates, delta=deltas)
def test_one_release_is_the_inverse_of_the_profile(z: float, q: float, delta: float) -> None:
    epsilon = poisson_epsilon(z, q, 1, delta)
    assert poisson_delta(epsilon, z, q) <= delta * (1 + 1e-9)
    if epsilon > 1e-9:
        assert poisson_delta(epsilon * (1 - 1e-7), z, q) > delta * (1 - 1e-9)


def test_limits() -> None:
    for z, num_releases, delta in ((1.0, 1, 1e-5), (0.3, 40, 1e-3), (80.0, 9999, 1e-9)):
        unsampled = gaussian_epsilon(z, num_releases, delta)
        assert poisson_epsilon(z, 1.0, num_releases, delta) == unsampled
        almost = poisson_epsilon(z, 1.0 - 1e-9, num_releases, delta)
        assert almost == pytest.approx(unsampled, rel=RELATIVE)
    assert poisson_epsilon(1.0, 0.3, 0, 1e-5) == 0.0
    assert poisson_epsilon(0.0, 0.3, 0, 1e-5) == 0.0
    assert poisson_epsilon(0.0, 1e-9, 1, 0.1) == math.inf  # no noise is never private
    assert poisson_epsilon(1e4, 0.01, 3, 0.1) == 0.0


@pytest.mark.parametrize("z", [1e-120, 1e-6, 1e-3, 0.01, 1e6, 1e12, 1e150])
@pytest.mark.parametrize("q", [1e-12, 1e-4, 0.3, 1.0 - 1e-15])
@pytest.mark.parametrize("num_releases", [2, 1000, 10**6])
def test_stays_a_bound_far_outside_the_usual_range(z: float, q: float, num_releases: int) -> None:
    with np.errstate(all="raise", under="ignore"):
        epsilon = poisson_epsilon(z, q, num_releases, 1e-8)
    assert 0.0 <= epsilon <= gaussian_epsilon(z, num_releases, 1e-8)


def test_bad_arguments_are_refused_by_name() -> None:
    for name, arguments in (
        ("noise_multiplier", (-1.0, 0.5, 1, 1e-5)),
        ("sample_rate", (1.0, 0.0, 1, 1e-5)),
        ("sample_rate", (1.0, math.nan, 1, 1e-5)),
        ("num_releases", (1.0, 0.5, True, 1e-5)),
        ("delta", (1.0, 0.5, 1, 1.0)),
    ):
        with pytest.raises(ValueError, match=f"^{name}="):
            poisson_epsilon(*arguments)
    for name, arguments in (
        ("epsilon", (math.inf, 1.0, 0.5)),
        ("noise_multiplier", (1.0, 0.0, 0.5)),
        ("sample_rate", (1.0, 1.0, 0.0)),
    ):
        with pytest.raises(ValueError, match=f"^{name}="):
            poisson_delta(*arguments)
