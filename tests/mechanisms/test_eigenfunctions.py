import itertools
import math

import numpy as np
import pytest
from numpy.polynomial.legendre import leggauss
from scipy.optimize import check_grad

from strategies.mechanisms.eigenfunctions import count_eigenfunctions, leading_eigenfunctions
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.smooth_functions import LinearFunction


def kernel(x, y, lengthscale):
    squares = (((x[:, None, :] - y[None, :, :]) / lengthscale) ** 2).sum(axis=2)
    return np.exp(-0.5 * squares)


def quadrature(num_nodes):
    nodes, weights = leggauss(num_nodes)
    return 0.5 * (nodes[:, None] + 1.0), 0.5 * weights


@pytest.mark.parametrize(
    ("lengthscale", "count"), [(0.01, 100), (0.05, 40), (0.3, 11), (1.0, 7), (4.0, 4)]
)
def test_they_solve_the_integral_equation_on_another_grid(lengthscale, count):
    # Nodes other than those of the implementation: an interpolation error would show.
    x, weights = quadrature(700 if lengthscale < 0.05 else 250)
    phi = leading_eigenfunctions(count, 1, lengthscale)
    values, lambdas = phi.values(x), phi.eigenvalues
    integrals = kernel(x, x, lengthscale) @ (weights[:, None] * values)
    # Rounding, over the root of the smallest eigenvalue: 1e-16 / 1e-5.
    np.testing.assert_allclose(integrals, lambdas * values, rtol=1e-9, atol=1e-11)
    products = values.T @ (weights[:, None] * values)
    np.testing.assert_allclose(products, np.diag(lambdas), rtol=1e-9, atol=1e-11)


def test_feature_j_changes_its_sign_j_times_and_starts_positive():
    # Without the middle, where odd features are 0 up to rounding, or exactly.
    x = np.linspace(0.0, 1.0, 2000)[:, None]
    values = leading_eigenfunctions(10, 1, 0.3).values(x)
    assert (values[0] > 0).all()
    assert np.array_equal((np.diff(np.sign(values), axis=0) != 0).sum(axis=0), np.arange(10))


@pytest.mark.parametrize("num_dimensions", [1, 2, 3])
def test_with_all_features_the_kernel_comes_back(num_dimensions):
    x = np.random.default_rng(0).random((15, num_dimensions))
    x[0], x[1] = 0.0, 1.0
    exact = 2.5 * kernel(x, x, 0.8)
    errors = []
    for count in (2, 5, {1: 7, 2: 30, 3: 110}[num_dimensions]):
        phi = leading_eigenfunctions(count, num_dimensions, 0.8, outputscale=2.5).values(x)
        errors.append(np.abs(phi @ phi.T - exact).max())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-4


@pytest.mark.parametrize(("num_dimensions", "count"), [(1, 8), (2, 40), (3, 60), (4, 30)])
def test_the_largest_products_in_order(num_dimensions, count):
    lambdas = leading_eigenfunctions(11, 1, 0.3).eigenvalues
    phi = leading_eigenfunctions(count, num_dimensions, 0.3)
    every = itertools.product(range(8), repeat=num_dimensions)
    ranked = sorted((-math.prod(lambdas[j] for j in sorted(each)), each) for each in every)
    assert [tuple(each) for each in phi.degrees] == [each for _, each in ranked[:count]]
    np.testing.assert_allclose(phi.eigenvalues, [-value for value, _ in ranked[:count]], rtol=1e-12)


def test_permuted_axes_tie_in_a_fixed_order():
    phi = leading_eigenfunctions(3, 2, 0.5)
    assert phi.degrees.tolist() == [[0, 0], [0, 1], [1, 0]]
    assert phi.eigenvalues[1] == phi.eigenvalues[2]
    again = leading_eigenfunctions(3, 2, 0.5)
    x = np.random.default_rng(0).random((4, 2))
    assert np.array_equal(phi.values(x), again.values(x))


@pytest.mark.parametrize(("num_dimensions", "count"), [(1, 8), (2, 30), (3, 50), (6, 100)])
def test_gradients_are_finite_differences(num_dimensions, count):
    phi = leading_eigenfunctions(count, num_dimensions, 0.4, outputscale=2.0)
    weights = np.random.default_rng(3).standard_normal(count)
    function = LinearFunction(phi, weights)
    for x in np.random.default_rng(4).random((3, num_dimensions)):
        error = check_grad(
            lambda z: function.values(z[None])[0],
            lambda z: function.values_and_gradients(z[None])[1][0],
            x,
            epsilon=1e-7,
        )
        assert error < 1e-5
        assert function.values_and_gradients(x[None])[0] == pytest.approx(function.values(x[None]))


def test_five_hundred_features_in_six_dimensions():
    phi = leading_eigenfunctions(500, 6, 0.3)
    x = np.random.default_rng(5).random((3, 6))
    assert phi.values(x).shape == (3, 500)
    assert phi.gradients(x).shape == (3, 500, 6)
    assert (np.diff(phi.eigenvalues) <= 0).all()
    assert phi.values(np.empty((0, 6))).shape == (0, 500)


@pytest.mark.parametrize(
    ("key", "arguments"),
    [
        ("num_features", (0, 1, 0.3)),
        ("num_features", (100, 1, 0.3)),
        ("num_dimensions", (3, 0, 0.3)),
        ("lengthscale", (3, 1, 0.001)),
        ("lengthscale", (3, 1, math.inf)),
    ],
)
def test_bad_parameters_are_refused(key, arguments):
    with pytest.raises(ParameterError, match=key):
        leading_eigenfunctions(*arguments)


@pytest.mark.parametrize(
    ("num_dimensions", "lengthscale"), [(1, 0.25), (2, 0.25), (2, 0.4), (3, 0.5)]
)
@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_the_least_number_that_holds_a_share_of_the_variance(num_dimensions, lengthscale, share):
    # The mean of |phi(x)|^2 over the cube, by quadrature: k(x, x) = 1 with all of them.
    x, weights = quadrature(40)
    places = np.array(list(itertools.product(x[:, 0], repeat=num_dimensions)))
    measure = np.array(
        [math.prod(each) for each in itertools.product(weights, repeat=num_dimensions)]
    )
    count = count_eigenfunctions(num_dimensions, lengthscale, share=share)
    held = []
    for size in (count, count - 1):
        phi = leading_eigenfunctions(max(1, size), num_dimensions, lengthscale)
        held.append(float(measure @ (phi.values(places) ** 2).sum(axis=1)) if size else 0.0)
    assert held[0] >= share > held[1]


def test_the_number_is_bounded_and_its_parameters_are_checked():
    assert count_eigenfunctions(6, 0.2) == 100
    assert count_eigenfunctions(6, 0.2, most=7) == 7
    # A kernel this smooth has no more functions than rounding leaves.
    assert count_eigenfunctions(1, 50.0, share=1.0 - 1e-15) < 5
    for key, change in {
        "lengthscale": {"lengthscale": 0.009},
        "num_dimensions": {"num_dimensions": 0},
        "share": {"share": 1.0},
        "most": {"most": 0},
    }.items():
        with pytest.raises(ParameterError) as refused:
            count_eigenfunctions(**{"num_dimensions": 2, "lengthscale": 0.3, **change})
        assert refused.value.key == key
