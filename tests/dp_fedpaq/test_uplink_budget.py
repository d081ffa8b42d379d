"""K r beta <= B, to the bit."""

import pytest

from strategies.dp_fedpaq.uplink_budget import UplinkBudget
from strategies.mechanisms.parameter_checks import ParameterError


def test_a_plan_may_use_the_whole_budget_and_no_bit_more() -> None:
    # 39,282 bits of an update of 7,850 parameters at s = 10 are sent as 4,911 bytes.
    UplinkBudget(100 * 10 * 39_288).check_plan(100, 10, 39_282)
    with pytest.raises(ParameterError, match="39288000") as caught:
        UplinkBudget(100 * 10 * 39_288 - 1).check_plan(100, 10, 39_282)
    assert caught.value.key == "uplink_budget_bits"
    UplinkBudget().check_plan(10**9, 10**9, 10**9)


def test_a_round_that_does_not_fit_is_not_begun() -> None:
    budget = UplinkBudget(800)
    assert budget.allows(0, 10, 80)
    assert budget.allows(720, 1, 73)
    assert not budget.allows(720, 1, 81)
    assert not budget.allows(721, 1, 80)
    assert budget.allows(800, 0, 80)
    assert UplinkBudget().allows(10**30, 10, 10)


@pytest.mark.parametrize("bits", [0, -1, 1.5, True])
def test_a_budget_is_a_number_of_bits(bits: object) -> None:
    with pytest.raises(ParameterError, match="uplink_budget_bits"):
        UplinkBudget(bits)  # type: ignore[arg-type]
