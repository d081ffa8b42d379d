"""What a user names by import path, package.module:name."""

import importlib
import re
from collections.abc import Callable
from typing import Any

_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def check_import_path(key: str, path: object) -> None:
    """Raise ValueError, naming the key, unless `path` reads package.module:name."""
    if not isinstance(path, str) or _IMPORT_PATH.fullmatch(path) is None:
        raise ValueError(f"{key}: {path!r}; an import path package.module:name is needed")


def import_function(key: str, path: str) -> Callable[..., Any]:
    """Import the function, or another callable, that a path names.

    Parameters
    ----------
    key : str
        The setting's name, for messages.
    path : str
        package.module:name. The module must be importable where this runs.

    Raises
    ------
    ValueError
        If the module is not there, fails while it is imported, or has nothing callable under that
        name.
    """
    check_import_path(key, path)
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        # The module's own imports fail with the same error, but name something else.
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise ValueError(
                f"{key}: {path!r}; no module {missing} here: install it where this runs, or add "
                "its folder to PYTHONPATH"
            ) from error
        raise ValueError(
            f"{key}: {path!r}; importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, name):
        raise ValueError(f"{key}: {path!r}; a name that {module_name} has is needed")
    found = getattr(module, name)
    if not callable(found):
        raise ValueError(f"{key}: {path!r}; a function is needed, not a {type(found).__name__}")
    return found  # type: ignore[no-any-return]
