"""The parameters: on the wire, refused, and of single clients."""

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.mechanisms.parameter_checks import ParameterError
from strategies.niss.calibration import calibrate, circles_of, most_noise, own_noise_multiplier
from strategies.niss.circles import Circle, Coalition
from strategies.niss.parameters import (
    SPARSE_FAILURE,
    NissParameters,
    fill_plan,
    unplanned_parameters,
)
from tests.niss.hostile_server import make_parameters

PAPER = {"mode": "paper", "target_epsilon": 1.0, "noise_multiplier": None}
POISSON = {
    "unit": "record",
    "neighboring_relation": "add_or_remove_one",
    "sampling": "poisson",
    "sample_rate": 0.1,
}
UNIFORM = {"pair_noise": "uniform"}


@given(
    st.integers(2, 50),
    st.floats(0, 0.4),
    st.sampled_from(["gaussian", "uniform"]),
    st.lists(
        st.tuples(st.integers(0, 99), st.floats(0.1, 9)), max_size=3, unique_by=lambda t: t[0]
    ),
    st.booleans(),
)
def test_parameters_survive_the_wire(
    ready: int, rho: float, pairs: str, epsilons: list[tuple[int, float]], together: bool
) -> None:
    chosen = make_parameters(
        ready,
        colluding_fraction=rho if rho * ready < ready - 1 else 0.0,
        pair_noise=pairs,
        noise_multiplier=None,
        target_epsilon=3.0,
        client_epsilons=tuple(epsilons),
        coalitions=(Coalition((3, 1, 7), 0.25, 2),) if together else (),
    )
    text = chosen.to_json()
    again = NissParameters.from_json(text)
    assert again == chosen
    assert hash(again) == hash(chosen)
    assert again.to_json() == text


def test_parameters_of_mode_paper_survive_the_wire() -> None:
    for own in ({"tau": 0.5}, {"collusion_bound": "optimistic"}):
        chosen = make_parameters(**PAPER, unit_noise_std=0.1, weighting="examples", **own)
        assert NissParameters.from_json(chosen.to_json()) == chosen


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("mode", {"mode": "loud"}),
    ("pair_noise", {"pair_noise": "laplace"}),
    ("graph", {"graph": "ring"}),
    ("weighting", {"weighting": "mine"}),
    ("collusion_bound", {"collusion_bound": "wild"}),
    *(("colluding_fraction", {"colluding_fraction": x}) for x in (-0.1, 1.0, math.nan, True, "1")),
    ("colluding_fraction", {"min_ready": 2, "colluding_fraction": 0.5}),
    *(("expected_dropouts", {"expected_dropouts": x}) for x in (-1, 1.5, True, None)),
    *(("min_ready", {"min_ready": x}) for x in (1, 0, -3, 2.0, True, None)),
    *(("max_ready", {"max_ready": x}) for x in (5, 6.0, True)),
    *(("num_clients", {"num_clients": x}) for x in (5, "6", 2**64, 10**400)),
    *(
        ("base_noise_multiplier", {"base_noise_multiplier": x})
        for x in (-1.0, math.nan, math.inf, 10**400, None, "1")
    ),
    ("mechanism", {"mechanism": "dp_sgd", "max_grad_norm": 1.0, **POISSON}),
    ("noise_at", {"noise_at": "server"}),
    ("quantizer", {"quantizer": "qsgd"}),
    ("clipping_norm", {"clipping_norm": None}),
    ("graph", {"graph": "sparse"}),
    ("graph", {**PAPER, "graph": "sparse"}),
    ("pair_noise", {"pair_noise": "none"}),
    ("pair_noise", {**PAPER, "pair_noise": "uniform"}),
    ("weighting", {"weighting": "examples"}),
    ("tau", {"tau": 0.5}),
    *(("tau", {**PAPER, "tau": x}) for x in (-0.1, 1.1, math.nan)),
    ("unit_noise_std", {"unit_noise_std": 1.0}),
    *(("unit_noise_std", {**PAPER, "unit_noise_std": x}) for x in (0.0, -1.0, math.inf)),
    ("coalitions", {**PAPER, "coalitions": (Coalition((0, 1), 0.0, 2),)}),
    ("expected_dropouts", {**PAPER, "expected_dropouts": 1}),
    # What would have no effect.
    ("collusion_bound", {"collusion_bound": "optimistic"}),
    ("collusion_bound", {**PAPER, "tau": 0.5, "collusion_bound": "optimistic"}),
    *(
        (key, {**PAPER, "pair_noise": "none", key: value})
        for key, value in (("tau", 0.0), ("unit_noise_std", 1.0), ("collusion_bound", "optimistic"))
    ),
    ("expected_dropouts", {"pair_noise": "uniform", "expected_dropouts": 1}),
    (
        "expected_dropouts",
        {"pair_noise": "uniform", "noise_multiplier": 0.0, "expected_dropouts": 1},
    ),
    ("noise_multiplier", {"noise_multiplier": 0.0}),
    ("target_epsilon", {"mode": "paper"}),
    ("target_epsilons", {"client_epsilons": ((0, 1.0),)}),
    *(
        (
            f"target_epsilons{name}",
            {"noise_multiplier": None, "target_epsilon": 1.0, "client_epsilons": (pair,)},
        )
        for name, pair in (
            *((".7", (7, 0.0)), (".7", (7, -1.0)), (".7", (7, math.nan)), (".7", (7, math.inf))),
            *(("", (-1, 1.0)), ("", (0.5, 1.0)), ("", (True, 1.0))),
        )
    ),
    (
        "coalitions",
        {"coalitions": (Coalition((0, 1), 0.0, 2), Coalition((1, 2), 0.0, 2))},
    ),
]


