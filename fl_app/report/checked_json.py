"""JSON from a folder that may be corrupt: everything is checked, faults are named in a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

FORMAT_VERSION = 1


class ReportError(ValueError):
    """A run's folder cannot be read: the message is one line that names the file and the fault."""


def read_bytes(file: Path) -> bytes | None:
    """Return a file's content; ``None`` if it is not there."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReportError(f"{file}: cannot be read: {error.strerror}") from error


def decode(content: bytes, file: Path) -> str:
    """Return a file's content as text."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ReportError(f"{file}: is not UTF-8 text (byte {error.start})") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a finite number")


def parse_object(content: bytes, where: str) -> dict[str, Any]:
    """Parse one JSON object, refusing NaN and infinities, which are no JSON."""
    try:
        value = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{where}: is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ReportError(f"{where}: must be a JSON object, is a {type(value).__name__}")
    return value


def parse_lines(content: bytes, file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the content of each line; a half-written last line is left out."""
    # Bytes are cut into lines before decoding: the last line may end within a character.
    *complete, unfinished = content.split(b"\n")
    for number, line in enumerate([*complete, unfinished], start=1):
        where = f"{file}, line {number}"
        if not line.strip():
            continue
        try:
            entry = parse_object(line, where)
        except ReportError:
            if number > len(complete):
                break
            raise
        if "format_version" in entry:
            check_version(entry["format_version"], where)
        yield where, entry


def check_version(value: object, where: str) -> None:
    """Refuse a file whose format is not known."""
    if isinstance(value, bool) or value != FORMAT_VERSION:
        raise ReportError(
            f"{where}: format_version is {value!r}; this program reads {FORMAT_VERSION}"
        )


def check_numbers(
    entry: Mapping[str, Any], keys: Iterable[str], where: str, signed: Container[str] = ()
) -> None:
    """Refuse values that are neither ``None`` nor finite, and negative ones but for `signed`."""
    for key in keys:
        value = entry.get(key)
        if value is None:
            continue
        if not is_number(value):
            raise ReportError(f"{where}: {key} must be a number or null, is {value!r}")
        if abs(value) > sys.float_info.max:  # 1e999 is valid JSON and reads as infinity
            raise ReportError(f"{where}: {key} must be finite, is {value!r}")
        if value < 0 and key not in signed:
            raise ReportError(f"{where}: {key} must not be negative, is {value!r}")


def check_integer(entry: Mapping[str, Any], key: str, where: str, low: int = 0) -> int:
    """Return an integer between `low` and 2**53, where floats are exact; refuse anything else."""
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= 2**53:
        raise ReportError(f"{where}: {key} must be an integer >= {low}, is {value!r}")
    return value


def check_list(entry: Mapping[str, Any], key: str, where: str, kind: type | None = None) -> Any:
    """Return a list, whose items are all of one type if it is given; refuse anything else."""
    value = entry.get(key)
    if not isinstance(value, list) or (
        kind is not None and not all(isinstance(each, kind) for each in value)
    ):
        items = "" if kind is None else " of objects" if kind is dict else " of strings"
        raise ReportError(f"{where}: {key} must be a list{items}, is {value!r}")
    return value


def is_number(value: object) -> bool:
    """Tell whether a JSON value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
