"""Evaluations that fail, points that are no floats, and what a search refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from fl_app.config import compose_settings
from fl_app.errors import ConfigError
from fl_app.settings import RunSettings
from tests.fl_app.small_searches import INITIAL, ROUNDS, SMALL, search

pytestmark = pytest.mark.usefixtures("no_report")

FAILING = "tests.fl_app.failing_objective:"


@pytest.mark.parametrize("kind", ["raises", "ends", "nan", "text", "array"])
def test_a_failing_evaluation_counts_as_the_lowest_value(fl_app: Any, kind: str) -> None:
    words = (
        *("objective=user", f"objective.path={FAILING}{kind}", "objective.low=-1"),
        "objective.search_space=[{name: x, kind: float, low: 0, high: 1}]",
    )
    # On agent 1 everything fails, on the others nothing.
    found = search(fl_app, "run", *words)
    best = found["best_point"]["agents"]
    assert best[1]["value"] == -1.0
    assert [each["failures"] for each in best] == [0, INITIAL + ROUNDS - 1, 0, 0, 0]
    assert all(best[agent]["value"] > 0.0 for agent in (0, 2, 3, 4))
    assert [row["failures"] for row in found["queries"] if row["agent"] == 1] == [INITIAL] + [1] * (
        ROUNDS - 1
    )
    # The clients' own log, of a seeded run, has the text; what is the server's has not.
    for file in Path("run").iterdir():
        if file.is_file() and file.name != "run.log":
            assert "my secret" not in file.read_text(errors="replace")
    search(fl_app, "all", *words[:1], f"objective.path={FAILING}everywhere", *words[2:], code=1)


def test_integers_and_choices_are_searched_as_such(fl_app: Any) -> None:
    space = (
        "objective.search_space=[{name: n, kind: log_integer, low: 1, high: 32}, "
        "{name: c, kind: choice, values: [a, b, c]}, "
        "{name: x, kind: log_float, low: 0.01, high: 1}]"
    )
    found = search(fl_app, "run", "objective=user", f"objective.path={FAILING}mixed", space)
    for each in found["best_point"]["agents"]:
        point = each["point"]
        assert isinstance(point["n"], int)
        assert point["c"] in ("a", "b", "c")
        assert each["value"] == pytest.approx(mixed_value(point, each["agent"]))
    assert found["shared_function"] is None
    assert set(found["best_point"]["shared"]["point"]) == {"n", "c", "x"}


def mixed_value(point: dict[str, Any], agent: int) -> float:
    from tests.fl_app.failing_objective import mixed

    return mixed(point, agent)


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["strategy=dp_fts_de", "objective=nope"], "objective: 'nope'; allowed: landmine"),
        (["num_clients=7"], "num_clients: 7; allowed: the agents of objective=synthetic, 5"),
        (["total_local_steps=5", "num_rounds=null"], "total_local_steps: 5; allowed: null with"),
        (["num_sampled_clients=2"], "num_sampled_clients: 2; allowed: null with strategy=dp_fts"),
        (["fraction_train=0.5"], "fraction_train: 0.5; allowed: null with strategy=dp_fts_de"),
        (["participation=poisson"], "participation: 'poisson'; allowed: 'fixed' with"),
        (["min_replies=2"], "min_replies: 2; allowed: 1 with strategy=dp_fts_de"),
        (["train_loss_every=2"], "train_loss_every: 2; allowed: null with strategy=dp_fts_de"),
        (["budget.uplink_bits=100"], "budget.uplink_bits: 100; allowed: null with"),
        (["faults.drop_after_ready=0.1"], "faults.drop_after_ready: 0.1; allowed: 0 without"),
        (["data=mnist"], "data.name: 'mnist'; allowed: digits (objective=synthetic reads no"),
        (["model=cnn"], "model.name: 'cnn'; allowed: softmax_regression (objective=synthetic"),
        (["strategy.clipping_norm=0"], "strategy.clipping_norm: 0.0; allowed: a number > 0"),
        (["strategy.clipping_norm=null"], "strategy.clipping_norm: null; allowed: a number > 0"),
        (["strategy.target_epsilon=null"], "strategy.noise_multiplier: null; allowed: a number"),
        (["strategy.sample_rate=2"], "strategy.sample_rate: 2.0; allowed: "),
        (["strategy.num_subregions=3"], "strategy.num_subregions: 3; allowed: "),
        (["strategy.prob_own=often"], "strategy.prob_own: 'often'; allowed: "),
        (["strategy.release_rounds=[2,1]"], "strategy.release_rounds: [2, 1]; allowed: rounds in"),
        (
            ["strategy.release_rounds=[1,6]"],
            "strategy.release_rounds: [1, 6]; allowed: rounds from 1 to num_rounds - 1 = 5 (",
        ),
        (["strategy.release_rounds=[9]", "num_rounds=4"], "strategy.release_rounds: [9]; allowed:"),
        (
            ["strategy.release_rounds=[1]", "num_rounds=1"],
            "strategy.release_rounds: [1]; allowed: auto with num_rounds=1 (",
        ),
        (["strategy.release_rounds=[0]"], "strategy.release_rounds: 0; allowed: an integer >= 1"),
        (["strategy.release_rounds=never"], "strategy.release_rounds: 'never'; allowed: a list"),
        (["strategy.release_rounds=[1.5]"], "strategy.release_rounds[0]: 1.5; allowed: an integer"),
        (["strategy.features=eigen"], "strategy.num_random_features: 20; allowed: at most 12"),
        (["strategy.quantizer=none"], "strategy.quantizer: "),
        (["strategy.target_epsilon=nan"], "strategy.target_epsilon: "),
        (["strategy.accountant=closed_form", "strategy.sample_rate=0.5"], "strategy.accountant: "),
        (["strategy.control=oracle", "randomness=secret"], "randomness: 'secret'; allowed: seeded"),
        (["strategy.mode=other"], "strategy.mode: 'other'; allowed: sound or paper"),
    ],
)
def test_what_a_search_refuses(fl_app: Any, words: list[str], start: str) -> None:
    ended = fl_app("run", *SMALL, *words)
    assert ended.errors.startswith(f"fl-app: {start}"), ended.errors
    assert ended.code == 2
    assert ended.errors.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_a_method_that_trains_has_no_objective() -> None:
    with pytest.raises(ConfigError, match=r"^objective: 'synthetic'; allowed: null with strategy="):
        compose_settings(["strategy=dp_fedpaq", "objective=synthetic"])


def test_a_method_that_searches_needs_an_objective() -> None:
    settings = json.loads(compose_settings(list(SMALL)).to_json())
    with pytest.raises(ConfigError, match=r"^objective: null; allowed: landmine, synthetic, local"):
        RunSettings.from_json(json.dumps({**settings, "objective": None}))
