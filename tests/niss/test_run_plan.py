"""The plan of a run: who must be ready, how often a client takes part, the common noise."""

from typing import Any

import pytest
from hypothesis import given, strategies

from strategies.mechanisms.parameter_checks import ParameterError
from strategies.niss.calibration import calibrate, own_noise_multiplier
from strategies.niss.circles import Circle, Coalition
from strategies.niss.run_plan import choose_base, needed_noise
from tests.niss.planned import plan
from tests.niss.small_runs import MASKS_ALONE

TARGET: dict[str, Any] = {"target_epsilon": 4.0, "noise_multiplier": None}
RECORDS = {**TARGET, "unit": "record"}


@pytest.mark.parametrize(
    ("num_clients", "changes", "expected"),
    [
        # min_ready, max_ready, participations of four rounds
        (10, {}, (9, 10, 4)),
        (20, {}, (18, 20, 4)),
        (7, {}, (7, 7, 4)),
        (2, {}, (2, 2, 4)),
        (10, {"min_ready": 4}, (4, 10, 4)),
        (10, {"num_sampled_clients": 5, "participation": "round_robin"}, (5, 5, 2)),
        (10, {"fraction_train": 0.4, "participation": "round_robin"}, (4, 4, 2)),
        (10, {"max_participations": 3}, (9, 10, 3)),
    ],
)
def test_ready_clients_and_participations(
    num_clients: int, changes: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    parameters, made = plan(num_clients, **changes)
    participations = parameters.update.num_participations
    assert (parameters.min_ready, parameters.max_ready, participations) == expected
    assert parameters.num_clients == made.num_clients == num_clients
    assert made.num_sampled == parameters.max_ready


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_sampled_clients": 1}, "num_sampled_clients: 1"),
        ({"fraction_train": 0.1}, "^fraction_train: 0.1"),
        ({"num_clients": 1}, "^num_clients: 1"),
        ({"num_sampled_clients": 11}, "num_sampled_clients: 11"),
        ({"min_ready": 11}, "min_ready: 11"),
        ({"num_sampled_clients": 5, "min_ready": 6}, "min_ready: 6"),
        ({"num_clients": 100_001}, "^num_clients: 100001; allowed: at most 100000"),
        # What the user gave is named if that helps, else what is left.
        (
            {"min_ready": 2, "colluding_fraction": 0.5},
            "^min_ready: 2; allowed: at least 7: of 10 clients of a round 5 may collude",
        ),
        ({"min_ready": 6, "colluding_fraction": 0.5}, "^min_ready: 6"),
        ({"min_ready": 2, "colluding_fraction": 0.9}, "^colluding_fraction: 0.9"),
        ({"colluding_fraction": 0.8}, "^colluding_fraction: 0.8"),
        (
            {"colluding_fraction": 0.8, "min_ready": 2, "graph": "sparse", **MASKS_ALONE},
            "^min_ready: 2; allowed: at least 10",
        ),
        ({"colluding_fraction": 0.9, "graph": "sparse", **MASKS_ALONE}, "^colluding_fraction: 0.9"),
        (
            {
                "coalitions": (Coalition((0, 1, 2), 0.5, 2),),
                "graph": "sparse",
                **MASKS_ALONE,
            },
            r"^coalitions\[0\]\.colluding_fraction: 0.5",
        ),
        ({"expected_dropouts": 2, "min_replies": 9}, "^expected_dropouts: 2; allowed: at most 1"),
        ({"expected_dropouts": 1, "min_replies": 10}, "^expected_dropouts: 1; allowed: at most 0"),
        (
            {"num_records": {**dict.fromkeys(range(8), 50), 8: 7, 9: 7}, "unit": "record"},
            "^min_ready: 9; allowed: at most 8: the other 2 clients have fewer than 8 records",
        ),
    ],
)
def test_too_few_clients_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        plan(**{"num_clients": 10, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"min_ready": 7, "colluding_fraction": 0.5},
        {"min_ready": 2, "colluding_fraction": 0.5, **MASKS_ALONE},
        {"expected_dropouts": 2, "min_replies": 8},
        {"min_replies": 10},
        {"num_records": {**dict.fromkeys(range(9), 50), 9: 7}, "unit": "record"},
        # Where sizes are secret, everybody uploads.
        {"num_records": dict.fromkeys(range(10), 7), "unit": "client"},
        # Nobody is outside of the coalition, so that no least ready set of theirs matters.
        {"coalitions": (Coalition(tuple(range(10)), 0.0, 3),), "expected_dropouts": 1},
    ],
)
def test_what_can_succeed_is_planned(changes: dict[str, Any]) -> None:
    plan(10, **changes)


def test_the_common_noise_is_what_the_clients_need() -> None:
    parameters, _ = plan(num_records=dict.fromkeys(range(10), 50), **TARGET)
    need = own_noise_multiplier(parameters, 0, 50)
    assert parameters.base_noise_multiplier == need > 0
    fixed, _ = plan()
    assert fixed.base_noise_multiplier == 1.0
    masks, _ = plan(pair_noise="uniform", noise_multiplier=0.0)
    assert masks.base_noise_multiplier == 0.0


def test_sizes_that_are_not_known_are_taken_for_the_least() -> None:
    parameters, made = plan(**RECORDS)
    assert needed_noise(parameters, made) == [own_noise_multiplier(parameters, -1, 8)]
    sizes = dict.fromkeys(range(10), 400) | {0: 8, 1: 3}
    known, made = plan(num_records=sizes, **RECORDS)
    needed = needed_noise(known, made)
    assert len(needed) == 9  # the client with 3 records sits out
    assert sorted(set(needed)) == [
        own_noise_multiplier(known, 5, 400),
        own_noise_multiplier(known, 0, 8),
    ]
    nobody, made = plan(num_records=dict.fromkeys(range(10), 3), **RECORDS)
    assert needed_noise(nobody, made) == [own_noise_multiplier(nobody, -1, 8)]


def test_a_few_that_need_more_do_not_raise_everybody_s_noise() -> None:
    sizes = dict.fromkeys(range(10), 50)
    none, _ = plan(num_records=sizes, **TARGET)
    few, _ = plan(num_records=sizes, client_epsilons=((0, 2.0),), **TARGET)
    assert few.base_noise_multiplier == none.base_noise_multiplier
    most, _ = plan(num_records=sizes, client_epsilons=tuple((i, 2.0) for i in range(9)), **TARGET)
    assert most.base_noise_multiplier > none.base_noise_multiplier


@given(
    needed=strategies.lists(strategies.floats(0.1, 10.0), min_size=1, max_size=12),
    rho=strategies.sampled_from([0.0, 0.3]),
)
def test_no_other_common_noise_gives_a_sum_with_less(needed: list[float], rho: float) -> None:
    parameters, _ = plan(12, colluding_fraction=rho)
    chosen = choose_base(parameters, needed, 1.0)
    circle = Circle(0, rho, parameters.min_ready, 12)

    def noise(base: float) -> float:
        own = calibrate(parameters, circle, base).own_variance
        return sum(own + max(0.0, z**2 - base**2) for z in needed)

    assert chosen in needed
    assert all(noise(chosen) <= noise(z) * (1 + 1e-9) for z in needed)
