"""The table of what all runs have taken from a device."""

from io import StringIO

import pytest
from rich.console import Console

from fl_app.device_ledger import Release
from fl_app.device_spending import spend_by_run
from fl_app.report.formats import format_epsilon
from fl_app.report.spending_table import spending_table

ZERO_OUT = (
    '{"noise_multiplier": 3.0, "num_releases": 2, "unit": "client", '
    '"neighboring_relation": "zero_out", "sampling": "none", "sample_rate": 1.0, "delta": 1e-05}'
)
SPENT = spend_by_run([Release("7", 1, "dp_fedpaq", 1, ZERO_OUT)])


def shown(*limits: float | None) -> str:
    console = Console(file=StringIO(), width=160)
    console.print(spending_table(SPENT, *limits))
    found = console.file
    assert isinstance(found, StringIO)
    return " ".join(found.getvalue().split())


def test_both_epsilons_and_what_the_sum_counts() -> None:
    (row,) = SPENT
    declared, counted = format_epsilon(row.declared_epsilon), format_epsilon(row.epsilon)
    assert row.epsilon > 2.0 * row.declared_epsilon
    assert f"client zero_out its own 1 {declared} {counted} 1e-5" in shown()
    assert f"all runs 1 {counted} 1e-5" in shown()
    assert "a record exchanged for another" in shown()


@pytest.mark.parametrize(
    ("limits", "warned", "allowed"),
    [
        ((), True, None),
        ((4.0,), False, "allowed 4 0.0001"),
        ((4.0, 1e-3), False, "allowed 4 0.001"),
        ((None, 1e-3), False, "0.001"),
    ],
)
def test_a_sum_of_deltas_without_a_limit_is_named(
    limits: tuple[float | None, ...], warned: bool, allowed: str | None
) -> None:
    text = shown(*limits)
    assert ("No limit on the sum of δ" in text) == warned
    assert allowed is None or allowed in text
