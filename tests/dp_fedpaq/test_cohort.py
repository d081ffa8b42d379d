"""Who is asked: sizes, kinds and what is refused."""

import pytest

from strategies.dp_fedpaq.cohort import CohortPlan
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.rng import SecretStream


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (CohortPlan(), 40),
        (CohortPlan(num_sampled_clients=7), 7),
        (CohortPlan(fraction_train=0.1), 4),
        (CohortPlan(fraction_train=0.001), 1),
        (CohortPlan(fraction_train=1.0), 40),
    ],
)
def test_the_number_of_clients_asked(plan: CohortPlan, expected: int) -> None:
    assert plan.num_sampled(40) == expected
    clients = range(100, 140)
    drawn = plan.draw(reversed(clients), SecretStream(), 1)
    assert len(set(drawn)) == len(drawn) == expected
    assert set(drawn) <= set(clients)
    assert drawn == sorted(drawn)


@pytest.mark.parametrize("sampled", [1, 4, 6, 7, 10])
def test_in_turn_everybody_is_asked_as_often_as_planned(sampled: int) -> None:
    plan, clients = CohortPlan(sampled, participation="round_robin"), range(100, 110)
    counts = dict.fromkeys(clients, 0)
    for server_round in range(1, 24):
        drawn = plan.draw(reversed(clients), SecretStream(), server_round)
        assert len(set(drawn)) == len(drawn) == sampled
        for client in drawn:
            counts[client] += 1
        # Nobody is ahead of anybody by more than one, nor of the plan.
        assert max(counts.values()) - min(counts.values()) <= 1
        assert max(counts.values()) == plan.participations(server_round, 10)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("fraction_train", {"fraction_train": 0.5, "num_sampled_clients": 3}),
        ("fraction_train", {"fraction_train": 0.0}),
        ("fraction_train", {"fraction_train": 1.5}),
        ("fraction_train", {"fraction_train": float("nan")}),
        ("num_sampled_clients", {"num_sampled_clients": 0}),
        ("num_sampled_clients", {"num_sampled_clients": 2.5}),
        ("max_participations", {"max_participations": True}),
        ("min_replies", {"min_replies": 0}),
        ("participation", {"participation": "all"}),
    ],
)
def test_what_is_not_allowed_is_named(key: str, values: dict[str, object]) -> None:
    with pytest.raises(ParameterError) as caught:
        CohortPlan(**values)  # type: ignore[arg-type]
    assert caught.value.key == key


def test_no_more_clients_than_there_are() -> None:
    with pytest.raises(ParameterError, match="number of clients, 3"):
        CohortPlan(num_sampled_clients=4).num_sampled(3)


def test_participations_are_given_or_planned() -> None:
    assert CohortPlan(max_participations=3).participations(50, 10) == 3
    assert CohortPlan().participations(50, 10) == 50
    assert 5 < CohortPlan(num_sampled_clients=1).participations(50, 10) < 50
