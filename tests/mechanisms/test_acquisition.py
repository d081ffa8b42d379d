import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy.optimize import minimize

from strategies.mechanisms.acquisition import draw_points, maximize, replace_repeat
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.random_features import draw_random_features
from strategies.mechanisms.rng import SeededStream
from strategies.mechanisms.smooth_functions import LinearFunction


def stream(name=b"argmax"):
    return SeededStream(name)


@dataclass
class Formula:
    """A function from formulas for its values and gradients at points (n, D)."""

    formula: object
    slope: object
    calls: list = field(default_factory=list)

    def values(self, points):
        self.calls.append(points.copy())
        return self.formula(points)

    def values_and_gradients(self, points):
        self.calls.append(points.copy())
        return self.formula(points), self.slope(points)


def bowl(center):
    return Formula(lambda x: 3.0 - ((x - center) ** 2).sum(axis=1), lambda x: -2.0 * (x - center))


@pytest.mark.parametrize("num_dimensions", [1, 2, 3, 6])
def test_an_inner_maximum(num_dimensions):
    center = np.linspace(0.2, 0.9, num_dimensions)
    found = maximize(bowl(center), num_dimensions, stream())
    np.testing.assert_allclose(found.point, center, atol=1e-7)
    assert found.value == pytest.approx(3.0, abs=1e-13)
    assert found.point.shape == (num_dimensions,)


@pytest.mark.parametrize("center", [(-0.5, 0.3), (2.0, 2.0), (0.5, -1e-3), (-1.0, 1.5)])
def test_a_maximum_on_the_edge(center):
    function = bowl(np.array(center))
    found = maximize(function, 2, stream())
    np.testing.assert_allclose(found.point, np.clip(center, 0.0, 1.0), atol=1e-7)
    every = np.vstack(function.calls)
    assert every.min() >= 0.0
    assert every.max() <= 1.0
    for coordinate, c in zip(found.point, center, strict=True):
        if not 0.0 < c < 1.0:
            assert coordinate in (0.0, 1.0)


def waves(sign=1.0):
    # The product of sin(9 pi x) x over axes: 4 to 5 peaks an axis, the highest near x = 0.95.
    def parts(x):
        return np.sin(9 * math.pi * x) * x, np.sin(9 * math.pi * x) + 9 * math.pi * x * np.cos(
            9 * math.pi * x
        )

    def slope(x):
        values, slopes = parts(x)
        return sign * slopes * np.sign(x) * values[:, ::-1]

    return Formula(lambda x: parts(x)[0].prod(axis=1), slope)


def test_the_highest_of_many_peaks():
    grid = np.linspace(0.9, 1.0, 200_001)
    best = float((np.sin(9 * math.pi * grid) * grid).max())
    found = maximize(waves(), 2, stream())
    assert found.value == pytest.approx(best**2, rel=1e-8)
    # The twin: descending instead gives no better than the best random point, and less than that.
    twin = maximize(waves(sign=-1.0), 2, stream())
    candidates = draw_points(1000, 2, stream())
    assert twin.value == pytest.approx(waves().values(candidates).max(), rel=1e-12)
    assert twin.value < best**2 * (1 - 1e-6)


