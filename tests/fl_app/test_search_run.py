"""Searches from the command line: what they leave behind, refuse, survive and go on from."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_app.config import compose_settings
from fl_app.device_state import list_entries
from fl_app.objectives import load_objective
from fl_app.search_task import planned_parameters
from strategies.dp_fts_de.guarantees import spent_epsilon
from strategies.dp_fts_de.release_signal import bound_noise_share
from tests.fl_app.small_searches import AGENTS, INITIAL, ROUNDS, SMALL, observations, read, search

pytestmark = pytest.mark.usefixtures("no_report")


def test_a_search_leaves_its_folder(fl_app: Any) -> None:
    found = search(fl_app, "run")
    assert [row["round"] for row in found["metrics"]] == list(range(ROUNDS + 1))
    rows = found["metrics"][1:]
    assert {row["num_replies"] for row in rows} == {AGENTS}
    # Rounds 1, 2 and 4 release; what is released is queried in the round after.
    assert [row["num_uploaded"] for row in rows] == [AGENTS, AGENTS, 0, AGENTS, 0, 0]
    assert [row["num_releases"] for row in rows] == [1, 2, 2, 3, 3, 3]
    gains = [row["round"] for row in rows if row["sharing_gain"] is not None]
    # But for agents that had queried its maximum before, at the end of the axis perhaps.
    shared = {row["round"] for row in found["queries"] if row["is_shared"]}
    assert {2} <= shared <= {2, 3, 5}
    assert gains == sorted(shared)
    ratios = [row["round"] for row in rows if row["signal_to_noise"] is not None]
    assert ratios == [1, 2, 4]
    epsilons = [row["epsilon"] for row in rows]
    assert epsilons == sorted(epsilons)
    assert 1.98 <= epsilons[-1] <= 2.0
    assert [row["best_value_mean"] for row in rows] == sorted(
        row["best_value_mean"] for row in rows
    )
    assert all(row["test_accuracy"] is None for row in rows)
    # Each query of each agent, and the best of them.
    by_agent = {
        agent: [row for row in found["queries"] if row["agent"] == agent] for agent in range(AGENTS)
    }
    for agent, told in by_agent.items():
        values = list(itertools.chain(*(row["values"] for row in told)))
        kept = observations("run", agent)
        assert [each.value for each in kept] == values
        assert len(values) == INITIAL + ROUNDS - 1
        best = found["best_point"]["agents"][agent]
        assert (best["agent"], best["value"]) == (agent, max(values))
        index = int(np.argmax(values))
        assert best["point"] == {"x1": pytest.approx(kept[index].point[0])}
    summary = found["summary"]
    assert summary["best_value_mean"] == pytest.approx(rows[-1]["best_value_mean"])
    assert summary["num_clients"] == AGENTS
    assert (summary["objective"], summary["control"]) == ("synthetic", "none")
    # Of one coordinate: z times the clipping norm, over the number of agents.
    assert summary["noise_std"] == pytest.approx(summary["noise_multiplier"] / AGENTS)
    assert [each["adversary"] for each in found["privacy"]["guarantees"]] == [
        *("model_user", "server")
    ]
    shared = found["best_point"]["shared"]
    assert shared["value"] is None
    assert shared["release_round"] == 4
    share = bound_noise_share(planned_parameters(compose_settings([*SMALL, "num_clients=5"])), 4)
    assert shared["noise_share"] == summary["noise_share"] == pytest.approx(share)
    assert (shared["mostly_noise"], summary["mostly_noise"]) == (True, True)
    assert shared["signal_to_noise"] == rows[3]["signal_to_noise"] > 0.0
    function = found["shared_function"]
    peak = function["grid"][int(np.argmax(function["values"]))]
    assert abs(peak - shared["point"]["x1"]) < 0.01


@pytest.mark.parametrize("noise", [0, 2])
def test_regrets_are_the_objectives_own(fl_app: Any, noise: float) -> None:
    """Of the values without noise, at all points: never below 0, however lucky an observation."""
    words = f"objective.noise_std={noise}"
    found = search(fl_app, "run", words)
    settings = compose_settings([*SMALL, words])
    assert settings.objective is not None
    objective = load_objective(settings.objective, settings.seed)
    simple, total = [], []
    for agent in range(AGENTS):
        optimum = objective.optimum(agent)
        assert optimum is not None
        points = np.array([each.point for each in observations("run", agent)])
        regrets = optimum - objective.values(agent, points)
        simple.append(regrets.min())
        total.append(regrets[INITIAL:].sum())
    row = found["metrics"][-1]
    assert row["simple_regret_mean"] == pytest.approx(np.mean(simple))
    assert row["simple_regret_worst"] == pytest.approx(max(simple))
    assert row["cumulative_regret_mean"] == pytest.approx(np.mean(total))
    assert min(simple) >= -1e-9
    observed = [each["value"] for each in found["best_point"]["agents"]]
    assert (max(observed) > max(map(objective.optimum, range(AGENTS)))) == (noise > 0)


def test_the_same_seed_gives_the_same_search_and_another_one_another(fl_app: Any) -> None:
    first, second = search(fl_app, "a"), search(fl_app, "b")
    assert first == second
    assert search(fl_app, "c", "seed=1")["queries"] != first["queries"]


def test_a_secret_search_says_nothing_of_the_agents(fl_app: Any) -> None:
    found = search(fl_app, "run", "randomness=secret")
    assert found["queries"] == []
    assert not Path("run", "queries.jsonl").exists()
    assert found["best_point"]["agents"] == []
    assert found["best_point"]["shared"]["value"] is None
    assert found["best_point"]["shared"]["mostly_noise"]
    assert found["best_point"]["shared"]["signal_to_noise"] is None
    for row in found["metrics"]:
        for key in (
            *("best_value_mean", "best_value_worst", "simple_regret_mean", "clipped_fraction"),
            *("signal_to_noise", "sharing_gain", "cumulative_regret_worst"),
        ):
            assert row[key] is None
    assert found["privacy"]["guarantees"][0]["valid"]
    assert len(observations("run", 0)) == INITIAL + ROUNDS - 1
    # The released function, not its largest place: two runs' may both lie at the same edge.
    again = search(fl_app, "again", "randomness=secret")
    assert again["shared_function"]["values"] != found["shared_function"]["values"]


@pytest.mark.parametrize(
    ("words", "share", "mostly"),
    [
        (("strategy.noise_multiplier=1",), 20**0.5 / 5, False),
        (("strategy.noise_multiplier=1.2",), 1.2 * 20**0.5 / 5, True),
        (("strategy.noise_multiplier=0",), None, False),
        (("strategy.control=oracle",), None, False),
        (("strategy.noise_multiplier=1", "strategy.control=random"), None, True),
    ],
)
def test_a_shared_point_says_how_much_of_it_is_noise(
    fl_app: Any, words: tuple[str, ...], share: float | None, mostly: bool
) -> None:
    target = () if "control" in words[0] else ("strategy.target_epsilon=null",)
    ended = fl_app("run", *SMALL, *words, *target, "hydra.run.dir=run")
    assert ended.code == 0, ended.errors
    shared = read(Path("run"))["best_point"]["shared"]
    assert shared["noise_share"] == (None if share is None else pytest.approx(share))
    assert shared["mostly_noise"] is mostly
    assert ("Shared point" in ended.output) == (share is not None)
    # Of random vectors the control's name says it.
    assert ("mostly noise" in ended.output) == (mostly and share is not None)


@pytest.mark.parametrize(
    ("server_round", "before"),
    [
        *[(1, False), (4, True)],
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in [(1, True), (2, True), (2, False), (4, False), (6, True), (6, False)]
        ),
    ],
)
def test_a_search_goes_on_to_the_same_end(
    fl_app: Any, break_after: Any, server_round: int, before: bool
) -> None:
    faults = ("faults.loss_rate=0.2", "faults.late_rate=0.1")
    undisturbed = search(fl_app, "whole", *faults)
    break_after(server_round, before)
    search(fl_app, "run", *faults, code=1)
    assert fl_app("run", "resume=run").code == 0
    assert read(Path("run")) == undisturbed
    for agent in range(AGENTS):
        assert observations("run", agent) == observations("whole", agent)


@pytest.mark.parametrize("before", [True, False])
def test_a_secret_search_goes_on_with_what_its_agents_know(
    fl_app: Any, break_after: Any, before: bool
) -> None:
    words = ("randomness=secret", "strategy.sample_rate=0.5", "strategy.release_rounds=[]")
    break_after(3, before)
    search(fl_app, "run", *words, code=1)
    known = {agent: observations("run", agent) for agent in range(AGENTS)}
    assert {len(each) for each in known.values()} == {INITIAL + 2}
    assert fl_app("run", "resume=run").code == 0
    for agent, early in known.items():
        kept = observations("run", agent)
        assert kept[: len(early)] == early
        assert len(kept) == INITIAL + ROUNDS - 1
    found = read(Path("run"))
    assert [row["round"] for row in found["metrics"]] == list(range(ROUNDS + 1))
    planned = planned_parameters(compose_settings([*SMALL, *words, f"num_clients={AGENTS}"]))
    assert found["summary"]["num_releases"] == ROUNDS - 1
    assert found["summary"]["epsilon"] == pytest.approx(spent_epsilon(planned, ROUNDS - 1))


def test_lost_and_late_replies_cost_no_privacy_and_are_told(fl_app: Any) -> None:
    whole = search(fl_app, "whole")
    found = search(fl_app, "run", "faults.loss_rate=0.4", "faults.late_rate=0.1", "faults.seed=1")
    assert [row["epsilon"] for row in found["metrics"]] == [
        row["epsilon"] for row in whole["metrics"]
    ]
    rows = found["metrics"][1:]
    assert {row["num_replies"] + row["num_failures"] for row in rows} == {AGENTS}
    assert sum(row["num_replies"] for row in rows) < AGENTS * ROUNDS
    for row in rows:
        assert row["num_uploaded"] == (row["num_replies"] if row["round"] in (1, 2, 4) else 0)
    # Whose reply was lost has done its step all the same.
    assert all(len(observations("run", n)) == INITIAL + ROUNDS - 1 for n in range(AGENTS))


def test_each_agent_is_charged_for_each_release(fl_app: Any) -> None:
    search(fl_app, "run")
    entries = list_entries(Path("run", "checkpoint"))
    assert [(each.client, each.entry.participations) for each in entries] == [
        (agent, 3) for agent in range(AGENTS)
    ]


@pytest.mark.parametrize("control", ["random", "no_sharing", "oracle"])
def test_controls_are_settings(fl_app: Any, control: str) -> None:
    found = search(fl_app, "run", f"strategy.control={control}")
    assert found["summary"]["control"] == control
    none = search(fl_app, "none")
    first = [row for row in found["queries"] if row["round"] == 1]
    assert [row["points"] for row in first] == [
        row["points"] for row in none["queries"] if row["round"] == 1
    ]
    assert found["queries"] != none["queries"]
    uploads = sum(row["num_uploaded"] or 0 for row in found["metrics"])
    assert (uploads == 0) == (control == "no_sharing")


@pytest.mark.parametrize("rounds", ["auto", "[]"])
@pytest.mark.parametrize("control", ["none", "no_sharing"])
def test_a_single_round_is_warned_that_it_releases_nothing(
    fl_app: Any, control: str, rounds: str
) -> None:
    words = (f"strategy.control={control}", f"strategy.release_rounds={rounds}", "num_rounds=1")
    ended = fl_app("run", *SMALL, *words, "hydra.run.dir=run")
    assert ended.code == 0, ended.errors
    assert ("WARNING nothing will be released" in ended.errors) == (control == "none")
    assert read(Path("run"))["summary"]["num_releases"] == 0


def test_who_shares_nothing_may_name_any_round(fl_app: Any) -> None:
    """As in a sweep over controls and numbers of rounds."""
    words = ("strategy.control=no_sharing", "strategy.release_rounds=[1,9]")
    assert search(fl_app, "run", *words)["summary"]["num_releases"] == 0


def test_a_model_cannot_be_evaluated_where_there_is_none(fl_app: Any) -> None:
    search(fl_app, "run")
    ended = fl_app("evaluate", "run")
    assert ended.code == 2
    assert ended.errors == (
        "fl-app: RUN: 'run'; allowed: a run that trained a model (this searched: best_point.json)\n"
    )
