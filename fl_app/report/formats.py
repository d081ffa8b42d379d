"""Write quantities for a reader: privacy losses rounded up, bytes, shares and times with units."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal

MISSING = "–"
_SIGNIFICANT_DIGITS = 3


def format_epsilon(epsilon: float | None) -> str:
    """Write a privacy loss with 3 significant digits, rounded up and never down.

    Parameters
    ----------
    epsilon : float or None
        The privacy loss, finite and at least 0. ``None`` means that there is no guarantee.

    Returns
    -------
    str
        A decimal number that, read back as a float, is at least `epsilon`; "none" for ``None``.

    Raises
    ------
    ValueError
        If `epsilon` is negative or not finite.
    """
    return _round_up("epsilon", epsilon)


def format_delta(delta: float | None) -> str:
    """Write a failure probability with at most 3 significant digits, rounded up and never down.

    Parameters
    ----------
    delta : float or None
        The probability, in [0, 1]. ``None`` means that there is no guarantee.

    Returns
    -------
    str
        A decimal number that, read back as a float, is at least `delta`; "none" for ``None``.

    Raises
    ------
    ValueError
        If `delta` is not in [0, 1].
    """
    if delta is not None and delta > 1:
        raise ValueError(f"delta must lie in [0, 1], is {delta!r}")
    text = _round_up("delta", delta)
    if delta is None:
        return text
    digits, _, exponent = text.partition("e")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return f"{digits}e{exponent}" if exponent else digits


def _round_up(name: str, value: float | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be a finite number >= 0 or None, is {value!r}")
    # The shortest decimal that reads back as this float, so that 0.1 stays 0.100.
    exact = Decimal(repr(float(value)))
    if exact == 0:
        return "0"
    last_digit = Decimal((0, (1,), exact.adjusted() - _SIGNIFICANT_DIGITS + 1))
    rounded = exact.quantize(last_digit, rounding=ROUND_CEILING)
    # 9.999 becomes 10.00: one digit too many, and cutting it changes nothing.
    if len(rounded.as_tuple().digits) > _SIGNIFICANT_DIGITS:
        rounded = rounded.quantize(last_digit.scaleb(1))
    if -4 < rounded.adjusted() < 6:
        return f"{rounded:f}"
    mantissa = rounded.scaleb(-rounded.adjusted())
    return f"{mantissa:f}e{rounded.adjusted()}"


def format_number(value: float | None, digits: int = 4) -> str:
    """Write a number with `digits` significant digits; a dash for ``None``."""
    return MISSING if value is None else f"{value:.{digits}g}"


def format_count(value: float | None) -> str:
    """Write a whole number with a thin space between thousands; a dash for ``None``."""
    return MISSING if value is None else f"{value:,.0f}".replace(",", "\u202f")


def format_share(value: float | None) -> str:
    """Write a fraction in [0, 1] as a percentage; a dash for ``None``."""
    return MISSING if value is None else f"{100 * value:.1f} %"


def byte_unit(largest: float) -> tuple[float, str]:
    """Choose a decimal unit for byte counts.

    Parameters
    ----------
    largest : float
        The largest count that is to be written with the unit, in bytes.

    Returns
    -------
    tuple of float and str
        How many bytes the unit has, and its name (B, kB, MB, GB or TB).
    """
    for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= size:
            return size, name
    return 1.0, "B"


def format_bytes(count: float | None) -> str:
    """Write a number of bytes with a decimal unit; a dash for ``None``."""
    if count is None:
        return MISSING
    size, name = byte_unit(count)
    if size == 1:
        return f"{count:.0f} B"
    value = count / size
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{decimals}f} {name}"


def format_duration(seconds: float | None) -> str:
    """Write a time span: seconds below one minute, then minutes, then hours; a dash for None."""
    if seconds is None:
        return MISSING
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
