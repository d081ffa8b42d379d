"""Checks of single parameters that say what is wrong: the key, the value, what is allowed."""

import math
from typing import Any

MAX_MAGNITUDE = 1e15


class ParameterError(ValueError):
    """A parameter that is not allowed.

    Parameters
    ----------
    key : str
        Name of the parameter.
    value : object
        Its value.
    allowed : str
        What is allowed, in words.
    """

    def __init__(self, key: str, value: object, allowed: str) -> None:
        self.key, self.value, self.allowed = key, value, allowed
        super().__init__(f"{key}: {value!r}; allowed: {allowed}")


def check_integer(key: str, value: Any, minimum: int, *, optional: bool = False) -> None:
    """Raise ParameterError unless the value is an integer >= `minimum` (or None, if optional)."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ParameterError(key, value, f"an integer >= {minimum}")
    if value >= 2**64:
        raise ParameterError(key, f"an integer of {value.bit_length()} bits", "at most 64 bits")


def check_number(
    key: str,
    value: Any,
    *,
    positive: bool,
    below: float = math.inf,
    optional: bool = False,
) -> None:
    """Raise ParameterError unless the value is a finite number in range (or None, if optional).

    Parameters
    ----------
    key : str
        Name of the parameter.
    value : object
        Its value.
    positive : bool
        Whether 0 is refused; negative numbers always are.
    below : float
        Exclusive upper bound; at most 1e15, beyond which no parameter makes sense.
    optional : bool
        Whether None passes.
    """
    if optional and value is None:
        return
    bound = min(below, MAX_MAGNITUDE)
    # 1 itself is allowed where the bound lies just above it.
    upper = "<= 1" if 1.0 < bound < 1.0 + 1e-9 else f"< {bound:g}"
    words = f"a number {'>' if positive else '>='} 0 and {upper}"
    # Neither holds for NaN. An integer may be too large for a float, and is compared all the same.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < bound:
        raise ParameterError(key, value, words)
    if positive and value == 0:
        raise ParameterError(key, value, words)
