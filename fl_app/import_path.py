"""Objects of the user's own, by import path."""

import importlib
import platform
import re
from collections.abc import Callable
from typing import Any

from fl_app.errors import show

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def check_import_path(key: str, path: object) -> None:
    """Raise ValueError, naming the key, unless `path` reads ``package.module:name``."""
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        raise ValueError(f"{key}: {show(path)}; an import path package.module:name is needed")


def import_function(key: str, path: str) -> Callable[..., Any]:
    """Import the function, or another callable, that a path names.

    Parameters
    ----------
    key : str
        The configuration's key, for messages.
    path : str
        ``package.module:name``, the name with dots for something inside a class.

    Raises
    ------
    ValueError
        If the path is malformed, the module cannot be imported, or has nothing callable of that
        name. The module's own exceptions are among the reasons.
    """
    check_import_path(key, path)
    module_name, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(
                f"{key}: {path!r}; no module {error.name} is installed here ({platform.node()}): "
                "it is needed wherever the run executes"
            ) from error
        raise _explain(key, path, f"importing {module_name}", error) from error
    except (Exception, SystemExit) as error:
        raise _explain(key, path, f"importing {module_name}", error) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{key}: {path!r}; a name that {module_name} has is needed")
        found = getattr(found, part)
    if not callable(found):
        kind = type(found).__name__
        raise ValueError(f"{key}: {path!r}; a function is needed (this is a value of type {kind})")
    return found  # type: ignore[no-any-return]


def call_function(key: str, path: str, *arguments: Any) -> Any:
    """Import a function and call it; what it raises becomes a ValueError that names the key."""
    function = import_function(key, path)
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        raise _explain(key, path, f"{path.partition(':')[2]}{arguments!r}", error) from error


def _explain(key: str, path: str, action: str, error: BaseException) -> ValueError:
    reason = " ".join(str(error).split())
    return ValueError(f"{key}: {path!r}; {action} raised {type(error).__name__}: {reason}")
