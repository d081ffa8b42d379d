"""Read what a run has left in its folder, checking every file on the way in.

A run's folder holds ``metrics.jsonl`` (one JSON object a round, written as it happens) and, once
they are known, ``config.yaml``, ``privacy.json`` and ``summary.json``. A folder may be read while
its run is going on: what is not there yet is ``None``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fl_app.report.checked_json import (
    ReportError,
    check_integer,
    check_list,
    check_numbers,
    check_version,
    decode,
    parse_lines,
    parse_object,
    read_bytes,
)
from fl_app.report.search_record import SearchRecord, read_search_record

__all__ = ["ReportError", "RunFolder", "is_search", "read_run_folder"]

_COUNTS = ("num_sampled", "num_replies", "num_failures", "num_ineligible")
_BYTES = ("uplink_bytes", "downlink_bytes", "control_bytes")
_SEARCH_RESULTS = (
    *("best_value_mean", "best_value_worst", "simple_regret_mean", "simple_regret_worst"),
    *("cumulative_regret_mean", "cumulative_regret_worst"),
)
_METRIC_NUMBERS = (
    *_COUNTS,
    *_BYTES,
    *("round", "seconds", "train_loss", "global_train_loss", "test_loss", "test_accuracy"),
    *("epsilon", "delta"),
    *(*_SEARCH_RESULTS, "sharing_gain"),
    *("clipped_fraction", "signal_to_noise", "num_uploaded", "num_releases"),
)
_SUMMARY_NUMBERS = (
    *("num_rounds", "num_clients", "num_parameters", "test_accuracy", "test_loss"),
    *("uplink_bytes_total", "uplink_bits_per_parameter", "epsilon", "delta", "wall_seconds"),
    *(*_SEARCH_RESULTS, "num_releases", "noise_multiplier", "noise_share"),
)
_GUARANTEE_WORDS = ("adversary", "unit", "neighboring_relation", "accountant", "randomness")
# A log density can exceed one; noise takes a value above the known maximum.
_MAY_BE_NEGATIVE = (
    *("train_loss", "global_train_loss", "test_loss", "difference"),
    *(*_SEARCH_RESULTS, "sharing_gain"),
)


@dataclass(frozen=True)
class RunFolder:
    """What was read from one run's folder.

    Attributes
    ----------
    path : Path
        The folder, absolute.
    metrics : list of dict
        One entry a round, in the order of the rounds. Round 0 is the evaluation before the first
        round. A value that was not available is ``None``.
    summary : dict or None
        The content of ``summary.json``; ``None`` while the run has not finished.
    privacy : list of dict or None
        The guarantees of ``privacy.json``; ``None`` if the file is not there yet.
    config_text : str or None
        ``config.yaml``, as text.
    search : SearchRecord or None
        What a search has left beside them; ``None`` for runs that train a model.
    """

    path: Path
    metrics: list[dict[str, Any]]
    summary: dict[str, Any] | None
    privacy: list[dict[str, Any]] | None
    config_text: str | None
    search: SearchRecord | None = None


def read_run_folder(path: str | Path) -> RunFolder:
    """Read a finished or a running run's folder.

    Parameters
    ----------
    path : str or Path
        The folder, which has at least a ``metrics.jsonl``.

    Returns
    -------
    RunFolder
        The checked content. A half-written last line of ``metrics.jsonl`` is left out.

    Raises
    ------
    ReportError
        If the folder or ``metrics.jsonl`` is missing, a file is corrupt, a number is not finite
        or out of range, or a format version is not known.
    """
    folder = Path(path).resolve()
    if not folder.is_dir():
        raise ReportError(f"{path}: no such folder")
    metrics = read_bytes(folder / "metrics.jsonl")
    if metrics is None:
        raise ReportError(f"{folder}: not a run's folder, it has no metrics.jsonl")
    config = read_bytes(folder / "config.yaml")
    run = RunFolder(
        path=folder,
        metrics=_parse_metrics(metrics, folder / "metrics.jsonl"),
        summary=_read_summary(folder / "summary.json"),
        privacy=_read_privacy(folder / "privacy.json"),
        config_text=None if config is None else decode(config, folder / "config.yaml"),
    )
    rows = [*run.metrics, *([run.summary] if run.summary else [])]
    if not any(is_search(row) for row in rows):
        return run
    return replace(run, search=read_search_record(folder))


def is_search(row: Mapping[str, Any]) -> bool:
    """Tell whether a summary, or a round's metrics, is of a search rather than of training."""
    return "best_value_mean" in row


def _parse_metrics(content: bytes, file: Path) -> list[dict[str, Any]]:
    metrics: list[dict[str, Any]] = []
    for where, entry in parse_lines(content, file):
        check_numbers(entry, _METRIC_NUMBERS, where, _MAY_BE_NEGATIVE)
        server_round = check_integer(entry, "round", where)
        if metrics and server_round <= metrics[-1]["round"]:
            raise ReportError(
                f"{where}: round {server_round} must come after round {metrics[-1]['round']}"
            )
        metrics.append(entry)
    return metrics


def _read_summary(file: Path) -> dict[str, Any] | None:
    content = read_bytes(file)
    if content is None:
        return None
    summary = parse_object(content, str(file))
    check_version(summary.get("format_version"), str(file))
    check_numbers(summary, _SUMMARY_NUMBERS, str(file), _MAY_BE_NEGATIVE)
    published = check_list({"published": [], **summary}, "published", str(file), dict)
    for index, each in enumerate(published):
        where = f"{file}, published {index + 1}"
        numbers = ("round", "published", "ours", "difference")
        check_numbers(each, numbers, where, _MAY_BE_NEGATIVE)
    return summary


def _read_privacy(file: Path) -> list[dict[str, Any]] | None:
    content = read_bytes(file)
    if content is None:
        return None
    privacy = parse_object(content, str(file))
    check_version(privacy.get("format_version"), str(file))
    guarantees = check_list(privacy, "guarantees", str(file))
    for index, guarantee in enumerate(guarantees):
        _check_guarantee(guarantee, f"{file}, guarantee {index + 1}")
    return list(guarantees)


def _check_guarantee(guarantee: object, where: str) -> None:
    if not isinstance(guarantee, dict):
        raise ReportError(f"{where}: must be a JSON object, is {guarantee!r}")
    if not isinstance(guarantee.get("adversary"), str):
        raise ReportError(f"{where}: adversary must be a string, is {guarantee.get('adversary')!r}")
    for key in (*_GUARANTEE_WORDS, "why_not"):
        if not isinstance(guarantee.get(key), str | None):
            raise ReportError(f"{where}: {key} must be a string or null, is {guarantee[key]!r}")
    if not isinstance(guarantee.get("valid"), bool):
        raise ReportError(f"{where}: valid must be true or false, is {guarantee.get('valid')!r}")
    check_numbers(guarantee, ("epsilon", "delta", "colluding_fraction"), where)
    for key in ("delta", "colluding_fraction"):
        if (guarantee.get(key) or 0) > 1:
            raise ReportError(f"{where}: {key} must lie in [0, 1], is {guarantee[key]!r}")
    check_list({"assumptions": [], **guarantee}, "assumptions", where, str)
