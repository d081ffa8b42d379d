"""The bound on small components, against simulated graphs and against an adversary."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.sparse_graph import (
    component_failure,
    edge_probability,
    least_component,
)

FALSE_POSITIVES = 1e-6


def count_failures(
    num_honest: int, probability: float, num_graphs: int, *, vanish: float = 0.0
) -> int:
    """Count graphs in which client 0 is in a small component that no mask leaves."""
    rng = np.random.default_rng(5)
    shape = (num_graphs, num_honest, num_honest)
    bits = np.triu(rng.random(shape) < probability, 1)
    bits |= bits.transpose(0, 2, 1)
    uploaded = rng.random(shape[:2]) >= vanish
    uploaded[:, 0] = True
    reached = np.zeros_like(uploaded)
    reached[:, 0] = True
    for _ in range(num_honest):
        reached |= (reached[:, :, None] & bits).any(axis=1) & uploaded
    leaving = (reached[:, :, None] & bits & ~reached[:, None, :]).any(axis=(1, 2))
    small = reached.sum(axis=1) < math.ceil(0.9 * num_honest - 1e-9)
    return int((small & ~leaving).sum())


@pytest.mark.parametrize(("num_honest", "vanish"), [(8, 0.0), (21, 0.0), (21, 0.5)])
def test_the_bound_holds_in_simulated_graphs_and_is_not_far_off(num_honest, vanish):
    probability = edge_probability(num_honest, num_honest, 1, failure=1e-2)
    graphs = 20_000
    failures = count_failures(num_honest, probability, graphs, vanish=vanish)
    assert binom.sf(failures - 1, graphs, 1e-2) > FALSE_POSITIVES
    assert failures > 0.5 * 1e-2 * graphs or vanish
    # A twin: a sixth fewer edges are too few, and this is seen.
    fewer = count_failures(num_honest, 0.85 * probability, graphs)
    assert binom.sf(fewer - 1, graphs, 1e-2) < FALSE_POSITIVES


def test_an_adversary_breaks_edges_that_do_not_depend_on_the_ready_set():
    """Groups of h tell one bit each; the target is then shown only those without an edge to it."""
    honest = 10
    probability = edge_probability(honest, honest, 1, failure=1e-3)
    rng = np.random.default_rng(6)
    asked = math.ceil(3 * honest / (1 - probability))
    bits = rng.random((200, asked)) < probability  # one of each group, and the target
    isolated = (~bits).sum(axis=1) >= honest - 1
    assert isolated.mean() > 0.95
    # Keys bound to the set: what a group tells says nothing about the target's bits in its set.
    fresh = rng.random((20_000, honest - 1)) < probability
    failures = int((~fresh).all(axis=1).sum())
    assert binom.sf(failures - 1, 20_000, 1e-3) > FALSE_POSITIVES


def test_the_terms_are_the_union_bound():
    p, honest = 0.3, 12
    total = sum(math.comb(honest - 1, s - 1) * (1 - p) ** (s * (honest - s)) for s in range(1, 11))
    value = component_failure(p, num_ready=honest, num_honest=honest, num_sets=1)
    assert value == pytest.approx(total, rel=2e-6)
    assert value >= total
    assert component_failure(p, num_ready=honest, num_honest=honest, num_sets=3) == pytest.approx(
        3 * total, rel=2e-6
    )


@given(st.floats(0.01, 0.9), st.integers(2, 20), st.integers(0, 20))
def test_larger_sets_are_covered(p, honest, more):
    sizes = range(1, math.ceil(0.9 * honest - 1e-9))
    largest = max(
        sum(math.comb(n - 1, s - 1) * (1 - p) ** (s * (n - s)) for s in sizes)
        for n in range(honest, honest + more + 1)
    )
    value = component_failure(p, num_ready=honest + more, num_honest=honest, num_sets=1)
    assert value >= min(1.0, largest)


@pytest.mark.parametrize(
    ("ready", "honest", "population"),
    [(30, 27, 30), (100, 50, 10_000), (1000, 700, 10**6), (5, 2, 9)],
)
def test_the_least_probability_is_returned(ready, honest, population):
    p = edge_probability(ready, honest, population)
    sizes = {"num_ready": ready, "num_honest": honest, "num_sets": population}
    assert (p * 2**32).is_integer()
    assert component_failure(p, **sizes) <= 1e-9
    assert component_failure(p - 2.0**-32, **sizes) > 1e-9


def test_degrees_are_logarithmic():
    degrees = [edge_probability(m, m, m) * (m - 1) for m in (30, 100, 1000, 4000)]
    assert degrees == sorted(degrees)
    # From a client's isolation alone: exp(-degree) times population = 1e-9.
    assert degrees[-1] == pytest.approx(math.log(4000 / 1e-9), rel=0.03)


def test_all_components_of_a_small_graph_by_enumeration():
    """Exact: all graphs of 5 clients, by the number of their edges."""
    pairs = list(combinations(range(5), 2))
    p, failing = 0.6, 0.0
    for code in range(1 << len(pairs)):
        reached = {0}
        edges = [pair for bit, pair in enumerate(pairs) if code >> bit & 1]
        for _ in range(4):
            reached |= {j for pair in edges if reached & set(pair) for j in pair}
        if len(reached) < least_component(5):
            failing += p ** len(edges) * (1 - p) ** (len(pairs) - len(edges))
    bound = component_failure(p, num_ready=5, num_honest=5, num_sets=1)
    assert failing <= bound < 1.5 * failing


def test_least_component():
    assert [least_component(h) for h in (2, 9, 10, 11, 20, 27, 30, 100)] == [
        *(2, 9, 9, 10, 18, 25, 27, 90)
    ]


@pytest.mark.parametrize(
    ("sizes", "key"),
    [
        ((10, 1, 5), "num_honest"),
        ((10, 11, 5), "num_honest"),
        ((1, 2, 5), "num_ready"),
        ((10, 5, 0), "num_sets"),
        ((10, 5, 5, 0.0), "failure"),
        ((10, 5, 5, 1.0), "failure"),
        ((10, 5, 5, math.nan), "failure"),
    ],
)
def test_bad_numbers_are_refused(sizes, key):
    with pytest.raises(ParameterError, match=key):
        edge_probability(*sizes)


def test_probabilities_outside_0_and_1_are_refused():
    for p in (-0.1, 1.1, math.nan, True):
        with pytest.raises(ParameterError, match="edge_probability"):
            component_failure(p, num_ready=5, num_honest=4, num_sets=1)
    assert component_failure(1.0, num_ready=5, num_honest=4, num_sets=10**6) == 0.0
    assert component_failure(0.0, num_ready=5, num_honest=4, num_sets=1) == 1.0
