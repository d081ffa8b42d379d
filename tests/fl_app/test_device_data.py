"""What an owner writes about a device's data: what it stands for, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args

from fl_app.config import compose_settings
from fl_app.data import DataSettings, PartitionSettings
from fl_app.data.sources import SOURCES
from fl_app.device_data import NAMES, NOT_OWN, read_own_data
from fl_app.errors import ConfigError
from fl_app.objectives import LandmineSettings


def read(values: dict[str, Any] | None = None, **keys: Any) -> object:
    return read_own_data({"data": json.dumps({**(values or {}), **keys})}, Path("/own"))


@pytest.mark.parametrize("name", [name for name in NAMES if name in SOURCES])
def test_what_is_not_named_is_as_in_conf(name: str) -> None:
    """Read without Hydra, it is what Hydra composes, without what a device does not have."""
    composed = compose_settings([f"data={name}", "num_clients=4"]).data
    found = read(name=name)
    assert isinstance(found, DataSettings)
    for key in DataSettings.__dataclass_fields__:
        if key not in NOT_OWN:
            assert getattr(found, key) == getattr(composed, key), key
    assert (found.root, found.partition) == ("/own", PartitionSettings())


def test_what_is_named_is_taken() -> None:
    found = read(name="hugging_face", features="a, b", label="y", classes=["no", "yes"], scale=2)
    assert found == DataSettings(
        *("hugging_face", "/own", 2.0, 0.0),
        features="a, b",
        label="y",
        classes=("no", "yes"),
    )
    assert read(name="landmine") == LandmineSettings("landmine", "/own")


def test_flower_s_node_configuration_carries_it() -> None:
    """As README writes it behind a device's port."""
    text = """state-dir="/s" data-path="/own" data='{"name": "har_geotec", "stride": 128}' a=1"""
    node = parse_config_args([text])
    assert read_own_data(node, Path(node["data-path"])) == read(name="har_geotec", stride=128)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        *(({"name": "har_geotec", key: 1}, f"data.{key}") for key in NOT_OWN),
        *(({"name": name}, "data.name") for name in ("digits", "mnist_writers", "", "../x", None)),
        ({}, "data.name"),
        ({"name": "har_geotec", "strid": 4}, "data.strid"),
        ({"name": "har_geotec", "stride": "4"}, "data.stride"),
        ({"name": "har_geotec", "stride": 0}, "data.stride"),
        ({"name": "mnist", "stride": 4}, "data.stride"),
        ({"name": "hugging_face", "classes": ["a", "a"]}, "data.classes"),
        ({"name": "landmine", "axes": "log"}, "data.axes"),
        ({"name": "user", "path": "os"}, "data.path"),
    ],
)
def test_what_is_not_allowed_is_named(values: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(values)
    assert refused.value.key == key


@pytest.mark.parametrize("given", [None, "", "[]", "{", 3, '"mnist"', "[" * 100_000])
def test_a_path_without_data_is_no_policy(given: object) -> None:
    with pytest.raises(ConfigError, match="har_geotec") as refused:
        read_own_data({} if given is None else {"data": given}, Path("/own"))
    assert refused.value.key == "data"
