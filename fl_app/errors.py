"""The application's errors: what the user reads, and with which exit code the program ends."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping

_LONGEST_VALUE = 200  # characters shown of a value


class ConfigError(ValueError):
    """A configuration that is not allowed (exit code 2).

    Parameters
    ----------
    key : str
        Full name of the key, for example ``strategy.target_delta``.
    value : object
        Its value.
    allowed : str
        What is allowed, in words.
    """

    def __init__(self, key: str, value: object, allowed: str) -> None:
        self.key, self.value, self.allowed = key, value, allowed
        super().__init__(_on_one_line(f"{key}: {show(value)}; allowed: {allowed}"))

    @classmethod
    def from_text(cls, text: str) -> "ConfigError":
        """Wrap a message that already reads ``key: value; what is allowed``."""
        key, _, rest = text.partition(": ")
        value, _, allowed = rest.partition("; ")
        error = cls(key, value, allowed)
        error.args = (_on_one_line(text),)
        return error


class RunError(RuntimeError):
    """A run that failed, in one clear line (exit code 1)."""


def show(value: object) -> str:
    """Write a value as it is written in a configuration."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {show(each)}" for key, each in value.items()) + "}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return show(dataclasses.asdict(value))
    text = repr(value)
    if isinstance(value, list | tuple):
        text = f"[{', '.join(map(show, value))}]"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def unknown_key(
    key: str, known: Iterable[str], prefix: str = "", elsewhere: Iterable[str] = ()
) -> ConfigError:
    """Build the error for a key that does not exist, with the nearest that does.

    Parameters
    ----------
    key : str
        The last part of the key's name.
    known : iterable of str
        The names that exist beside it.
    prefix : str
        Name of the enclosing key, ending in a dot.
    elsewhere : iterable of str
        Full names of all keys: one of them is suggested if nothing beside it comes close.
    """
    names = sorted(known)
    close = [prefix + name for name in _nearest(key, names)]
    if not close:
        last_parts = {name.rpartition(".")[2]: name for name in elsewhere}
        close = [last_parts[name] for name in _nearest(key, last_parts)]
    hint = f"did you mean {close[0]}? " if close else ""
    return ConfigError.from_text(f"{prefix}{key}: unknown key; {hint}allowed: {', '.join(names)}")


def list_choices(word: str, known: Iterable[str]) -> str:
    """List what is allowed instead of a word, with the nearest as a suggestion."""
    names = list(known)
    return ", ".join(names) + "".join(f"; did you mean {name}?" for name in _nearest(word, names))


def _on_one_line(text: str) -> str:
    """Write a list as a sentence."""
    return text.replace(":\n- ", ": ").replace("\n- ", "; ").replace("\n", " ")


def _nearest(word: str, known: Iterable[str]) -> list[str]:
    """Return the name that was probably meant: about as long, or begun with the word at a part."""
    near = [name for name in known if abs(len(name) - len(word)) <= 2 or f"_{word}" in f"_{name}"]
    return difflib.get_close_matches(word, near, n=1)
