import numpy as np
import pytest

from strategies.mechanisms.cholesky import FactorizationError, factor_with_ridge, solve_factored


@pytest.mark.parametrize("n", [0, 1, 2, 30])
def test_factor_and_solution(n):
    half = np.random.default_rng(n).standard_normal((n, n))
    gram = half @ half.T
    before = gram.copy()
    factor = factor_with_ridge(gram, 0.5)
    np.testing.assert_allclose(factor @ factor.T, gram + 0.5 * np.eye(n), rtol=1e-12, atol=1e-12)
    assert np.array_equal(factor, np.tril(factor))
    assert np.array_equal(gram, before)
    for right in (np.ones(n), np.ones((n, 3)), np.ones((3, n)).T):
        solved = solve_factored(factor, right)
        assert solved.shape == right.shape
        np.testing.assert_allclose((gram + 0.5 * np.eye(n)) @ solved, right, rtol=1e-9, atol=1e-9)


def test_what_is_not_positive_definite_is_an_error():
    with pytest.raises(FactorizationError, match="not positive definite"):
        factor_with_ridge(np.array([[1.0, 5.0], [5.0, 1.0]]), 1e-3)
    for bad in (np.nan, np.inf):
        with pytest.raises(FactorizationError, match="NaN"):
            factor_with_ridge(np.array([[1.0, bad], [bad, 1.0]]), 1e-3)
    for ridge in (0.0, -1.0, np.nan, 1e-15):
        with pytest.raises(FactorizationError, match="too small"):
            factor_with_ridge(np.ones((3, 3)), ridge)