@pytest.mark.parametrize(("key", "changes"), REFUSED)
def test_what_is_not_allowed_is_refused_by_name(key: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ParameterError) as caught:
        make_parameters(**changes)
    assert caught.value.key == key
    assert caught.value.allowed


@pytest.mark.parametrize(
    ("clients", "rho", "least"),
    [
        ((0,), 0.0, 2),
        ((0, 1), 0.0, 1),
        ((0, 1), 0.0, 3),
        ((0, 0, 1), 0.0, 2),
        ((0, -1), 0.0, 2),
        ((0, True), 0.0, 2),
        ((0, 1.0), 0.0, 2),
        ((0, 1, 2), 1.0, 2),
        ((0, 1, 2), math.nan, 2),
    ],
)
def test_what_is_no_coalition_is_refused(clients: tuple[Any, ...], rho: float, least: int) -> None:
    with pytest.raises(ParameterError, match="coalitions"):
        Coalition(clients, rho, least)


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "7", "[]", "{}", '"text"', "{", "[" * 100_000, '{"update": 1}'),
        *("NaN", '{"update": {}}', '{"update": "{}"}', "1" * 10_000),
    ],
)
def test_text_that_holds_no_parameters_is_refused(text: str) -> None:
    with pytest.raises(ParameterError):
        NissParameters.from_json(text)


def test_unknown_keys_are_refused() -> None:
    values = json.loads(make_parameters().to_json())
    for changed in (
        {**values, "sigma": 1.0},
        {**values, "coalitions": [{"clients": [0, 1], "rho": 0.1, "min_ready": 2}]},
        {**values, "coalitions": [7]},
        {**values, "client_epsilons": [[1]]},
        {**values, "client_epsilons": [[1, 2.0, 3]]},
        {**values, "update": json.dumps({**json.loads(values["update"]), "sigma": 1.0})},
    ):
        with pytest.raises(ParameterError):
            NissParameters.from_json(json.dumps(changed))


def test_participations_and_common_noise_are_free_and_nothing_else() -> None:
    expected = unplanned_parameters(noise_multiplier=1.0, clipping_norm=1.0, local_steps=1)
    plan = {"min_ready": 3, "max_ready": 5, "num_clients": 9, "base_noise_multiplier": 0.7}
    given_ = dataclasses.replace(
        expected, update=dataclasses.replace(expected.update, num_participations=4), **plan
    )
    planned = (3, 5, 9)
    assert fill_plan(expected, given_, planned) == given_
    for changes in (
        *({"colluding_fraction": 0.0}, {"expected_dropouts": 1}, UNIFORM),
        *({"min_ready": 2}, {"min_ready": 4}, {"max_ready": 4}, {"max_ready": 6}),
        *({"num_clients": 8}, {"num_clients": 10}),
    ):
        other = dataclasses.replace(given_, **changes)  # type: ignore[arg-type]
        assert fill_plan(expected, other, planned) == given_ != other
    free = dataclasses.replace(
        given_,
        update=dataclasses.replace(given_.update, num_participations=7),
        base_noise_multiplier=0.1,
    )
    assert fill_plan(expected, free, planned) == free
    weaker = dataclasses.replace(
        given_, update=dataclasses.replace(given_.update, noise_multiplier=0.5)
    )
    assert fill_plan(expected, weaker, planned) == given_ != weaker
    with pytest.raises(TypeError):
        unplanned_parameters(sigma=1.0)


