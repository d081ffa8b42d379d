"""Code that a configuration names: it runs only where whoever starts it names it.

A run's folder may come from anybody, and its config.yaml may name any function that is installed.
"""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from fl_app.errors import ConfigError
from fl_app.objectives.settings import TrainingRunSettings
from fl_app.settings import RunSettings

# What Hydra reads as a text without quotes.
_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./@: -]*(?<! )")
CODE_KEYS = ("data.path", "model.path", "objective.path")


def list_named_code(settings: RunSettings) -> list[tuple[str, str]]:
    """Return the keys and import paths of all functions that a run of the settings would call.

    Raises
    ------
    ConfigError
        If a run within the run cannot be composed.
    """
    objective = settings.objective
    named = {
        "data.path": settings.data.path,
        "model.path": settings.model.path,
        "objective.path": getattr(objective, "path", None),
    }
    found = [(key, path) for key, path in named.items() if path is not None]
    if isinstance(objective, TrainingRunSettings):
        from fl_app.config import compose_settings

        found += list_named_code(compose_settings(list(objective.run)))
    return found


def read_allowed_code(overrides: Iterable[str]) -> list[str]:
    """Return the import paths that overrides of `CODE_KEYS` name."""
    words = (word.partition("=") for word in overrides)
    return [value.strip("\"'") for key, _, value in words if key in CODE_KEYS]


def keep_to_named_code(settings: RunSettings, overrides: list[str]) -> RunSettings:
    """Return a folder's settings; ConfigError unless overrides name the code that they name.

    And the Ray cluster, if it names one: whoever is at that address gets to run code as well.
    """
    require_named_again(list_named_code(settings), read_allowed_code(overrides), "{key}={path}")
    key, address = "engine.ray_address", settings.engine.ray_address
    if address is not None and not any(word.startswith(f"{key}=") for word in overrides):
        raise ConfigError(key, address, f"one that is named again: {key}={address}")
    return settings


def name_again(folder: Path, settings: RunSettings) -> str:
    """Return the arguments of ``fl-app run`` with which a run goes on, as typed in a shell."""
    named = dict.fromkeys(f"{key}={quote_text(path)}" for key, path in list_named_code(settings))
    if settings.engine.ray_address is not None:
        named[f"engine.ray_address={settings.engine.ray_address}"] = None
    return shlex.join([f"resume={quote_text(str(folder))}", *named])


def quote_text(value: str) -> str:
    """Write a text as a value of Hydra's overrides."""
    if _PLAIN.fullmatch(value):
        return value
    # A backslash stands for itself, but before a quote and before what would be looked up.
    escaped = re.sub(r'(\\*)(")', r"\1\1\\\2", value.replace("${", "\\${"))
    return '"' + re.sub(r"(\\+)\Z", r"\1\1", escaped) + '"'


def require_named_again(
    named: Iterable[tuple[str, str | None]], allowed: Iterable[str], how: str
) -> None:
    """Raise ConfigError if a folder's configuration names a function that the caller does not.

    Parameters
    ----------
    named : iterable of (str, str or None)
        Keys and import paths; None: none.
    allowed : iterable of str
        Import paths that the caller has named.
    how : str
        How to name one, with ``{key}`` and ``{path}`` in it.
    """
    known = set(allowed)
    for key, path in named:
        if path is not None and path not in known:
            rule = how.format(key=key, path=path)
            raise ConfigError(
                key, path, f"code of a run's folder runs if it is named again: {rule}"
            )
