"""What was wrong with an override that Hydra could not apply, in the user's terms."""

from typing import Any

from fl_app.errors import ConfigError, list_choices, unknown_key


def explain_override(word: str, fault: Exception, whole: dict[str, Any]) -> ConfigError:
    """Say what is wrong with the override with which composing failed.

    Parameters
    ----------
    word : str
        The override.
    fault : Exception
        What Hydra raised.
    whole : dict
        The configuration that Hydra composes without the override.
    """
    key, _, value = word.lstrip("+").partition("=")
    if missing := getattr(fault, "missing_cfg_file", None):
        group, _, choice = missing.rpartition("/")
        options = sorted(getattr(fault, "options", None) or ())
        return ConfigError(group or key, choice, list_choices(choice, options))
    text = one_line(fault)
    if text.startswith(("Could not override", "Error merging override")):
        return _explain_key(key, value, fault, whole)
    if text.startswith("Could not append"):
        return ConfigError("argument", word, f"{key}={value} (the key exists: no + is needed)")
    if text.startswith("Config group override must be"):
        return ConfigError(key, value, f"the name of a file in conf/{key}")
    return ConfigError(key, value, f"what can be read ({text})")


def list_keys(values: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the full names of all keys but Hydra's own."""
    keys = []
    for key, value in values.items():
        if prefix or key != "hydra":
            keys.append(f"{prefix}{key}")
            keys += list_keys(value, f"{prefix}{key}.") if isinstance(value, dict) else []
    return keys


def one_line(error: BaseException) -> str:
    """Return an error's message on one line, or the error's name if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message: where Hydra and OmegaConf say what is wrong."""
    return one_line(error) if not str(error).strip() else str(error).strip().splitlines()[0]


def _explain_key(key: str, value: str, fault: Exception, whole: dict[str, Any]) -> ConfigError:
    """Find the part of a key's name that does not exist."""
    node: Any = whole
    parts = key.split(".")
    for depth, part in enumerate(parts):
        prefix = "".join(f"{each}." for each in parts[:depth])
        if not isinstance(node, dict):
            return ConfigError(key, value, f"no key below {prefix[:-1]}, which is one value")
        if part not in node:
            known = [str(name) for name in node if depth or name != "hydra"]
            return unknown_key(part, known, prefix, list_keys(whole))
        node = node[part]
    return ConfigError(key, value, f"what fits the key ({first_line(fault.__cause__ or fault)})")
