"""What a device's own data are, as its owner writes it: the key ``data`` beside ``data-path``.

A server that said how the owner's file is read could count with it: each group, label or window
that it names would be another question about the same records. So nothing of a run's settings about
data applies on a device that has data of its own.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from fl_app.conf_folder import find_conf
from fl_app.data.settings import DataSettings
from fl_app.data.sources import SOURCES
from fl_app.errors import ConfigError, list_choices
from fl_app.objectives.settings import LandmineSettings
from fl_app.structure import build

OWN_DATA_KEY = "data"
# Of a run's data: a device holds nothing out, and divides and fetches nothing.
NOT_OWN = (
    *("root", "partition", "test_fraction", "num_test_subjects", "test_split"),
    *("group", "writer_labels", "download"),
)
LANDMINE: Literal["landmine"] = "landmine"
NAMES = (*(name for name, source in SOURCES.items() if source.has_root), LANDMINE)
_EXAMPLE = """as data='{"name": "har_geotec", "stride": 128}'"""

OwnData = DataSettings | LandmineSettings


def read_own_data(node_config: Mapping[str, Any], path: Path | None) -> OwnData | None:
    """Return what the owner says of the data under `path`; None without one.

    The value is a JSON object of keys of conf/data; those that it does not name are as in
    conf/data/NAME.yaml. ``{"name": "landmine"}`` is the file of that objective.

    Raises
    ------
    ConfigError
        If there is a path without data or the other way round, or a key or a value is not allowed.
    """
    given = node_config.get(OWN_DATA_KEY)
    if path is None:
        if given is not None:
            raise ConfigError(OWN_DATA_KEY, given, "nothing without data-path")
        return None
    values = _parse(given)
    name = values.get("name")
    if not isinstance(name, str) or name not in NAMES:
        raise ConfigError(f"{OWN_DATA_KEY}.name", name, list_choices(str(name), NAMES))
    for key in values:
        if key in NOT_OWN or (name == LANDMINE and key != "name"):
            own = [each.name for each in dataclasses.fields(DataSettings)]
            keys = [key for key in own if key not in NOT_OWN] if name != LANDMINE else ["name"]
            raise ConfigError(f"{OWN_DATA_KEY}.{key}", values[key], ", ".join(keys))
    if name == LANDMINE:
        return LandmineSettings(LANDMINE, str(path))
    values = {**_read_defaults(name), **values, "root": str(path)}
    return build(DataSettings, values, f"{OWN_DATA_KEY}.")


def _parse(given: object) -> dict[str, Any]:
    rule = f"beside data-path, a JSON object of the keys of conf/data, {_EXAMPLE}"
    try:
        values = json.loads(given) if isinstance(given, str) else None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ConfigError(OWN_DATA_KEY, given, rule)
    return values


def _read_defaults(name: str) -> dict[str, Any]:
    """Return a source's values in conf/data, without Hydra."""
    found: dict[str, Any] = {}
    for file in ("defaults/keys", name):
        text = (find_conf() / "data" / f"{file}.yaml").read_text(encoding="utf-8")
        found.update(yaml.safe_load(text))
    return {key: each for key, each in found.items() if key not in (*NOT_OWN, "defaults")}
