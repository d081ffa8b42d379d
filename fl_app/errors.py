"""The application's errors: what the user reads, and with which exit code the program ends."""

import difflib
from collections.abc import Iterable


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
        super().__init__(f"{key}: {value!r}; allowed: {allowed}")


class RunError(RuntimeError):
    """A run that failed, in one clear line (exit code 1)."""


def unknown_key(key: str, known: Iterable[str], prefix: str = "") -> ConfigError:
    """Build the error for a key that does not exist, with the nearest that does."""
    names = sorted(known)
    close = difflib.get_close_matches(key, names, n=1)
    hint = f"did you mean {prefix}{close[0]}? " if close else ""
    return ConfigError(f"{prefix}{key}", "unknown key", f"{hint}one of {', '.join(names)}")
