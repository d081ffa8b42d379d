"""config.yaml of a run's folder: the whole configuration, written and read back."""

import json
from pathlib import Path
from typing import Any

import yaml

from fl_app.errors import ConfigError
from fl_app.override_errors import one_line
from fl_app.registry import check_settings
from fl_app.search_space import SearchSpace
from fl_app.settings import FORMAT_VERSION, RunSettings
from fl_app.structure import build


def build_settings(values: dict[str, Any]) -> RunSettings:
    """Build the settings of a run from plain values, and check them with its method.

    Raises
    ------
    ConfigError
        For whatever is not allowed: the key, its value and what is allowed.
    """
    settings = build(RunSettings, values)
    check_settings(settings)
    return settings


def to_yaml(settings: RunSettings) -> str:
    """Return the settings as YAML."""
    values = json.loads(settings.to_json())
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def read_run_config(text: str) -> dict[str, Any]:
    """Return what a run's config.yaml holds, as plain YAML: nothing in it is interpolated.

    Raises
    ------
    ConfigError
        If it is no YAML, or of another format version.
    """
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError("config.yaml", one_line(error), "what a run wrote") from error
    if not isinstance(values, dict):
        raise ConfigError("config.yaml", values, "what a run wrote")
    version = values.pop("format_version", None)
    if isinstance(version, bool) or version != FORMAT_VERSION:
        raise ConfigError("format_version", version, f"{FORMAT_VERSION} (config.yaml of a run)")
    return values


def read_run_settings(text: str) -> RunSettings:
    """Return the checked settings that a run's config.yaml holds."""
    return build_settings(read_run_config(text))


def read_run_space(folder: Path) -> SearchSpace:
    """Return the axes that a run has searched, as its config.yaml has them.

    Raises
    ------
    ConfigError
        If there is no such file, or the run has searched nothing.
    """
    from fl_app.run_files import CONFIG_FILE

    file = folder / CONFIG_FILE
    try:
        objective = read_run_settings(file.read_text(encoding="utf-8")).objective
    except (OSError, UnicodeDecodeError) as error:
        rule = f"a run's folder with {CONFIG_FILE} ({getattr(error, 'strerror', 'it is no text')})"
        raise ConfigError("ledger", str(folder), rule) from None
    if objective is None:
        raise ConfigError(
            "ledger", str(folder), "the folder of a search; without --best for others"
        )
    return objective.space()
