"""The algorithm, step by step: what is drawn, sent, sampled, released and queried."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from strategies.dp_fts_de import algorithm
from strategies.dp_fts_de.algorithm import AgentStreams, Broadcast
from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.mechanisms.cholesky import FactorizationError
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.rng import Randomness

FALSE_POSITIVE = 1e-6
FOURIER: dict[str, Any] = {"features": "rff", "num_random_features": 100, "lengthscale": 0.3}


def make(**changes: Any) -> DpFtsDeParameters:
    given: dict[str, Any] = {"num_agents": 6, "dimension": 2, "noise_multiplier": 1.0, **FOURIER}
    return DpFtsDeParameters(**{**given, **changes})


def streams(server_round: int = 2, agent: int = 0, seed: int = 0) -> AgentStreams:
    return AgentStreams(Randomness("seeded", seed), server_round, agent)


def history(agent: int, n: int = 12, dimension: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(agent)
    points = rng.random((n, dimension))
    return points, np.sin(4.0 * points[:, 0] + 0.1 * agent) - (points[:, -1] - 0.4) ** 2


def whiten(parameters: DpFtsDeParameters, x: np.ndarray, y: np.ndarray, draws: np.ndarray):  # type: ignore[no-untyped-def]
    phi = algorithm.build_features(parameters).values(x)
    sigma = phi.T @ phi + parameters.regularizer * np.eye(phi.shape[1])
    nu = np.linalg.solve(sigma, phi.T @ y)
    root = np.linalg.cholesky(sigma / parameters.regularizer)
    return (draws - nu) @ root


def two_sided(statistic: float, freedom: int) -> float:
    law = stats.chi2(freedom)
    return float(2.0 * min(law.cdf(statistic), law.sf(statistic)))


def test_a_sent_sample_has_mean_nu_and_covariance_lambda_over_sigma() -> None:
    parameters = make(upload_kind="sample", standardize=False, num_random_features=20)
    (x, y), randomness = history(1, n=30), Randomness("seeded", 4)
    draws = np.array(
        [
            algorithm.draw_vector(parameters, x, y, randomness.stream("draw", index))
            for index in range(4000)
        ]
    )
    white = whiten(parameters, x, y, draws)
    assert two_sided(float((white**2).sum()), white.size) > FALSE_POSITIVE
    sums = white.sum(axis=0) / math.sqrt(len(white))
    assert two_sided(float((sums**2).sum()), sums.size) > FALSE_POSITIVE
    assert two_sided(float(((1.02 * white) ** 2).sum()), white.size) < FALSE_POSITIVE


def test_values_are_standardised_where_the_run_says_so() -> None:
    x, y = history(0)
    none = streams().open("none")
    one = algorithm.draw_vector(make(), x, y, none)
    np.testing.assert_allclose(algorithm.draw_vector(make(), x, 7.0 - 0.001 + 50.0 * y, none), one)
    raw = algorithm.draw_vector(make(standardize=False), x, y, none)
    np.testing.assert_allclose(
        algorithm.draw_vector(make(standardize=False), x, 50.0 * y, none), 50.0 * raw
    )
    equal = algorithm.draw_vector(make(), x, np.full(len(x), 0.1), none)
    assert not equal.any()


def test_the_features_are_public_and_the_same_for_all() -> None:
    secret, seeded = make(randomness="secret"), make()
    x = np.random.default_rng(0).random((5, 2))
    first, second = (algorithm.build_features(each).values(x) for each in (secret, seeded))
    np.testing.assert_array_equal(first, second)
    assert np.abs(algorithm.build_features(make(seed=1)).values(x) - first).max() > 0.01
    assert algorithm.build_features(make(features="eigen", num_random_features=9)).num_features == 9


def test_an_empty_round_releases_noise_of_the_same_size() -> None:
    parameters = make(
        num_subregions=4, num_random_features=5000, clipping_norm=22.0, sample_rate=0.35
    )
    for mode, factor in (("sound", None), ("paper", 1.0)):
        chosen = dataclasses.replace(parameters, mode=mode)
        released = algorithm.release_sums(chosen, 1, [], [], streams().open(f"noise-{mode}"))
        weights = algorithm.weigh_agents(chosen, 1)
        c = weights.sensitivity_factor if factor is None else factor
        std = 1.0 * c * weights.largest * 22.0 / 0.35
        white = released / std[:, None]
        assert two_sided(float((white**2).sum()), white.size) > FALSE_POSITIVE
        assert two_sided(float(((1.05 * white) ** 2).sum()), white.size) < FALSE_POSITIVE
        assert math.isclose(
            algorithm.release_mechanism(chosen, 1).noise_std, c * 22.0 / 0.35, rel_tol=1e-12
        )


def test_vectors_are_clipped_at_the_server_again_and_bad_ones_are_zero() -> None:
    parameters = make(noise_multiplier=0.0, clipping_norm=2.0, num_subregions=4)
    long, none = np.full(100, 5.0), streams().open("noise")
    clipped, was_long = algorithm.clip_vector(parameters, long)
    assert was_long
    assert np.linalg.norm(clipped) == pytest.approx(1.0)
    one = algorithm.release_sums(parameters, 1, [3], [long], none)
    np.testing.assert_allclose(one, algorithm.release_sums(parameters, 1, [3], [clipped], none))
    for bad in (math.nan, math.inf):
        broken = long.copy()
        broken[7] = bad
        assert not algorithm.release_sums(parameters, 1, [3], [broken], none).any()
        assert not algorithm.clip_vector(parameters, broken)[0].any()
    assert algorithm.clip_vector(parameters, clipped)[1] is False


def test_samples_are_poisson() -> None:
    parameters = make(num_agents=2000, sample_rate=0.3)
    drawn = [
        algorithm.sample_agents(parameters, Randomness("seeded", 1).stream("cohort", t))
        for t in range(50)
    ]
    total = sum(len(each) for each in drawn)
    assert stats.binomtest(total, 100_000, 0.3).pvalue > FALSE_POSITIVE
    assert stats.binomtest(total, 100_000, 0.3 * 1.05).pvalue < FALSE_POSITIVE
    sizes = np.array([len(each) for each in drawn])
    spread = float(((sizes - 600.0) ** 2).sum() / (2000 * 0.3 * 0.7))
    assert two_sided(spread, 50) > FALSE_POSITIVE
    assert all(each == sorted(set(each)) for each in drawn)


def test_agents_start_in_their_own_sub_regions_or_everywhere() -> None:
    boxed = make(num_subregions=4, initial="own_box", num_initial=50)
    for agent in range(9):
        points = algorithm.draw_initial_points(boxed, agent, streams(1, agent).open("initial"))
        assert points.shape == (50, 2)
        assert set(boxed.boxes.locate(points)) == {agent % 4}
    free = dataclasses.replace(boxed, initial="everywhere")
    points = algorithm.draw_initial_points(free, 0, streams(1, 0).open("initial"))
    assert set(free.boxes.locate(points)) == {0, 1, 2, 3}


def shares(parameters: DpFtsDeParameters, server_round: int, release_round: int | None) -> float:
    """The share of own queries among 400."""
    broadcast = None
    if release_round is not None:
        broadcast = Broadcast(np.zeros((1, 100)), release_round)
    randomness = Randomness("seeded", 3)
    return float(
        np.mean(
            [
                algorithm.queries_own_function(
                    parameters, server_round, broadcast, randomness.stream("coin", index)
                )
                for index in range(400)
            ]
        )
    )


def test_the_broadcast_is_queried_when_the_rules_say_so() -> None:
    fresh, paper = make(), make(use_broadcast="every_round", prob_own="one_minus_inverse")
    assert [shares(fresh, t, 4) for t in (5, 6, 9)] == [0.0, 1.0, 1.0]
    assert shares(fresh, 5, None) == shares(paper, 5, None) == 1.0
    assert shares(paper, 2, 1) == 0.0
    for t, wanted in ((3, 0.5), (11, 0.9)):
        count = round(400 * shares(paper, t, 1))
        assert stats.binomtest(count, 400, wanted).pvalue > FALSE_POSITIVE
    assert shares(make(control="no_sharing", use_broadcast="every_round"), 2, 1) == 1.0


def test_with_p_t_1_it_is_plain_thompson_sampling() -> None:
    x, y = history(2)
    apart = make(prob_own=1.0, prior_mean=False)
    broadcast = Broadcast(np.random.default_rng(1).normal(size=(1, 100)), 1)
    with_it = algorithm.choose_query(apart, x, y, broadcast, streams())
    without = algorithm.choose_query(apart, x, y, None, streams())
    np.testing.assert_array_equal(with_it[0], without[0])
    assert with_it[1] is without[1] is False
    again = algorithm.choose_query(make(prob_own=1.0), x, y, broadcast, streams())
    assert np.abs(again[0] - with_it[0]).max() > 0.0  # the prior mean is used


def test_each_box_has_its_own_vector() -> None:
    parameters = make(num_subregions=4)
    vectors = np.random.default_rng(5).normal(size=(4, 100))
    shared = algorithm.read_broadcast(parameters, Broadcast(vectors, 1))
    features = algorithm.build_features(parameters)
    ticks = (np.arange(80) + 0.5) / 80
    grid = np.array(list(itertools.product(ticks, ticks)))
    expected = [
        float(features.values(x[None])[0] @ vectors[2 * int(x[0] >= 0.5) + int(x[1] >= 0.5)])
        for x in grid
    ]
    np.testing.assert_allclose(shared.values(grid), expected, atol=1e-12)
    values, gradients = shared.values_and_gradients(grid)
    np.testing.assert_allclose(values, expected, atol=1e-12)
    step = 1e-6 * np.array([1.0, 0.0])
    slopes = (shared.values(grid + step) - shared.values(grid - step)) / 2e-6
    np.testing.assert_allclose(gradients[:, 0], slopes, atol=1e-6)
    best = algorithm.maximize_broadcast(shared, streams())
    assert shared.values(best[None])[0] >= max(expected)
    assert parameters.boxes.locate(best[None]) == parameters.boxes.locate(
        grid[[int(np.argmax(expected))]]
    )


@pytest.mark.parametrize(
    "vectors",
    [np.zeros((2, 100)), np.zeros((1, 99)), np.full((1, 100), math.nan), np.zeros(100)],
)
def test_a_broadcast_of_another_kind_is_refused(vectors: np.ndarray) -> None:
    with pytest.raises(ParameterError, match="broadcast"):
        algorithm.read_broadcast(make(), Broadcast(vectors, 1))


def test_a_repeated_query_is_replaced_also_where_axes_are_rounded() -> None:
    def snap(point: np.ndarray) -> np.ndarray:
        return np.floor(point * 4.0).clip(max=3.0) / 4.0 + 0.125

    parameters = make()
    vectors = np.random.default_rng(5).normal(size=(1, 100))
    x, y = history(0, n=3)
    broadcast = Broadcast(vectors, 1)
    free, _ = algorithm.choose_query(parameters, x, y, broadcast, streams())
    first, is_shared = algorithm.choose_query(parameters, x, y, broadcast, streams(), snap)
    np.testing.assert_array_equal(first, snap(free))
    assert is_shared
    x = np.vstack([x, first])
    y = np.append(y, 1.0)
    second, is_shared = algorithm.choose_query(parameters, x, y, broadcast, streams(), snap)
    assert np.abs(second - first).max() > 0.1
    np.testing.assert_array_equal(second, snap(second))
    # What stands in its place is nobody's.
    assert not is_shared


def test_a_factorisation_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.repeat(np.array([[0.3, 0.3]]), 4, axis=0)
    monkeypatch.setattr("strategies.dp_fts_de.parameters.MIN_RIDGE", 0.0)
    parameters = make(regularizer=1e-20, standardize=False)
    with pytest.raises(FactorizationError):
        algorithm.draw_vector(parameters, x, np.ones(4), streams().open("vector"))


def test_the_random_control_keeps_the_norms_only() -> None:
    released = np.random.default_rng(0).normal(size=(4, 100)) * np.array([[1], [2], [3], [0]])
    chosen = make(num_subregions=4, control="random")
    turned = algorithm.apply_control(chosen, released, streams().open("control"))
    np.testing.assert_allclose(
        np.linalg.norm(turned, axis=1), np.linalg.norm(released, axis=1), rtol=1e-12
    )
    cosine = float((turned[0] @ released[0]) / (released[0] @ released[0]))
    assert abs(cosine) < 0.6
    kept = algorithm.apply_control(make(num_subregions=4), released, streams().open("control"))
    assert kept is released


def test_a_release_needs_planned_noise() -> None:
    unplanned = make(noise_multiplier=None, target_epsilon=2.0)
    with pytest.raises(RuntimeError, match="planned"):
        algorithm.release_sums(unplanned, 1, [], [], streams().open("noise"))
    with pytest.raises(RuntimeError, match="planned"):
        algorithm.release_mechanism(unplanned, 1)
