"""A search space: from YAML, to the unit cube and back, and what is refused."""

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fl_app.errors import ConfigError
from fl_app.search_space import Axis, ChoiceAxis, IntegerAxis, RealAxis, SearchSpace
from strategies.mechanisms.parameter_checks import ParameterError

TEXT = """
- {name: learning_rate, kind: log_float, low: 1.0e-4, high: 1}
- {name: momentum, kind: float, low: -1, high: 0.5}
- {name: layers, kind: integer, low: 1, high: 4}
- {name: batch_size, kind: log_integer, low: 4, high: 64}
- {name: activation, kind: choice, values: [relu, tanh, 1, 1.0, true]}
"""
SPACE = SearchSpace.from_plain(yaml.safe_load(TEXT))
FALSE_POSITIVE_RATE = 1e-6


def make_axis(**values) -> Axis:
    return SearchSpace.from_plain([{"name": "a", **values}]).axes[0]


finite = st.floats(-1e12, 1e12)
positive = st.floats(math.log(1e-12), math.log(1e12)).map(math.exp)
integers = st.integers(-(10**9), 10**9)
whole = st.integers(1, 10**9)


@st.composite
def real_axes(draw):
    kind, numbers = draw(st.sampled_from([("float", finite), ("log_float", positive)]))
    low, high = sorted((draw(numbers), draw(numbers)))
    scale = abs(low) if kind == "log_float" else max(abs(low), abs(high), 1e-3)
    return RealAxis("a", kind, low, high if high - low > 1e-6 * scale else low + scale)


@st.composite
def integer_axes(draw):
    kind, numbers = draw(st.sampled_from([("integer", integers), ("log_integer", whole)]))
    low, high = sorted((draw(numbers), draw(numbers)))
    return IntegerAxis("a", kind, low, high + 1)


choice_axes = st.lists(st.text(max_size=3), min_size=2, max_size=20, unique=True).map(
    lambda values: ChoiceAxis("a", "choice", tuple(values))
)
axes = st.one_of(real_axes(), integer_axes(), choice_axes)
units = st.floats(0.0, 1.0)


def test_yaml_becomes_axes():
    assert SPACE.names == ("learning_rate", "momentum", "layers", "batch_size", "activation")
    assert SPACE.axes == (
        RealAxis("learning_rate", "log_float", 1e-4, 1.0),
        RealAxis("momentum", "float", -1.0, 0.5),
        IntegerAxis("layers", "integer", 1, 4),
        IntegerAxis("batch_size", "log_integer", 4, 64),
        ChoiceAxis("activation", "choice", ("relu", "tanh", 1, 1.0, True)),
    )
    assert SPACE.dimension == 5
    assert SPACE.is_splittable == (True, True, True, True, False)
    assert hash(SPACE) == hash(SearchSpace.from_plain(yaml.safe_load(TEXT)))
    with pytest.raises(FrozenInstanceError):
        SPACE.axes = ()


def test_places_become_the_expected_values():
    middle = SPACE.decode(np.full(5, 0.5))
    assert middle == {
        "learning_rate": pytest.approx(1e-2),
        "momentum": -0.25,
        "layers": 3,
        "batch_size": 15,  # sqrt(3.5 * 64.5) = 15.02
        "activation": 1,
    }
    assert [type(value) for value in middle.values()] == [float, float, int, int, int]
    ends = [list(SPACE.decode(np.full(5, end)).values()) for end in (0.0, 1.0)]
    assert ends[0] == [1e-4, -1.0, 1, 4, "relu"]
    assert ends[1] == [1.0, 0.5, 4, 64, True]
    assert ends[1][4] is True
    assert SPACE.decode(np.full(5, 0.79))["activation"] == 1.0
    assert type(SPACE.decode(np.full(5, 0.79))["activation"]) is float


def test_values_become_the_expected_places():
    place = SPACE.encode(
        {"activation": True, "batch_size": 4, "layers": 1, "momentum": 0.5, "learning_rate": 1e-3}
    )
    log_cell = math.log(4.5 / 3.5) / math.log(64.5 / 3.5)
    low = math.log(math.sqrt(4.5 * 3.5) / 3.5) / math.log(64.5 / 3.5)
    assert place.tolist() == pytest.approx([0.25, 1.0, 0.125, low, 0.9])
    assert low == pytest.approx(log_cell / 2)


