"""A mapping of plain values that cannot change: the arguments of a library's own function."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any


class PlainValueError(ValueError):
    """A value, or its name, that is not plain.

    Parameters
    ----------
    key, value : object
    allowed : str
        What is allowed, in words.
    """

    def __init__(self, key: object, value: object, allowed: str) -> None:
        self.key, self.value, self.allowed = key, value, allowed
        super().__init__(f"{key}: {value!r}; allowed: {allowed}")


class PlainMapping(Mapping[str, Any]):
    """An immutable, hashable mapping from text to plain values.

    Plain are numbers, text, booleans, null, lists of these, and lists of such lists. Two mappings
    are equal if they hold the same values of the same types: 1, 1.0 and true differ here, so that
    a cache cannot take one for the other.

    Parameters
    ----------
    values : mapping
        Tuples become lists.

    Raises
    ------
    PlainValueError
        For a key that is not text, or a value that is not plain, not finite or beyond 64 bits.
    """

    __slots__ = ("_text",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        for key in values:
            if not isinstance(key, str):
                raise PlainValueError(key, values[key], "text as its name")
        plain = {key: _plain(value, key, depth=2) for key, value in values.items()}
        self._text = json.dumps(plain, sort_keys=True)

    def __getitem__(self, key: str) -> Any:
        """Return a value; changing it changes nothing here."""
        return json.loads(self._text)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(json.loads(self._text))

    def __len__(self) -> int:
        """Return the number of values."""
        return len(json.loads(self._text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlainMapping) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return f"PlainMapping({dict(self)!r})"


def _plain(value: Any, key: str, depth: int) -> Any:
    if isinstance(value, list | tuple) and depth:
        return [_plain(each, key, depth - 1) for each in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise PlainValueError(key, value, "finite numbers, text, booleans and lists of them")
