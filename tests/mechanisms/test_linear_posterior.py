import math

import numpy as np
import pytest
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct
from sklearn.linear_model import Ridge

from strategies.mechanisms.cholesky import FactorizationError
from strategies.mechanisms.linear_posterior import fit_linear_posterior
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.random_features import draw_random_features
from strategies.mechanisms.rng import SeededStream

ALPHA = 1e-6
SHAPES = [(1, 1), (1, 500), (10, 100), (70, 100), (100, 100), (101, 100), (200, 30), (200, 500)]


def problem(n, num_features, seed=0):
    rng = np.random.default_rng(seed)
    features = draw_random_features(num_features, 2, 0.5, SeededStream(b"f"))
    return features.values(rng.random((n, 2))), rng.standard_normal(n)


@pytest.mark.parametrize("regularizer", [1e-6, 0.01, 1.0])
@pytest.mark.parametrize(("n", "num_features"), SHAPES)
def test_mean_solves_the_normal_equations(n, num_features, regularizer):
    phi, y = problem(n, num_features)
    nu = fit_linear_posterior(phi, y, regularizer).mean
    gap = phi.T @ (phi @ nu - y) + regularizer * nu
    assert np.abs(gap).max() <= 1e-7 * np.abs(phi.T @ y).max()


@pytest.mark.parametrize("regularizer", [0.01, 1.0])
@pytest.mark.parametrize(("n", "num_features"), SHAPES)
def test_parity_with_scikit_learn(n, num_features, regularizer):
    phi, y = problem(n, num_features)
    posterior = fit_linear_posterior(phi, y, regularizer)
    ridge = Ridge(alpha=regularizer, fit_intercept=False, solver="svd").fit(phi, y)
    np.testing.assert_allclose(posterior.mean, ridge.coef_, rtol=1e-7, atol=1e-9)
    # A Gaussian process with the linear kernel is the same posterior.
    process = GaussianProcessRegressor(DotProduct(0.0, "fixed"), alpha=regularizer, optimizer=None)
    process.fit(phi, y)
    others = problem(5, num_features, seed=1)[0]
    mean, covariance = process.predict(others, return_cov=True)
    np.testing.assert_allclose(others @ posterior.mean, mean, rtol=1e-6, atol=1e-9)
    sigma = phi.T @ phi + regularizer * np.eye(num_features)
    expected = regularizer * others @ np.linalg.solve(sigma, others.T)
    np.testing.assert_allclose(expected, covariance, rtol=1e-6, atol=1e-9)


def whiten(draws, phi, y, regularizer):
    """Turn draws of the right law into standard normal vectors, in the eigenbasis of Sigma."""
    sigma = phi.T @ phi + regularizer * np.eye(phi.shape[1])
    values, vectors = np.linalg.eigh(sigma)
    nu = np.linalg.solve(sigma, phi.T @ y)
    return (draws - nu) @ vectors * np.sqrt(values / regularizer)


def looks_standard(z):
    """Test mean and second moments of each coordinate and pair; rate ALPHA in all."""
    n, m = z.shape
    share = ALPHA / (m * m + 2 * m) / 2
    mean_ok = np.abs(z.sum(axis=0)).max() / math.sqrt(n) <= stats.norm.isf(share)
    squares = (z * z).sum(axis=0)
    low, high = stats.chi2.ppf(share, n), stats.chi2.isf(share, n)
    squares_ok = (squares >= low).all() and (squares <= high).all()
    # (a b) summed is (|a + b|^2 - |a - b|^2) / 4: sums and differences are N(0, 2) themselves.
    pairs_ok = True
    for i in range(m):
        for j in range(i):
            for sign in (1.0, -1.0):
                total = 0.5 * ((z[:, i] + sign * z[:, j]) ** 2).sum()
                pairs_ok &= low <= total <= high
    return bool(mean_ok and squares_ok and pairs_ok)


@pytest.mark.parametrize("regularizer", [0.05, 1.0])
@pytest.mark.parametrize(("n", "num_features"), [(9, 4), (4, 4), (3, 5), (0, 3)])
def test_draws_have_the_stated_law(n, num_features, regularizer):
    rng = np.random.default_rng(3)
    phi, y = rng.standard_normal((n, num_features)), rng.standard_normal(n)
    posterior = fit_linear_posterior(phi, y, regularizer)
    stream = SeededStream(b"draws")
    draws = np.array([posterior.draw(stream) for _ in range(25_000)])
    assert looks_standard(whiten(draws, phi, y, regularizer))
    # Twins: a covariance 1 + 5% too large, and a mean off by 5% of a standard deviation.
    center = posterior.mean
    assert not looks_standard(whiten(center + 1.05 * (draws - center), phi, y, regularizer))
    shifted = draws + 0.05 * (draws - center).std(axis=0)
    assert not looks_standard(whiten(shifted, phi, y, regularizer))
    if n:
        # Sigma^-1 without the lambda before it is another law, unless lambda is 1.
        unscaled = center + (draws - center) / math.sqrt(regularizer)
        assert looks_standard(whiten(unscaled, phi, y, regularizer)) == (regularizer == 1.0)


def test_duplicates_and_contradictions_average():
    phi, _ = problem(1, 500)
    posterior = fit_linear_posterior(np.repeat(phi, 200, axis=0), [1.0, 3.0] * 100, 1e-6)
    assert (phi @ posterior.mean)[0] == pytest.approx(2.0, rel=1e-6)
    drawn = posterior.draw(SeededStream(b"w"))
    assert (phi @ drawn)[0] == pytest.approx(2.0, abs=10 * math.sqrt(1e-6 / 200))


def test_no_observations_give_the_prior():
    posterior = fit_linear_posterior(np.empty((0, 6)), [], 0.5)
    assert np.array_equal(posterior.mean, np.zeros(6))
    normal = SeededStream(b"w").standard_normal(6)
    assert np.array_equal(posterior.draw(SeededStream(b"w")), normal)


@pytest.mark.parametrize(
    ("key", "phi", "y", "regularizer"),
    [
        ("features", [[1.0, math.nan]], [1.0], 1.0),
        ("features", [1.0], [1.0], 1.0),
        ("observations", [[1.0, 2.0]], [math.inf], 1.0),
        ("observations", [[1.0, 2.0]], [1.0, 2.0], 1.0),
        ("regularizer", [[1.0, 2.0]], [1.0], 0.0),
        ("regularizer", [[1.0, 2.0]], [1.0], math.nan),
    ],
)
def test_bad_input_is_refused(key, phi, y, regularizer):
    with pytest.raises(ParameterError, match=key):
        fit_linear_posterior(phi, y, regularizer)


@pytest.mark.parametrize(("n", "num_features"), [(40, 5), (5, 40)])
def test_a_factor_that_means_nothing_is_an_error(n, num_features):
    phi = np.ones((n, num_features))
    with pytest.raises(FactorizationError, match="ridge"):
        fit_linear_posterior(phi, np.ones(n), 1e-15)
    with pytest.raises(FactorizationError):
        fit_linear_posterior(1e200 * phi, np.ones(n), 1e-6)
    with pytest.raises(FactorizationError, match="range"):
        fit_linear_posterior(0.01 * phi, np.full(n, 1.7e308), 1e-6)