@given(axis=axes, unit=units)
def test_a_value_comes_back_from_its_place(axis, unit):
    value = axis.from_unit(unit)
    place = axis.to_unit(value)
    assert 0.0 <= place <= 1.0
    again = axis.from_unit(place)
    assert type(again) is type(value)
    if isinstance(axis, RealAxis):
        assert axis.low <= value <= axis.high
        assert again == pytest.approx(value, rel=1e-9, abs=1e-9 * (axis.high - axis.low))
        assert place == pytest.approx(unit, abs=1e-6)
    else:
        assert again == value
        assert axis.to_unit(again) == place


@given(axis=st.one_of(real_axes(), integer_axes()), pair=st.tuples(units, units))
def test_ordered_axes_are_increasing_and_reach_both_ends(axis, pair):
    one, two = sorted(pair)
    assert axis.from_unit(one) <= axis.from_unit(two)
    assert axis.from_unit(0.0) == axis.low
    assert axis.from_unit(1.0) == axis.high
    assert axis.is_splittable


@given(axis=integer_axes(), unit=units)
def test_a_place_is_within_its_integer_s_cell(axis, unit):
    value = axis.from_unit(unit)
    if axis.kind == "integer":
        assert abs(axis.to_unit(value) - unit) <= 0.5 / (axis.high - axis.low + 1) + 1e-12
    else:
        width = math.log1p(1 / (value - 0.5))
        ends = math.log1p((axis.high - axis.low + 1) / (axis.low - 0.5))
        assert abs(axis.to_unit(value) - unit) <= 0.5 * width / ends + 1e-9


@given(axis=st.one_of(integer_axes(), choice_axes))
def test_every_value_has_a_place(axis):
    values = axis.values if isinstance(axis, ChoiceAxis) else (axis.low, axis.high)
    for value in values:
        assert axis.from_unit(axis.to_unit(value)) == value


def count_draws(axis, probabilities):
    """Return the chi-square test's p-value of 100,000 uniform draws."""
    rng = np.random.default_rng(0)
    drawn = [axis.from_unit(float(unit)) for unit in rng.random(100_000)]
    values = getattr(
        axis, "values", range(axis.low, axis.high + 1) if axis.kind != "choice" else ()
    )
    counts = np.array([drawn.count(value) for value in values])
    return stats.chisquare(counts, 100_000 * np.asarray(probabilities)).pvalue


def test_uniform_draws_have_equal_choices_and_integers():
    five = ChoiceAxis("a", "choice", tuple("abcde"))
    assert count_draws(five, np.full(5, 0.2)) > FALSE_POSITIVE_RATE
    assert count_draws(five, [0.19, 0.2, 0.2, 0.2, 0.21]) < FALSE_POSITIVE_RATE
    # rounding low + u (high - low) would give the ends half of what the others get
    four = IntegerAxis("a", "integer", 3, 6)
    assert count_draws(four, np.full(4, 0.25)) > FALSE_POSITIVE_RATE
    assert count_draws(four, np.array([1, 2, 2, 1]) / 6) < FALSE_POSITIVE_RATE
    logarithmic = IntegerAxis("a", "log_integer", 1, 4)
    edges = np.log([0.5, 1.5, 2.5, 3.5, 4.5])
    expected = np.diff(edges) / (edges[-1] - edges[0])
    assert count_draws(logarithmic, expected) > FALSE_POSITIVE_RATE
    assert count_draws(logarithmic, np.full(4, 0.25)) < FALSE_POSITIVE_RATE


def test_snapping_makes_equal_points_equal_places():
    one, two = (SPACE.snap(np.array([0.3, 0.7, unit, unit, unit])) for unit in (0.27, 0.28))
    assert np.array_equal(one, two)
    assert one[:2].tolist() == pytest.approx([0.3, 0.7])
    assert SPACE.decode(one) == SPACE.decode(np.array([one[0], one[1], 0.27, 0.27, 0.27]))
    assert np.array_equal(SPACE.snap(one)[2:], one[2:])


