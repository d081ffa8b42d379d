"""The function that a broadcast stands for: in each of its boxes, and where it is largest."""

import numpy as np
import pytest
from scipy.optimize import minimize

from strategies.dp_fts_de.algorithm import Broadcast, read_broadcast
from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.dp_fts_de.shared_function import SharedFunction, _Stretched
from strategies.mechanisms.rng import Randomness


def make(num_subregions: int, dimension: int, seed: int) -> SharedFunction:
    parameters = DpFtsDeParameters(
        num_agents=8,
        dimension=dimension,
        noise_multiplier=1.0,
        features="rff",
        num_random_features=60,
        lengthscale=0.2,
        num_subregions=num_subregions,
    )
    weights = np.random.default_rng(seed).normal(size=(num_subregions, 60))
    return read_broadcast(parameters, Broadcast(weights, 1))


@pytest.mark.parametrize(("num_subregions", "dimension"), [(1, 2), (2, 2), (8, 1), (8, 3)])
def test_gradients_are_the_slopes_within_a_box(num_subregions: int, dimension: int) -> None:
    function = make(num_subregions, dimension, 0)
    points = np.random.default_rng(1).uniform(0.01, 0.99, size=(40, dimension))
    values, gradients = function.values_and_gradients(points)
    np.testing.assert_allclose(values, function.values(points), rtol=1e-12)
    for axis in range(dimension):
        step = np.zeros(dimension)
        step[axis] = 1e-6
        inside = function.boxes.locate(points + step) == function.boxes.locate(points - step)
        slopes = (function.values(points + step) - function.values(points - step)) / 2e-6
        np.testing.assert_allclose(gradients[inside, axis], slopes[inside], rtol=1e-4, atol=1e-6)


def test_a_stretched_box_has_the_slopes_of_the_unit_cube() -> None:
    whole = make(1, 2, 0)
    box = _Stretched(whole, np.array([0.5, 0.25]), np.array([0.5, 0.125]))
    points = np.random.default_rng(1).uniform(0.01, 0.99, size=(20, 2))
    values, gradients = box.values_and_gradients(points)
    np.testing.assert_allclose(values, whole.values(points * [0.5, 0.125] + [0.5, 0.25]))
    for axis in range(2):
        step = 1e-6 * np.eye(2)[axis]
        slopes = (box.values(points + step) - box.values(points - step)) / 2e-6
        np.testing.assert_allclose(gradients[:, axis], slopes, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("num_subregions", "dimension"), [(1, 1), (4, 1), (2, 2), (8, 2)])
def test_the_largest_value_is_found_to_the_last_digits(num_subregions: int, dimension: int) -> None:
    """Against a fine grid, polished: random points alone come within .001."""
    for seed in range(3):
        function = make(num_subregions, dimension, seed)
        axes = np.meshgrid(*[np.linspace(0.0, 1.0 - 1e-12, 161)] * dimension)
        grid = np.stack([axis.ravel() for axis in axes], axis=1)
        largest = -np.inf
        for box in range(num_subregions):
            inside = grid[function.boxes.locate(grid) == box]
            lower, upper = function.boxes.bounds(box)
            bounds = list(zip(lower, np.nextafter(upper, 0.0), strict=True))
            for start in inside[np.argsort(function.values(inside))[-3:]]:
                found = minimize(
                    lambda x, f=function: -f.values(x[None])[0],
                    start,
                    bounds=bounds,
                    method="Nelder-Mead",
                    options={"xatol": 1e-9, "fatol": 1e-12},
                )
                largest = max(largest, -float(found.fun))
        stream = Randomness("seeded", seed).stream("fts-test")
        place = function.maximize(stream, num_candidates=64, num_starts=16)
        assert function.values(place[None])[0] >= largest - 1e-7 * abs(largest)