def test_each_client_has_the_target_that_it_was_given() -> None:
    chosen = make_parameters(
        noise_multiplier=None,
        target_epsilon=4.0,
        client_epsilons=((1, 1.0), (2, 8.0)),
        base_noise_multiplier=1.0,
    )
    assert [chosen.epsilon_of(client) for client in range(4)] == [4.0, 1.0, 8.0, 4.0]
    needed = [own_noise_multiplier(chosen, client, 20) for client in range(4)]
    assert needed[1] > needed[0] == needed[3] > needed[2]
    assert most_noise(chosen) == needed[1]
    # A device's owner may ask for more, not for less.
    assert own_noise_multiplier(chosen, 0, 20, 1.0) == needed[1]
    assert own_noise_multiplier(chosen, 1, 20, 100.0) == needed[1]


def test_a_noise_multiplier_that_is_given_is_the_least() -> None:
    chosen = make_parameters(noise_multiplier=2.0)
    assert own_noise_multiplier(chosen, 0, 20) == 2.0
    assert own_noise_multiplier(chosen, 0, 20, 1e6) == 2.0
    assert own_noise_multiplier(chosen, 0, 20, 0.1) > 2.0


def test_coalitions_are_circles_of_their_own() -> None:
    first, second = Coalition((0, 1, 2), 0.25, 3), Coalition((5, 6), 0.0, 2)
    chosen = make_parameters(8, colluding_fraction=0.1, coalitions=(first, second), min_ready=2)
    circles = [Circle(1, 0.25, 3, 3), Circle(2, 0.0, 2, 2), Circle(0, 0.1, 2, 3)]
    assert chosen.circle_of(1) == circles[0]
    assert chosen.circle_of(6) == circles[1]
    assert chosen.circle_of(4) == chosen.circle_of(99) == circles[2]
    assert circles_of(chosen) == chosen.circles() == circles
    assert [chosen.circle_size(each) for each in circles] == [3, 2, 3]
    whole = make_parameters(5, coalitions=(Coalition((0, 1, 2, 3, 4), 0.2, 5),))
    assert circles_of(whole) == [Circle(1, 0.2, 5, 5)]
    assert whole.circles() == [Circle(1, 0.2, 5, 5), Circle(0, 0.0, 5, 5)]


def test_of_a_coalition_a_round_asks_no_more_than_of_all() -> None:
    large = Coalition(tuple(range(7)), 0.25, 3)
    chosen = make_parameters(8, coalitions=(large,), min_ready=4, max_ready=5)
    assert chosen.circles()[0] == Circle(1, 0.25, 3, 5)
    # Nobody of it is ever ready in a run whose rounds are smaller than its least ready set.
    few = make_parameters(
        8, coalitions=(Coalition(tuple(range(7)), 0.25, 6),), max_ready=5, min_ready=4
    )
    assert few.circles()[0] == Circle(1, 0.25, 6, 6)


@pytest.mark.parametrize(
    ("rho", "least", "most", "colluders", "honest"),
    [(0.1, 9, 10, 1, 8), (0.3, 9, 10, 3, 6), (0.09, 9, 10, 0, 9), (0.29, 90, 100, 29, 61)],
)
def test_all_colluders_of_a_round_may_be_in_the_smallest_ready_set(
    rho: float, least: int, most: int, colluders: int, honest: int
) -> None:
    circle = Circle(0, rho, least, most)
    assert (circle.num_colluders, circle.num_honest) == (colluders, honest)
    chosen = make_parameters(
        most, colluding_fraction=rho, min_ready=least, max_ready=most, num_clients=most
    )
    assert calibrate(chosen, chosen.circle_of(0), 1.0).num_honest == honest


def test_two_honest_clients_at_least() -> None:
    make_parameters(10, colluding_fraction=0.3, min_ready=5)
    with pytest.raises(ParameterError, match="of 10 clients of a round 3 may collude"):
        make_parameters(10, colluding_fraction=0.3, min_ready=4)


def test_sparse_graphs_take_their_failures_from_delta() -> None:
    sparse = make_parameters(graph="sparse", target_delta=1e-8, num_participations=4, **UNIFORM)
    assert sparse.gaussian_delta == pytest.approx(1e-8 - 4 * SPARSE_FAILURE)
    assert make_parameters(target_delta=1e-8).gaussian_delta == 1e-8
    short = make_parameters(graph="sparse", target_delta=1e-9, num_participations=1, **UNIFORM)
    with pytest.raises(ParameterError, match="target_delta"):
        _ = short.gaussian_delta
