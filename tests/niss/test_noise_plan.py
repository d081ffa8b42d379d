"""The noise of a round: the table of the calibration, what hides each client, the finest grid."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, strategies

from strategies.mechanisms.fixed_point import FixedPoint
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.sparse_graph import edge_probability
from strategies.niss import Coalition
from strategies.niss.attempt_noise import check_noise
from strategies.niss.calibration import calibrate, circles_of, edge_share
from strategies.niss.noise_plan import (
    NoisePlan,
    accept_scale,
    choose_grid,
    plan_noise,
    plan_round,
    std_of_sum,
)
from strategies.niss.parameters import SPARSE_FAILURE
from tests.niss.planned import plan
from tests.one_step_training import ONE_STEP

UNIFORM = {"pair_noise": "uniform"}


SIZE = 650


def only_plan(num_clients: int = 10, size: int = SIZE, **changes: Any) -> NoisePlan:
    parameters, _ = plan(num_clients, **changes)
    (found,) = plan_round(parameters, 1, size).values()
    return found


# M, rho, m, s_ind^2, s_pair^2, variance of the sum without and with m dropouts: niss.md of the
# specification, for a target of 1 and as many ready clients as there are.
TABLE = [
    (10, 0.0, 0, 0.105000, 1.879500, 1.050, None),
    (10, 0.3, 0, 0.150000, 2.550000, 1.500, None),
    (30, 0.1, 0, 0.038889, 0.747531, 1.167, None),
    (100, 0.0, 0, 0.010500, 0.207795, 1.050, None),
    (100, 0.3, 0, 0.015000, 0.295500, 1.500, None),
    (100, 0.5, 0, 0.021000, 0.411180, 2.100, None),
    (1000, 0.3, 0, 0.001500, 0.029955, 1.500, None),
    (10, 0.0, 1, 0.20000, 0.16000, 2.00, 3.24),
    (10, 0.3, 1, 0.28571, 0.20408, 2.86, 4.41),
    (30, 0.1, 2, 0.09045, 0.05704, 2.71, 5.73),
    (100, 0.0, 5, 0.03283, 0.01391, 3.28, 9.73),
    (100, 0.3, 5, 0.04720, 0.01952, 4.72, 13.76),
    (100, 0.5, 5, 0.06667, 0.02667, 6.67, 19.00),
    (1000, 0.3, 50, 0.01190, 0.00160, 11.90, 87.50),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}-{row[1]}-{row[2]}")
def test_a_round_s_noise_is_that_of_the_table(row: tuple[Any, ...]) -> None:
    num, rho, dropouts, own, pair, quiet, dropped = row
    found = only_plan(
        num, colluding_fraction=rho, expected_dropouts=dropouts, min_ready=num, size=10
    )
    unit = (found.noise_multiplier * found.sensitivity.value) ** 2
    assert found.own_std(0.0) ** 2 / unit == pytest.approx(own, abs=6e-6)
    # On the grid pair noise is rounded up, to a multiple of 512 steps.
    assert found.noise is not None
    assert found.noise.pair_variance / unit == pytest.approx(pair, abs=6e-6)
    assert pair - 6e-6 < found.pair_std**2 / unit < 1.05 * pair
    everybody = {(0, b""): list(range(num))}
    for lost, expected in ((0, quiet), (dropouts, dropped)):
        if expected is not None:
            needed = dict.fromkeys(range(lost, num), 0.0)
            variance = std_of_sum(everybody, {0: found}, needed) ** 2 / unit
            assert variance == pytest.approx(expected, rel=4e-3 if lost == 0 else 0.05)


@pytest.mark.parametrize(("num", "rho", "share"), [(10, 0.0, 1), (10, 0.3, 1), (100, 0.5, 0.9)])
def test_masks_need_the_least_own_noise(num: int, rho: float, share: float) -> None:
    graph = "complete" if share == 1 else "sparse"
    found = only_plan(num, colluding_fraction=rho, min_ready=num, graph=graph, **UNIFORM)
    honest = num - round(rho * num)
    unit = (found.noise_multiplier * found.sensitivity.value) ** 2
    assert found.own_std(0.0) ** 2 / unit == pytest.approx(1 / (share * honest), rel=1e-8)
    assert (found.pair_scale, found.pair_std) == (0, 0.0)


@given(
    honest=strategies.integers(2, 9),
    extra=strategies.lists(strategies.floats(1.0, 5.0), min_size=10, max_size=10),
    dropouts=strategies.integers(0, 3),
    kept=strategies.sets(strategies.integers(0, 9)),
)
def test_every_client_is_hidden_by_its_own_z_whoever_vanishes(
    honest: int, extra: list[float], dropouts: int, kept: set[int]
) -> None:
    """1 / (Sigma^-1)_kk of the honest uploads, the colluders' pair noise taken out."""
    assume(dropouts <= honest - 2 and len(kept) > 0)
    found = only_plan(
        honest, expected_dropouts=dropouts, min_ready=honest, colluding_fraction=0.0, size=10
    )
    # As coarse as it is with a client that needs five times the noise of the others.
    found = replace(found, grid=FixedPoint(8 * found.grid.step))
    own = np.array([found.own_std(z * found.noise_multiplier) ** 2 for z in extra[:honest]])
    laplacian = honest * np.eye(honest) - 1.0
    covariance = found.pair_std**2 * laplacian + np.diag(own)
    uploads = sorted(k for k in kept if k < honest) or [0]
    hidden = 1.0 / np.diag(np.linalg.inv(covariance[np.ix_(uploads, uploads)]))
    for client, variance in zip(uploads, hidden, strict=True):
        promised = (extra[client] * found.noise_multiplier * found.sensitivity.value) ** 2
        assert variance >= promised * (1 - 1e-9)


