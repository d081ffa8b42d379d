"""Choose what to draw of one run or several: curves and their axes, apart from the drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_app.report.formats import byte_unit, format_delta
from fl_app.report.guarantees import name_adversary
from fl_app.report.run_folder import RunFolder

_LOG_SCALE_FROM = 1e3  # ratio of the largest to the smallest loss
_MOST_DRAWN = 1e100  # the arithmetic of drawing overflows near the largest floats


@dataclass(frozen=True)
class Curve:
    """One line of a chart.

    Attributes
    ----------
    place : int
        Which colour and style it has: a run keeps its own in all charts.
    label : str
        Its name.
    x, y : list of float
        Its points, in the order of the rounds.
    points : bool
        Whether only the points are drawn, without a line.
    low, high : list of float
        The ends of a band around it, one for each point; empty for none.
    """

    place: int
    label: str
    x: list[float]
    y: list[float]
    points: bool = False
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Chart:
    """What a figure shows, apart from how it is drawn.

    Attributes
    ----------
    name : str
        The stem of the file name.
    title, x_label, y_label : str
        The words around the curves, with units.
    curves : list of Curve
        At least one curve, each with at least one point.
    from_zero : bool
        Whether the vertical axis starts at zero.
    log_y : bool
        Whether the vertical axis is logarithmic.
    reference : float or None
        Where a thin line is drawn across, for comparison.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    from_zero: bool = False
    log_y: bool = False
    reference: float | None = None


def cumulate_counts(metrics: Sequence[dict[str, Any]], key: str) -> list[float | None]:
    """Add up a count, such as the bytes sent, to the end of each round.

    Parameters
    ----------
    metrics : sequence of dict
        One entry a round.
    key : str
        Which count, for instance ``uplink_bytes``.

    Returns
    -------
    list of float or None
        For each round the sum so far, ``None`` from the first round whose count is not known.
    """
    sums: list[float | None] = []
    total: float | None = 0.0
    for entry in metrics:
        count = entry.get(key)
        total = None if total is None or count is None else total + count
        sums.append(total)
    return sums


def leave_out_huge(values: ArrayLike) -> NDArray[np.float64]:
    """Replace values that are too large to be drawn by NaN, which leaves a gap."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.where(np.abs(numbers) <= _MOST_DRAWN, numbers, np.nan)


def list_charts(runs: Sequence[RunFolder], labels: Sequence[str]) -> list[Chart]:
    """Choose the charts for which these runs have values.

    Parameters
    ----------
    runs : sequence of RunFolder
        The runs, overlaid in each chart.
    labels : sequence of str
        Their names, in the same order.

    Returns
    -------
    list of Chart
        Accuracy and loss against rounds and against uplink bytes, then epsilon against rounds;
        those without a single known value are left out.
    """
    single = len(runs) == 1
    rounds = [[float(entry["round"]) for entry in run.metrics] for run in runs]
    uplinks = [cumulate_counts(run.metrics, "uplink_bytes") for run in runs]
    largest = max((value for sums in uplinks for value in sums if value is not None), default=0.0)
    size, unit = byte_unit(largest)
    scaled = [[None if value is None else value / size for value in sums] for sums in uplinks]

    def trace(xs: Sequence[Sequence[float | None]], key: str, scale: float = 1) -> list[Curve]:
        curves = [
            _trace_curve(place, label, x, run, key, scale)
            for place, (run, x, label) in enumerate(zip(runs, xs, labels, strict=True))
        ]
        return [curve for curve in curves if curve.x]

    def trace_losses(xs: Sequence[Sequence[float | None]]) -> list[Curve]:
        if not single:
            return trace(xs, "test_loss")
        curves = [
            _trace_curve(0, "test", xs[0], runs[0], "test_loss"),
            _trace_curve(1, "training (clients)", xs[0], runs[0], "train_loss"),
            _trace_curve(2, "training (all records)", xs[0], runs[0], "global_train_loss"),
        ]
        if xs is rounds:
            curves.append(_trace_published(2, runs[0]))
        return [curve for curve in curves if curve.x]

    uplink = f"Uplink of all clients so far ({unit})"
    loss = "Loss (mean per example)" if single else "Test loss (mean per example)"
    accuracy = "Test accuracy (%)"
    charts = []
    for suffix, words, x_label, xs in (
        ("round", "round", "Round", rounds),
        ("uplink", "uplink bytes", uplink, scaled),
    ):
        curves = trace_losses(xs)
        charts += [
            Chart(
                f"accuracy_by_{suffix}",
                f"Test accuracy by {words}",
                x_label,
                accuracy,
                trace(xs, "test_accuracy", 100),
            ),
            Chart(
                f"loss_by_{suffix}",
                f"Loss by {words}",
                x_label,
                loss,
                curves,
                log_y=spans_decades(curves),
            ),
        ]
    charts.append(
        Chart(
            "epsilon_by_round",
            "Privacy loss by round",
            "Round",
            _label_epsilon(runs),
            trace(rounds, "epsilon"),
            from_zero=True,
        )
    )
    return [chart for chart in charts if chart.curves]


def _trace_curve(
    place: int,
    label: str,
    x: Sequence[float | None],
    run: RunFolder,
    key: str,
    scale: float = 1,
) -> Curve:
    points = [
        (at, entry[key] * scale)
        for at, entry in zip(x, run.metrics, strict=True)
        if at is not None and entry.get(key) is not None
    ]
    return Curve(place, label, [at for at, _ in points], [float(value) for _, value in points])


def _trace_published(place: int, run: RunFolder) -> Curve:
    """Return the published losses on all training records."""
    listed = (run.summary or {}).get("published") or []
    points = [
        (float(each["round"]), float(each["published"]))
        for each in listed
        if each.get("quantity") == "global_train_loss"
        and None not in (each.get("round"), each.get("published"))
    ]
    return Curve(place, "published", [x for x, _ in points], [y for _, y in points], points=True)


def spans_decades(curves: Sequence[Curve]) -> bool:
    """Tell whether curves need a logarithmic axis: all above zero, over three decades or more."""
    values = [value for curve in curves for value in curve.y]
    return bool(values) and min(values) > 0 and max(values) / min(values) > _LOG_SCALE_FROM


def _label_epsilon(runs: Sequence[RunFolder]) -> str:
    first = {name_adversary(run.privacy[0], bool(run.search)) for run in runs if run.privacy}
    deltas = {entry.get("delta") for run in runs for entry in run.metrics} - {None}
    against = f" against {first.pop()}" if len(first) == 1 else ""
    at = f" (at δ = {format_delta(deltas.pop())})" if len(deltas) == 1 else ""
    return f"ε spent{against}{at}"