@pytest.mark.parametrize("lengthscale", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_no_grid_point_beats_what_was_found_by_much(lengthscale, seed):
    features = draw_random_features(100, 2, lengthscale, stream(b"f"))
    function = LinearFunction(features, stream(b"w%d" % seed).standard_normal(100))
    found = maximize(function, 2, stream())
    candidates = draw_points(1000, 2, stream())
    assert found.value >= function.values(candidates).max()
    assert found.value == pytest.approx(function.values(found.point[None])[0], rel=1e-12)
    # A stationary point: inside, the gradient vanishes; at an edge it points outwards.
    gradient = function.values_and_gradients(found.point[None])[1][0]
    outwards = np.where(found.point == 0.0, -1.0, np.where(found.point == 1.0, 1.0, 0.0))
    stuck = np.where(outwards == 0.0, np.abs(gradient), -outwards * gradient)
    assert stuck.max() <= 1e-5 * found.value / lengthscale
    if lengthscale >= 0.5:
        axis = np.linspace(0.0, 1.0, 101)
        grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
        assert found.value >= function.values(grid).max() - 1e-9


@dataclass
class Raised:
    function: LinearFunction
    level: float

    def values(self, points):
        return self.level + self.function.values(points)

    def values_and_gradients(self, points):
        values, gradients = self.function.values_and_gradients(points)
        return self.level + values, gradients


def test_one_joint_ascent_finds_what_separate_ones_find():
    overtaken = 0
    # With the last four, it takes more than a step or two to tell which start leads highest.
    for seed, lengthscale in itertools.product((*range(8), 9, 10, 26, 33), (0.03, 0.1)):
        features = draw_random_features(60, 2, lengthscale, stream(b"f%d" % seed))
        function = LinearFunction(features, stream(b"w%d" % seed).standard_normal(60))
        candidates = draw_points(1000, 2, stream())
        order = np.argsort(-function.values(candidates), kind="stable")[:20]

        def loss(x, function=function):
            values, gradients = function.values_and_gradients(x[None])
            return -values[0], -gradients[0]

        ends = [
            -minimize(loss, x, jac=True, method="L-BFGS-B", bounds=[(0, 1)] * 2, tol=1e-12).fun
            for x in candidates[order]
        ]
        assert maximize(function, 2, stream()).value >= max(ends) * (1 - 1e-9)
        raised = maximize(Raised(function, 1e6), 2, stream())
        assert raised.value - 1e6 >= max(ends) - 1e-6
        overtaken += max(ends) > ends[0] * (1 + 1e-3)
    # The best random point is not always at the foot of the highest peak.
    assert overtaken > 0


def test_deterministic_given_the_stream():
    function = LinearFunction(
        draw_random_features(50, 3, 0.3, stream(b"f")), stream(b"w").standard_normal(50)
    )
    one, other = (maximize(function, 3, stream()) for _ in range(2))
    assert np.array_equal(one.point, other.point)
    assert one.value == other.value


def test_of_equal_values_the_first_drawn_wins():
    flat = Formula(lambda x: np.zeros(len(x)), np.zeros_like)
    assert np.array_equal(maximize(flat, 2, stream()).point, draw_points(1000, 2, stream())[0])
    roof = Formula(lambda x: np.minimum(x[:, 0], 0.5), np.zeros_like)
    candidates = draw_points(1000, 2, stream())
    first = candidates[candidates[:, 0] >= 0.5][0]
    assert np.array_equal(maximize(roof, 2, stream()).point, first)


def test_without_starts_the_best_random_point():
    function = bowl(np.array([0.5, 0.5]))
    found = maximize(function, 2, stream(), num_candidates=10, num_starts=0)
    candidates = draw_points(10, 2, stream())
    assert np.array_equal(found.point, candidates[np.argmax(function.values(candidates))])
    assert maximize(function, 2, stream(), num_candidates=3, num_starts=20).value == pytest.approx(
        3
    )


def test_a_value_that_is_not_finite_is_an_error():
    bad = Formula(lambda x: np.where(x[:, 0] > 0.9, np.nan, 0.0), np.zeros_like)
    with pytest.raises(ParameterError, match="function"):
        maximize(bad, 2, stream())
    for key, options in (
        ("num_candidates", {"num_candidates": 0}),
        ("num_starts", {"num_starts": -1}),
    ):
        with pytest.raises(ParameterError, match=key):
            maximize(bowl(0.5), 2, stream(), **options)
    with pytest.raises(ParameterError, match="num_dimensions"):
        maximize(bowl(0.5), 0, stream())


def test_points_fill_the_cube():
    points = draw_points(2000, 3, stream())
    assert points.shape == (2000, 3)
    assert points.min() >= 0.0
    assert points.max() < 1.0
    assert np.abs(np.corrcoef(points.T) - np.eye(3)).max() < 5 / math.sqrt(2000)
    np.testing.assert_allclose(points.mean(axis=0), 0.5, atol=5 / math.sqrt(12 * 2000))


class TestReplaceRepeat:
    HISTORY = np.array([[0.0, 1.0], [0.25, 0.5]])

    @pytest.mark.parametrize("point", [[0.0, 1.0], [0.25, 0.5], [0.25 + 1e-7, 0.5 - 1e-7]])
    def test_a_repeat_becomes_a_random_point(self, point):
        replaced = replace_repeat(point, self.HISTORY, stream())
        assert np.array_equal(replaced, stream().uniform(2))

    @pytest.mark.parametrize("point", [[0.0, 0.5], [0.25, 0.5001], [0.25, 1.0]])
    def test_a_new_point_stays(self, point):
        assert replace_repeat(point, self.HISTORY, stream()).tolist() == point
        assert replace_repeat(point, np.empty((0, 2)), stream()).tolist() == point

    def test_the_tolerance_decides(self):
        point = [0.26, 0.49]
        assert replace_repeat(point, self.HISTORY, stream(), tolerance=0.009).tolist() == point
        assert replace_repeat(point, self.HISTORY, stream(), tolerance=0.011).tolist() != point
        assert replace_repeat([0.25, 0.5], self.HISTORY, stream(), tolerance=0.0)[0] != 0.25

    def test_bad_input_is_refused(self):
        for point, history, key in (
            ([0.5, 1.1], self.HISTORY, "point"),
            ([[0.5, 0.5]] * 2, self.HISTORY, "point"),
            ([0.5, math.nan], self.HISTORY, "point"),
            ([0.5], self.HISTORY, "history"),
        ):
            with pytest.raises(ParameterError, match=key):
                replace_repeat(point, history, stream())


@pytest.mark.parametrize(("scale", "offset"), [(1e-12, 0.0), (1e12, 0.0), (1.0, 1e7)])
def test_neither_the_unit_nor_the_level_of_the_function_matters(scale, offset):
    plain, other = waves(), waves()
    other.formula = lambda x: offset + scale * plain.formula(x)
    other.slope = lambda x: scale * plain.slope(x)
    expected = maximize(plain, 2, stream()).point
    np.testing.assert_allclose(maximize(other, 2, stream()).point, expected, atol=1e-5)