def test_a_client_with_the_base_s_need_adds_no_more_than_the_common_noise() -> None:
    found = only_plan()
    common = found.own_std(0.0)
    assert found.own_std(found.noise_multiplier) == common
    delta, base = found.sensitivity.value, found.noise_multiplier
    expected = common**2 + (2 * base * delta) ** 2 - (base * delta) ** 2
    assert found.own_std(2 * base) == pytest.approx(math.sqrt(expected), rel=1e-8)


@pytest.mark.parametrize("dropouts", [0, 3])
@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
@pytest.mark.parametrize("num", [5, 60])
def test_the_grid_is_the_finest_on_which_no_sum_overflows(
    num: int, kind: str, dropouts: int
) -> None:
    if kind == "uniform" and dropouts:
        dropouts = 0
    changes = {"pair_noise": kind, "expected_dropouts": dropouts, "min_ready": num}
    found = only_plan(num, size=10, **changes)
    step = found.grid.step

    def reach(step: float) -> float:
        """Steps that the updates and 12 deviations of the noise of the worst sum take."""
        scale = max(1, math.ceil(math.sqrt(found.noise.pair_variance) / (512 * step)))
        pair = (512 * scale * step) ** 2 if kind == "gaussian" else 0.0
        worst = max((num - lost) * (found.own_std(0.0) ** 2 + lost * pair) for lost in range(num))
        return (num * (1.0 + step) + 12 * math.sqrt(worst)) / step

    assert reach(step) < 2**31
    # Room for what rounding adds, a tenth of the variance, is within the next power of two.
    assert 1.06 * reach(step / 2) > 2**31
    assert found.own_std(0.0) >= 4 * step


def test_one_grid_for_all_circles_and_clients_that_need_more() -> None:
    coalitions = (Coalition((0, 1, 2), 0.0, 3), Coalition((3, 4), 0.0, 2))
    parameters, _ = plan(10, coalitions=coalitions, min_ready=5)
    plans = plan_round(parameters, 1, SIZE)
    assert set(plans) == {0, 1, 2}
    assert len({each.grid for each in plans.values()}) == 1
    own = {index: each.own_std(0.0) for index, each in plans.items()}
    assert own[2] > own[1] > own[0]  # the fewer, the more of one's own
    # The circle with the largest noise decides.
    small = (Coalition((0, 1), 0.0, 2),)
    grids = [
        choose_grid(plan(40, min_ready=38, coalitions=given)[0], 1).step for given in (small, ())
    ]
    assert grids[0] > grids[1]
    personal = ((7, 0.2),)
    target = {"target_epsilon": 8.0, "noise_multiplier": None}
    few, _ = plan(10, client_epsilons=personal, **target)
    none, _ = plan(10, **target)
    assert choose_grid(few, 1).step > choose_grid(none, 1).step


def test_rounding_is_counted_in_the_sensitivity() -> None:
    parameters, _ = plan()
    (found,) = plan_round(parameters, 1, SIZE).values()
    bound = parameters.update.sensitivity_in_round(1).value
    expected = bound + found.grid.step * math.sqrt(SIZE)
    assert found.sensitivity.value == pytest.approx(expected, rel=1e-15)
    assert found.sensitivity.value >= expected
    zeroed, _ = plan(neighboring_relation="zero_out")
    (half,) = plan_round(zeroed, 1, SIZE).values()
    bound = zeroed.update.sensitivity_in_round(1).value
    expected = bound + half.grid.step * math.sqrt(SIZE) / 2
    assert half.sensitivity.value == pytest.approx(expected, rel=1e-15)


def test_without_noise_there_is_a_grid_and_nothing_else() -> None:
    found = only_plan(10, noise_multiplier=0.0, **UNIFORM)
    assert (found.noise, found.pair_scale, found.own_std(5.0)) == (None, 0, 0.0)
    assert 10 * (1.0 + found.grid.step) / found.grid.step < 2**31
    assert 10 * 1.0 / (found.grid.step / 2) > 2**30


