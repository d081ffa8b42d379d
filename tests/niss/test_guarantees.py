"""privacy.json of NISS: what is valid, why not, and that each sentence is about this run."""

import dataclasses
from typing import Any

import pytest

from strategies.dp_fedpaq.spending import Participation
from strategies.mechanisms.guarantee import Guarantee
from strategies.niss import Coalition
from strategies.niss.guarantees import describe_noise, list_guarantees, spent_epsilon
from strategies.niss.noise_plan import plan_round
from strategies.niss.parameters import NissParameters
from tests.niss.planned import plan
from tests.niss.small_runs import RecordingGrid, start

SECRET = {"randomness": "secret"}
ADVERSARIES = ["server_and_colluders", "server", "model_user"]
Planned = tuple[NissParameters, Participation]


def ran(num_clients: int = 10, **changes: Any) -> Planned:
    parameters, made = plan(num_clients, **{**SECRET, **changes})
    uploads = dict.fromkeys(range(num_clients), 4)
    return parameters, dataclasses.replace(made, uploads=uploads, fewest_uploads=num_clients - 1)


def rows(planned: Planned, *, lists: bool = True) -> dict[str, Guarantee]:
    found = list_guarantees(*planned, has_trust_lists=lists)
    assert [each.adversary for each in found] == ADVERSARIES
    return {each.adversary: each for each in found}


def text(row: Guarantee) -> str:
    return "\n".join(row.assumptions)


def test_with_trust_lists_and_secret_randomness_all_are_valid() -> None:
    for row in rows(ran(colluding_fraction=0.3)).values():
        assert (row.valid, row.why_not) == (True, None)
        assert (row.unit, row.delta, row.randomness) == ("client", 1e-5, "secret")
        assert row.epsilon is not None
        assert row.epsilon > 0.0


def test_without_trust_lists_no_colluding_fraction_can_be_relied_on() -> None:
    found = rows(ran(), lists=False)
    assert [row.valid for row in found.values()] == [False, True, True]
    assert "no trust list" in str(found["server_and_colluders"].why_not)
    assert "trust on first use" in text(found["server"])
    assert "trust lists" not in text(found["server"])
    assert "trust lists: each client's list" in text(rows(ran())["server"])
    # A user of the models meets nobody's keys.
    assert "trust" not in text(found["model_user"]).replace("trusted", "")


def test_a_seeded_run_is_no_release() -> None:
    for row in rows(ran(randomness="seeded")).values():
        assert not row.valid
        assert "seeded run" in str(row.why_not)
        assert "keys and masks can be recomputed" in str(row.why_not)


def test_masks_without_noise_say_so() -> None:
    found = rows(ran(pair_noise="uniform", noise_multiplier=0.0))
    for row in found.values():
        assert (row.valid, row.epsilon, row.delta, row.assumptions) == (False, None, None, ())
        assert "no noise is added (masks alone hide it from the server, not from a user" in str(
            row.why_not
        )


def test_an_epsilon_that_hides_nothing_is_not_called_one() -> None:
    for row in rows(ran(noise_multiplier=1e-4)).values():
        assert (row.valid, row.epsilon) == (False, None)
        assert "the noise hides nothing" in str(row.why_not)


def test_a_delta_that_would_allow_to_publish_a_client() -> None:
    found = rows(ran(target_delta=0.2))
    assert all("delta = 0.2 is not below" in str(row.why_not) for row in found.values())
    sizes = {"num_records": dict.fromkeys(range(10), 60_000), "unit": "record"}
    row = rows(ran(target_delta=2e-5, **sizes))["server"]
    assert "one over the number of records" in str(row.why_not)


def test_who_is_honest() -> None:
    found = rows(ran(20, min_ready=15, colluding_fraction=0.3))
    assert (
        "Sybils: of the 20 clients at most 6 are false or collude with the server, who may name "
        "all of them in every ready set; among the 15 or more clients among which one hides, "
        "itself one of them, at least 9 are honest" in text(found["server_and_colluders"])
    )
    assert "collude with the user of the models" in text(found["model_user"])
    assert "no client colludes with the server" in text(found["server"])
    assert [row.colluding_fraction for row in found.values()] == [0.3, 0.0, 0.3]
    coalitions = (Coalition((0, 1, 2), 0.0, 3), Coalition((3, 4, 5, 6), 0.25, 4))
    some = rows(ran(coalitions=coalitions, min_ready=3))["server_and_colluders"]
    for words in (
        "of the 3 clients of coalition 1 at most 0 are false or collude with the server",
        "among the 3 or more clients among which one hides, itself one of them, at least 3 are",
        "of the 4 clients of coalition 2 at most 1 are false or collude with the server",
        "among the 4 or more clients among which one hides, itself one of them, at least 3 are",
    ):
        assert words in text(some)
    # One client in all is honest in no coalition but its own: the smallest fraction is claimed.
    assert some.colluding_fraction == 0.0


