"""The table of what all runs have taken from a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fl_app.device_policy import default_max_delta
from fl_app.report.formats import MISSING, format_delta, format_epsilon
from fl_app.run_files import SIMULATED_RUN

if TYPE_CHECKING:
    from fl_app.device_spending import RunSpending

_NUMBERS = ("Client", "Releases", "Its ε", "ε", "δ")
_COUNTED = (
    "ε: of a record exchanged for another (unit record), or all of a client's data (unit client, "
    "which covers its records): only so do runs add up. Its ε: of the relation that the run "
    "declares. δ adds up, too."
)
_PLANNED = (
    "A run reports what its plan takes of any client, and max-epsilon is held against the plan. "
    "These rows count what this device has released, which may be a little less."
)
_NO_DELTA = (
    "No limit on the sum of δ is named (max-delta=...): by itself, each run's δ allows that a "
    "record is published with that probability, and more runs may follow."
)
_SIMULATED = (
    "These are the clients of a simulation, each with data of its own: nothing adds up over them."
)
_PLACES = {"client": "its own", "server": "the server's, as promised"}


def spending_table(
    spent: Sequence[RunSpending], max_epsilon: float | None = None, max_delta: float | None = None
) -> RenderableType:
    """Return one row a run, the sums over all runs, and what they count.

    Parameters
    ----------
    spent : sequence of RunSpending
    max_epsilon, max_delta : float or None
        The device's limits on the sums, shown below them; without the latter, what a device takes
        for it.
    """
    if max_delta is None:
        max_delta = default_max_delta(max_epsilon)
    table = Table(box=box.SIMPLE_HEAD, show_footer=False)
    for heading in ("Run", "Client", "Strategy", "Unit", "Relation", "Noise", *_NUMBERS[1:]):
        table.add_column(heading, justify="right" if heading in _NUMBERS else "left")
    for each in spent:
        table.add_row(
            *(Text(each.run), str(each.client), Text(each.method)),
            *(each.unit or MISSING, each.neighboring_relation or MISSING),
            _PLACES[each.noise_at],
            *(str(each.num_releases), write_epsilon(each.declared_epsilon)),
            *(write_epsilon(each.epsilon), format_delta(each.delta)),
        )
    table.add_section()
    is_simulated = bool(spent) and all(each.run == SIMULATED_RUN for each in spent)
    if not is_simulated:
        _add_sums(table, spent)
    if (max_epsilon, max_delta) != (None, None):
        limits = (max_epsilon, max_delta)
        shown = [MISSING if each is None else f"{each:g}" for each in limits]
        table.add_row("allowed", *[""] * 7, *shown)
    notes = [_COUNTED, _PLANNED, *([] if max_delta is not None else [_NO_DELTA])]
    if is_simulated:
        notes = [_SIMULATED, _COUNTED]
    return Group(table, *(Text(each) for each in notes))


def _add_sums(table: Table, spent: Sequence[RunSpending]) -> None:
    epsilon = math.fsum(each.epsilon for each in spent)
    delta = min(1.0, math.fsum(each.delta for each in spent))
    count = str(sum(each.num_releases for each in spent))
    table.add_row("all runs", *[""] * 5, count, "", write_epsilon(epsilon), format_delta(delta))


def write_epsilon(epsilon: float) -> str:
    """Write an epsilon of the ledger, which may be infinite."""
    return format_epsilon(epsilon) if math.isfinite(epsilon) else "∞"
