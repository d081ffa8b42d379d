"""Spending: the published and the tight epsilons, planned noise, and budgets that stop."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.dp_fts_de.spending import (
    affords_release,
    plan_noise,
    spend,
    spend_without_sampling,
)
from strategies.mechanisms.accounting import AccountingError

# The experiment of the paper: N = 29, T = 60, delta = 29^-1.1. Columns: q, z, epsilon as published,
# and what Renyi divergences of real orders and privacy loss distributions give; the last at 1e-5.
GOLDEN = [
    (0.35, 1.0, 15.17, 12.57, 10.38, 19.74),
    (0.35, 1.6, 7.12, 5.66, 4.61, 9.64),
    (0.35, 2.0, 5.14, 4.00, 3.23, 7.08),
    (0.35, 3.0, 3.05, 2.20, 1.74, 4.20),
    (0.35, 4.0, 2.16, 1.46, 1.13, 2.96),
    (0.10, 1.0, 3.75, 2.72, 2.01, 5.57),
    (0.15, 1.0, 5.98, 4.45, 3.43, 8.32),
    (0.20, 1.0, 7.69, 6.31, 4.99, 11.10),
    (0.25, 1.0, 9.82, 8.29, 6.67, 13.93),
]
DELTA = 29.0**-1.1


def make(**changes: Any) -> DpFtsDeParameters:
    given: dict[str, Any] = {
        "num_agents": 29,
        "dimension": 2,
        "num_random_features": 20,
        "noise_multiplier": 1.0,
    }
    return DpFtsDeParameters(**{**given, **changes})


def epsilon(num_releases: int, **changes: Any) -> float:
    spent = spend(make(**changes), num_releases)
    assert spent is not None
    return spent.epsilon


@pytest.mark.parametrize(("q", "z", "published", "rdp", "pld", "small_delta"), GOLDEN)
def test_the_published_table(
    q: float, z: float, published: float, rdp: float, pld: float, small_delta: float
) -> None:
    common = {"sample_rate": q, "noise_multiplier": z, "target_delta": DELTA, "mode": "paper"}
    assert make(**common).num_planned(61) == 60
    found = [epsilon(60, **common, accountant=name) for name in ("moments", "rdp", "pld", "auto")]
    # The published column is rounded; the others come from another program's grids of orders and
    # losses and are rounded upwards.
    assert found[0] == pytest.approx(published, abs=0.00501)
    assert found[1:3] == pytest.approx([rdp, pld], abs=0.02)
    assert found[3] == found[2]
    at_small_delta = epsilon(60, **{**common, "target_delta": 1e-5})
    assert at_small_delta == pytest.approx(small_delta, abs=0.02)


@pytest.mark.parametrize(("target", "z"), [(5.0, 0.892), (2.0, 1.994), (1.0, 3.731)])
def test_noise_for_one_early_release_and_for_four(target: float, z: float) -> None:
    def planned(rounds: tuple[int, ...]) -> float:
        wanted = make(noise_multiplier=None, target_epsilon=target, release_rounds=rounds)
        found = plan_noise(wanted, 100).noise_multiplier
        assert found is not None
        return found

    assert planned((1,)) == pytest.approx(z, rel=6e-3)
    assert planned((1, 2, 4, 8)) == pytest.approx(2.0 * z, rel=6e-3)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.3, 8.0), st.sampled_from([0.2, 0.5, 1.0]), st.integers(1, 30))
def test_planned_noise_meets_the_target_and_affords_exactly_the_plan(
    target: float, q: float, num_rounds: int
) -> None:
    wanted = make(noise_multiplier=None, target_epsilon=target, sample_rate=q)
    planned = plan_noise(wanted, num_rounds)
    count = max(1, planned.num_planned(num_rounds))
    spent = spend(planned, count)
    assert spent is not None
    assert 0.98 * target <= spent.epsilon <= target
    assert affords_release(planned, count - 1)
    assert not affords_release(planned, 2 * count)


def test_a_given_multiplier_stays_and_its_target_is_a_budget() -> None:
    budget = make(target_epsilon=5.0)
    assert plan_noise(budget, 10) is budget
    afforded = [t for t in range(10) if affords_release(budget, t)]
    assert afforded == list(range(len(afforded)))
    assert len(afforded) == 1
    assert epsilon(1) <= 5.0 < epsilon(2)
    assert affords_release(make(), 10**6)
    assert affords_release(make(noise_multiplier=0.0), 10**6)


def test_epsilon_grows_with_releases_only() -> None:
    found = [epsilon(t, sample_rate=0.35) for t in (0, 1, 2, 10, 60)]
    assert found == sorted(found)
    assert found[0] == 0.0
    assert len(set(found)) == 5
    assert epsilon(5, mode="paper") == epsilon(5, mode="sound", num_subregions=4, clipping_norm=9.0)
    assert epsilon(5, upload="all", sample_rate=0.3) == epsilon(5, sample_rate=0.3)


def test_without_noise_there_is_no_epsilon_unless_nobody_shares() -> None:
    assert spend(make(noise_multiplier=0.0), 3) is None
    assert spend(make(noise_multiplier=0.0), 0) is None
    alone = make(noise_multiplier=0.0, control="no_sharing")
    assert (spent := spend(alone, 0)) is not None
    assert spent.epsilon == 0.0


def test_before_the_plan_nothing_is_spent_and_nothing_may_be() -> None:
    wanted = make(noise_multiplier=None, target_epsilon=2.0)
    assert (spent := spend(wanted, 0)) is not None
    assert spent.epsilon == 0.0
    with pytest.raises(RuntimeError, match="planned"):
        spend(wanted, 1)


def test_who_sees_the_samples_faces_the_epsilon_without_sampling() -> None:
    exposed = spend_without_sampling(make(sample_rate=0.35, accountant="moments"), 60)
    assert exposed is not None
    assert exposed.epsilon == epsilon(60)
    assert exposed.epsilon > 3.0 * epsilon(60, sample_rate=0.35)


def test_a_target_that_needs_no_noise_is_refused() -> None:
    wanted = make(noise_multiplier=None, target_epsilon=1.0, target_delta=0.9, sample_rate=0.01)
    with pytest.raises(AccountingError, match="target_delta"):
        plan_noise(wanted, 3)
    assert math.isfinite(epsilon(1))
