"""What a folder's ledger holds, for the terminal: charges, and the best points of searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fl_app.report.formats import MISSING, format_delta
from fl_app.report.spending_table import write_epsilon

if TYPE_CHECKING:
    from fl_app.device_spending import RunSpending
    from fl_app.device_state import ClientEntry, OwnBest
    from fl_app.search_space import SearchSpace

_UNIT_CUBE = (
    "Point: a number an axis, in the order of the search space, 0 at its low and 1 at its high end "
    "(of the logarithm, where an axis is logarithmic)."
)
_SPENT = (
    "ε, δ: of what each client has released, in the relation that the run declares (--state-dir "
    "RUN/checkpoint shows it in the one in which runs add up). ∞: without noise, or with noise "
    "that can be drawn again from the seed."
)


def ledger_table(
    entries: Sequence[ClientEntry], spent: Sequence[RunSpending] = ()
) -> RenderableType:
    """Return what each client has answered, how often it was charged, and what that amounts to."""
    known = {(each.run, each.client, each.method): each for each in spent}
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("Run", "Client", "Method", "Last round", "Participations", "ε", "δ"):
        table.add_column(heading, justify="left" if heading in ("Run", "Method") else "right")
    for run, client, entry in entries:
        counts = (str(entry.last_round), str(entry.participations))
        found = known.get((run, client, entry.method))
        amounts = (MISSING, MISSING)
        if found is not None:
            amounts = (write_epsilon(found.declared_epsilon), format_delta(found.delta))
        table.add_row(Text(run), str(client), Text(entry.method), *counts, *amounts)
    return Group(table, Text(_SPENT)) if known else table


def best_table(rows: Sequence[OwnBest], space: SearchSpace | None = None) -> RenderableType:
    """Return the best point of each client in each search.

    Parameters
    ----------
    rows : sequence of OwnBest
    space : SearchSpace, optional
        The axes, of which the points are then values. None: they are those of the unit cube, and
        a note says what they mean.
    """
    table = Table(box=box.SIMPLE_HEAD)
    axes = ("Point",) if space is None else space.names
    for heading in ("Run", "Client", "Evaluations", "Best value"):
        table.add_column(heading, justify="left" if heading == "Run" else "right")
    for name in axes:
        table.add_column(Text(name), justify="left" if space is None else "right")
    for run, client, count, num_useless, best in rows:
        if space is None:
            point = ["  ".join(f"{each:.6g}" for each in best.point)]
        else:
            values = space.decode(np.array(best.point)).values()
            point = [f"{each:.6g}" if isinstance(each, float) else str(each) for each in values]
        value = f"{best.value:.6g}"
        if num_useless == count:
            # They all count as an end of the range: none is better than another.
            value, point = MISSING, [MISSING] * len(point)
        table.add_row(Text(run), str(client), str(count), value, *map(Text, point))
    return Group(table, Text(_UNIT_CUBE)) if space is None else table
