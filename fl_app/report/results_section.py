"""The page's account of what was reached: headline figures, and a line a run to compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fl_app.report.charts import cumulate_counts
from fl_app.report.formats import (
    MISSING,
    format_bytes,
    format_count,
    format_delta,
    format_duration,
    format_epsilon,
    format_number,
    format_share,
)
from fl_app.report.guarantees import judge_guarantee, name_adversary
from fl_app.report.markup import Markup, element, join, table
from fl_app.report.plots import COLOURS
from fl_app.report.privacy_section import TONES
from fl_app.report.run_folder import RunFolder
from fl_app.report.search_tables import write_value

_FLOAT_BITS = 32


def name_strategy(run: RunFolder) -> str:
    """Return the name of a run's strategy, or "Run" while it is not known."""
    return str((run.summary or {}).get("strategy") or "Run")


def add_up(run: RunFolder, key: str) -> float | None:
    """Add up a count over all rounds; ``None`` if one is not known."""
    return cumulate_counts(run.metrics, key)[-1] if run.metrics else None


def write_headlines(run: RunFolder) -> Markup:
    """Write the figures that a reader wants first, on cards."""
    cards = _list_search_cards(run) if run.search else _list_training_cards(run)
    return element("div", *cards, class_="headlines")


def _list_training_cards(run: RunFolder) -> list[Markup]:
    bits = _latest(run, "uplink_bits_per_parameter")
    smaller = f"{_FLOAT_BITS / bits:.3g} times fewer than {_FLOAT_BITS}-bit floats" if bits else ""
    return [
        _card("Test accuracy", format_share(_latest(run, "test_accuracy"))),
        _card("Test loss", format_number(_latest(run, "test_loss"))),
        _write_epsilon_card(run),
        _card("Uplink, all clients", format_bytes(_total_uplink(run))),
        _card("Bits per parameter", format_number(bits, 3), smaller),
        _card("Time", format_duration(_latest(run, "wall_seconds"))),
    ]


def _list_search_cards(run: RunFolder) -> list[Markup]:
    best, regret = _latest(run, "best_value_mean"), _latest(run, "simple_regret_mean")
    worst = write_value(_latest(run, "best_value_worst"))
    worst_regret = write_value(_latest(run, "simple_regret_worst"))
    releases, noise = _latest(run, "num_releases"), _latest(run, "noise_multiplier")
    return [
        _card(
            "Best value, mean over agents",
            format_number(best),
            "not known: it stays on the devices" if best is None else f"worst agent {worst}",
        ),
        _card(
            "Simple regret, mean",
            format_number(regret, 3),  # -0.00296 still fits on a card
            "" if regret is None else f"worst agent {worst_regret}",
        ),
        _write_epsilon_card(run),
        _card(
            "Releases",
            format_count(releases),
            "" if noise is None or releases == 0 else f"noise multiplier {format_number(noise)}",
        ),
        _card("Uplink, all agents", format_bytes(_total_uplink(run))),
        _card("Time", format_duration(_latest(run, "wall_seconds"))),
    ]


def _latest(run: RunFolder, key: str) -> Any:
    """Take a result from the summary, or from the last round that has it."""
    if run.summary is not None and (run.search is None or key in run.summary):
        return run.summary.get(key)
    known = (entry[key] for entry in reversed(run.metrics) if entry.get(key) is not None)
    return next(known, None)


def _total_uplink(run: RunFolder) -> float | None:
    total: float | None = (run.summary or {}).get("uplink_bytes_total")
    return add_up(run, "uplink_bytes") if total is None else total


def _card(name: str, value: str, note: str = "", tone: str = "") -> Markup:
    return element(
        "div",
        element("div", name, class_="soft small"),
        element("div", value, class_=f"value {tone}"),
        element("div", note, class_=f"small {tone or 'soft'}") if note else Markup(),
        class_="card",
    )


def _write_epsilon_card(run: RunFolder) -> Markup:
    if run.privacy is None:
        value = format_epsilon(_latest(run, "epsilon"))
        return _card("ε so far", value if value != "none" else MISSING, "no guarantee written yet")
    first = run.privacy[0] if run.privacy else None
    status = judge_guarantee(first)
    name = f"ε against {name_adversary(first, run.search is not None)}" if first else "ε"
    value = format_epsilon(first.get("epsilon") if first else None)
    delta = f"δ = {format_delta(first.get('delta'))}. " if first and value != "none" else ""
    return _card(name, value, f"{delta}{status.value}", TONES[status])


def write_results(
    runs: Sequence[RunFolder], labels: Sequence[str], places: Sequence[int]
) -> Markup:
    """Lay out what several runs reached, a line each.

    Parameters
    ----------
    runs : sequence of RunFolder
        The runs of the page.
    labels : sequence of str
        Their names, in the same order.
    places : sequence of int
        The colour of each in the figures.

    Returns
    -------
    Markup
        A table with the results of training, of searches, or of both.
    """
    kinds = {run.search is not None for run in runs}
    rows = []
    for run, label, place in zip(runs, labels, places, strict=True):
        colour = f"background: var(--curve-{place % len(COLOURS)})"
        first = run.privacy[0] if run.privacy else None
        status = judge_guarantee(first)
        guarantee: Mapping[str, Any] = first or {}
        cells: dict[str, object] = {
            "Run": join([element("span", class_="swatch", style=colour), label]),
            "Strategy": name_strategy(run),
            "Status": element("span", status.value, class_=f"tag {TONES[status]}")
            if run.privacy is not None
            else "not written yet",
        }
        if False in kinds:
            cells["Accuracy"] = format_share(_latest(run, "test_accuracy"))
            cells["Loss"] = format_number(_latest(run, "test_loss"))
        if True in kinds:
            cells["Best value"] = write_value(_latest(run, "best_value_mean"))
            cells["Worst agent"] = write_value(_latest(run, "best_value_worst"))
            cells["Simple regret"] = write_value(_latest(run, "simple_regret_mean"))
            cells["Releases"] = format_count(_latest(run, "num_releases"))
        cells["ε"] = format_epsilon(guarantee.get("epsilon"))
        cells["δ"] = format_delta(guarantee.get("delta"))
        cells["Uplink"] = format_bytes(_total_uplink(run))
        if False in kinds:
            bits = _latest(run, "uplink_bits_per_parameter")
            cells["Bits/parameter"] = format_number(bits, 3)
        cells["Time"] = format_duration(_latest(run, "wall_seconds"))
        rows.append(cells)
    return table(list(rows[0]), [list(cells.values()) for cells in rows], text=3)
