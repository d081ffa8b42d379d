import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import check_grad

from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.random_features import RandomFeatures, draw_random_features
from strategies.mechanisms.rng import SeededStream
from strategies.mechanisms.smooth_functions import LinearFunction

SHAPES = [(1, 1), (2, 3), (7, 2), (100, 2), (100, 6), (500, 1), (500, 4)]


def features(num_features, num_dimensions, lengthscale=0.4, name=b"features", **options):
    stream = SeededStream(name)
    return draw_random_features(num_features, num_dimensions, lengthscale, stream, **options)


def points(n, num_dimensions, seed=0):
    return np.random.default_rng(seed).random((n, num_dimensions))


def kernel(x, y, lengthscale, outputscale):
    squares = (((x[:, None, :] - y[None, :, :]) / lengthscale) ** 2).sum(axis=2)
    return outputscale * np.exp(-0.5 * squares)


@pytest.mark.parametrize(("num_features", "num_dimensions"), SHAPES)
def test_the_same_stream_gives_every_agent_the_same_features(num_features, num_dimensions):
    one, other = (features(num_features, num_dimensions) for _ in range(2))
    x = points(5, num_dimensions)
    assert np.array_equal(one.values(x), other.values(x))
    assert one.values(x).shape == (5, num_features)
    assert not np.array_equal(
        one.frequencies, features(num_features, num_dimensions, name=b"another").frequencies
    )


@pytest.mark.parametrize(("num_features", "num_dimensions"), SHAPES)
@pytest.mark.parametrize("outputscale", [0.3, 1.0, 25.0])
def test_unit_length_times_the_root_of_the_outputscale(num_features, num_dimensions, outputscale):
    phi = features(num_features, num_dimensions, outputscale=outputscale)
    lengths = np.linalg.norm(phi.values(points(50, num_dimensions)), axis=1)
    np.testing.assert_allclose(lengths, math.sqrt(outputscale), rtol=1e-14)


@pytest.mark.parametrize("unit_length", [True, False])
@pytest.mark.parametrize(("num_dimensions", "lengthscale"), [(1, 0.2), (2, 0.5), (6, 1.0)])
def test_inner_products_tend_to_the_kernel(num_dimensions, lengthscale, unit_length):
    x = points(20, num_dimensions)
    exact = kernel(x, x, lengthscale, 2.0)
    errors = []
    for num_features in (100, 1600, 25600):
        phi = features(
            num_features, num_dimensions, lengthscale, outputscale=2.0, unit_length=unit_length
        ).values(x)
        errors.append(np.abs(phi @ phi.T - exact).max())
        # Hoeffding for the plain features, |terms| <= 2 v / M: 400 pairs, at a rate of 1e-6. The
        # unit length divides by an average that is as close to 1.
        bound = 2.0 * math.sqrt(2.0 * math.log(2 * 400 / 1e-6) / num_features)
        assert errors[-1] <= (2.0 if unit_length else 1.0) * 2.0 * bound
    assert errors[2] < errors[0] / 4
    # The twin: the kernel of another lengthscale is not the limit.
    assert np.abs(phi @ phi.T - kernel(x, x, 1.3 * lengthscale, 2.0)).max() > 2 * errors[2]


def test_frequencies_are_normal_and_phases_uniform():
    phi = features(20_000, 3, 0.4)
    squares = float(((0.4 * phi.frequencies) ** 2).sum())
    assert stats.chi2.ppf(5e-7, 60_000) <= squares <= stats.chi2.isf(5e-7, 60_000)
    counts = np.histogram(phi.phases, bins=8, range=(0.0, 2.0 * math.pi))[0]
    assert counts.sum() == 20_000
    assert ((counts - 2500.0) ** 2 / 2500.0).sum() <= stats.chi2.isf(1e-6, 7)


def test_each_axis_has_its_lengthscale():
    lengthscales = np.array([0.2, 1.0, 5.0])
    x = points(12, 3)
    phi = features(40_000, 3, lengthscales).values(x)
    np.testing.assert_allclose(phi @ phi.T, kernel(x, x, lengthscales, 1.0), atol=0.05)
    assert np.abs(phi @ phi.T - kernel(x, x, lengthscales[::-1], 1.0)).max() > 0.3


@pytest.mark.parametrize("unit_length", [True, False])
@pytest.mark.parametrize(("num_features", "num_dimensions"), SHAPES)
def test_gradients_are_finite_differences(num_features, num_dimensions, unit_length):
    phi = features(num_features, num_dimensions, outputscale=3.0, unit_length=unit_length)
    function = LinearFunction(phi, np.random.default_rng(1).standard_normal(num_features))
    for x in points(3, num_dimensions):
        error = check_grad(
            lambda z: function.values(z[None])[0],
            lambda z: function.values_and_gradients(z[None])[1][0],
            x,
            epsilon=1e-7,
        )
        assert error <= 2e-5 * math.sqrt(num_features)


@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 5), st.booleans())
def test_all_ways_to_evaluate_agree(num_features, num_dimensions, n, unit_length):
    phi = features(num_features, num_dimensions, unit_length=unit_length, outputscale=0.7)
    weights = np.random.default_rng(2).standard_normal(num_features)
    x = points(n, num_dimensions)
    values, gradients = phi.combine(x, weights)
    jacobian = phi.gradients(x)
    assert jacobian.shape == (n, num_features, num_dimensions)
    np.testing.assert_allclose(values, phi.values(x) @ weights, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        gradients, np.einsum("nmd,m->nd", jacobian, weights), rtol=1e-8, atol=1e-9
    )


@pytest.mark.parametrize(
    ("key", "arguments"),
    [
        ("num_random_features", (0, 1, 0.1)),
        ("num_random_features", (True, 1, 0.1)),
        ("num_dimensions", (3, 0, 0.1)),
        ("lengthscale", (3, 1, 0.0)),
        ("lengthscale", (3, 1, math.nan)),
        ("lengthscales", (3, 2, np.array([1.0, -1.0]))),
    ],
)
def test_bad_parameters_are_refused(key, arguments):
    with pytest.raises(ParameterError, match=key):
        draw_random_features(*arguments, SeededStream(b"x"))


def test_bad_points_weights_and_scales_are_refused():
    phi = features(4, 2)
    for bad in (np.zeros((3, 1)), np.zeros(2), np.array([[0.0, math.nan]])):
        with pytest.raises(ParameterError, match="points"):
            phi.values(bad)
    for weights in (np.zeros(3), np.array([0.0, 0.0, math.inf, 0.0])):
        with pytest.raises(ParameterError, match="weights"):
            LinearFunction(phi, weights)
    with pytest.raises(ParameterError, match="outputscale"):
        features(4, 2, outputscale=0.0)
    with pytest.raises(ParameterError, match="phases"):
        RandomFeatures(np.ones((2, 1)), np.ones(3), np.ones(1), 1.0)
