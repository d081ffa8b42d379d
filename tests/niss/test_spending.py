"""What a run has spent: each client by its own noise, each adversary by what it can know."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, given, strategies

from strategies.dp_fedpaq.spending import Participation
from strategies.mechanisms.accounting import bound_epsilon
from strategies.niss import Coalition
from strategies.niss.calibration import calibrate, circles_of, own_noise_multiplier
from strategies.niss.parameters import SPARSE_FAILURE, NissParameters
from strategies.niss.spending import ADVERSARIES, hidden_share, spend
from tests.niss.planned import plan

TARGET: dict[str, Any] = {"target_epsilon": 4.0, "noise_multiplier": None}
SIZES = dict.fromkeys(range(10), 50)


def after(made: Participation, uploads: Mapping[int, int], fewest: int = 10) -> Participation:
    return dataclasses.replace(made, uploads=uploads, fewest_uploads=fewest)


def epsilon(
    parameters: NissParameters, run: Participation, adversary: str = "server_and_colluders"
) -> float:
    spent = spend(parameters, run, adversary)
    assert spent is not None
    return spent.epsilon


def test_nothing_is_spent_before_anybody_was_asked() -> None:
    parameters, made = plan()
    assert [epsilon(parameters, made, each) for each in ADVERSARIES] == [0.0] * 3
    assert epsilon(parameters, after(made, {0: 0})) == 0.0


def test_without_noise_there_is_no_figure() -> None:
    parameters, made = plan(pair_noise="uniform", noise_multiplier=0.0)
    assert [spend(parameters, after(made, {0: 1}), each) for each in ADVERSARIES] == [None] * 3


def test_against_server_and_colluders_it_is_a_gaussian_mechanism_of_z() -> None:
    parameters, made = plan(colluding_fraction=0.3)
    run = after(made, {0: 3, 1: 2})
    expected = bound_epsilon(parameters.update.releases(1.0, 50, 3), 1e-5, "auto").epsilon
    assert epsilon(parameters, run) == pytest.approx(expected, rel=1e-12)
    # The run as planned meets the target.
    aimed, made = plan(num_records=SIZES, **TARGET)
    whole = after(made, dict.fromkeys(range(10), 4))
    assert 3.9 < epsilon(aimed, whole) <= 4.0
    # More uploads than a client gives it does not give.
    assert epsilon(aimed, after(made, {0: 40})) == epsilon(aimed, whole)


def test_each_client_counts_by_its_own_noise() -> None:
    parameters, made = plan(num_records=SIZES, client_epsilons=((0, 1.0), (1, 7.0)), **TARGET)
    figures = [epsilon(parameters, after(made, {client: 4})) for client in (0, 1, 2)]
    base = parameters.base_noise_multiplier
    assert base == own_noise_multiplier(parameters, 2, 50)
    # The one that would do with less noise has the common one.
    assert figures == pytest.approx([1.0, 4.0, 4.0], rel=0.02)
    assert figures[0] <= 1.0
    assert epsilon(parameters, after(made, {0: 4, 2: 1})) == max(
        figures[0], epsilon(parameters, after(made, {2: 1}))
    )


def test_where_sizes_are_unknown_the_target_counts_as_spent() -> None:
    parameters, made = plan(client_epsilons=((0, 1.0),), **TARGET)
    assert epsilon(parameters, after(made, {0: 1})) == 1.0
    assert epsilon(parameters, after(made, {0: 1, 5: 1})) == 4.0
    fixed, made = plan(unit="record")
    least = bound_epsilon(fixed.update.releases(1.0, 8, 2), 1e-5, "auto").epsilon
    assert epsilon(fixed, after(made, {0: 2})) == pytest.approx(least, rel=1e-12)


def test_fewer_records_are_drawn_more_often() -> None:
    parameters, made = plan(num_records={**SIZES, 1: 400}, unit="record")
    small, large = (epsilon(parameters, after(made, {client: 4})) for client in (0, 1))
    assert small > large > 0.0


def test_sparse_graphs_cost_a_little_of_delta() -> None:
    parameters, made = plan(pair_noise="uniform", graph="sparse")
    run = after(made, {0: 4})
    delta = 1e-5 - 4 * SPARSE_FAILURE
    assert parameters.gaussian_delta == pytest.approx(delta, rel=1e-12)
    expected = bound_epsilon(parameters.update.releases(1.0, 50, 4), delta, "auto").epsilon
    assert epsilon(parameters, run) == pytest.approx(expected, rel=1e-12)
    complete, _ = plan(pair_noise="uniform")
    assert epsilon(complete, run) < epsilon(parameters, run)


@given(
    rho=strategies.floats(0.0, 0.7),
    ready=strategies.integers(4, 10),
    uploads=strategies.dictionaries(
        strategies.integers(0, 9), strategies.integers(1, 4), min_size=1, max_size=10
    ),
    fewest=strategies.integers(0, 10),
    kind=strategies.sampled_from(["gaussian", "uniform"]),
)
def test_whoever_knows_less_learns_no_more(
    rho: float, ready: int, uploads: dict[int, int], fewest: int, kind: str
) -> None:
    assume(ready - math.floor(10 * rho + 1e-9) >= 2)
    parameters, made = plan(
        min_ready=ready, colluding_fraction=rho, pair_noise=kind, accountant="closed_form"
    )
    run = after(made, uploads, fewest)
    everything, server, user = (epsilon(parameters, run, each) for each in ADVERSARIES)
    assert server <= everything
    assert user <= everything


def test_without_colluders_the_server_learns_less() -> None:
    parameters, made = plan(num_clients=20, min_ready=20, colluding_fraction=0.5)
    run = after(made, {0: 4}, 20)
    assert epsilon(parameters, run, "server") < 0.9 * epsilon(parameters, run)
    (circle,) = circles_of(parameters)
    noise = calibrate(parameters, circle, 1.0)
    expected = noise.effective_variance_against(20) / noise.effective_variance_against(10)
    assert hidden_share(parameters, circle, "server") == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("dropped", [0, 10, 30])
def test_in_a_sum_only_honest_noise_counts_however_many_vanished(dropped: int) -> None:
    """Colluders do not vanish: floor(rho M) of the M who were ready know their own noise."""
    parameters, _ = plan(
        num_clients=100, min_ready=100, colluding_fraction=0.3, expected_dropouts=5
    )
    (circle,) = circles_of(parameters)
    own = calibrate(parameters, circle, 1.0).own_variance
    fewest = 100 - dropped
    share = hidden_share(parameters, circle, "model_user", fewest)
    assert share == pytest.approx(max(1.0, (fewest - 30) * own), rel=1e-12)
    assert (share > 1.0) == (dropped < 49)


def test_where_circles_differ_a_model_user_gains_nothing() -> None:
    coalitions = (Coalition((0, 1, 2, 3), 0.0, 4),)
    parameters, made = plan(coalitions=coalitions, min_ready=5)
    run = after(made, {0: 4, 7: 4})
    assert epsilon(parameters, run, "model_user") == epsilon(parameters, run)
    assert hidden_share(parameters, circles_of(parameters)[0], "model_user", 10) == 1.0
    spent = spend(parameters, run, "server_and_colluders")
    assert spent is not None
    # The fraction that every client bears.
    assert spent.colluding_fraction == 0.0


def test_a_gain_adds_to_the_common_noise_alone() -> None:
    """z_k^2 + (share - 1) base^2: what a client adds by itself is not multiplied."""
    parameters, made = plan(
        num_clients=20,
        min_ready=20,
        colluding_fraction=0.5,
        num_records=dict.fromkeys(range(20), 50),
        client_epsilons=((0, 1.0),),
        **TARGET,
    )
    (circle,) = circles_of(parameters)
    base, need = parameters.base_noise_multiplier, own_noise_multiplier(parameters, 0, 50)
    share = hidden_share(parameters, circle, "server")
    z = math.sqrt(need**2 + (share - 1.0) * base**2)
    expected = bound_epsilon(parameters.update.releases(z, 50, 4), 1e-5, "auto").epsilon
    assert epsilon(parameters, after(made, {0: 4}, 20), "server") == pytest.approx(expected)
    assert need < z < need * math.sqrt(share)
