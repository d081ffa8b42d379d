"""An agent's own process: exact without a broadcast, and better or no worse with one."""

from typing import Any

import numpy as np
import pytest

from strategies.dp_fts_de import own_process
from strategies.dp_fts_de.algorithm import Broadcast, read_broadcast
from strategies.dp_fts_de.own_process import fit_own_process, standardize
from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.dp_fts_de.shared_function import CenteredFunction, SharedFunction
from strategies.mechanisms.gaussian_process import condition
from strategies.mechanisms.marginal_likelihood import fit_gaussian_process

PARAMETERS = DpFtsDeParameters(
    num_agents=3,
    dimension=2,
    noise_multiplier=1.0,
    features="rff",
    num_random_features=100,
    lengthscale=0.3,
)
WEIGHTS = np.random.default_rng(8).normal(size=(1, 100))
SHARED = read_broadcast(PARAMETERS, Broadcast(WEIGHTS, 1))
RNG = np.random.default_rng(1)
POINTS, PLACES = RNG.random((14, 2)), RNG.random((200, 2))


def test_values_are_standardised_at_any_scale() -> None:
    values = RNG.normal(size=20)
    for scale in (1e-200, 1.0, 1e15):
        found = standardize(scale * values)
        assert found.mean() == pytest.approx(0.0, abs=1e-12)
        assert found.std() == pytest.approx(1.0)
    for equal in (np.full(7, 0.1), np.zeros(3), np.ones(1)):
        np.testing.assert_array_equal(standardize(equal), np.zeros(len(equal)))


def test_without_a_broadcast_it_is_the_fitted_process() -> None:
    values = np.sin(5.0 * POINTS[:, 0])
    expected = fit_gaussian_process(POINTS, values)
    found = fit_own_process(POINTS, values, 1)
    np.testing.assert_allclose(
        found.mean_function().values(PLACES), expected.mean_function().values(PLACES), atol=1e-12
    )
    np.testing.assert_allclose(found.variance(PLACES), expected.variance(PLACES), atol=1e-12)


def test_hyper_parameters_are_those_of_the_last_full_batch() -> None:
    values = np.sin(5.0 * POINTS[:, 0])
    early = fit_gaussian_process(POINTS[:10], values[:10])
    found = fit_own_process(POINTS, values, 5)
    expected = condition(early.kernel, early.noise_variance, POINTS, values)
    np.testing.assert_allclose(found.variance(PLACES), expected.variance(PLACES), atol=1e-12)
    few = fit_own_process(POINTS[:3], values[:3], 5)
    fitted = fit_gaussian_process(POINTS[:3], values[:3])
    np.testing.assert_allclose(few.kernel.lengthscales, fitted.kernel.lengthscales)


def error(values: np.ndarray, truth: np.ndarray, *, helped: bool) -> float:
    process = fit_own_process(POINTS, values, 1, SHARED if helped else None)
    return float(np.sqrt(np.mean((process.mean_function().values(PLACES) - truth) ** 2)))


def test_a_broadcast_that_is_the_function_up_to_scale_is_believed() -> None:
    values, truth = 3.0 * SHARED.values(POINTS), 3.0 * SHARED.values(PLACES)
    shift = values.mean()
    assert error(values - shift, truth - shift, helped=True) < 0.01 * np.std(truth)
    assert error(values - shift, truth - shift, helped=False) > 0.05 * np.std(truth)


def test_a_broadcast_that_points_the_other_way_is_left_out() -> None:
    values = -SHARED.values(POINTS)
    values -= values.mean()
    with_it = fit_own_process(POINTS, values, 1, SHARED)
    without = fit_own_process(POINTS, values, 1)
    assert with_it.prior_mean is None
    np.testing.assert_array_equal(with_it.residuals, without.residuals)
    np.testing.assert_array_equal(with_it.kernel.lengthscales, without.kernel.lengthscales)


def test_a_broadcast_of_zeros_changes_nothing() -> None:
    nothing = read_broadcast(PARAMETERS, Broadcast(np.zeros((1, 100)), 1))
    process = fit_own_process(POINTS, np.sin(POINTS[:, 1]), 1, nothing)
    assert process.prior_mean is None


def test_the_prior_mean_s_gradient_is_its_own() -> None:
    function = CenteredFunction(SHARED, 2.0, 0.7)
    values, gradients = function.values_and_gradients(PLACES)
    np.testing.assert_allclose(values, 2.0 * (SHARED.values(PLACES) - 0.7))
    np.testing.assert_allclose(values, function.values(PLACES))
    step = np.array([0.0, 1e-6])
    inside = PLACES[PLACES.max(axis=1) < 0.99]
    slopes = (function.values(inside + step) - function.values(inside)) / 1e-6
    np.testing.assert_allclose(gradients[PLACES.max(axis=1) < 0.99, 1], slopes, atol=1e-3)


def test_standardised_values_give_the_process_of_what_they_are() -> None:
    values = 0.7 + 0.01 * np.sin(5.0 * POINTS[:, 0])
    expected = fit_own_process(POINTS, standardize(values), 1, SHARED)
    found = fit_own_process(POINTS, values, 1, SHARED, standardized=True)
    np.testing.assert_array_equal(found.factor, expected.factor)
    np.testing.assert_array_equal(found.residuals, expected.residuals)


@pytest.mark.parametrize("shared", [None, SHARED])
def test_later_values_move_the_hyper_parameters_by_their_unit_alone(
    shared: SharedFunction | None,
) -> None:
    values = np.sin(5.0 * POINTS[:, 0]) + 0.3 * RNG.normal(size=len(POINTS))
    later = values.copy()
    later[10:] *= 40.0
    both = (values, later)
    found = [fit_own_process(POINTS, each, 5, shared, standardized=True) for each in both]
    np.testing.assert_array_equal(found[0].kernel.lengthscales, found[1].kernel.lengthscales)
    early = fit_own_process(POINTS[:10], values[:10], 5, shared, standardized=True)
    raw = early.kernel.outputscale * values[:10].var(), early.noise_variance * values[:10].var()
    for process, each in zip(found, both, strict=True):
        unit = each.var()
        assert process.kernel.outputscale * unit == pytest.approx(raw[0])
        assert process.noise_variance * unit == pytest.approx(raw[1])


def test_what_was_fitted_before_does_not_matter() -> None:
    values = np.cos(6.0 * POINTS[:, 1])
    first = fit_own_process(POINTS, values, 5, SHARED, standardized=True)
    own_process._search.cache_clear()
    again = fit_own_process(POINTS, values, 5, SHARED, standardized=True)
    np.testing.assert_array_equal(first.factor, again.factor)


def test_first_values_that_are_equal_do_not_break_the_unit() -> None:
    values = np.where(np.arange(14) < 10, 0.5, np.linspace(0.0, 1.0, 14))
    process = fit_own_process(POINTS, values, 5, SHARED, standardized=True)
    assert np.isfinite(process.mean_function().values(PLACES)).all()


def test_the_broadcast_s_level_does_not_matter() -> None:
    values = 2.0 * SHARED.values(POINTS) + 0.2 * RNG.normal(size=len(POINTS))
    raised: Any = CenteredFunction(SHARED, 1.0, -50.0)
    for fit_every in (1, 5):
        one = fit_own_process(POINTS, values, fit_every, SHARED, standardized=True)
        other = fit_own_process(POINTS, values, fit_every, raised, standardized=True)
        np.testing.assert_allclose(other.kernel.lengthscales, one.kernel.lengthscales, rtol=1e-4)
        np.testing.assert_allclose(other.residuals, one.residuals, atol=1e-3)
