import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.rng import SeededStream, Stream
from strategies.mechanisms.subregions import Subregions, assign_agents, split_domain

splits = st.lists(st.sampled_from([1, 1, 2, 4]), min_size=1, max_size=5).map(
    lambda cells: Subregions(tuple(cells))
)


@pytest.mark.parametrize(
    ("num_subregions", "num_dimensions", "splittable", "cells"),
    [
        (1, 3, None, (1, 1, 1)),
        (4, 2, None, (2, 2)),
        (2, 2, None, (2, 1)),
        (8, 2, None, (4, 2)),
        (4, 1, None, (4,)),
        (4, 3, None, (2, 2, 1)),
        (4, 3, (True, False, True), (2, 1, 2)),
        (8, 3, (False, False, True), (1, 1, 8)),
        (1, 2, (False, False), (1, 1)),
    ],
)
def test_the_longest_real_axis_is_halved_first(num_subregions, num_dimensions, splittable, cells):
    regions = split_domain(num_subregions, num_dimensions, splittable)
    assert regions.cells == cells
    assert regions.num_subregions == num_subregions


@pytest.mark.parametrize(
    ("key", "arguments"),
    [
        ("num_subregions", (3, 2)),
        ("num_subregions", (0, 2)),
        ("num_subregions", (True, 2)),
        ("num_dimensions", (4, 0)),
        ("splittable", (4, 2, (True,))),
        ("num_subregions", (2, 2, (False, False))),
    ],
)
def test_bad_splits_are_refused(key, arguments):
    with pytest.raises(ParameterError, match=key):
        split_domain(*arguments)


def test_bad_cells_and_indices_are_refused():
    for cells in ((), (3,), (2, 0)):
        with pytest.raises(ParameterError):
            Subregions(cells)
    for index in (-1, 4, 1.0):
        with pytest.raises(ParameterError, match="index"):
            Subregions((2, 2)).bounds(index)


def test_golden_quarters_and_their_edges():
    quarters = split_domain(4, 2)
    points = [[0.1, 0.1], [0.1, 0.9], [0.9, 0.1], [0.9, 0.9]]
    assert quarters.locate(points).tolist() == [0, 1, 2, 3]
    edges = [[0.5, 0.0], [0.0, 0.5], [0.5, 0.5], [1.0, 1.0], [0.0, 1.0], [np.nextafter(0.5, 0), 1]]
    assert quarters.locate(edges).tolist() == [2, 1, 3, 3, 1, 1]
    assert quarters.locate(np.empty((0, 2))).tolist() == []


@given(splits, st.data())
def test_each_point_is_in_exactly_one_box(regions, data):
    coordinates = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]))
    shape = (3, regions.num_dimensions)
    points = data.draw(hnp.arrays(np.float64, shape, elements=coordinates))
    found = regions.locate(points)
    for point, index in zip(points, found, strict=True):
        holders = []
        for box in range(regions.num_subregions):
            lower, upper = regions.bounds(box)
            inside = (point >= lower) & ((point < upper) | ((upper == 1.0) & (point == 1.0)))
            holders += [box] if inside.all() else []
        assert holders == [index]


@given(splits)
def test_boxes_have_equal_sides_and_fill_the_cube(regions):
    sides = []
    for box in range(regions.num_subregions):
        lower, upper = regions.bounds(box)
        sides.append(upper - lower)
        assert regions.locate((0.5 * (lower + upper))[None]).tolist() == [box]
    assert np.ptp(sides, axis=0).tolist() == [0.0] * regions.num_dimensions
    assert sum(math.prod(each) for each in sides) == 1.0


@pytest.mark.parametrize("outside", [-0.1, 1.0 + 1e-9, math.nan])
def test_points_outside_the_cube_are_refused(outside):
    with pytest.raises(ParameterError, match="points"):
        split_domain(4, 2).locate([[0.5, outside]])


def test_agents_take_boxes_in_turn():
    assert assign_agents(6, 4).tolist() == [0, 1, 2, 3, 0, 1]
    assert assign_agents(3, 1).tolist() == [0, 0, 0]
    for arguments in ((0, 4), (4, 0)):
        with pytest.raises(ParameterError):
            assign_agents(*arguments)


@pytest.mark.parametrize("index", range(8))
def test_initial_points_are_uniform_in_their_box(index):
    regions = split_domain(8, 2)
    points = regions.draw_points(index, 4000, SeededStream(b"init"))
    assert set(regions.locate(points)) == {index}
    lower, upper = regions.bounds(index)
    # 4 by 4 cells of the box, all equally likely: chi-squared at a rate of 1e-6.
    cells = np.floor((points - lower) / (upper - lower) * 4).astype(int)
    bound = stats.chi2.isf(1e-6, 15)
    counts = np.array(
        [(cells == each).all(axis=1).sum() for each in itertools.product(range(4), repeat=2)]
    )
    assert ((counts - 250.0) ** 2 / 250.0).sum() <= bound
    # The twin: twice as dense on one side.
    twin = counts * np.repeat([1.0, 1.0, 1.0, 1.4], 4)
    twin *= 4000 / twin.sum()
    assert ((twin - 250.0) ** 2 / 250.0).sum() > bound


def test_no_initial_point_rounds_up_to_the_next_box():
    class Largest(Stream):
        def words(self, size):
            return np.full(size, 2**64 - 1, dtype=np.uint64)

    regions = Subregions((4, 2, 1))
    for index in range(8):
        assert regions.locate(regions.draw_points(index, 2, Largest())).tolist() == [index] * 2
