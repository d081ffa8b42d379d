"""From plain values (YAML, JSON) to frozen dataclasses, with every type checked."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from fl_app.errors import ConfigError, unknown_key
from fl_app.plain_mapping import PlainMapping, PlainValueError
from strategies.mechanisms.parameter_checks import ParameterError

T = TypeVar("T")

# Integers travel as 64 bits; larger ones also overflow where they meet floats.
_LIMIT = 2**63
_WORDS = {
    **{int: "an integer", float: "a finite number", str: "text", bool: "true or false"},
    PlainMapping: "a mapping from names to numbers, text or lists of them, as {name: 1}",
}


def build(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Build a dataclass from a mapping.

    Parameters
    ----------
    cls : type
        A dataclass whose fields are numbers, text, booleans, Literals, PlainMappings, tuples of
        any length of one of these (from lists), dataclasses, or unions of these.
    values : mapping
        Its values; nested mappings for nested dataclasses.
    prefix : str
        Name of the enclosing key, ending in a dot, for messages.

    Raises
    ------
    ConfigError
        For an unknown key (with the nearest known one), a missing key without default, a value of
        another type, an integer beyond 64 bits, or what the dataclass itself refuses; of a
        ParameterError of its own the key is one of the dataclass.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(prefix.rstrip(".") or "configuration", values, "a group of keys")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}

    def convert(name: str) -> None:
        field = fields[name]
        if name in values:
            arguments[name] = _convert(values[name], hints[name], f"{prefix}{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            allowed = _describe(hints[name])
            raise ConfigError.from_text(f"{prefix}{name}: missing; allowed: {allowed}")

    # A choice may decide which other keys there are: it is judged before them.
    choices = [name for name in fields if typing.get_origin(hints[name]) is typing.Literal]
    for name in choices:
        convert(name)
    for key in values:
        if key not in fields:
            raise unknown_key(str(key), fields, prefix)
    for name in fields:
        if name not in choices:
            convert(name)
    try:
        return cls(**arguments)
    except ConfigError:
        raise
    except ParameterError as error:
        raise ConfigError(f"{prefix}{error.key}", error.value, error.allowed) from None
    except ValueError as error:
        raise ConfigError.from_text(str(error)) from error


def _convert(value: Any, hint: Any, key: str) -> Any:
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    for option in options:
        if dataclasses.is_dataclass(option) and (value is not None or type(None) not in options):
            # A group whose keys depend on a choice among them says which dataclass holds them.
            choose = getattr(option, "choose", None)
            chosen = choose(value) if choose and isinstance(value, Mapping) else option
            return build(typing.cast(type, chosen), value, key + ".")
        if typing.get_origin(option) is tuple and isinstance(value, list | tuple):
            each = typing.get_args(option)[0]
            return tuple(_convert(item, each, f"{key}[{i}]") for i, item in enumerate(value))
    for option in options:
        if option is type(None) and value is None:
            return None
        if typing.get_origin(option) is typing.Literal and value in typing.get_args(option):
            return value
        if option is bool and isinstance(value, bool):
            return value
        if option is str and isinstance(value, str):
            return value
        if option is int and _is_integer(value) and -_LIMIT <= value < _LIMIT:
            return value
        if option is float and _is_finite_number(value):
            return float(value)
        if option is PlainMapping and isinstance(value, Mapping):
            # YAML reads {3: 1} with a number as its name, JSON and the command line with text.
            named = {str(k) if type(k) is int else k: v for k, v in value.items()}
            try:
                return PlainMapping(named)
            except PlainValueError as error:
                raise ConfigError(f"{key}.{error.key}", error.value, error.allowed) from None
    raise ConfigError(key, value, _describe(hint) + _spelling_hint(value, options))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _describe(hint: Any) -> str:
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    words = []
    for option in options:
        if option is type(None):
            words.append("null")
        elif typing.get_origin(option) is typing.Literal:
            words += [str(choice) for choice in typing.get_args(option)]
        elif typing.get_origin(option) is tuple:
            words.append(f"a list; each: {_describe(typing.get_args(option)[0])}")
        else:
            words.append(_WORDS.get(option, "a group of keys"))
    return " or ".join(words)


def _spelling_hint(value: Any, options: tuple[Any, ...]) -> str:
    """Say how to write what was probably meant: YAML and shells turn numbers into text."""
    if isinstance(value, bool):
        return ""
    if int in options and _is_integer(value):
        return " (64 bits)"
    if isinstance(value, int | float):
        if str in options:
            return f" (this is a number; write '\"{value}\"' for text)"
        if int in options and isinstance(value, float) and value.is_integer():
            return f" (write {int(value)})"
        return ""
    if not isinstance(value, str) or not {int, float} & set(options):
        return ""
    try:
        number = float(value)
    except ValueError:
        return ""
    if not math.isfinite(number) or (float not in options and not number.is_integer()):
        return ""
    shown = repr(number) if float in options else str(int(number))
    return f" (this is text; write {shown} without quotes)"
