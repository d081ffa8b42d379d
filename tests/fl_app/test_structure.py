"""Plain values become dataclasses only if every key and type is right."""

import math
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.errors import ConfigError, list_choices, show, unknown_key
from fl_app.structure import build


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    kind: Literal["one", "two"] = "one"

    def __post_init__(self):
        if self.rate > 100:
            raise ValueError(f"inner.rate: {self.rate!r}; at most 100 is needed")


@dataclass(frozen=True)
class Outer:
    count: int
    limit: float | None = None
    name: str | None = None
    steps: int | None = None
    flag: bool = False
    inner: Inner = field(default_factory=Inner)


def test_values_land_in_their_fields():
    values = {"count": 3, "limit": 2, "name": "a", "flag": True, "inner": {"kind": "two"}}
    built = build(Outer, values)
    assert built == Outer(3, 2.0, "a", None, True, Inner(0.5, "two"))
    assert isinstance(built.limit, float)


def test_null_is_allowed_where_it_is_a_choice():
    assert build(Outer, {"count": 1, "limit": None}).limit is None
    with pytest.raises(ConfigError, match=r"^count: null; allowed: an integer$"):
        build(Outer, {"count": None})


WRONG = [
    ({"count": 1.5}, "count: 1.5; allowed: an integer"),
    ({"count": 3.0}, "count: 3.0; allowed: an integer (write 3)"),
    ({"count": True}, "count: true; allowed: an integer"),
    ({"count": "3"}, "count: '3'; allowed: an integer (this is text; write 3 without quotes)"),
    ({"count": "3.5"}, "count: '3.5'; allowed: an integer"),
    ({"count": "1e-05"}, "count: '1e-05'; allowed: an integer"),
    ({"count": [1]}, "count: [1]; allowed: an integer"),
    ({"count": {"a": None}}, "count: {a: null}; allowed: an integer"),
    ({"count": 1, "limit": math.nan}, "limit: nan; allowed: a finite number or null"),
    ({"count": 1, "limit": -math.inf}, "limit: -inf; allowed: a finite number or null"),
    ({"count": 1, "limit": False}, "limit: false; allowed: a finite number or null"),
    ({"count": 1, "limit": "nan"}, "limit: 'nan'; allowed: a finite number or null"),
    (
        {"count": 1, "limit": "1e-05"},
        "limit: '1e-05'; allowed: a finite number or null (this is text; write 1e-05 without "
        "quotes)",
    ),
    ({"count": 1, "name": True}, "name: true; allowed: text or null"),
    (
        {"count": 1, "name": 7},
        "name: 7; allowed: text or null (this is a number; write '\"7\"' for text)",
    ),
    ({"count": 1, "flag": 1}, "flag: 1; allowed: true or false"),
    ({"count": 1, "flag": "yes"}, "flag: 'yes'; allowed: true or false"),
    ({"count": 1, "inner": None}, "inner: null; allowed: a group of keys"),
    ({"count": 1, "inner": 3}, "inner: 3; allowed: a group of keys"),
    ({"count": 1, "inner": {"kind": "three"}}, "inner.kind: 'three'; allowed: one or two"),
    # What the wrong choice makes unknown is not blamed.
    (
        {"count": 1, "inner": {"other": 1, "kind": "three"}},
        "inner.kind: 'three'; allowed: one or two",
    ),
    ({"count": 1, "inner": {"kind": ["one"]}}, "inner.kind: ['one']; allowed: one or two"),
    ({"count": 1, "inner": {"kind": False}}, "inner.kind: false; allowed: one or two"),
    ({"count": 1, "inner": {"rate": 101}}, "inner.rate: 101.0; at most 100 is needed"),
    ({}, "count: missing; allowed: an integer"),
    ({"count": 1, "limits": 2}, "limits: unknown key; did you mean limit? allowed: "),
    ({"count": 1, "inner": {"rat": 2}}, "inner.rat: unknown key; did you mean inner.rate? "),
    ({"count": 1, 5: 2}, "5: unknown key; allowed: count, flag, inner, limit, name, steps"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_what_is_wrong_is_named(values, message):
    with pytest.raises(ConfigError) as caught:
        build(Outer, values)
    if message.endswith((" ", ": ")):
        assert str(caught.value).startswith(message)
    else:
        assert str(caught.value) == message


@pytest.mark.parametrize("whole", [None, [], "text", 3])
def test_a_whole_that_is_no_mapping_is_refused(whole):
    with pytest.raises(ConfigError, match=r"^configuration: .*; allowed: a group of keys$"):
        build(Outer, whole)


def test_an_integer_beyond_every_float_is_refused():
    with pytest.raises(ConfigError, match=r"^limit: 10{199}\.\.\.; allowed: a finite number"):
        build(Outer, {"count": 1, "limit": 10**400})
    for large in (2**63, -(2**63) - 1):
        with pytest.raises(
            ConfigError, match=rf"^count: {large}; allowed: an integer \(64 bits\)$"
        ):
            build(Outer, {"count": large})
    assert build(Outer, {"count": -(2**63)}).count == -(2**63)
    assert build(Outer, {"count": 2**63 - 1}).count == 2**63 - 1


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
KEYS = st.sampled_from(["count", "limit", "name", "steps", "flag", "inner", "other"])


@settings(deadline=None)
@given(st.dictionaries(KEYS, ANYTHING))
def test_any_value_is_either_kept_or_refused(values):
    try:
        built = build(Outer, values)
    except ConfigError:
        return
    assert type(built.count) is int
    assert built.limit is None or (type(built.limit) is float and math.isfinite(built.limit))
    assert type(built.flag) is bool
    assert type(built.inner) is Inner
    for key in set(values) - {"inner"}:
        assert getattr(built, key) == values[key]


def test_a_suggestion_from_elsewhere_is_the_second_choice():
    keys = ["strategy.target_epsilon", "strategy.seeds"]
    assert "did you mean seed?" in str(unknown_key("sed", ["seed"], "", keys))
    assert "did you mean strategy.target_epsilon?" in str(
        unknown_key("target_eps", ["seed"], "", keys)
    )
    assert "did you mean" not in str(unknown_key("xyz", ["seed"], "", keys))


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *(("rum", "run"), ("minst", "mnist"), ("landmin", "landmine"), ("synth", "synthetic")),
        *(("epsilon", "target_epsilon"), ("fedpaq", "dp_fedpaq")),
        *(("mine", None), ("raining", None)),
    ],
)
def test_only_what_is_near_is_suggested(word, meant):
    """A word of one's own that happens to lie within another is not a slip."""
    known = [
        "run",
        "mnist",
        "landmine",
        "synthetic",
        "target_epsilon",
        "dp_fedpaq",
        "local_training",
    ]
    suggested = f"; did you mean {meant}?" if meant else ""
    assert list_choices(word, known) == ", ".join(known) + suggested


def test_values_are_shown_as_yaml_writes_them():
    assert (
        show({"a": None, "b": True, "c": "x", "d": 1e-5}) == "{a: null, b: true, c: 'x', d: 1e-05}"
    )
    error = ConfigError("key", False, "true")
    assert (error.key, error.value, error.allowed) == ("key", False, "true")
    assert str(ConfigError("a", 1, "all of:\n- b\n- c\nd")) == "a: 1; allowed: all of: b; c d"
    assert str(ConfigError.from_text("a: 1; b\nc")) == "a: 1; b c"
    parsed = ConfigError.from_text("a.b: 3; at most 2 is needed")
    assert (parsed.key, parsed.value, parsed.allowed) == ("a.b", "3", "at most 2 is needed")
    assert str(parsed) == "a.b: 3; at most 2 is needed"
