"""What a search leaves in a run's folder besides its metrics: queries, best points, a broadcast.

Every file is checked on the way in; what is not there is ``None``. Only seeded runs, which are no
releases, have queries; with secret randomness they stay on the devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.errors import ConfigError
from fl_app.report.checked_json import (
    ReportError,
    check_integer,
    check_list,
    check_numbers,
    check_version,
    is_number,
    parse_lines,
    parse_object,
    read_bytes,
)
from fl_app.search_space import SearchSpace
from strategies.mechanisms.parameter_checks import ParameterError

Floats = NDArray[np.float64]
_MOST_GRID_POINTS = 1000


@dataclass(frozen=True)
class Queries:
    """Where a search has looked and what it found, one entry a query, by round and agent.

    Attributes
    ----------
    rounds, agents : ndarray of int64, shape (n,)
        Round 1 holds the initial points, round t + 1 iteration t; agents count from 0.
    points : ndarray of float64, shape (n, D)
        In the unit cube.
    values : ndarray of float64, shape (n,)
        Higher is better; NaN for an evaluation without a value.
    is_shared : ndarray of bool, shape (n,)
        Whether it is the maximum of a broadcast, not of the agent's own model.
    """

    rounds: NDArray[np.int64]
    agents: NDArray[np.int64]
    points: Floats
    values: Floats
    is_shared: NDArray[np.bool_]


@dataclass(frozen=True)
class BestPoint:
    """A point of the search space, and what is known of it.

    Attributes
    ----------
    point : mapping
        From the axes' names to values.
    place : ndarray of float64, shape (D,)
        The same point in the unit cube.
    value : float or None
        ``None`` if it is not known.
    agent : int or None
        Who found it; ``None`` for the maximum of a broadcast.
    failures : int
        Of its agent's evaluations.
    outside : int
        Of its agent's values, those outside the objective's range.
    release_round : int or None
        The round of the broadcast.
    noise_share : float or None
        The broadcast's noise over the largest signal that it can have.
    mostly_noise : bool
        Whether that is too much for the point to mean anything.
    signal_to_noise : float or None
        As measured, in seeded runs.
    """

    point: Mapping[str, Any]
    place: Floats
    value: float | None
    agent: int | None = None
    failures: int = 0
    outside: int = 0
    release_round: int | None = None
    noise_share: float | None = None
    mostly_noise: bool = False
    signal_to_noise: float | None = None


@dataclass(frozen=True)
class BestPoints:
    """The best point of each agent, none where they stay on the devices, and of the broadcast."""

    space: SearchSpace
    agents: tuple[BestPoint, ...]
    shared: BestPoint | None


@dataclass(frozen=True)
class SharedFunction:
    """The last broadcast over one or two axes.

    Attributes
    ----------
    release_round : int
        The round that released it.
    axes : tuple of str
        Their names.
    boxes : tuple of (low, high)
        The corners of the sub-regions in the unit cube, shape (D,) each.
    grid : ndarray of float64, shape (k,)
        Coordinates along every axis, rising, in [0, 1].
    values : ndarray of float64, shape (k,) or (k, k)
        Of the function; the first axis first.
    """

    release_round: int
    axes: tuple[str, ...]
    boxes: tuple[tuple[Floats, Floats], ...]
    grid: Floats
    values: Floats


@dataclass(frozen=True)
class SearchRecord:
    """The files of a search; each is ``None`` if it is not there."""

    queries: Queries | None = None
    best: BestPoints | None = None
    shared: SharedFunction | None = None


def read_search_record(folder: Path) -> SearchRecord:
    """Read ``queries.jsonl``, ``best_point.json`` and ``shared_function.json``.

    Raises
    ------
    ReportError
        If one of them is corrupt; the message names it.
    """
    return SearchRecord(
        queries=_read_queries(folder / "queries.jsonl"),
        best=_read_best(folder / "best_point.json"),
        shared=_read_shared(folder / "shared_function.json"),
    )


def _read_queries(file: Path) -> Queries | None:
    content = read_bytes(file)
    if content is None:
        return None
    keys: list[tuple[int, int, bool]] = []
    counts: list[int] = []
    points: list[Floats] = []
    values: list[Floats] = []
    before = (0, 0)
    for where, entry in parse_lines(content, file):
        key = (check_integer(entry, "round", where, 1), check_integer(entry, "agent", where))
        if keys and key <= before:
            raise ReportError(
                f"{where}: round {key[0]}, agent {key[1]} must come after round {before[0]}, "
                f"agent {before[1]}"
            )
        before = key
        found = _to_array(entry, "values", where, 1, nullable=True)
        tried = _to_array(entry, "points", where, 2) if found.size else np.empty((0, 0))
        if found.size != len(check_list(entry, "points", where)):
            raise ReportError(f"{where}: points and values must be equally many")
        if found.size:
            _check_unit(tried, "points", where)
            if points and points[0].shape[1] != tried.shape[1]:
                raise ReportError(
                    f"{where}: points must have {points[0].shape[1]} coordinates, "
                    f"have {tried.shape[1]}"
                )
            points.append(tried)
        if not isinstance(entry.get("is_shared"), bool):
            raise ReportError(
                f"{where}: is_shared must be true or false, is {entry.get('is_shared')!r}"
            )
        keys.append((*key, entry["is_shared"]))
        counts.append(found.size)
        values.append(found)
    table = np.repeat(np.array(keys, dtype=np.int64).reshape(-1, 3), counts, axis=0)
    return Queries(
        rounds=table[:, 0],
        agents=table[:, 1],
        points=np.concatenate(points) if points else np.empty((0, 0)),
        values=np.concatenate(values) if values else np.empty(0),
        is_shared=table[:, 2].astype(bool),
    )


def _read_best(file: Path) -> BestPoints | None:
    content = read_bytes(file)
    if content is None:
        return None
    best = parse_object(content, str(file))
    check_version(best.get("format_version"), str(file))
    try:
        space = SearchSpace.from_plain(check_list(best, "search_space", str(file), dict))
    except ConfigError as error:
        raise ReportError(f"{file}: {error}") from error
    agents = []
    for index, each in enumerate(check_list(best, "agents", str(file), dict)):
        where = f"{file}, agents {index + 1}"
        agent, failures = (check_integer(each, key, where) for key in ("agent", "failures"))
        if each.get("point") is not None:  # an agent may never have answered
            place = _place(each, space, where)
            # Not there in what an earlier version wrote, as some of the broadcast's below.
            outside = check_integer({"outside": 0, **each}, "outside", where)
            point, value = each["point"], each.get("value")
            agents.append(BestPoint(point, place, value, agent, failures, outside))
    shared = best.get("shared")
    if shared is None:
        return BestPoints(space, tuple(agents), None)
    where = f"{file}, shared"
    if not isinstance(shared, dict):
        raise ReportError(f"{where}: must be a JSON object, is {shared!r}")
    place = _place(shared, space, where)
    check_numbers(shared, ("noise_share", "signal_to_noise"), where)
    mostly_noise = shared.get("mostly_noise", False)
    if not isinstance(mostly_noise, bool):
        raise ReportError(f"{where}: mostly_noise must be true or false, is {mostly_noise!r}")
    found = BestPoint(
        shared["point"],
        place,
        shared.get("value"),
        release_round=check_integer(shared, "release_round", where),
        noise_share=shared.get("noise_share"),
        mostly_noise=mostly_noise,
        signal_to_noise=shared.get("signal_to_noise"),
    )
    return BestPoints(space, tuple(agents), found)


def _place(entry: Mapping[str, Any], space: SearchSpace, where: str) -> Floats:
    """Check the value and the point of an entry; return where the point lies in the unit cube."""
    check_numbers(entry, ("value",), where, signed=("value",))
    point = entry.get("point")
    if not isinstance(point, dict):
        raise ReportError(f"{where}: point must be a JSON object, is {point!r}")
    try:
        return space.encode(point)
    except ParameterError as error:
        raise ReportError(f"{where}: {error}") from error


def _read_shared(file: Path) -> SharedFunction | None:
    content = read_bytes(file)
    if content is None:
        return None
    shared, where = parse_object(content, str(file)), str(file)
    check_version(shared.get("format_version"), where)
    axes = check_list(shared, "axes", where, str)
    if len(axes) not in (1, 2):
        raise ReportError(f"{where}: axes must be 1 or 2, are {len(axes)}")
    grid = _to_array(shared, "grid", where, 1)
    _check_unit(grid, "grid", where)
    if not 2 <= grid.size <= _MOST_GRID_POINTS or not (np.diff(grid) > 0).all():
        raise ReportError(f"{where}: grid must be 2 to {_MOST_GRID_POINTS} rising numbers")
    values = _to_array(shared, "values", where, len(axes))
    if values.shape != (grid.size,) * len(axes):
        raise ReportError(
            f"{where}: values must have the shape {(grid.size,) * len(axes)}, have {values.shape}"
        )
    boxes = []
    for index, box in enumerate(check_list(shared, "subregions", where, dict)):
        inside = f"{where}, subregions {index + 1}"
        low, high = (_to_array(box, key, inside, 1) for key in ("low", "high"))
        for key, corner in (("low", low), ("high", high)):
            _check_unit(corner, key, inside)
            if corner.size != len(axes):
                raise ReportError(f"{inside}: {key} must have {len(axes)} coordinates")
        boxes.append((low, high))
    released = check_integer(shared, "release_round", where)
    return SharedFunction(released, tuple(axes), tuple(boxes), grid, values)


def _to_array(
    entry: Mapping[str, Any], key: str, where: str, depth: int, nullable: bool = False
) -> Floats:
    """Return a list of finite numbers, or of equally long lists of them, as an array."""
    rows = check_list(entry, key, where)
    if depth == 2 and not all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows):
        raise ReportError(f"{where}: {key} must be a list of equally long lists")
    numbers = [each for row in rows for each in row] if depth == 2 else rows
    if not all(is_number(each) or (nullable and each is None) for each in numbers):
        raise ReportError(f"{where}: {key} must hold numbers only")
    try:
        array = np.array(numbers, dtype=np.float64)
    except OverflowError:  # an integer beyond all floats
        array = np.array([np.inf])
    missing = np.array([each is None for each in numbers], dtype=bool)
    if not np.isfinite(array[~missing] if array.size == missing.size else array).all():
        raise ReportError(f"{where}: {key} must hold finite numbers only")
    return array.reshape(len(rows), len(rows[0]) if rows else 0) if depth == 2 else array


def _check_unit(array: Floats, key: str, where: str) -> None:
    if not array.size or not ((array >= 0) & (array <= 1)).all():
        raise ReportError(f"{where}: {key} must be numbers in [0, 1]")
