"""Clients with targets of their own, and the room that a grid has for their noise."""

import pytest
from hypothesis import given, strategies

from strategies.mechanisms.parameter_checks import ParameterError
from strategies.niss.calibration import most_noise, needed_of, own_noise_multiplier
from strategies.niss.noise_plan import has_room, plan_round
from tests.niss.planned import plan
from tests.niss.test_noise_plan import UNIFORM


def test_a_client_s_own_target() -> None:
    target = {"target_epsilon": 4.0, "noise_multiplier": None}
    parameters, _ = plan(client_epsilons=((3, 1.0), (4, 9.0)), **target)
    need = {number: own_noise_multiplier(parameters, number, 50) for number in (0, 3, 4)}
    assert need[3] > need[0] > need[4]
    # The device's owner may ask for more privacy, never for less.
    assert own_noise_multiplier(parameters, 0, 50, 1.0) == need[3]
    assert own_noise_multiplier(parameters, 3, 50, 4.0) == need[3]
    assert own_noise_multiplier(parameters, 0, 50, 100.0) == need[0]
    assert most_noise(parameters) == need[3]
    assert needed_of(parameters, None, 4) == need[3]  # size unknown: the most
    assert needed_of(parameters, {4: 50}, 4) == need[4]
    fixed, _ = plan()
    assert own_noise_multiplier(fixed, 0, 50) == 1.0
    assert own_noise_multiplier(fixed, 0, 50, 0.5) > 1.0
    assert own_noise_multiplier(fixed, 0, 50, 1e4) == 1.0  # the run's noise is the least
    masks, _ = plan(noise_multiplier=0.0, **UNIFORM)
    assert needed_of(masks, {0: 50}, 0) == 0.0


@given(
    targets=strategies.lists(strategies.floats(0.3, 20.0), min_size=0, max_size=4),
    kind=strategies.sampled_from(["gaussian", "uniform"]),
    num=strategies.integers(2, 12),
    size=strategies.sampled_from([1, 650, 10**7]),
)
def test_there_is_room_for_all_targets_of_a_run(
    targets: list[float], kind: str, num: int, size: int
) -> None:
    parameters, _ = plan(
        num,
        min_ready=num,
        pair_noise=kind,
        noise_multiplier=None,
        target_epsilon=8.0,
        client_epsilons=tuple(enumerate(targets[:num])),
    )
    circle = parameters.circle_of(0)
    (found,) = plan_round(parameters, 1, size).values()
    for client in range(num):
        needed = own_noise_multiplier(parameters, client, 50)
        assert has_room(parameters, circle, 1, needed)
        assert found.own_std(needed) > 0.0


@given(factor=strategies.floats(1.0, 1e3), size=strategies.sampled_from([1, 650, 10**7]))
def test_noise_for_which_there_was_room_is_added(factor: float, size: int) -> None:
    parameters, _ = plan()
    circle = parameters.circle_of(0)
    (found,) = plan_round(parameters, 1, size).values()
    needed = factor * found.noise_multiplier
    if has_room(parameters, circle, 1, needed):
        assert found.own_std(needed) <= 2.0**31 / 16 * found.grid.step
    else:
        # Not for want of much: rounding is allowed for with a tenth of the variance.
        with pytest.raises(ParameterError, match="own noise of at most"):
            found.own_std(1.06 * needed)


def test_there_is_room_for_what_rounding_adds() -> None:
    """The most noise for which there is room is added on a model of any size."""
    parameters, _ = plan()
    circle = parameters.circle_of(0)
    (found,) = plan_round(parameters, 1, 10**7).values()
    low, high = 1.0, 1e6
    while high - low > 1e-9 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if has_room(parameters, circle, 1, middle) else (low, middle)
    assert low > 3 * found.noise_multiplier
    assert found.own_std(low) > 0.0
