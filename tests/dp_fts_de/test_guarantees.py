"""The rows of privacy.json: the other agents first, then the server, which is trusted."""

import re
from dataclasses import replace
from typing import Any

import pytest

from strategies.dp_fts_de.algorithm import release_mechanism, weigh_agents
from strategies.dp_fts_de.guarantees import describe_noise, list_guarantees, spent_epsilon
from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.mechanisms.accounting import compute_epsilon
from strategies.mechanisms.guarantee import Guarantee


def make(**changes: Any) -> DpFtsDeParameters:
    given: dict[str, Any] = {
        "num_agents": 29,
        "dimension": 2,
        "num_random_features": 20,
        "noise_multiplier": 2.0,
        "randomness": "secret",
    }
    return DpFtsDeParameters(**{**given, **changes})


def row(num_releases: int = 4, **changes: Any) -> Guarantee:
    return list_guarantees(make(**changes), num_releases)[0]


def test_the_rows_in_their_order() -> None:
    agents, server = list_guarantees(make(), 4)
    assert (agents.adversary, server.adversary) == ("model_user", "server")
    assert (agents.unit, agents.neighboring_relation) == ("client", "zero_out")
    assert agents.valid
    assert agents.why_not is None
    assert agents.colluding_fraction == 1.0
    assert agents.epsilon == compute_epsilon(make().describe_releases(4, 2.0), 1e-5)
    assert agents.delta == 1e-5
    assert agents.accountant == "closed_form"
    assert (server.epsilon, server.delta, server.accountant, server.valid) == (
        *(None, None, None, False),
    )
    assert server.why_not is not None
    assert "trusted" in server.why_not


@pytest.mark.parametrize(
    ("num_agents", "delta", "valid"),
    [
        (29, 1.0 / 29.0, False),
        (29, 29.0**-1.1, False),  # below 1/N, but 2.5 percent
        (29, 0.0101, False),
        (29, 0.01, True),
        (1000, 0.001, False),
        (1000, 0.0011, False),
        (1000, 0.00099, True),
    ],
)
def test_a_large_delta_is_no_guarantee(num_agents: int, delta: float, valid: bool) -> None:
    found = row(num_agents=num_agents, target_delta=delta)
    assert found.valid is valid
    assert (found.why_not is None) is valid
    assert found.epsilon is not None
    if not valid:
        assert found.why_not is not None
        assert "delta" in found.why_not


def test_a_seeded_run_is_no_release() -> None:
    found = row(randomness="seeded")
    assert not found.valid
    assert found.epsilon == row().epsilon
    assert found.why_not is not None
    assert "seeded" in found.why_not


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": 0.0},
        {
            "noise_multiplier": 0.0,
            "clipping_norm": None,
            "control": "oracle",
            "randomness": "seeded",
        },
    ],
)
def test_without_noise_there_is_no_guarantee(changes: dict[str, Any]) -> None:
    found = row(**changes)
    assert (found.epsilon, found.delta, found.valid, found.assumptions) == (None, None, False, ())
    assert found.why_not is not None
    assert "no noise" in found.why_not
    assert spent_epsilon(make(**changes), 4) is None


def test_noise_that_hides_nothing_is_no_guarantee() -> None:
    found = row(noise_multiplier=0.01)
    assert (found.epsilon, found.valid) == (None, False)
    assert found.why_not is not None
    assert "hides nothing" in found.why_not


def text(**changes: Any) -> str:
    return "\n".join(row(**changes).assumptions)


