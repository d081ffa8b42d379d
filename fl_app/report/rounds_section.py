"""The page's table of all rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_app.report.formats import (
    MISSING,
    format_bytes,
    format_count,
    format_epsilon,
    format_number,
    format_share,
)
from fl_app.report.markup import Markup, element, table
from fl_app.report.run_folder import RunFolder
from fl_app.report.search_tables import write_value


def write_rounds(run: RunFolder) -> Markup:
    """Lay out every round of a run, folded away.

    Parameters
    ----------
    run : RunFolder
        The run, of training or a search.

    Returns
    -------
    Markup
        A table.
    """
    headers, rows = _list_search_rounds(run) if run.search else _list_training_rounds(run)
    return element("details", element("summary", "Every round"), table(headers, rows))


def _list_training_rounds(run: RunFolder) -> tuple[list[str], list[list[object]]]:
    headers = ["Round", "Accuracy", "Test loss", "Training loss", "ε", "Replies", "Uplink"]
    rows: list[list[object]] = [
        [
            entry["round"],
            format_share(entry.get("test_accuracy")),
            format_number(entry.get("test_loss")),
            format_number(entry.get("train_loss")),
            _write_epsilon(entry),
            format_count(entry.get("num_replies")),
            format_bytes(entry.get("uplink_bytes")),
        ]
        for entry in run.metrics
    ]
    return headers, rows


def _list_search_rounds(run: RunFolder) -> tuple[list[str], list[list[object]]]:
    headers = ["Round", "Best value", "Worst agent", "Simple regret", "Signal/noise"]
    headers += ["Sharing gain", "Clipped", "Releases", "ε", "Replies", "Uploaded", "Uplink"]
    rows: list[list[object]] = [
        [
            entry["round"],
            write_value(entry.get("best_value_mean")),
            write_value(entry.get("best_value_worst")),
            write_value(entry.get("simple_regret_mean")),
            format_number(entry.get("signal_to_noise"), 3),
            format_number(entry.get("sharing_gain"), 3),
            format_share(entry.get("clipped_fraction")),
            format_count(entry.get("num_releases")),
            _write_epsilon(entry),
            format_count(entry.get("num_replies")),
            format_count(entry.get("num_uploaded")),
            format_bytes(entry.get("uplink_bytes")),
        ]
        for entry in run.metrics
    ]
    return headers, rows


def _write_epsilon(entry: Mapping[str, Any]) -> str:
    return MISSING if entry.get("epsilon") is None else format_epsilon(entry["epsilon"])
