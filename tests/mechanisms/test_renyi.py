import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.mechanisms.closed_form import gaussian_epsilon
from strategies.mechanisms.poisson import poisson_epsilon
from strategies.mechanisms.privacy_loss import fixed_size_epsilon
from strategies.mechanisms.renyi import (
    _fixed_size_curve,
    _poisson_curve,
    fixed_size_renyi_epsilon,
    poisson_renyi_epsilon,
    unsampled_renyi_epsilon,
)

REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE

multipliers = st.floats(math.log(0.05), math.log(1e4)).map(math.exp)
rates = st.floats(math.log(1e-4), 0.0).map(math.exp)
counts = st.floats(0.0, math.log(10_000)).map(lambda x: round(math.exp(x)))
deltas = st.floats(math.log(1e-12), math.log(0.1)).map(math.exp)


def divergences_at(curve: tuple[np.ndarray, np.ndarray], orders: list[float]) -> np.ndarray:
    places = [int(np.argmin(np.abs(curve[0] - order))) for order in orders]
    assert curve[0][places] == pytest.approx(orders, rel=1e-12)
    return curve[1][places]


@pytest.mark.parametrize(
    ("z", "q"),
    [
        *[(0.3, 0.1), (1.0, 0.01), (4.0, 0.9), (50.0, 1e-4)],
        pytest.param(1.0, 0.5, marks=pytest.mark.slow),
    ],
)
def test_poisson_divergence_against_quadrature(z: float, q: float) -> None:
    orders = [1.02, 1.5, 2.0, 3.7, 11.0]

    def exact(order: float) -> float:
        with mpmath.workdps(30):

            def integrand(x: mpmath.mpf) -> mpmath.mpf:
                return (
                    mpmath.npdf(x, 0, z)
                    * (1 - q + q * mpmath.exp((2 * x - 1) / (2 * z * z))) ** order
                )

            cuts = [-15 * z, -4 * z, 0, 1, order / 2, order, order + 4 * z, order + 15 * z]
            return float(mpmath.log(mpmath.quad(integrand, sorted(cuts))) / (order - 1))

    found = divergences_at(_poisson_curve(z, q), orders)
    expected = [exact(order) for order in orders]
    assert found == pytest.approx(expected, rel=1e-8, abs=1e-10)
    assert np.all(found >= np.array(expected) * (1 - 1e-12))


