"""Data that do not suffice for the agents of a search: the refusal says what to set instead."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fl_app.config import compose_settings
from tests.fl_app.ended import assert_refused

pytestmark = pytest.mark.usefixtures("no_report")

LOCAL = ("strategy=dp_fts_de", "objective=local_training")
RUNS = ("strategy=dp_fts_de", "objective=training_run")


@pytest.mark.parametrize("word", ["seed=0", "num_clients=10", "objective.num_agents=10"])
def test_local_training_says_which_data_it_needs_and_runs_on_them(fl_app: Any, word: str) -> None:
    line = assert_refused(fl_app("run", *LOCAL, word), 2, "data.partition.kind: 'iid'; allowed: ")
    # As the line says: data that come with clients of their own ...
    shipped = re.findall(r"\w+", line.partition("data=")[2].partition(" with ")[0])
    for name in [each for each in shipped if each != "or"]:
        assert compose_settings([*LOCAL, f"data={name}"]).data.partition.kind == "natural_id"
    # ... or the user's own.
    if word != "seed=0":
        return
    own = re.search(r"data=user (data\.partition\.kind=natural_id)", line)
    assert own is not None
    reader = "data.path=tests.fl_app.test_local_training_objective:read_people"
    small = ("num_rounds=2", "strategy.num_initial=2", "objective.local_epochs=1")
    ended = fl_app("run", *LOCAL, "data=user", own[1], reader, *small, "hydra.run.dir=run")
    assert ended.code == 0, ended.errors
    assert json.loads(Path("run/summary.json").read_text())["num_clients"] == 3


def test_too_many_agents_for_the_data_are_named(fl_app: Any) -> None:
    refused = fl_app("run", *RUNS, "objective.num_agents=500")
    line = assert_refused(refused, 2, "objective.num_agents: 500; allowed: 1 to ")
    assert "11 parts of the 1437 training records" in line
    # As many as it allows can be had, and not one more.
    most = int(re.findall(r"1 to (\d+)", line)[0])
    assert most == 1437 // 11
    one_more = fl_app("run", *RUNS, f"objective.num_agents={most + 1}")
    assert_refused(one_more, 2, f"objective.num_agents: {most + 1}; allowed: 1 to {most} ")
    enough = fl_app("run", *RUNS, f"objective.num_agents={most}", "strategy.sample_rate=2")
    assert_refused(enough, 2, "strategy.sample_rate: ")


def test_more_clients_than_data_for_a_single_agent_are_named(fl_app: Any) -> None:
    run = 'objective.run=["strategy=dp_fedpaq","num_clients=2000"]'
    line = assert_refused(fl_app("run", *RUNS, run), 2, "objective.run: ['strategy=dp_fedpaq'")
    assert "a smaller num_clients" in line