def test_who_colludes_is_counted_among_all_clients_not_those_of_a_round() -> None:
    """The server draws the rounds: it may ask all colluders of the run in one of them."""
    found = rows(ran(50, num_sampled_clients=10, colluding_fraction=0.3))
    row = found["server_and_colluders"]
    assert "Sybils: of the 50 clients at most 3 are false" in text(row)
    assert [each.colluding_fraction for each in found.values()] == [3 / 50, 0.0, 3 / 50]
    few = rows(ran(50, num_sampled_clients=9, colluding_fraction=0.1))["server_and_colluders"]
    assert few.colluding_fraction == 0.0
    coalitions = (Coalition(tuple(range(8)), 0.25, 4),)
    some = rows(ran(16, coalitions=coalitions, colluding_fraction=0.4, min_ready=8))
    assert some["server_and_colluders"].colluding_fraction == 2 / 8


def test_what_each_adversary_s_figure_rests_on() -> None:
    found = rows(ran())
    for adversary in ("server", "server_and_colluders"):
        assert "keys: Gaussian pair noise" in text(found[adversary])
        assert "sums:" not in text(found[adversary])
    assert "keys:" not in text(found["model_user"])
    assert "sums: at least 9 uploads were averaged" in text(found["model_user"])
    masks = rows(ran(pair_noise="uniform"))
    assert "keys: uniform masks" in text(masks["server"])
    for row in found.values():
        assert "a client uploads at most 5 times" in text(row)
        assert "secret draws" not in text(row)
        assert "a step times the root of its size" in text(row)
        assert len(set(row.assumptions)) == len(row.assumptions)
    records = rows(ran(unit="record", num_records=dict.fromkeys(range(10), 50)))
    assert "secret draws" in text(records["server"])
    assert "number of records of a client is public" in text(records["server"])


def test_sparse_graphs_are_named() -> None:
    sparse, complete = (
        rows(ran(pair_noise="uniform", graph=graph)) for graph in ("sparse", "complete")
    )
    for adversary in ("server", "server_and_colluders"):
        assert "sparse graph: delta includes 1e-09 a participation" in text(sparse[adversary])
        assert "sparse" not in text(complete[adversary])


def test_the_epsilon_of_the_run_is_that_of_server_and_colluders() -> None:
    planned = ran(colluding_fraction=0.3)
    assert spent_epsilon(*planned) == rows(planned)["server_and_colluders"].epsilon
    assert spent_epsilon(*ran(pair_noise="uniform", noise_multiplier=0.0)) is None


def test_the_noise_in_figures() -> None:
    parameters, _ = ran()
    (found,) = plan_round(parameters, 1, 650).values()
    assert describe_noise(parameters, 650) == {
        "sensitivity": "whole_update",
        "noise_std": found.sensitivity.value,
        "own_noise_std": found.own_std(0.0),
        "pair_noise_std": found.pair_std,
    }
    masks, _ = ran(pair_noise="uniform")
    assert describe_noise(masks, 650)["pair_noise_std"] is None
    nothing, _ = ran(pair_noise="uniform", noise_multiplier=0.0)
    assert describe_noise(nothing, 650) == {"sensitivity": None, "noise_std": None}


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_a_run_charges_what_it_asked_for(kind: str) -> None:
    run = start(RecordingGrid(5), 3, pair_noise=kind, randomness="secret")
    rows = run.strategy.guarantees()
    assert [row.adversary for row in rows] == ADVERSARIES
    assert [row.valid for row in rows] == [False, True, True]
    assert run.strategy.epsilon() == rows[0].epsilon
    half = start(RecordingGrid(5), 3, pair_noise=kind, max_participations=1)
    assert half.strategy.epsilon() < run.strategy.epsilon()  # type: ignore[operator]
