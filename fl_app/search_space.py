"""A search space: named axes with bounds, and the way between their values and the unit cube.

An optimiser works on ``[0, 1]^D``. A real axis is mapped linearly, or in its logarithm. An integer
or a choice is a cell of the axis: cells of equal width (of equal width in the logarithm, roughly,
for ``log_integer``), so that a uniform draw gives every choice the same probability.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fl_app.errors import ConfigError
from fl_app.structure import build
from strategies.mechanisms.parameter_checks import ParameterError

AxisValue = float | int | str | bool
Point = dict[str, AxisValue]
AxisKind = Literal["float", "log_float", "integer", "log_integer", "choice"]

MAX_AXES = 64
# So that no cell is narrower than the rounding error of a number in [0, 1].
_MOST_CELLS = 2**31
_KEY = "objective.search_space"


@dataclass(frozen=True)
class Axis:
    """One axis; the subclasses know how its values lie in [0, 1].

    Attributes
    ----------
    name : str
        An identifier, the key of the value in a point.
    kind : str
        ``float``, ``log_float``, ``integer``, ``log_integer`` or ``choice``.

    Raises
    ------
    ParameterError
        If a value is not allowed; names the key within the axis.
    """

    name: str
    kind: AxisKind

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ParameterError("name", self.name, "letters, digits and _, as in rate_1")

    @staticmethod
    def choose(values: Mapping[str, Any]) -> "type[Axis]":
        """Return the dataclass that holds the keys of a kind; this one if there is no such kind."""
        kind = values.get("kind")
        return _CLASSES.get(kind, Axis) if isinstance(kind, str) else Axis

    @property
    def is_splittable(self) -> bool:
        """Whether nearby numbers in [0, 1] are nearby values, so that a part is a sub-region."""
        return True

    def from_unit(self, unit: float) -> AxisValue:
        """Return the value at a number in [0, 1]."""
        raise NotImplementedError

    def to_unit(self, value: AxisValue) -> float:
        """Return a number in [0, 1] that stands for a value; the middle of its cell if it has one.

        Raises
        ------
        ParameterError
            If it is no value of this axis.
        """
        raise NotImplementedError

    def _refuse(self, value: object, allowed: str) -> ParameterError:
        return ParameterError(self.name, value, allowed)


@dataclass(frozen=True)
class RealAxis(Axis):
    """Real numbers in [low, high], linear (``float``) or in their logarithm (``log_float``)."""

    kind: Literal["float", "log_float"]
    low: float
    high: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_bounds(self, "a number")
        if not math.isfinite(self.high - self.low):
            raise ParameterError("high", self.high, "a number for which high - low is finite")

    def from_unit(self, unit: float) -> float:  # noqa: D102
        if unit in (0.0, 1.0):  # not up to rounding
            return self.high if unit else self.low
        if self.kind == "log_float":
            low, high = math.log(self.low), math.log(self.high)
            value = math.exp(low + unit * (high - low))
        else:
            value = self.low + unit * (self.high - self.low)
        return min(max(value, self.low), self.high)

    def to_unit(self, value: AxisValue) -> float:  # noqa: D102
        if not _is_number(value) or not self.low <= float(value) <= self.high:
            raise self._refuse(value, f"a number in [{self.low:g}, {self.high:g}]")
        if self.kind == "log_float":
            unit = _log_ratio(float(value), self.low) / _log_ratio(self.high, self.low)
        else:
            unit = (float(value) - self.low) / (self.high - self.low)
        return min(max(unit, 0.0), 1.0)


def _log_ratio(high: float, low: float) -> float:
    ratio = high / low
    # The ratio is the more exact one, as long as it is a number.
    return math.log(ratio) if math.isfinite(ratio) else math.log(high) - math.log(low)


@dataclass(frozen=True)
class IntegerAxis(Axis):
    """Integers in [low, high].

    ``integer``: cells of equal width. ``log_integer``: what rounding gives of real numbers between
    low - 1/2 and high + 1/2 whose logarithm is uniform.
    """

    kind: Literal["integer", "log_integer"]
    low: int
    high: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_bounds(self, "an integer")
        if self.high - self.low >= _MOST_CELLS or max(abs(self.low), abs(self.high)) > 2**52:
            rule = "high - low < 2**31, both within 2**52 of 0 (a float axis for more)"
            raise ParameterError("high", self.high, rule)

    def from_unit(self, unit: float) -> int:  # noqa: D102
        if self.kind == "log_integer":
            value = self.low + math.floor((self.low - 0.5) * math.expm1(unit * self._log_width()))
        else:
            value = self.low + math.floor(unit * (self.high - self.low + 1))
        return min(max(value, self.low), self.high)

    def to_unit(self, value: AxisValue) -> float:  # noqa: D102
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._refuse(value, f"an integer in [{self.low}, {self.high}]")
        if not self.low <= value <= self.high:
            raise self._refuse(value, f"an integer in [{self.low}, {self.high}]")
        if self.kind == "log_integer":
            ends = (math.log1p((value - self.low + i) / (self.low - 0.5)) for i in (0, 1))
            return 0.5 * sum(ends) / self._log_width()
        return (value - self.low + 0.5) / (self.high - self.low + 1)

    def _log_width(self) -> float:
        """Return ln (high + 1/2) / (low - 1/2)."""
        return math.log1p((self.high - self.low + 1) / (self.low - 0.5))


@dataclass(frozen=True)
class ChoiceAxis(Axis):
    """One of several values without order, each an equal cell; never split."""

    kind: Literal["choice"]
    values: tuple[str | int | float | bool, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        # true, 1 and 1.0 are equal to Python
        known = {(type(value), value) for value in self.values}
        if len(self.values) < 2 or len(known) < len(self.values):
            raise ParameterError("values", list(self.values), "two values or more, each once")

    @property
    def is_splittable(self) -> bool:  # noqa: D102
        return False

    def from_unit(self, unit: float) -> AxisValue:  # noqa: D102
        return self.values[min(math.floor(unit * len(self.values)), len(self.values) - 1)]

    def to_unit(self, value: AxisValue) -> float:  # noqa: D102
        for index, each in enumerate(self.values):
            if type(each) is type(value) and each == value:
                return (index + 0.5) / len(self.values)
        raise self._refuse(value, f"one of {', '.join(map(str, self.values))}")


_CLASSES: dict[str, type[Axis]] = {
    **dict.fromkeys(("float", "log_float"), RealAxis),
    **dict.fromkeys(("integer", "log_integer"), IntegerAxis),
    "choice": ChoiceAxis,
}
assert set(_CLASSES) == set(get_args(AxisKind))


@dataclass(frozen=True)
class SearchSpace:
    """The axes in the order of the unit cube's coordinates.

    Attributes
    ----------
    axes : tuple of Axis
        1 to 64, of different names.

    Raises
    ------
    ConfigError
        If a name appears twice, or there are none or too many.
    """

    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        if not 1 <= len(names) <= MAX_AXES:
            raise ConfigError(_KEY, names, f"a list of 1 to {MAX_AXES} axes")
        for index, name in enumerate(names):
            if name in names[:index]:
                raise ConfigError(f"{_KEY}[{index}].name", name, "each name once")

    @classmethod
    def from_plain(cls, axes: Sequence[Mapping[str, Any]]) -> "SearchSpace":
        """Build a space from what YAML holds: a list of {name, kind, low, high} or {..., values}.

        Raises
        ------
        ConfigError
            The key, as ``search_space[0].high``, its value and what is allowed.
        """
        return cls(build(_Listed, {"search_space": axes}).search_space)

    @property
    def dimension(self) -> int:
        """``D``, the number of axes."""
        return len(self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes, in order."""
        return tuple(axis.name for axis in self.axes)

    @property
    def is_splittable(self) -> tuple[bool, ...]:
        """Which axes may be cut into sub-regions: all but choices.

        An integer is ordered, so its axis may be cut; points of both parts can then stand for the
        integer whose cell is cut.
        """
        return tuple(axis.is_splittable for axis in self.axes)

    def decode(self, unit: NDArray[np.float64]) -> Point:
        """Return the point that a place in the unit cube stands for.

        Parameters
        ----------
        unit : ndarray of float64, shape (D,)
            Each in [0, 1].

        Returns
        -------
        dict
            From the axes' names to plain float, int, str or bool.

        Raises
        ------
        ParameterError
            If the shape differs, or a coordinate is not finite or outside [0, 1].
        """
        place = np.asarray(unit, dtype=np.float64)
        if place.shape != (self.dimension,):
            raise ParameterError("unit", f"shape {place.shape}", f"shape ({self.dimension},)")
        if not ((place >= 0.0) & (place <= 1.0)).all():
            raise ParameterError("unit", place.tolist(), "numbers in [0, 1]")
        return {
            axis.name: axis.from_unit(float(each))
            for axis, each in zip(self.axes, place, strict=True)
        }

    def encode(self, point: Mapping[str, AxisValue]) -> NDArray[np.float64]:
        """Return the place in the unit cube that stands for a point; `decode` gives it back.

        Returns
        -------
        ndarray of float64, shape (D,)
            Each in [0, 1]. Real values come back up to rounding, all others exactly.

        Raises
        ------
        ParameterError
            If names are missing or unknown, or a value is none of its axis.
        """
        if set(point) != set(self.names):
            raise ParameterError("point", sorted(point), f"the names {', '.join(self.names)}")
        return np.array([axis.to_unit(point[axis.name]) for axis in self.axes])

    def snap(self, unit: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the middle of the cell that a place lies in, shape (D,): where it is evaluated.

        Real coordinates stay, up to rounding. Two places of one point become the same place.
        """
        return self.encode(self.decode(unit))


@dataclass(frozen=True)
class _Listed:
    """Axes as a file has them."""

    search_space: tuple[Axis, ...]


def _check_bounds(axis: RealAxis | IntegerAxis, what: str) -> None:
    if not axis.low < axis.high:
        raise ParameterError("high", axis.high, f"{what} > low = {axis.low}")
    if axis.kind.startswith("log_") and axis.low <= 0:
        least = "> 0" if isinstance(axis, RealAxis) else ">= 1"
        raise ParameterError("low", axis.low, f"{what} {least} with kind {axis.kind}")


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)
