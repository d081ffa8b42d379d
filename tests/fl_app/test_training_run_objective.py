"""Whole trainings as the values of a search: whose data they use, which keys, what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.supercore.task_identity import TaskIdentity

from fl_app.config import compose_settings
from fl_app.data import FederatedDataset
from fl_app.errors import ConfigError
from fl_app.objectives import TrainingRunSettings, load_objective, observe
from fl_app.objectives.training_run import PRIVACY_KEYS, TrainingRun
from fl_app.plain_mapping import PlainMapping
from fl_app.search_space import SearchSpace
from fl_app.search_task import load_run_objective
from strategies.mechanisms.rng import RandomnessKind

RATE = {"name": "learning_rate", "kind": "log_float", "low": 0.01, "high": 1.0}
RUN = ("strategy=fedavg", "num_clients=2", "num_rounds=3")
NO_LEARNING, GOOD = {"learning_rate": 0.01}, {"learning_rate": 0.5}


def make(
    *axes: dict[str, Any], run: tuple[str, ...] = RUN, agents: int = 3, **keys: str
) -> TrainingRun:
    space = SearchSpace.from_plain(list(axes) or [RATE])
    mapping = PlainMapping(keys) if keys else None
    made = load_objective(TrainingRunSettings("training_run", agents, run, mapping, space.axes), 0)
    assert isinstance(made, TrainingRun)
    return made


def test_a_value_is_a_function_of_the_point_and_learning_helps() -> None:
    objective = make()
    good = [objective.evaluate(agent, GOOD) for agent in range(3)]
    assert good == [objective.evaluate(agent, GOOD, trial=7) for agent in range(3)]
    assert len(set(good)) > 1
    assert all(
        value > 0.6 > objective.evaluate(agent, NO_LEARNING) for agent, value in enumerate(good)
    )
    assert (objective.value_range, objective.num_agents) == ((0.0, 1.0), 3)


def test_an_agent_uses_its_own_parts_and_scores_on_one_that_nobody_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objective = make()
    read: list[int] = []
    partition = FederatedDataset.partition

    def watch(self: FederatedDataset, index: int) -> Any:
        read.append(index)
        return partition(self, index)

    monkeypatch.setattr(FederatedDataset, "partition", watch)
    for agent in range(3):
        read.clear()
        objective.evaluate(agent, GOOD)
        assert sorted(set(read)) == [3 * agent, 3 * agent + 1, 3 * agent + 2]
        # The clients' parts in each round, the agent's own one only at the end.
        assert read.count(3 * agent + 2) == 1
        assert read[-1] == 3 * agent + 2
    assert objective._dataset.num_partitions == 9


def test_axes_stand_for_keys_of_the_strategy_or_for_those_that_are_named() -> None:
    hidden = {"name": "hidden", "kind": "integer", "low": 4, "high": 8}
    rounds = {"name": "rounds", "kind": "integer", "low": 1, "high": 9}
    objective = make(
        *(RATE, hidden, rounds),
        run=(*RUN, "model=mlp"),
        hidden="model.hidden",
        rounds="num_rounds",
    )
    made = objective.configure({"learning_rate": 0.25, "hidden": 5, "rounds": 4})
    assert made.training.learning_rate == 0.25
    assert (made.model.hidden, made.num_rounds, made.num_clients) == (5, 4, 2)
    plain = compose_settings([*RUN, "model=mlp", "seed=0"])
    assert made != plain
    again = objective.configure(
        {"learning_rate": plain.training.learning_rate, "hidden": 64, "rounds": 3}
    )
    assert json.loads(again.to_json())["strategy"] == json.loads(plain.to_json())["strategy"]


def test_the_process_stays_the_client_that_it_was() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 77, 78, 79
    try:
        make().evaluate(0, GOOD)
        assert (TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id) == (77, 78, 79)
    finally:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def test_a_training_that_fails_is_a_failed_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("record 17 says: secret")

    objective = make()
    monkeypatch.setattr("fl_app.objectives.training_run.evaluate", fail)
    found = observe(objective, 0, GOOD)
    assert (found.failed, found.value, found.reason) == (True, 0.0, "RuntimeError")


@pytest.mark.parametrize(
    ("words", "keys", "start"),
    [
        (("strategy=dp_fts_de",), {}, "objective.run: "),
        (("strategy=fedavg", "num_clients=null"), {}, "objective.run: "),
        ((*RUN, "strategy.learning_rte=1"), {}, "strategy.learning_rte: "),
        (RUN, {"learning_rate": "seed"}, "objective.keys.learning_rate: 'seed'; allowed: "),
        (RUN, {"learning_rate": "data.scale"}, "objective.keys.learning_rate: 'data.scale'"),
        (RUN, {"learning_rate": "strategy.rate"}, "objective.keys.learning_rate: 'strategy.rate'"),
        (RUN, {"learning_rate": "strategy."}, "objective.keys.learning_rate: 'strategy.'"),
        (RUN, {"learning_rate": "model.path"}, "objective.keys.learning_rate: 'model.path'"),
        (RUN, {"learning_rate": "model.name"}, "objective.keys.learning_rate: 'model.name'"),
        (RUN, {"rate": "strategy.learning_rate"}, "objective.keys: 'rate'; allowed: axes"),
        *(
            (RUN, {"learning_rate": f"strategy.{key}"}, "objective.keys.learning_rate: 'strategy.")
            for key in sorted(PRIVACY_KEYS)
        ),
        (RUN, {"learning_rate": "strategy.target_epsilons.0"}, "objective.keys.learning_rate: "),
        # A value that the method refuses everywhere is refused at once.
        (RUN, {"learning_rate": "strategy.local_epochs"}, "strategy.local_epochs: "),
    ],
)
def test_what_cannot_be_run_is_refused(
    words: tuple[str, ...], keys: dict[str, str], start: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make(run=words, **keys)
    assert str(caught.value).startswith(start), caught.value


def test_a_search_over_trainings(fl_app: Any) -> None:
    words = (
        *("strategy=dp_fts_de", "objective=training_run", "objective.num_agents=2"),
        *("num_rounds=2", "strategy.num_initial=2", "strategy.release_rounds=[1]"),
        'objective.run=["strategy=fedavg","num_clients=2","num_rounds=1"]',
        "objective.search_space=[{name: learning_rate, kind: log_float, low: 0.01, high: 1}]",
    )
    ended = fl_app("run", *words, "hydra.run.dir=run")
    assert ended.code == 0, ended.errors
    agents = json.loads(Path("run", "best_point.json").read_text())["agents"]
    assert [(each["agent"], each["failures"]) for each in agents] == [(0, 0), (1, 0)]
    # Its queries are the agent's own, and the log of the whole run names none.
    assert "DP-FedPaq" not in Path("run", "run.log").read_text()
    privacy = Path("run", "privacy.json").read_text()
    assert "is a release of its own, with its own guarantee" in privacy
    row = json.loads(privacy)["guarantees"][-1]
    assert (row["adversary"], row["epsilon"]) == ("server_in_evaluations", None)
    assert "no clipping norm or no target for epsilon" in row["why_not"]


def load(randomness: RandomnessKind, *run: str) -> TrainingRun:
    space = SearchSpace.from_plain([RATE])
    settings = TrainingRunSettings("training_run", 3, run, None, space.axes)
    made = load_objective(settings, 0, randomness=randomness)
    assert isinstance(made, TrainingRun)
    return made


NOISY = ("strategy=dp_fedpaq", "num_clients=2", "num_rounds=2", "strategy.target_epsilon=8")


def test_the_trainings_of_a_secret_search_are_secret() -> None:
    """Seeded ones would draw noise that the configuration tells."""
    objective = load("secret", *NOISY)
    assert objective.configure(GOOD).randomness == "secret"
    assert load("seeded", *NOISY).configure(GOOD).randomness == "seeded"
    # Nothing in the training's own overrides weakens it.
    assert load("secret", *NOISY, "randomness=seeded").configure(GOOD).randomness == "secret"
    found = {objective.evaluate(0, GOOD) for _ in range(6)}
    assert len(found) > 1
    words = ["strategy=dp_fts_de", "objective=training_run", "randomness=secret"]
    run = load_run_objective(compose_settings(words))
    assert isinstance(run, TrainingRun)
    assert run.configure(run.space.decode(np.full(2, 0.5))).randomness == "secret"


@pytest.mark.parametrize(
    ("words", "adversary", "epsilon", "delta", "reason"),
    [
        (NOISY, "server", 8.0, 1e-5, None),
        ((*NOISY, "strategy.target_epsilon=0.5"), "server", 0.5, 1e-5, None),
        (("strategy=dp_fedavg", "num_clients=2", "num_rounds=2"), "model_user", 8.0, 1e-5, None),
        ((*NOISY, "strategy.target_delta=3e-4"), "server", 8.0, 3e-4, "delta = 0.012"),
        ((*NOISY, "strategy.target_epsilon=30"), "server", 30.0, 1e-5, "epsilon is 1.2e+03"),
        (
            (*NOISY[:3], "strategy.target_epsilon=null", "strategy.noise_multiplier=1"),
            *("server", None, None, "no target for epsilon"),
        ),
        (
            ("strategy=niss", "num_clients=5", "num_rounds=2", "strategy.target_epsilon=2"),
            *("server_and_colluders", 2.0, 1e-5, None),
        ),
    ],
)
def test_evaluations_add_up(
    words: tuple[str, ...],
    adversary: str,
    epsilon: float | None,
    delta: float | None,
    reason: str | None,
) -> None:
    secret, seeded = (load(kind, *words).guarantees(40)[0] for kind in ("secret", "seeded"))
    assert secret.adversary == seeded.adversary == f"{adversary}_in_evaluations"
    assert secret.epsilon == (None if epsilon is None else 40 * epsilon)
    assert secret.delta == (None if delta is None else pytest.approx(40 * delta, rel=1e-12))
    assert secret.valid == (reason is None)
    assert reason is None or reason in str(secret.why_not)
    assert (seeded.valid, seeded.epsilon) == (False, secret.epsilon)
    if epsilon is not None:
        assert "40 trainings of each agent are counted" in secret.assumptions[0]
        assert f"with epsilon {epsilon:g} and delta {delta:g}" in secret.assumptions[0]


def test_a_training_spends_what_is_counted() -> None:
    """What one training says of itself is not above its share."""
    objective = load("secret", *NOISY)
    held: list[Any] = []
    build = objective._build

    def watch(*arguments: Any) -> Any:
        held.append(build(*arguments))
        return held[-1]

    objective._build = watch  # type: ignore[method-assign]
    objective.evaluate(0, GOOD)
    (row, *_) = held[0].guarantees()
    (total,) = objective.guarantees(1)
    assert row.valid
    assert total.valid
    assert 0.5 * total.epsilon < row.epsilon <= total.epsilon
    for key in ("unit", "neighboring_relation", "delta", "randomness", "colluding_fraction"):
        assert getattr(row, key) == getattr(total, key)
    assert f"{row.adversary}_in_evaluations" == total.adversary


def test_the_report_says_what_evaluations_add_up_to(fl_app: Any) -> None:
    words = (
        *("strategy=dp_fts_de", "objective=training_run", "objective.num_agents=2"),
        *("num_rounds=2", "strategy.num_initial=2", "strategy.release_rounds=[1]"),
        'objective.run=["strategy=dp_fedavg","num_clients=2","num_rounds=1"]',
        *("randomness=secret", "strategy.target_epsilon=2", "hydra.run.dir=run"),
    )
    ended = fl_app("run", *words)
    assert ended.code == 0, ended.errors
    row = json.loads(Path("run", "privacy.json").read_text())["guarantees"][-1]
    assert (row["adversary"], row["epsilon"], row["valid"]) == (
        "model_user_in_evaluations",
        24.0,
        True,
    )
    said = "all evaluations of an agent together"
    assert "trusted agent: " in row["assumptions"][-1]
    assert said in " ".join(ended.output.split())
    assert said in Path("run", "report.html").read_text()
