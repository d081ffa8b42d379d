"""Functions drawn from a Gaussian process: their law, their independence and their optima."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import given, strategies
from scipy import special, stats

from fl_app.objectives import SyntheticSettings, observe
from fl_app.objectives.random_function import GROWTH, bend, draw_function, unbend
from fl_app.objectives.synthetic import Synthetic
from strategies.mechanisms.rng import SeededStream

# Of each assertion below about random numbers.
FALSE_POSITIVE_RATE = 1e-6
Z = stats.norm.isf(FALSE_POSITIVE_RATE / 2)
FAMILIES = ("squared_exponential", "matern", "non_stationary")


def make(seed: int = 0, **keys) -> Synthetic:
    return Synthetic(SyntheticSettings("synthetic", **keys), seed)


def has_std(sample: np.ndarray, std: float, mean: float | None = None) -> bool:
    """Test the standard deviation of normal numbers, two-sided and exact."""
    squares = ((sample - (sample.mean() if mean is None else mean)) ** 2).sum() / std**2
    freedom = len(sample) - (mean is None)
    p = stats.chi2.cdf(squares, freedom)
    return min(p, 1 - p) > FALSE_POSITIVE_RATE / 2


def matern(r: float, lengthscale: float) -> float:
    """Return the Matern covariance of smoothness 5/2, from its definition by a Bessel function."""
    x = math.sqrt(5.0) * r / lengthscale
    return 2.0**-1.5 / special.gamma(2.5) * x**2.5 * special.kv(2.5, x)


def squared_exponential(r: float, lengthscale: float) -> float:
    return math.exp(-0.5 * (r / lengthscale) ** 2)


@pytest.mark.parametrize("dimension", [1, 2])
@pytest.mark.parametrize(
    ("family", "kernel"), [("squared_exponential", squared_exponential), ("matern", matern)]
)
def test_frequencies_have_the_covariance_s_spectral_density(family, kernel, dimension):
    """The covariance is the mean of cos(s (x - y)) over the frequencies."""
    function = draw_function(SeededStream(b"waves"), dimension, family, 0.3, num_waves=200_000)
    for r in (0.1, 0.3, 0.6):
        for direction in np.eye(2)[:dimension, :dimension] if dimension == 2 else np.ones((1, 1)):
            cosines = np.cos(function.frequencies @ (r * direction))
            error = cosines.std() / math.sqrt(len(cosines))
            assert abs(cosines.mean() - kernel(r, 0.3)) < Z * error
            assert abs(cosines.mean() - kernel(r, 0.32)) > Z * error
            if r == 0.6:
                continue  # where the two families cross
            other = matern if kernel is squared_exponential else squared_exponential
            assert abs(cosines.mean() - other(r, 0.3)) > Z * error


def test_axes_are_dependent_in_the_matern_family_as_its_definition_wants():
    """It is a function of the distance, not a product over the axes."""
    function = draw_function(SeededStream(b"waves"), 2, "matern", 0.3, num_waves=200_000)
    cosines = np.cos(function.frequencies @ np.array([0.3, 0.3]))
    error = cosines.std() / math.sqrt(len(cosines))
    assert abs(cosines.mean() - matern(0.3 * math.sqrt(2.0), 0.3)) < Z * error
    assert abs(cosines.mean() - matern(0.3, 0.3) ** 2) > Z * error


def test_amplitudes_give_variance_one():
    function = draw_function(SeededStream(b"amplitudes"), 1, "matern", 0.3, num_waves=50_000)
    amplitudes = np.concatenate([function.cosine, function.sine]) * math.sqrt(50_000)
    assert has_std(amplitudes, 1.0, mean=0.0)
    assert not has_std(amplitudes, 1.02, mean=0.0)
    assert abs(np.corrcoef(function.cosine, function.sine)[0, 1]) < Z / math.sqrt(50_000)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dimension", [1, 2])
def test_a_grid_of_values_is_what_single_places_give(family, dimension):
    function = draw_function(SeededStream(b"grid"), dimension, family, 0.2)
    nodes = np.array([0.0, 0.1, 0.35, 1.0])
    places = np.stack(np.meshgrid(*[nodes] * dimension, indexing="ij"), axis=-1)
    expected = function(places.reshape(-1, dimension)).reshape((4,) * dimension)
    np.testing.assert_allclose(function.on_grid(nodes), expected, atol=1e-11)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dimension", [1, 2])
def test_a_function_is_the_sum_of_its_waves(family, dimension):
    function = draw_function(SeededStream(b"sum"), dimension, family, 0.3, num_waves=20)
    x = np.random.default_rng(0).random((5, dimension))
    for place, value in zip(x, function(x), strict=True):
        bent = [math.log1p(9.0 * each) / math.log(10.0) for each in place]
        at = bent if family == "non_stationary" else place
        total = 0.0
        for frequency, a, b in zip(
            function.frequencies, function.cosine, function.sine, strict=True
        ):
            phase = sum(f * each for f, each in zip(frequency, at, strict=True))
            total += a * math.cos(phase) + b * math.sin(phase)
        assert value == pytest.approx(total, abs=1e-12)


def test_bending_keeps_the_ends_and_slows_down():
    x = np.linspace(0.0, 1.0, 11)
    assert bend(x)[[0, -1]].tolist() == pytest.approx([0.0, 1.0])
    assert (np.diff(bend(x)) > 0).all()
    step = 1e-6
    first, last = (bend(np.array([a, a + step])) for a in (0.0, 1.0 - step))
    assert np.diff(first)[0] / np.diff(last)[0] == pytest.approx(GROWTH, rel=1e-3)


def test_agents_share_the_common_part_and_deviate_as_configured():
    objective = make(num_agents=2000, deviation=0.3, noise_std=0.0)
    place = np.array([[0.4]])
    values = np.array([objective.values(agent, place)[0] for agent in range(2000)])
    common = objective._common(place)[0]
    assert has_std(values, 0.3, mean=common)
    assert not has_std(values, 0.33, mean=common)
    error = 0.3 / math.sqrt(2000)
    assert abs(values.mean() - common) < Z * error
    assert abs(values.mean() - 1.1 * common) > Z * error  # as if the parts were weighted
    same = make(num_agents=3, deviation=0.0, noise_std=0.0)
    x = np.random.default_rng(0).random((10, 1))
    assert np.array_equal(same.values(0, x), same.values(2, x))
    assert np.array_equal(same.values(0, x), objective._common(x))


def test_the_common_part_is_another_one_for_every_seed():
    place = np.array([[0.4]])
    values = np.array([make(seed)._common(place)[0] for seed in range(1000)])
    assert has_std(values, 1.0, mean=0.0)
    assert not has_std(values, 1.2, mean=0.0)


def test_noise_is_fresh_in_every_trial_and_place_and_has_its_standard_deviation():
    objective, quiet = make(noise_std=0.5), make(noise_std=0.0)
    point = {"x1": 0.25}
    truth = quiet.evaluate(3, point)
    assert truth == quiet.evaluate(3, point, 9) == quiet.values(3, np.array([[0.25]]))[0]
    noise = np.array([objective.evaluate(3, point, trial) - truth for trial in range(3000)])
    assert has_std(noise, 0.5, mean=0.0)
    assert not has_std(noise, 0.55, mean=0.0)
    places = np.linspace(0.0, 1.0, 3000)
    elsewhere = np.array([objective.evaluate(3, {"x1": float(x)}) for x in places])
    assert has_std(elsewhere - quiet.values(3, places[:, None]), 0.5, mean=0.0)
    others = np.array([objective.evaluate(n, point) - quiet.evaluate(n, point) for n in range(30)])
    assert len(set(others)) == 30


@pytest.mark.parametrize("family", FAMILIES)
def test_everything_is_a_function_of_the_seed(family):
    first, again, other = (make(seed, family=family, dimension=2) for seed in (5, 5, 6))
    point = {"x1": 0.2, "x2": 0.9}
    # in another order, and after others
    for agent in (4, 1):
        first.evaluate(agent, point, 3)
    for agent in (1, 4):
        assert first.evaluate(agent, point, 3) == again.evaluate(agent, point, 3)
        assert first.evaluate(agent, point, 3) != other.evaluate(agent, point, 3)
        assert first.evaluate(agent, point, 3) != first.evaluate(agent, point, 4)
    assert first.evaluate(1, point, 3) != first.evaluate(4, point, 3)
    assert first.space.names == ("x1", "x2")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dimension", "side"), [(1, 30_001), (2, 101)])
def test_the_optimum_is_the_largest_value(family, dimension, side):
    objective = make(2, family=family, dimension=dimension, lengthscale=0.1)
    nodes = np.linspace(0.0, 1.0, side)
    grid = np.stack(np.meshgrid(*[nodes] * dimension, indexing="ij"), axis=-1)
    parts = np.array_split(grid.reshape(-1, dimension), 20)
    largest = max(float(objective.values(1, part).max()) for part in parts)
    optimum = objective.optimum(1)
    assert largest - 1e-9 <= optimum <= largest + (1e-5 if dimension == 1 else 0.15)
    assert objective.optimum(1) == optimum
    assert objective.optimum(0) != optimum


def test_values_lie_in_the_public_range():
    objective = make(deviation=1.0, noise_std=2.0)
    assert objective.value_range == pytest.approx((-6 * math.sqrt(6.0), 6 * math.sqrt(6.0)))
    low, high = objective.value_range
    values = [objective.evaluate(n, {"x1": 0.5}, t) for n in range(30) for t in range(30)]
    assert low < min(values) < max(values) < high
    assert observe(objective, 0, {"x1": 0.5}, 3).value == objective.evaluate(0, {"x1": 0.5}, 3)


@pytest.mark.slow
@hypothesis.settings(max_examples=12, derandomize=True)
@given(
    family=strategies.sampled_from(FAMILIES),
    dimension=strategies.sampled_from([1, 2]),
    lengthscale=strategies.one_of(
        strategies.just(0.01), strategies.floats(0.01, 0.03), strategies.floats(0.01, 10.0)
    ),
    seed=strategies.integers(0, 2**31),
)
@hypothesis.example(family="non_stationary", dimension=2, lengthscale=0.01, seed=0)
@hypothesis.example(family="matern", dimension=2, lengthscale=0.01, seed=1)
@hypothesis.example(family="squared_exponential", dimension=2, lengthscale=0.012, seed=2)
def test_no_regret_is_negative(family, dimension, lengthscale, seed):
    """Rough functions have peaks that a coarse grid steps over; half the nodes lie near 0."""
    objective = make(
        seed, num_agents=1, family=family, dimension=dimension, lengthscale=lengthscale
    )
    random = np.random.default_rng(seed)
    nodes = np.sort(random.random(450 if dimension == 2 else 20_000))
    nodes[::2] **= 2
    own = objective._own_function(0).on_grid(nodes)
    seen = objective._common.on_grid(nodes) + objective._settings.deviation * own
    assert objective.optimum(0) >= seen.max() - 1e-9


def test_unbending_undoes_bending():
    x = np.linspace(0.0, 1.0, 101)
    np.testing.assert_allclose(unbend(bend(x)), x, atol=1e-14)
    assert unbend(x).min() >= 0.0
    assert unbend(x).max() <= 1.0
