"""What an owner writes as KEY=VALUE is what Flower reads, however it is quoted."""

import configparser
import json
import re
import shlex

import pytest
import yaml
from flwr.common.config import parse_config_args
from hypothesis import given
from hypothesis import strategies as st

from fl_app.device_policy import read_policy
from fl_app.errors import ConfigError
from fl_app.node_config import NodeValue, read_pairs, write_pairs
from tests.conftest import REPOSITORY

HAR = '{"name": "har_geotec", "stride": 128}'


def as_flower_reads(values: dict[str, NodeValue]) -> dict[str, object]:
    return parse_config_args([write_pairs(values)])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("4", 4), ("-3", -3), ("0.5", 0.5), ("1e-5", 1e-5), ("1_000", 1000), ("true", True)),
        *(("false", False), ("inf", float("inf")), ("client", "client"), ("/data", "/data")),
        *(("", ""), ("True", "True"), ("007", "007"), (".5", ".5"), ("1979-05-27", "1979-05-27")),
        *(("/my data/ü", "/my data/ü"), ("4#5", "4#5"), ("C:\\new", "C:\\new"), ("a\tb", "a\tb")),
        *(('"/data"', "/data"), ("'/data'", "/data"), ('"4"', "4"), ('"a\\"b"', 'a"b')),
        *((HAR, HAR), (f"'{HAR}'", HAR), ('{"path": "a b=c"}', '{"path": "a b=c"}')),
        *(("dp_fedpaq,niss", "dp_fedpaq,niss"), ("mine:build", "mine:build"), ("a=b", "a=b")),
        *(("5\nmax-epsilon", "5\nmax-epsilon"), ("{broken", "{broken"), ('"open', '"open')),
    ],
)
def test_a_value_is_what_it_looks_like(text: str, value: NodeValue) -> None:
    assert as_flower_reads(read_pairs([f"key={text}"])) == {"key": value}
    for words in ([f"key={text}", "last=1"], [f"key={text} last=1"]):
        found = as_flower_reads(read_pairs(words))
        assert found == {"key": value, "last": 1}
        assert type(found["key"]) is type(value)


def test_several_in_one_word() -> None:
    """As a service file holds them, with the quotes that were needed before and without."""
    values = {"partition-id": 0, "data-path": "/my data", "data": HAR, "max-epsilon": 4}
    for word in (
        f"partition-id=0 data-path=/my data data={HAR} max-epsilon=4",
        f"  partition-id=0 data-path=\"/my data\"\n data='{HAR}'  max-epsilon=4 ",
    ):
        assert as_flower_reads(read_pairs([word])) == values
    assert read_pairs(["a= b=1", "", " "]) == {"a": "", "b": 1}


@pytest.mark.parametrize("name", ["/study allow-seeded=true", "/a  ", " b", "{x", '{"a": 1} c=2'])
def test_a_folder_s_name_is_no_policy(name: str) -> None:
    """Whoever named it decides on nothing but the name, where each value is a word of its own."""
    found = as_flower_reads(read_pairs(["max-epsilon=4", f"data-path={name}"]))
    assert found == {"max-epsilon": 4, "data-path": name}


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["max-epsilon=4", "max-epsilon=40"], "max-epsilon"),
        (["max-epsilon=4 max-epsilon=4"], "max-epsilon"),
        (["max-epsilon"], "node configuration"),
        (["max epsilon=4"], "node configuration"),
        (["a.b=4"], "node configuration"),
        (["=4"], "node configuration"),
        (['x="a\\q"'], "x"),
        (["x=\udcff"], "x"),
    ],
)
def test_no_word_is_passed_over(words: list[str], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_pairs(words)
    assert refused.value.key == key


@given(st.dictionaries(st.from_regex(r"[a-z][a-z-]*", fullmatch=True), st.text()))
def test_any_text_arrives_as_it_is(texts: dict[str, str]) -> None:
    assert as_flower_reads(dict(texts)) == texts


@given(st.text(st.characters(exclude_characters="\"'{= +-", categories=["L", "P", "S"])))
def test_a_word_of_text_is_that_text(text: str) -> None:
    found = as_flower_reads(read_pairs([f"key={text}", f"data={json.dumps({'path': text})}"]))
    assert isinstance(found["key"], str | float | bool | int)
    assert str(found["key"]).lower() == text.lower()
    assert json.loads(str(found["data"])) == {"path": text}


def test_what_the_readme_shows() -> None:
    """Its values pasted as they stand behind a device's port, and their quotes before."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"`(data='\{[^`]*\}')`", text)
    assert shown
    (line,) = re.findall(r"identity-key=\S+ trusted-peers=\S+", text)
    for word in shown:
        found = read_pairs(shlex.split(word))
        read_policy({**found, "partition-id": 0, "num-partitions": 2, "state-dir": "/s", **DATA})
    assert all(str(value).startswith("/etc/") for value in read_pairs(shlex.split(line)).values())


DATA = {"data-path": "/data"}
STATE = {"state-dir": "/state"}


def test_what_the_service_and_the_containers_show() -> None:
    unit = (REPOSITORY / "deploy/systemd/fl-app-supernode.service").read_text()
    (shown,) = re.findall(r"POLICY='(.*)'", unit)
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read_string(unit)
    assert parser["Service"]["ExecStart"].endswith(" ${POLICY}")  # one word, as it is
    policy = read_policy({**read_pairs([shown]), **STATE})
    assert policy.data is not None
    composed = yaml.safe_load((REPOSITORY / "deploy/compose.yaml").read_text())
    for name, service in composed["services"].items():
        if name.startswith("device"):
            words = shlex.split(service["command"])[5:]
            assert read_policy({**read_pairs(words), **STATE}).num_partitions == 2
