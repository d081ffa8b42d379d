import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import check_grad
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from strategies.mechanisms.cholesky import FactorizationError
from strategies.mechanisms.gaussian_process import JITTER, SquaredExponential, condition
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.random_features import draw_random_features
from strategies.mechanisms.rng import SeededStream
from strategies.mechanisms.smooth_functions import LinearFunction

ALPHA = 1e-6


def kernel(num_dimensions=2, outputscale=1.7):
    return SquaredExponential(np.linspace(0.3, 0.6, num_dimensions), outputscale)


def data(n, num_dimensions=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((n, num_dimensions)), rng.standard_normal(n)


def some_function(num_dimensions=2):
    features = draw_random_features(9, num_dimensions, 0.5, SeededStream(b"mean"))
    return LinearFunction(features, np.linspace(-1.0, 2.0, 9))


@pytest.mark.parametrize("noise_variance", [1e-6, 1e-2, 1.0])
@pytest.mark.parametrize(("n", "num_dimensions"), [(1, 1), (12, 2), (70, 2), (40, 5)])
def test_parity_with_scikit_learn(n, num_dimensions, noise_variance):
    x, y = data(n, num_dimensions)
    k = kernel(num_dimensions)
    process = condition(k, noise_variance, x, y)
    same = ConstantKernel(k.outputscale) * RBF(k.lengthscales)
    other = GaussianProcessRegressor(same, alpha=noise_variance, optimizer=None).fit(x, y)
    where = data(9, num_dimensions, seed=1)[0]
    mean, covariance = other.predict(where, return_cov=True)
    scale = np.abs(other.alpha_).sum()
    np.testing.assert_allclose(process.mean_function().values(where), mean, atol=1e-9 * scale)
    np.testing.assert_allclose(process.covariance(where), covariance, atol=1e-8)
    np.testing.assert_allclose(process.variance(where), np.diag(covariance), atol=1e-8)


def test_a_prior_mean_is_added_to_the_posterior_of_the_residuals():
    x, y = data(15)
    where, m = data(6, seed=1)[0], some_function()
    process = condition(kernel(), 0.01, x, y, m)
    plain = condition(kernel(), 0.01, x, y - m.values(x))
    expected = plain.mean_function().values(where) + m.values(where)
    np.testing.assert_allclose(process.mean_function().values(where), expected, rtol=1e-12)
    assert np.array_equal(process.variance(where), plain.variance(where))
    far = np.full((1, 2), 50.0)
    np.testing.assert_allclose(process.mean_function().values(far), m.values(far), rtol=1e-12)
    drawn = process.draw_function(SeededStream(b"d")).values(where)
    of_plain = plain.draw_function(SeededStream(b"d")).values(where)
    np.testing.assert_allclose(drawn, of_plain + m.values(where), rtol=1e-12)


@pytest.mark.parametrize("prior_mean", [None, some_function()])
@pytest.mark.parametrize("n", [0, 1, 20])
def test_gradients_are_finite_differences(n, prior_mean):
    x, y = data(n)
    process = condition(kernel(), 0.05, x, y, prior_mean)
    draw = process.draw_function(SeededStream(b"d"), num_waves=20)
    for function in (process.mean_function(), draw):
        for where in data(3, seed=2)[0]:
            error = check_grad(
                lambda z, f=function: f.values(z[None])[0],
                lambda z, f=function: f.values_and_gradients(z[None])[1][0],
                where,
                epsilon=1e-7,
            )
            assert error < 1e-4
            together = function.values_and_gradients(where[None])[0]
            np.testing.assert_allclose(together, function.values(where[None]), rtol=1e-10)
    for where in data(3, seed=2)[0]:
        error = check_grad(
            lambda z: process.variance(z[None])[0],
            lambda z: process.variance_and_gradients(z[None])[1][0],
            where,
            epsilon=1e-7,
        )
        assert error < 1e-4
    points = data(4, seed=2)[0]
    assert np.array_equal(process.variance_and_gradients(points)[0], process.variance(points))


def test_a_draw_is_one_fixed_function():
    x, y = data(10)
    process = condition(kernel(), 0.01, x, y)
    draw, same = (process.draw_function(SeededStream(b"d")) for _ in range(2))
    where = data(5, seed=3)[0]
    assert np.array_equal(draw.values(where), same.values(where))
    single = [draw.values(each[None])[0] for each in where]
    np.testing.assert_allclose(draw.values(where), single, rtol=1e-10, atol=1e-12)
    assert not np.array_equal(
        draw.values(where), process.draw_function(SeededStream(b"e")).values(where)
    )


def whitened_draws(num_draws, num_waves, noise_factor=1.0):
    """Draw posterior functions; return their values, whitened by the exact posterior."""
    x, y = data(6, seed=4)
    where = np.array([[0.5, 0.5], [0.1, 0.9], [2.0, 2.0], x[0]])
    process = condition(kernel(), 0.3, x, y)
    told = condition(kernel(), 0.3 * noise_factor, x, y)
    # The draw of a process whose noise is not that of its factor: a twin.
    object.__setattr__(told, "factor", process.factor)
    mean, covariance = process.mean_function().values(where), process.covariance(where)
    root = np.linalg.cholesky(covariance)
    stream = SeededStream(b"draws")
    draws = [told.draw_function(stream, num_waves).values(where) for _ in range(num_draws)]
    return np.linalg.solve(root, (np.array(draws) - mean).T)


def is_white(z):
    """Test means and second moments by the central limit theorem; rate ALPHA in all."""
    m, n = z.shape
    bound = stats.norm.isf(ALPHA / (m + m * m) / 2)
    moments = [*z, *(z[i] * z[j] - (i == j) for i in range(m) for j in range(i + 1))]
    return all(abs(t.sum()) <= bound * math.sqrt(n) * t.std() for t in moments)


# One wave: mean and covariance over the draws are exact all the same.
@pytest.mark.parametrize("num_waves", [pytest.param(1, marks=pytest.mark.slow), 50])
def test_draws_have_the_posteriors_mean_and_covariance(num_waves):
    z = whitened_draws(12_000, num_waves)
    assert is_white(z)
    assert not is_white(1.1 * z)
    assert not is_white(z + 0.08)
    assert not is_white(np.stack([z[0], z[1], z[2], 0.9 * z[3] + 0.44 * z[0]]))


def test_a_draw_without_the_observations_noise_is_caught():
    assert not is_white(whitened_draws(12_000, 50, noise_factor=1e-9))


def test_posterior_intervals_cover_functions_from_the_prior():
    rng = np.random.default_rng(7)
    k, noise_variance = kernel(), 0.04
    x, where = data(12)[0], np.array([[0.4, 0.6]])
    every = np.vstack([x, where])
    root = np.linalg.cholesky(k.covariance(every, every) + 1e-10 * np.eye(13))
    z = []
    for _ in range(4000):
        f = root @ rng.standard_normal(13)
        y = f[:12] + math.sqrt(noise_variance) * rng.standard_normal(12)
        process = condition(k, noise_variance, x, y)
        gap = f[12] - process.mean_function().values(where)[0]
        z.append(gap / math.sqrt(process.variance(where)[0]))
    squares = float(np.square(z).sum())
    low, high = stats.chi2.ppf(ALPHA / 2, 4000), stats.chi2.isf(ALPHA / 2, 4000)
    assert low <= squares <= high
    assert not low <= 1.2 * squares <= high
    assert abs(sum(z)) / math.sqrt(4000) <= stats.norm.isf(ALPHA / 2)


@pytest.mark.parametrize("noise_variance", [0.0, 1e-6, 1e-2])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_duplicates_count_as_their_average(noise_variance, scale):
    k = kernel(outputscale=scale)
    x = np.repeat([[0.2, 0.2], [0.8, 0.5]], 50, axis=0)
    y = np.tile([0.0, 2.0], 50) * math.sqrt(scale)
    process = condition(k, noise_variance * scale, x, y)
    mean = process.mean_function().values(x[::50])
    np.testing.assert_allclose(mean, math.sqrt(scale), rtol=1e-3)
    variance = process.variance(x[::50])
    assert (variance <= max(noise_variance, JITTER) * scale / 50 * 1.01).all()
    assert np.isfinite(process.draw_function(SeededStream(b"d")).values(x)).all()


def test_without_observations_the_prior():
    process = condition(kernel(), 0.1, np.empty((0, 2)), [])
    where = data(4)[0]
    assert np.array_equal(process.mean_function().values(where), np.zeros(4))
    np.testing.assert_allclose(process.variance(where), 1.7)


def test_what_float64_cannot_tell_apart_is_an_error():
    with pytest.raises(FactorizationError, match="too small"):
        condition(kernel(), 0.0, np.zeros((1100, 2)), np.zeros(1100))


@pytest.mark.parametrize(
    ("key", "arguments"),
    [
        ("noise_variance", (-1.0, [[0.0, 0.0]], [1.0])),
        ("noise_variance", (math.nan, [[0.0, 0.0]], [1.0])),
        ("points", (0.1, [[0.0]], [1.0])),
        ("points", (0.1, [[0.0, math.inf]], [1.0])),
        ("observations", (0.1, [[0.0, 0.0]], [math.nan])),
        ("observations", (0.1, [[0.0, 0.0]], [1.0, 1.0])),
    ],
)
def test_bad_input_is_refused(key, arguments):
    with pytest.raises(ParameterError, match=key):
        condition(kernel(), *arguments)


def test_bad_kernels_are_refused():
    for lengthscales in (np.array([]), np.array([0.0]), np.array([1.0, math.nan])):
        with pytest.raises(ParameterError, match="lengthscales"):
            SquaredExponential(lengthscales, 1.0)
    with pytest.raises(ParameterError, match="outputscale"):
        SquaredExponential(np.ones(1), math.inf)
