import math
from itertools import product

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import check_grad, minimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from strategies.mechanisms.gaussian_process import SquaredExponential
from strategies.mechanisms.marginal_likelihood import (
    FitBounds,
    fit_gaussian_process,
    fit_kernel,
    log_marginal_likelihood,
)
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.profile_likelihood import axis_distances, evaluate_likelihood
from strategies.mechanisms.random_features import draw_random_features
from strategies.mechanisms.rng import SeededStream
from strategies.mechanisms.smooth_functions import LinearFunction


def sample(n, lengthscales, outputscale=1.0, noise_variance=0.01, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.random((n, len(lengthscales)))
    kernel = SquaredExponential(np.array(lengthscales), outputscale)
    root = np.linalg.cholesky(kernel.covariance(x, x) + noise_variance * np.eye(n))
    return x, root @ rng.standard_normal(n)


def likelihood(process):
    return log_marginal_likelihood(
        process.kernel, process.noise_variance, process.points, process.residuals
    )[0]


@pytest.mark.parametrize(("n", "num_dimensions"), [(1, 1), (3, 2), (40, 2), (25, 4)])
def test_value_and_gradient(n, num_dimensions):
    x, y = sample(n, [0.4] * num_dimensions)

    def evaluate(logs):
        kernel = SquaredExponential(np.exp(logs[:-2]), math.exp(logs[-2]))
        return log_marginal_likelihood(kernel, math.exp(logs[-1]), x, y)

    for seed in range(3):
        logs = np.random.default_rng(seed).uniform(-1.5, 0.5, num_dimensions + 2)
        error = check_grad(lambda z: evaluate(z)[0], lambda z: evaluate(z)[1], logs, epsilon=1e-6)
        assert error < 1e-3 * max(1.0, np.abs(evaluate(logs)[1]).max())
        kernel = SquaredExponential(np.exp(logs[:-2]), math.exp(logs[-2]))
        covariance = kernel.covariance(x, x) + math.exp(logs[-1]) * np.eye(n)
        expected = stats.multivariate_normal(np.zeros(n), covariance).logpdf(y)
        assert evaluate(logs)[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("per_axis", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_as_likely_as_scikit_learns_best(seed, per_axis):
    x, y = sample(40, [0.2, 0.7], 3.0, 0.05, seed)
    process = fit_gaussian_process(x, y, per_axis=per_axis)
    unit = float(np.mean(y * y))
    kernel = ConstantKernel(unit, (0.05 * unit, 20 * unit)) * RBF(
        [0.3, 0.3] if per_axis else 0.3, (0.02, 5.0)
    ) + WhiteKernel(0.01 * unit, (1e-6 * unit, unit))
    other = GaussianProcessRegressor(kernel, alpha=0.0, n_restarts_optimizer=4, random_state=0)
    other.fit(x, y)
    assert likelihood(process) >= other.log_marginal_likelihood_value_ - 1e-4
    assert process.kernel.lengthscales.shape == (2,)
    if not per_axis:
        assert process.kernel.lengthscales[0] == process.kernel.lengthscales[1]


def test_many_observations_cannot_be_told_from_the_truth():
    x, y = sample(300, [0.15, 0.6], 2.0, 0.04)
    process = fit_gaussian_process(x, y, per_axis=True)

    def deficit(lengthscales, outputscale, noise_variance):
        kernel = SquaredExponential(np.array(lengthscales), outputscale)
        value, _ = log_marginal_likelihood(kernel, noise_variance, x, y)
        return 2.0 * (likelihood(process) - value)

    # Wilks: twice the log-ratio to the truth is about chi-squared with 4 degrees of freedom.
    bound = stats.chi2.isf(1e-6, 4)
    assert -1e-6 <= deficit([0.15, 0.6], 2.0, 0.04) <= bound
    for wrong in (([0.6, 0.15], 2.0, 0.04), ([0.15, 0.6], 2.0, 0.08), ([0.3, 0.6], 2.0, 0.04)):
        assert deficit(*wrong) > bound


# With the last three, the best point of the grid is not at the foot of the highest peak.
@pytest.mark.parametrize(
    ("n", "seed"), [*product((6, 15), range(3, 19)), (6, 24), (30, 33), (30, 43)]
)
def test_no_other_start_leads_higher(n, seed):
    # Few observations have several local maxima: wiggles without noise, or noise alone.
    lengthscale, noise_variance = (0.1, 0.3, 0.6)[seed % 3], (1e-4, 0.05, 0.5)[seed // 3 % 3]
    x, y = sample(n, [lengthscale] * 2, noise_variance=noise_variance, seed=seed)
    unit, bounds = math.sqrt(float(np.mean(y * y))), FitBounds()
    box = np.log([bounds.lengthscale, bounds.outputscale, bounds.noise_variance])

    def loss(logs):
        kernel = SquaredExponential(np.full(2, math.exp(logs[0])), math.exp(logs[1]))
        value, slopes = log_marginal_likelihood(kernel, math.exp(logs[2]), x, y / unit)
        return -value, -np.array([slopes[0] + slopes[1], *slopes[2:]])

    starts = [
        [math.log(start), 0.0, math.log(s)] for start in (0.05, 0.2, 0.8) for s in (1e-5, 0.05)
    ]
    found = [minimize(loss, start, jac=True, method="L-BFGS-B", bounds=box).fun for start in starts]
    process = fit_gaussian_process(x, y)
    assert likelihood(process) >= -min(found) - n * math.log(unit) - 1e-3


@pytest.mark.parametrize("scale", [1e-120, 1e-3, 1.0, 1e6])
def test_the_unit_of_the_observations_does_not_matter(scale):
    x, y = sample(20, [0.3])
    one, other = fit_gaussian_process(x, y), fit_gaussian_process(x, scale * y)
    np.testing.assert_allclose(other.kernel.lengthscales, one.kernel.lengthscales, rtol=1e-3)
    assert other.kernel.outputscale / scale**2 == pytest.approx(one.kernel.outputscale, rel=1e-3)
    assert other.noise_variance / scale**2 == pytest.approx(one.noise_variance, rel=1e-3)


def within(process, bounds, unit):
    for value, (lower, upper) in (
        (process.kernel.lengthscales[0], bounds.lengthscale),
        (process.kernel.outputscale / unit, bounds.outputscale),
        (process.noise_variance / unit, bounds.noise_variance),
    ):
        assert lower * (1 - 1e-9) <= value <= upper * (1 + 1e-9)


@pytest.mark.parametrize(
    "y", [[], [0.7], [0.5, 0.5], [0.0, 0.0, 0.0], [1.0, -1.0], [1.0] * 20, [1.0, 2.0] * 10]
)
@pytest.mark.parametrize("duplicates", [False, True])
def test_few_constant_or_repeated_observations_stay_within_the_bounds(y, duplicates):
    x = np.random.default_rng(0).random((len(y), 2))
    if duplicates:
        x[:] = 0.25
    process = fit_gaussian_process(x, y)
    unit = float(np.mean(np.square(y))) if any(y) else 1.0
    within(process, FitBounds(), unit)
    assert np.isfinite(
        process.mean_function().values(np.random.default_rng(1).random((5, 2)))
    ).all()


def test_bounds_are_kept_and_a_fit_is_deterministic():
    x, y = sample(30, [0.5])
    bounds = FitBounds((0.05, 0.1), (1.0, 1.0), (0.2, 0.3))
    process = fit_gaussian_process(x, y, bounds=bounds)
    within(process, bounds, float(np.mean(y * y)))
    again = fit_gaussian_process(x, y, bounds=bounds)
    assert np.array_equal(process.factor, again.factor)


def test_the_prior_mean_is_taken_off_first():
    x, y = sample(25, [0.4, 0.4])
    features = draw_random_features(6, 2, 0.5, SeededStream(b"m"))
    m = LinearFunction(features, 10.0 * np.ones(6))
    with_mean = fit_gaussian_process(x, y + m.values(x), prior_mean=m)
    plain = fit_gaussian_process(x, y)
    np.testing.assert_allclose(with_mean.kernel.lengthscales, plain.kernel.lengthscales, rtol=1e-4)
    assert with_mean.prior_mean is m
    np.testing.assert_allclose(with_mean.residuals, y, atol=1e-12)


@pytest.mark.parametrize("pair", [(0.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan, 1.0)])
@pytest.mark.parametrize("key", ["lengthscale", "outputscale", "noise_variance"])
def test_bad_bounds_are_refused(key, pair):
    with pytest.raises(ParameterError, match=f"bounds.{key}"):
        FitBounds(**{key: pair})


def test_bad_data_are_refused():
    with pytest.raises(ParameterError, match="observations"):
        fit_gaussian_process([[0.0]], [math.nan])
    with pytest.raises(ParameterError, match="points"):
        fit_gaussian_process([0.0], [1.0])


def generalised_least_squares(kernel, noise_variance, x, y, h):
    solved = np.linalg.solve(kernel.covariance(x, x) + noise_variance * np.eye(len(x)), h)
    return float(solved @ y) / float(solved @ h)


@pytest.mark.parametrize("seed", range(4))
def test_a_trend_s_factor_and_the_kernel_are_the_likeliest_together(seed):
    x, noise = sample(25, [0.3, 0.3], noise_variance=0.05, seed=seed)
    h = np.sin(7.0 * x[:, 0]) + x[:, 1]
    y = noise + 2.0 * h
    kernel, noise_variance = fit_kernel(x, y, trend=h)
    c = generalised_least_squares(kernel, noise_variance, x, y, h)
    best, _ = log_marginal_likelihood(kernel, noise_variance, x, y - c * h)
    assert c > 0.0
    wide = FitBounds((0.02, 5.0), (1e-3, 100.0), (1e-7, 10.0))
    others = [
        likelihood(fit_gaussian_process(x, y - other * h, bounds=wide))
        for other in np.linspace(0.0, 4.0, 41)
    ]
    # Only the bounds, which follow the size of y or of y - c h, can tell them apart.
    assert best >= max(others) - 1e-2
    assert best > others[0] + 0.1


def test_a_trend_of_the_other_sign_is_left_out_and_its_unit_does_not_matter():
    x, y = sample(20, [0.4, 0.4])
    without = fit_kernel(x, y)
    with_it = fit_kernel(x, y, trend=-y)
    assert np.array_equal(with_it[0].lengthscales, without[0].lengthscales)
    assert with_it[1] == without[1]
    h = y + 0.3 * np.cos(9.0 * x[:, 0])
    one, other = fit_kernel(x, y, trend=h), fit_kernel(x, y, trend=1e-170 * h)
    np.testing.assert_allclose(other[0].lengthscales, one[0].lengthscales, rtol=1e-6)
    # What it explains is not left to the kernel.
    assert one[0].outputscale + one[1] < 0.5 * (without[0].outputscale + without[1])
    nothing = fit_kernel(x, y, trend=np.zeros(20))
    assert np.array_equal(nothing[0].lengthscales, without[0].lengthscales)
    for bad in (np.ones(19), np.full(20, math.nan)):
        with pytest.raises(ParameterError, match="trend"):
            fit_kernel(x, y, trend=bad)


@pytest.mark.parametrize("with_trend", [False, True])
@pytest.mark.parametrize("outputscales", [(1e-9, 1e9), (0.7, 0.7), (5.0, 9.0)])
def test_slopes_of_the_profile(with_trend, outputscales):
    x, y = sample(14, [0.3, 0.3], noise_variance=0.1)
    trend = y + np.cos(5.0 * x[:, 0]) if with_trend else None

    def evaluate(logs):
        return evaluate_likelihood(
            axis_distances(x), y, np.exp(logs[:2]), math.exp(logs[2]), outputscales, trend=trend
        )

    for logs in (np.log([0.2, 0.5, 0.05]), np.log([1.0, 0.1, 1e-3])):
        error = check_grad(lambda z: evaluate(z).value, lambda z: evaluate(z).slopes(), logs)
        assert error < 1e-5 * max(1.0, np.abs(evaluate(logs).slopes()).max())


@pytest.mark.parametrize(
    "bounds",
    [
        FitBounds((0.02, 5.0), (0.05, 20.0), (1e-6, 1e-3)),
        FitBounds((0.02, 5.0), (0.05, 0.2), (1e-6, 1.0)),
        FitBounds((0.02, 5.0), (1.5, 20.0), (0.2, 0.3)),
        FitBounds((0.02, 5.0), (0.05, 20.0), (0.8, 1.0)),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_bounds_that_bind_are_met_at_the_best_place(bounds, seed):
    x, y = sample(20, [0.3], noise_variance=0.2, seed=seed)
    y = y / math.sqrt(float(np.mean(y * y)))
    box = np.log([bounds.lengthscale, bounds.outputscale, bounds.noise_variance])

    def loss(logs):
        kernel = SquaredExponential(np.exp(logs[:1]), math.exp(logs[1]))
        value, slopes = log_marginal_likelihood(kernel, math.exp(logs[2]), x, y)
        return -value, -slopes

    starts = [[math.log(each), *box[1:].mean(axis=1)] for each in (0.03, 0.1, 0.3, 1.0)]
    found = [minimize(loss, start, jac=True, method="L-BFGS-B", bounds=box).fun for start in starts]
    process = fit_gaussian_process(x, y, bounds=bounds)
    within(process, bounds, 1.0)
    assert likelihood(process) >= -min(found) - 1e-3


def test_many_duplicates_without_noise_are_fitted():
    x = np.random.default_rng(0).random((60, 2))
    x = np.vstack([x, x, x[:30] + 1e-9])
    process = fit_gaussian_process(x, np.sin(3.0 * x[:, 0]))
    places = np.random.default_rng(1).random((50, 2))
    np.testing.assert_allclose(
        process.mean_function().values(places), np.sin(3.0 * places[:, 0]), atol=0.01
    )


@pytest.mark.parametrize("seed", [5, 7, 12, 13, 14])
@pytest.mark.parametrize("step", ["smooth", "sharp"])
def test_queries_gathered_at_a_step_are_explained_as_well_as_from_many_starts(step, seed):
    rng = np.random.default_rng(seed)
    x = rng.random((40, 2))
    x[10:] = [0.0, 0.5] + np.array([0.03, 0.3]) * rng.standard_normal((30, 2))
    x = np.clip(x, 0.0, 1.0)
    y = np.tanh((x[:, 0] - 0.03) / 0.01)
    if step == "sharp":
        y = np.where(x.prod(axis=1) < 0.01, 1.0, 0.0) + 0.3 * x[:, 1]
    y = (y - y.mean()) / y.std()
    bounds = FitBounds()
    box = np.log([bounds.lengthscale, bounds.outputscale, bounds.noise_variance])

    def loss(logs):
        kernel = SquaredExponential(np.full(2, math.exp(logs[0])), math.exp(logs[1]))
        value, slopes = log_marginal_likelihood(kernel, math.exp(logs[2]), x, y)
        return -value, -np.array([slopes[0] + slopes[1], *slopes[2:]])

    starts = np.log(list(product((0.03, 0.06, 0.12, 0.24, 0.5, 1.0), [1.0], (1e-6, 1e-4, 0.02))))
    found = [minimize(loss, start, jac=True, method="L-BFGS-B", bounds=box).fun for start in starts]
    assert likelihood(fit_gaussian_process(x, y)) >= -min(found) - 1e-2
