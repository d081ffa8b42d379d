"""A mapping that can be a key of a cache, and survives every way of writing settings down."""

import copy
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_app.config import compose_settings
from fl_app.data import DataError, PartitionSettings
from fl_app.errors import ConfigError
from fl_app.plain_mapping import PlainMapping
from fl_app.run_config import read_run_settings, to_yaml
from fl_app.settings import RunSettings

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff")),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS), st.lists(st.lists(SCALARS)))
SETTINGS = compose_settings(["data.partition.kind=flwr_datasets"])


def with_arguments(arguments: PlainMapping) -> RunSettings:
    partition = dataclasses.replace(SETTINGS.data.partition, arguments=arguments)
    data = dataclasses.replace(SETTINGS.data, partition=partition)
    return dataclasses.replace(SETTINGS, data=data)


@given(st.dictionaries(st.text("abc_", min_size=1), VALUES))
def test_values_are_kept_and_survive_json_and_yaml(values):
    mapping = PlainMapping(values)
    assert dict(mapping) == values
    assert len(mapping) == len(values)
    made = with_arguments(mapping)
    for read in (RunSettings.from_json(made.to_json()), read_run_settings(to_yaml(made))):
        assert read == made
        assert hash(read) == hash(made)


def test_equal_means_the_same_values_of_the_same_types():
    assert PlainMapping({"a": 1, "b": (2,)}) == PlainMapping({"b": [2], "a": 1})
    assert len({PlainMapping({"a": value}) for value in (1, 1.0, True, "1", None)}) == 5
    assert PlainMapping({"a": 1}) != PlainMapping({"a": 1.0})
    assert PlainMapping({}) != {}


def test_nothing_that_is_handed_out_changes_it():
    inner = [1, 2]
    mapping = PlainMapping({"a": inner})
    inner.append(3)
    mapping["a"].append(4)
    assert mapping["a"] == [1, 2]
    assert copy.deepcopy(mapping) == mapping
    with pytest.raises(TypeError):
        mapping["a"] = 3


@pytest.mark.parametrize(
    "values",
    [
        {1: 2},
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": 2**63},
        {"a": {"b": 1}},
        {"a": [[[1]]]},
        {"a": [float("nan")]},
        {"a": object()},
    ],
)
def test_what_is_not_plain_is_refused(values):
    with pytest.raises(ValueError, match=r"; allowed: (finite numbers|text as)"):
        PlainMapping(values)


def test_arguments_come_from_the_command_line_as_they_are_written():
    word = "data.partition.arguments={alpha: 0.1, sizes: [1, 2], shuffle: true, mode: strict}"
    made = compose_settings([word]).data.partition.arguments
    assert made == PlainMapping({"alpha": 0.1, "sizes": [1, 2], "shuffle": True, "mode": "strict"})
    assert compose_settings([]).data.partition.arguments is None


def test_a_whole_number_is_a_name():
    """Of clients; JSON, by which settings travel, knows no other names than text."""
    made = compose_settings(["data.partition.arguments={1: 2, 3: 4}"])
    assert made.data.partition.arguments == PlainMapping({"1": 2, "3": 4})
    assert type(made).from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("3", "arguments: 3; allowed: a mapping"),
        ("alpha", "arguments: 'alpha'; allowed: a mapping"),
        ("[1]", "arguments: [1]; allowed: a mapping"),
        ("{b: 1, a: {b: 1}}", "arguments.a: {b: 1}; allowed: finite numbers, text"),
        ("{b: 1, a: nan}", "arguments.a: nan; allowed: finite numbers, text"),
        ("{1.5: 2}", "arguments.1.5: 2; allowed: text as its name"),
        ("{true: 2}", "arguments.True: 2; allowed: text as its name"),
    ],
)
def test_other_values_are_refused_by_name(value, words):
    with pytest.raises(ConfigError) as refused:
        compose_settings([f"data.partition.arguments={value}"])
    assert str(refused.value).startswith(f"data.partition.{words}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kind", "shards"),
        ("similarity", -0.1),
        ("similarity", 1.1),
        ("similarity", float("nan")),
        ("similarity", True),
        ("partitioner", "Partitioner"),
        ("partitioner", "VerticalEvenPartitioner"),
        ("arguments", {"alpha": 1}),
    ],
)
def test_settings_of_a_partition_name_the_bad_key(key, value):
    with pytest.raises(DataError, match=rf"data\.partition\.{key}: "):
        PartitionSettings(**{key: value})