BAD_AXES = [
    ({"name": "a"}, r"^search_space\[0\].kind: missing; allowed: float or log_float or"),
    ({"name": "a", "kind": "real"}, r"space\[0\].kind: 'real'; allowed: .* or choice"),
    (
        {"name": "a", "kind": "logfloat", "low": 1, "high": 2},
        r"kind: 'logfloat'; allowed: float or",
    ),
    ({"name": "a", "low": 1, "high": 2}, r"space\[0\].kind: missing; allowed: float or"),
    ({"name": "a", "kind": 3}, r"space\[0\].kind: 3;"),
    ({"kind": "float", "low": 0, "high": 1}, r"space\[0\].name: missing"),
    ({"name": "a b", "kind": "float", "low": 0, "high": 1}, r"space\[0\].name: 'a b'"),
    ({"name": "", "kind": "float", "low": 0, "high": 1}, r"space\[0\].name: ''"),
    ({"name": "a", "kind": "float", "low": 0}, r"space\[0\].high: missing"),
    ({"name": "a", "kind": "float", "low": 0, "heigh": 1}, "did you mean .*high"),
    ({"name": "a", "kind": "float", "low": 0, "high": 1, "values": [1]}, "values: unknown key"),
    ({"name": "a", "kind": "float", "low": "0", "high": 1}, r"low: '0'; .*without quotes"),
    ({"name": "a", "kind": "float", "low": True, "high": 2}, "low: true"),
    ({"name": "a", "kind": "float", "low": math.nan, "high": 2}, "low: nan"),
    ({"name": "a", "kind": "float", "low": 0, "high": math.inf}, "high: inf"),
    ({"name": "a", "kind": "float", "low": 1, "high": 1}, r"space\[0\].high: 1.0; .*> low = 1.0"),
    (
        {"name": "a", "kind": "float", "low": -1e308, "high": 1e308},
        "high: 1e.*high - low is finite",
    ),
    (
        {"name": "a", "kind": "log_float", "low": 0, "high": 1},
        "low: 0.0; .*> 0 with kind log_float",
    ),
    ({"name": "a", "kind": "integer", "low": 0, "high": 1.5}, r"high: 1.5; .*an integer"),
    ({"name": "a", "kind": "integer", "low": 3, "high": 2}, r"\[0\].high: 2"),
    ({"name": "a", "kind": "integer", "low": 0, "high": 2**31}, r"\[0\].high: 2147483648"),
    ({"name": "a", "kind": "integer", "low": 2**52, "high": 2**52 + 9}, "high: 4503599627370505"),
    (
        {"name": "a", "kind": "log_integer", "low": 0, "high": 2},
        "low: 0; .*1 with kind log_integer",
    ),
    ({"name": "a", "kind": "choice", "values": []}, r"\[0\].values: \[\]; .*two values"),
    ({"name": "a", "kind": "choice", "values": ["x"]}, "two values"),
    ({"name": "a", "kind": "choice", "values": ["x", "y", "x"]}, "two values or more, each once"),
    ({"name": "a", "kind": "choice", "values": "xy"}, r"space\[0\].values: 'xy'"),
    ({"name": "a", "kind": "choice", "values": ["x", None]}, r"values\[1\]: null"),
]


@pytest.mark.parametrize(("axis", "message"), BAD_AXES)
def test_bad_axes_are_refused_by_key(axis, message):
    with pytest.raises(ConfigError, match=message):
        SearchSpace.from_plain([axis])


def test_bad_lists_of_axes_are_refused():
    good = {"name": "a", "kind": "float", "low": 0, "high": 1}
    for axes, message in (
        ([], "a list of 1 to 64"),
        ([{**good, "name": f"a{i}"} for i in range(65)], "a list of 1 to 64"),
        ([good, {**good, "name": "b"}, good], r"^objective.search_space\[2\].name: 'a'; .*once"),
        (good, "search_space: {"),
        (["a"], r"^search_space\[0\]: 'a'; allowed: a group of keys"),
    ):
        with pytest.raises(ConfigError, match=message):
            SearchSpace.from_plain(axes)


@pytest.mark.parametrize(
    "place",
    [np.full(4, 0.5), np.full((1, 5), 0.5), np.full(5, np.nan), np.full(5, 1.1), np.full(5, -1e-9)],
)
def test_places_outside_the_cube_are_refused(place):
    with pytest.raises(ParameterError, match=r"^unit: "):
        SPACE.decode(place)


@pytest.mark.parametrize(
    ("axis", "value"),
    [
        *((make_axis(kind="float", low=0, high=1), v) for v in (1.1, math.nan, True, "0.5", None)),
        *((make_axis(kind="integer", low=0, high=3), v) for v in (4, -1, 1.0, True, "1")),
        *((make_axis(kind="choice", values=["x", 1]), v) for v in ("y", 1.0, True, None)),
    ],
)
def test_values_that_an_axis_does_not_have_are_refused(axis, value):
    with pytest.raises(ParameterError, match=r"^a: "):
        axis.to_unit(value)


def test_points_with_other_names_are_refused():
    point = SPACE.decode(np.full(5, 0.5))
    for changed in ({**point, "more": 1}, {"layers": 1}, {}):
        with pytest.raises(ParameterError, match=r"^point: .*the names learning_rate, momentum"):
            SPACE.encode(changed)