SMALL_STEP: dict[str, Any] = {
    **{"sensitivity": "one_step", "training": ONE_STEP, "max_grad_norm": 0.05, "local_steps": 1},
    **{"unit": "record", "learning_rate": 0.1},
}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"noise_multiplier": 1e-9}, "noise_multiplier"),
        ({"noise_multiplier": 1e-200}, "noise_multiplier"),
        ({"noise_multiplier": 1e12}, "noise_multiplier"),
        ({**SMALL_STEP, "noise_multiplier": None, "target_epsilon": 1e14}, "target_epsilon"),
        ({"clipping_norm": 1e14}, "clipping_norm"),
        ({"clipping_norm": 1e-99, "noise_multiplier": 1e-9}, "clipping_norm"),
        (
            {"coalitions": (Coalition((0, 1, 2), 0.5, 2),), "noise_multiplier": 1e-9},
            "coalitions[0].colluding_fraction",
        ),
    ],
)
def test_of_noise_and_updates_that_fit_no_grid_the_cause_is_named(
    changes: dict[str, Any], key: str
) -> None:
    parameters, _ = plan(10, **changes)
    with pytest.raises(ParameterError) as refused:
        choose_grid(parameters, 1)
    assert refused.value.key == key
    assert "max_ready" not in str(refused.value)


def test_noise_that_falls_below_the_grid_is_refused_before_the_first_round() -> None:
    parameters, _ = plan(10, **SMALL_STEP, lr_schedule="exponential", lr_decay=0.3)
    assert check_noise(parameters, SIZE, 5) == []
    with pytest.raises(ParameterError) as refused:
        check_noise(parameters, SIZE, 30)
    assert refused.value.key == "lr_schedule"
    assert "round 30" in refused.value.allowed


def test_a_grid_that_another_chose_must_do() -> None:
    parameters, _ = plan()
    (circle,) = circles_of(parameters)
    chosen = choose_grid(parameters, 1)
    finer = plan_noise(parameters, circle, 1, SIZE, FixedPoint(chosen.step / 2))
    assert finer.own_std(0.0) < plan_noise(parameters, circle, 1, SIZE, chosen).own_std(0.0)
    with pytest.raises(ParameterError, match="max_ready"):
        plan_noise(parameters, circle, 1, 10, FixedPoint(chosen.step * 2**26))


def test_the_server_s_scale_may_be_one_more_and_no_less() -> None:
    found = only_plan()
    assert accept_scale(found, found.pair_scale, max_ready=10) == found
    larger = accept_scale(found, found.pair_scale + 1, max_ready=10)
    assert larger.pair_std > found.pair_std
    for scale in (found.pair_scale - 1, found.pair_scale + 2, 0):
        with pytest.raises(ParameterError, match="pair_scale"):
            accept_scale(found, scale, max_ready=10)
    masks = only_plan(**UNIFORM)
    for scale in (-1, 1):
        with pytest.raises(ParameterError, match="pair_scale"):
            accept_scale(masks, scale, max_ready=10)


def test_how_many_pairs_share_masks() -> None:
    complete, _ = plan(**UNIFORM)
    assert edge_share(complete, circles_of(complete)[0]) == 1.0
    sparse, _ = plan(1000, num_sampled_clients=300, graph="sparse", **UNIFORM)
    (circle,) = circles_of(sparse)
    honest = calibrate(sparse, circle, 1.0).num_honest
    share = edge_share(sparse, circle)
    assert (share * 2**20).is_integer()
    exact = edge_probability(300, honest, 1000, SPARSE_FAILURE)
    assert exact <= share < exact + 2**-20
    assert 0.01 < share < 0.2


def test_circles() -> None:
    coalitions = (Coalition((0, 1, 2), 0.2, 2), Coalition((3, 4), 0.0, 2))
    some, _ = plan(10, coalitions=coalitions)
    assert [each.index for each in circles_of(some)] == [1, 2, 0]
    everybody, _ = plan(5, coalitions=coalitions)
    assert [each.index for each in circles_of(everybody)] == [1, 2]
    assert [some.circle_of(number).index for number in (0, 2, 3, 9)] == [1, 1, 2, 0]
    assert some.circle_of(1).colluding_fraction == 0.2


def test_the_noise_that_is_left_by_hand() -> None:
    coalitions = (Coalition((0, 1, 2), 0.0, 3),)
    parameters, _ = plan(8, coalitions=coalitions, min_ready=4)
    plans = plan_round(parameters, 1, SIZE)
    groups = {(1, b""): [0, 1, 2], (0, b"x"): [3, 4], (0, b"y"): [5, 6, 7]}
    base = plans[0].noise_multiplier
    needed = {0: base, 2: 3 * base, 4: base, 5: base, 6: base, 7: base}
    expected = (
        plans[1].own_std(base) ** 2
        + plans[1].own_std(3 * base) ** 2
        + 2 * 1 * plans[1].pair_std ** 2
        + 4 * plans[0].own_std(base) ** 2
        + 1 * 1 * plans[0].pair_std ** 2
    )
    assert std_of_sum(groups, plans, needed) == pytest.approx(math.sqrt(expected), rel=1e-12)
    assert std_of_sum(groups, plans, {}) == 0.0