def test_what_it_rests_on_is_said() -> None:
    always = ("code integrity", "trusted server", "Sybils", "floating point", "objective")
    always += ("timing", "failures")
    for changes in ({}, {"sample_rate": 0.35}, {"sample_rate": 0.35, "upload": "all"}):
        for word in (*always, "side channels", "loss", "4 broadcasts", "public constants"):
            assert word in text(**changes)
    assert "secret samples" not in text()
    sampled = text(sample_rate=0.35)
    assert "deadline" in sampled
    assert "upload=all makes" in sampled
    exposed = compute_epsilon(make().describe_releases(4, 2.0), 1e-5)
    assert f"epsilon is {exposed:.4g} instead" in sampled
    assert "how many vectors came" in sampled
    everybody = text(sample_rate=0.35, upload="all")
    assert "secret samples" in everybody
    # Those are in the metrics.
    assert "how many vectors came" not in everybody
    for shown in (text(), everybody):
        assert "how many agents answered and how long that took" in shown
    assert "how many agents answered" not in sampled
    assert "upload=all makes" not in everybody


def test_what_leaves_an_agent_is_its_vector_and_in_a_simulation_what_it_reports() -> None:
    assert "nothing but its vector leaves an agent" in text()
    assert "stay on the device" in text()
    simulated = text(randomness="seeded")
    assert "agents also report values" in simulated
    assert "stay on the device" not in simulated


@pytest.mark.parametrize("rounds", [(), (1,), (3, 12, 38), (38,), (50,)])
def test_the_noise_that_is_told_is_the_largest_of_all_releases(rounds: tuple[int, ...]) -> None:
    parameters = make(num_subregions=4, release_rounds=rounds)
    largest = [
        release_mechanism(parameters, t).noise_std * weigh_agents(parameters, t).largest.max()
        for t in (rounds or range(1, 80))
    ]
    assert describe_noise(parameters)["noise_std"] == max(largest)


@pytest.mark.parametrize("rounds", [(), (3, 12, 38), (50,)])
@pytest.mark.parametrize("mode", ["sound", "paper"])
def test_what_is_said_of_sensitivity_holds_for_every_release(
    rounds: tuple[int, ...], mode: str
) -> None:
    changes = {"num_subregions": 4, "release_rounds": rounds, "mode": mode, "clipping_norm": 3.0}
    (said,) = re.findall(r"move together by at most (\S+) times", text(**changes))
    parameters = make(**changes)
    factors = [
        release_mechanism(parameters, t).sensitivity.value / 3.0 for t in (rounds or range(1, 80))
    ]
    assert float(said) == pytest.approx(max(factors), rel=1e-5)


def test_nobody_shares_nothing_is_spent() -> None:
    found = row(num_releases=0, control="no_sharing", noise_multiplier=0.0)
    assert found.epsilon == 0.0
    assert found.valid
    said = "\n".join(found.assumptions)
    assert "nothing leaves an agent" in said
    assert "timing" in said
    assert "failures: that a step ended in an error" in said
    assert describe_noise(make(control="no_sharing")) == {"sensitivity": None, "noise_std": None}


def test_where_nobody_shares_the_server_learns_no_more_than_others() -> None:
    alone = {"control": "no_sharing", "noise_multiplier": 0.0}
    user, server = list_guarantees(make(**alone), 0)
    assert server == replace(user, adversary="server")
    assert server.epsilon == 0.0
    assert server.valid
    # Of a simulation it is given what agents found, and of other runs their vectors.
    user, server = list_guarantees(make(**alone, randomness="seeded"), 0)
    assert server.why_not is not None
    for row, word in ((server, "report their values"), (list_guarantees(make(), 4)[1], "vectors")):
        assert row.adversary == "server"
        assert row.epsilon is row.delta is row.accountant is None
        assert word in str(row.why_not)
        assert not row.valid
        assert row.assumptions == ()
    assert "vectors" not in server.why_not


def test_the_noise_of_a_broadcast_number_is_named() -> None:
    assert describe_noise(make(noise_multiplier=0.0))["noise_std"] is None
    found = describe_noise(make(clipping_norm=3.0, sample_rate=0.5))
    assert found["sensitivity"] == "whole_update"
    assert found["noise_std"] == pytest.approx(2.0 * 3.0 / 0.5 / 29)


def test_spent_epsilon_is_that_of_the_row() -> None:
    assert spent_epsilon(make(), 4) == row().epsilon
    assert spent_epsilon(make(noise_multiplier=None, target_epsilon=1.0), 0) == 0.0
