"""Read what a run has left in its folder, checking every file on the way in.

A run's folder holds ``metrics.jsonl`` (one JSON object a round, written as it happens) and, once
they are known, ``config.yaml``, ``privacy.json`` and ``summary.json``. A folder may be read while
its run is going on: what is not there yet is ``None``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT_VERSION = 1

_COUNTS = ("num_sampled", "num_replies", "num_failures", "num_ineligible")
_BYTES = ("uplink_bytes", "downlink_bytes", "control_bytes")
_METRIC_NUMBERS = (
    *_COUNTS,
    *_BYTES,
    *("round", "seconds", "train_loss", "global_train_loss", "test_loss", "test_accuracy"),
    *("epsilon", "delta"),
)
_SUMMARY_NUMBERS = (
    *("num_rounds", "num_clients", "num_parameters", "test_accuracy", "test_loss"),
    *("uplink_bytes_total", "uplink_bits_per_parameter", "epsilon", "delta", "wall_seconds"),
)
_GUARANTEE_WORDS = ("adversary", "unit", "neighboring_relation", "accountant", "randomness")
# A log density can exceed one.
_MAY_BE_NEGATIVE = ("train_loss", "global_train_loss", "test_loss", "difference")


class ReportError(ValueError):
    """A run's folder cannot be read: the message is one line that names the file and the fault."""


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
    """

    path: Path
    metrics: list[dict[str, Any]]
    summary: dict[str, Any] | None
    privacy: list[dict[str, Any]] | None
    config_text: str | None


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
    metrics = _read_bytes(folder / "metrics.jsonl")
    if metrics is None:
        raise ReportError(f"{folder}: not a run's folder, it has no metrics.jsonl")
    config = _read_bytes(folder / "config.yaml")
    return RunFolder(
        path=folder,
        metrics=_parse_metrics(metrics, folder / "metrics.jsonl"),
        summary=_read_summary(folder / "summary.json"),
        privacy=_read_privacy(folder / "privacy.json"),
        config_text=None if config is None else _decode(config, folder / "config.yaml"),
    )


def _read_bytes(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReportError(f"{file}: cannot be read: {error.strerror}") from error


def _decode(content: bytes, file: Path) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ReportError(f"{file}: is not UTF-8 text (byte {error.start})") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a finite number")


def _parse_object(content: bytes, where: str) -> dict[str, Any]:
    """Parse one JSON object, refusing NaN and infinities, which are no JSON."""
    try:
        value = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{where}: is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ReportError(f"{where}: must be a JSON object, is a {type(value).__name__}")
    return value


def _check_version(value: object, where: str) -> None:
    if isinstance(value, bool) or value != FORMAT_VERSION:
        raise ReportError(
            f"{where}: format_version is {value!r}; this program reads {FORMAT_VERSION}"
        )


def _check_numbers(entry: dict[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in keys:
        value = entry.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ReportError(f"{where}: {key} must be a number or null, is {value!r}")
        if abs(value) > sys.float_info.max:  # 1e999 is valid JSON and reads as infinity
            raise ReportError(f"{where}: {key} must be finite, is {value!r}")
        if value < 0 and key not in _MAY_BE_NEGATIVE:
            raise ReportError(f"{where}: {key} must not be negative, is {value!r}")


def _parse_metrics(content: bytes, file: Path) -> list[dict[str, Any]]:
    # Bytes are cut into lines before decoding: the last line may end within a character.
    *complete, unfinished = content.split(b"\n")
    metrics: list[dict[str, Any]] = []
    for number, line in enumerate([*complete, unfinished], start=1):
        where = f"{file}, line {number}"
        if not line.strip():
            continue
        try:
            entry = _parse_object(line, where)
        except ReportError:
            if number > len(complete):
                break
            raise
        if "format_version" in entry:
            _check_version(entry["format_version"], where)
        _check_numbers(entry, _METRIC_NUMBERS, where)
        server_round = entry.get("round")
        if isinstance(server_round, bool) or not isinstance(server_round, int) or server_round < 0:
            raise ReportError(f"{where}: round must be an integer >= 0, is {server_round!r}")
        if metrics and server_round <= metrics[-1]["round"]:
            raise ReportError(
                f"{where}: round {server_round} must come after round {metrics[-1]['round']}"
            )
        metrics.append(entry)
    return metrics


def _read_summary(file: Path) -> dict[str, Any] | None:
    content = _read_bytes(file)
    if content is None:
        return None
    summary = _parse_object(content, str(file))
    _check_version(summary.get("format_version"), str(file))
    _check_numbers(summary, _SUMMARY_NUMBERS, str(file))
    published = summary.get("published", [])
    if not isinstance(published, list) or not all(isinstance(each, dict) for each in published):
        raise ReportError(f"{file}: published must be a list of objects, is {published!r}")
    for index, each in enumerate(published):
        where = f"{file}, published {index + 1}"
        _check_numbers(each, ("round", "published", "ours", "difference"), where)
    return summary


def _read_privacy(file: Path) -> list[dict[str, Any]] | None:
    content = _read_bytes(file)
    if content is None:
        return None
    privacy = _parse_object(content, str(file))
    _check_version(privacy.get("format_version"), str(file))
    guarantees = privacy.get("guarantees")
    if not isinstance(guarantees, list):
        raise ReportError(f"{file}: guarantees must be a list, is {guarantees!r}")
    for index, guarantee in enumerate(guarantees):
        _check_guarantee(guarantee, f"{file}, guarantee {index + 1}")
    return guarantees


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
    _check_numbers(guarantee, ("epsilon", "delta", "colluding_fraction"), where)
    for key in ("delta", "colluding_fraction"):
        if (guarantee.get(key) or 0) > 1:
            raise ReportError(f"{where}: {key} must lie in [0, 1], is {guarantee[key]!r}")
    assumptions = guarantee.get("assumptions", [])
    if not isinstance(assumptions, list) or not all(isinstance(each, str) for each in assumptions):
        raise ReportError(f"{where}: assumptions must be a list of strings, is {assumptions!r}")
