"""One agent moves all sub-regions' sums together by no more than the noise is made for.

Neighbours: one agent's vectors are zero. What counts is the difference of all P releases, each
divided by its largest weight, as one vector. Twins show that the bound is no looser than it must
be, and that it rests on constants over all agents.
"""

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.dp_fts_de.algorithm import release_mechanism, release_sums, weigh_agents
from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.mechanisms.rng import SeededStream

M = 7
Floats = np.ndarray


@dataclass(frozen=True)
class Neighbours:
    """The sample's vectors by agent, and the one of them that is zero on the other side."""

    parameters: DpFtsDeParameters
    server_round: int
    vectors: dict[int, Floats]
    zeroed: int

    def release(self, vectors: dict[int, Floats]) -> Floats:
        none = SeededStream(b"")
        t, agents = self.server_round, list(vectors)
        return release_sums(self.parameters, t, agents, list(vectors.values()), none)

    @property
    def without(self) -> dict[int, Floats]:
        return {**self.vectors, self.zeroed: np.zeros(M)}

    def move(self, one: Floats, other: Floats, largest: Floats | None = None) -> float:
        if largest is None:
            largest = weigh_agents(self.parameters, self.server_round).largest
        return float(np.linalg.norm((one - other) / largest[:, None]))

    @property
    def published_bound(self) -> float:
        """S / q."""
        assert self.parameters.clipping_norm is not None
        return self.parameters.clipping_norm / self.parameters.sample_rate


@st.composite
def neighbours(draw: st.DrawFn) -> Neighbours:
    num_agents = draw(st.integers(1, 12))
    constant, fall = draw(st.integers(0, 15)), draw(st.integers(0, 40))
    parameters = DpFtsDeParameters(
        num_agents=num_agents,
        dimension=3,
        num_random_features=M,
        num_subregions=draw(st.sampled_from([1, 2, 4, 8])),
        mode=draw(st.sampled_from(["sound", "paper"])),
        noise_multiplier=0.0,
        clipping_norm=draw(st.floats(0.01, 100.0)),
        sample_rate=draw(st.floats(0.05, 1.0)),
        emphasis_start=draw(st.floats(1.0, 30.0)),
        emphasis_rounds=constant,
        emphasis_fall_rounds=fall,
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    present = rng.permutation(num_agents)[: draw(st.integers(1, num_agents))]
    sizes = parameters.clipping_norm * 10.0 ** rng.uniform(-2, 2, len(present))
    vectors = {int(n): size * rng.normal(size=M) for n, size in zip(present, sizes, strict=True)}
    server_round = draw(st.integers(1, constant + fall + 3))
    return Neighbours(parameters, server_round, vectors, int(present[0]))


@settings(max_examples=200, deadline=None)
@given(neighbours())
def test_neighbours_differ_by_the_sensitivity_at_most(case: Neighbours) -> None:
    whole, without = case.release(case.vectors), case.release(case.without)
    moved = case.move(whole, without)
    bound = release_mechanism(case.parameters, case.server_round).sensitivity.value
    weights = weigh_agents(case.parameters, case.server_round)
    # By the definition: c_t = max_n sqrt((1/P) sum_i (phi_n^(i) / phi_max^(i))^2).
    ratios = weights.weights / weights.weights.max(axis=0)
    c = max(math.sqrt(sum(r * r for r in row) / len(row)) for row in ratios)
    factor = c if case.parameters.mode == "sound" else 1.0
    assert math.isclose(bound, factor * case.published_bound, rel_tol=1e-9)
    assert moved <= bound * (1.0 + 1e-9)
    # An agent that is absent is one that is zero.
    others = {n: each for n, each in case.vectors.items() if n != case.zeroed}
    np.testing.assert_allclose(case.release(others), without, rtol=1e-9, atol=1e-12 * bound)
    # It is attained: by the agent that weighs most, with a vector that is clipped.
    heaviest = int(np.argmax((ratios**2).sum(axis=1)))
    alone = case.release({heaviest: np.full(M, 1e3 * case.published_bound)})
    reached = case.move(alone, np.zeros_like(alone))
    assert math.isclose(reached, c * case.published_bound, rel_tol=1e-9)


def eight_agents(vectors: dict[int, Floats], num_subregions: int, server_round: int) -> Neighbours:
    parameters = DpFtsDeParameters(
        num_agents=8,
        dimension=2,
        num_random_features=M,
        num_subregions=num_subregions,
        noise_multiplier=0.0,
        clipping_norm=2.0,
        sample_rate=0.5,
    )
    return Neighbours(parameters, server_round, vectors, 3)


def test_twins_with_other_largest_weights_break_the_bound() -> None:
    rng = np.random.default_rng(0)
    # In round 38 a_t is 2, and c_t .59.
    case = eight_agents({n: 100.0 * rng.normal(size=M) for n in range(8)}, 4, 38)
    bound = release_mechanism(case.parameters, 38).sensitivity.value
    whole, without = case.release(case.vectors), case.release(case.without)
    assert bound * (1.0 - 1e-9) <= case.move(whole, without) <= bound * (1.0 + 1e-9)
    weights = weigh_agents(case.parameters, 38).weights
    # Over some of the agents, none of box 3; the smallest; the mean.
    for largest in (weights[[0, 1, 2]].max(axis=0), weights.min(axis=0), weights.mean(axis=0)):
        assert case.move(whole, without, largest) > bound * 1.05


def test_a_twin_whose_weights_add_up_to_one_over_who_is_there_breaks_the_bound() -> None:
    """One absence then shifts everybody's weights, and the sum by up to twice S / q."""
    case = eight_agents({n: np.full(M, 1e3 if n == 3 else -1e3) for n in range(8)}, 1, 1)
    largest = weigh_agents(case.parameters, 1).largest

    def twin(vectors: dict[int, Floats]) -> Floats:
        weights = weigh_agents(case.parameters, 1).weights
        there = [n for n, each in vectors.items() if each.any()]
        return case.release(vectors) / weights[there].sum(axis=0)[:, None]

    moved = case.move(case.release(case.vectors), case.release(case.without))
    assert math.isclose(moved, case.published_bound, rel_tol=1e-9)
    shifted = case.move(twin(case.vectors), twin(case.without), largest)
    assert math.isclose(shifted, 2.0 * case.published_bound, rel_tol=1e-9)