@pytest.mark.parametrize(
    ("z", "p"), [(0.5, 0.1), (1.0, 0.01), (4.0, 0.6), (10.0, 0.5), (50.0, 0.1)]
)
def test_fixed_size_bound_against_its_formula(z: float, p: float) -> None:
    # alternating sums with enough digits; in floating point they cancel
    orders = [2.0, 3.0, 8.0, 31.0, 64.0]

    def moment(i: int) -> mpmath.mpf:
        terms = (
            (-1) ** (i - k)
            * mpmath.binomial(i, k)
            * mpmath.exp(mpmath.mpf(k * (k - 1)) / (2 * z * z))
            for k in range(i + 1)
        )
        return mpmath.fsum(terms)

    with mpmath.workdps(400):
        even = {i: moment(i) for i in range(2, 66, 2)}
        sizes = {}
        for i in range(2, 65):
            pair = 4 * mpmath.sqrt(even[2 * (i // 2)] * even[2 * ((i + 1) // 2)])
            sizes[i] = min(pair, 2 * mpmath.exp(mpmath.mpf(i * (i - 1)) / (2 * z * z)))
        expected = []
        for order in orders:
            terms = (
                mpmath.binomial(order, i) * mpmath.mpf(p) ** i * sizes[i]
                for i in range(2, int(order) + 1)
            )
            expected.append(float(mpmath.log1p(mpmath.fsum(terms)) / (order - 1)))
    curve = _fixed_size_curve(z, p)
    kept = [(o, e) for o, e in zip(orders, expected, strict=True) if o <= curve[0][-1]]
    found = divergences_at(curve, [o for o, _ in kept])
    assert found == pytest.approx([e for _, e in kept], rel=1e-9)


@pytest.mark.parametrize(
    ("z", "rate", "num_releases", "delta"),
    [(4.0, 0.6, 10, 1e-5), (2.0, 0.2, 30, 1e-5), (1.0, 0.1, 100, 1e-5), (0.8, 0.02, 500, 1e-7)],
)
def test_epsilon_is_that_of_the_library(
    z: float, rate: float, num_releases: int, delta: float
) -> None:
    def library(accountant: RdpAccountant, event: dp_accounting.DpEvent) -> float:
        return float(accountant.compose(event, num_releases).get_epsilon(delta))

    gaussian = dp_accounting.GaussianDpEvent(z)
    poisson = dp_accounting.PoissonSampledDpEvent(rate, gaussian)
    found = poisson_renyi_epsilon(z, rate, num_releases, delta)
    # a grid of orders that is finer than the library's
    expected = library(RdpAccountant(), poisson)
    assert expected * (1 - 2e-3) <= found <= expected * (1 + 1e-9)
    fixed = dp_accounting.SampledWithoutReplacementDpEvent(1000, round(1000 * rate), gaussian)
    found = fixed_size_renyi_epsilon(z, rate, num_releases, delta)
    expected = library(RdpAccountant(neighboring_relation=REPLACE_ONE), fixed)
    assert found == pytest.approx(expected, rel=1e-9)
    found = unsampled_renyi_epsilon(z, num_releases, delta)
    expected = library(RdpAccountant(neighboring_relation=REPLACE_ONE), gaussian)
    assert expected * (1 - 2e-3) <= found <= expected * (1 + 1e-9)


def test_poisson_epsilon_is_that_of_opacus() -> None:
    opacus = pytest.importorskip("opacus.accountants")
    accountant = opacus.RDPAccountant()
    accountant.history = [(1.1, 0.02, 800)]
    expected = accountant.get_epsilon(1e-5)
    assert poisson_renyi_epsilon(1.1, 0.02, 800, 1e-5) == pytest.approx(expected, rel=2e-3)


@settings(max_examples=50)
@given(z=multipliers, rate=rates, num_releases=counts, delta=deltas)
def test_never_below_the_privacy_loss(
    z: float, rate: float, num_releases: int, delta: float
) -> None:
    def at_least(larger: float, smaller: float) -> bool:
        return larger >= smaller / 1.005 - 1e-4

    assert at_least(
        unsampled_renyi_epsilon(z, num_releases, delta), gaussian_epsilon(z, num_releases, delta)
    )
    for renyi, exact in (
        (poisson_renyi_epsilon, poisson_epsilon),
        (fixed_size_renyi_epsilon, fixed_size_epsilon),
    ):
        assert at_least(renyi(z, rate, num_releases, delta), exact(z, rate, num_releases, delta))


@given(z=multipliers, rate=rates)
def test_divergences_rise_with_the_order_and_replacing_loses_more(z: float, rate: float) -> None:
    if rate == 1.0:
        return
    orders, divergences = _poisson_curve(z, rate)
    # up to the allowance for rounding
    rising = divergences[orders > 1.5]
    assert np.all(np.diff(rising) >= -1e-9 * rising[1:] - 3e-12)
    # removing a record is one way of replacing it
    shared, bounds = _fixed_size_curve(z, rate)
    below = np.interp(shared, orders, divergences)
    whole = shared == np.floor(shared)
    assert np.all(bounds[whole] >= below[whole] * (1 - 1e-9) - 2e-12)


@pytest.mark.parametrize("z", [0.0, 1e-300, 1e-9, 0.049, 1e5, 1e12, 1e300])
@pytest.mark.parametrize("rate", [1e-12, 0.3, 1.0 - 1e-15, 1.0])
def test_far_outside_the_usual_range(z: float, rate: float) -> None:
    gaussian = gaussian_epsilon(z, 10, 1e-8)
    for epsilon in (
        unsampled_renyi_epsilon(z, 10, 1e-8),
        poisson_renyi_epsilon(z, rate, 10, 1e-8),
        fixed_size_renyi_epsilon(z, rate, 10, 1e-8),
    ):
        assert epsilon >= 0.0
        assert z > 0.0 or epsilon == math.inf
        assert z < 1e5 or epsilon < 0.05
        if rate == 1.0:
            assert epsilon >= gaussian * (1 - 1e-12)
    for function in (poisson_renyi_epsilon, fixed_size_renyi_epsilon):
        assert function(z, rate, 0, 1e-8) == 0.0
    assert unsampled_renyi_epsilon(z, 0, 1e-8) == 0.0


def test_little_noise_joins_without_a_step() -> None:
    # two ways of computing the same divergence meet at z = 0.05
    for q in (1e-3, 0.1, 0.9):
        below = divergences_at(_poisson_curve(0.05 * (1 - 1e-12), q), [1.3, 2.0, 4.0])
        above = divergences_at(_poisson_curve(0.05, q), [1.3, 2.0, 4.0])
        assert np.all(below >= above * (1 - 1e-9))
        assert below == pytest.approx(above, rel=1e-6)


def test_bad_arguments_are_refused_by_name() -> None:
    for function in (poisson_renyi_epsilon, fixed_size_renyi_epsilon):
        for name, arguments in (
            ("noise_multiplier", (-1.0, 0.5, 1, 1e-5)),
            ("sample_rate", (1.0, 0.0, 1, 1e-5)),
            ("num_releases", (1.0, 0.5, 2.0, 1e-5)),
            ("delta", (1.0, 0.5, 1, math.nan)),
        ):
            with pytest.raises(ValueError, match=f"^{name}="):
                function(*arguments)
    with pytest.raises(ValueError, match=r"^noise_multiplier="):
        unsampled_renyi_epsilon(math.inf, 1, 1e-5)
