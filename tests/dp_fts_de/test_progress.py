"""What agents say of themselves: there and back, and what is not believed."""

import dataclasses
import json
import math
from typing import Any

import pytest
from flwr.app import MetricRecord
from hypothesis import given
from hypothesis import strategies as st

from strategies.dp_fts_de.progress import MAX_POINTS, Progress, read_progress, write_progress
from strategies.dp_fts_de.replies import OWN_METRICS, summarize
from tests.dp_fts_de.agents import make_parameters

PROGRESS = Progress(
    value=0.5,
    best_value=0.75,
    clipped=1.0,
    failures=0.0,
    outside=0.0,
    simple_regret=0.25,
    cumulative_regret=1.5,
    best_point=(0.25, 1.0),
    points=((0.0, 0.5), (0.25, 1.0)),
    values=(0.75, 0.5),
    is_shared=False,
    best_before=None,
)
numbers = st.floats(-1e29, 1e29)
coordinates = st.floats(0.0, 1.0)


@st.composite
def all_progress(draw: st.DrawFn) -> Progress:
    point = st.tuples(*[coordinates] * draw(st.integers(1, 4)))
    points = draw(st.lists(point, min_size=1, max_size=5))
    optional = st.none() | numbers
    failures = draw(st.integers(0, len(points)))
    outside = draw(st.integers(0, len(points) - failures))
    return Progress(
        *(draw(numbers) for _ in range(3)),
        *(float(failures), float(outside)),
        *(draw(optional) for _ in range(2)),
        best_point=draw(point),
        points=tuple(points),
        values=tuple(draw(numbers) for _ in points),
        is_shared=draw(st.booleans()),
        best_before=draw(optional),
    )


@given(all_progress())
def test_it_survives_json_and_a_message(progress: Progress) -> None:
    told = write_progress(progress)
    assert read_progress(json.loads(json.dumps(told))) == progress
    record = MetricRecord({"num-examples": 1, **told})
    assert read_progress(record) == progress
    assert type(read_progress(record).is_shared) is bool  # type: ignore[union-attr]


@pytest.mark.parametrize("name", sorted(write_progress(PROGRESS)))
def test_what_is_missing_or_of_another_kind_is_not_believed(name: str) -> None:
    told = write_progress(PROGRESS)
    optional = name.endswith("-regret")
    rest = {key: value for key, value in told.items() if key != name}
    assert (read_progress(rest) is None) is not optional
    broken: list[Any] = [math.nan, math.inf, 1e30, -1e30, "1", b"1", [1.0] * 3, [[1.0, 1.0]], []]
    if isinstance(told[name], list):
        broken += [[*told[name][:-1], bad] for bad in (math.nan, -math.inf, 1e30, "1", None)]
        broken += [1.0, [0.5] * 10]
        if name != "values":
            broken += [[*told[name][:-1], bad] for bad in (-0.01, 1.01)]
    if name == "is-shared":
        broken += [2, -1, 0.5]
    if name in ("failures", "outside"):
        broken += [-1.0, 0.5, 3.0]
    both = {**told, "failures": 1.0, "outside": 2.0}
    assert read_progress(both) is None
    for value in broken:
        assert read_progress({**told, name: value}) is None, value
    assert read_progress({}) is None


def test_it_is_bounded_in_size() -> None:
    for count, believed in ((MAX_POINTS, True), (MAX_POINTS + 1, False)):
        many = dataclasses.replace(PROGRESS, points=((0.5, 0.5),) * count, values=(1.0,) * count)
        assert (read_progress(write_progress(many)) is not None) is believed
    wide = dataclasses.replace(PROGRESS, best_point=(0.5,) * 65, points=((0.5,) * 65,) * 2)
    assert read_progress(write_progress(wide)) is None


def test_it_has_the_axes_and_as_many_queries_as_a_round_of_the_run_can_have() -> None:
    def fits(count: int, is_shared: bool = False, **changes: Any) -> bool:
        each = dataclasses.replace(
            PROGRESS, points=((0.5, 0.5),) * count, values=(1.0,) * count, is_shared=is_shared
        )
        return each.fits(make_parameters(**changes))

    assert [fits(n) for n in (1, 4, 5)] == [True, True, False]
    assert [fits(n, is_shared=True) for n in (1, 2)] == [True, False]
    assert not fits(1, dimension=3)


def test_the_sharing_gain_is_that_of_the_agents_that_queried_the_broadcast() -> None:
    def agent(value: float, before: float | None, is_shared: bool) -> Progress:
        return dataclasses.replace(PROGRESS, value=value, best_before=before, is_shared=is_shared)

    own = agent(9.0, 1.0, is_shared=False)
    shared = [agent(3.0, 1.0, is_shared=True), agent(-1.0, 0.5, is_shared=True)]
    assert summarize([own, *shared])["sharing_gain"] == 0.25
    assert summarize([own, agent(9.0, None, is_shared=True)])["sharing_gain"] is None
    assert summarize([]) == dict.fromkeys(OWN_METRICS)
