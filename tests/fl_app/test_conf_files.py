"""Every file of conf/ composes, every key in it is explained, and its names are the program's."""

import dataclasses
import itertools
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import yaml

from fl_app.conf_folder import describe_choices, find_conf
from fl_app.config import compose_config, compose_settings, settings_from
from fl_app.data import SOURCES, DataSettings, PartitionSettings
from fl_app.engines.faults import FaultSettings
from fl_app.model_settings import MODELS, ModelSettings
from fl_app.objectives import OBJECTIVES, ObjectiveSettings
from fl_app.published import PublishedSettings
from fl_app.registry import METHODS
from fl_app.settings import EngineSettings, RunSettings
from fl_app.strategy_settings import (
    NissSettings,
    StrategySettings,
    TrainingSettings,
)

REPOSITORY = Path(__file__).resolve().parents[2]
CONF = find_conf()
FILES = sorted(CONF.rglob("*.yaml"))
GROUPS = {
    group: sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    for group in ("strategy", "data", "model", "objective", "engine", "experiment")
}
SEARCHES = ["dp_fts", "dp_fts_de", "dp_fts_de_paper", "fts", "fts_de", "thompson_sampling"]
TRAININGS = [name for name in GROUPS["strategy"] if name not in SEARCHES]
# What a search needs beside each objective's file.
NEEDED = {
    "user": [
        "objective.path=package.module:function",
        "objective.search_space=[{name: x, kind: float, low: 0.0, high: 1.0}]",
    ],
    "local_training": ["data=mnist_writers"],
}


def leave_for_slow(names, count):
    """Return the names, of which all but the first few are for the slow tests."""
    return [*names[:count], *(pytest.param(name, marks=pytest.mark.slow) for name in names[count:])]


@pytest.mark.parametrize("strategy", leave_for_slow(TRAININGS, 2))
def test_every_combination_of_files_composes(strategy):
    for model, engine in itertools.product(GROUPS["model"], GROUPS["engine"]):
        choices = [f"strategy={strategy}", f"model={model}", f"engine={engine}"]
        choices += ["model.path=package.module:build"] if model == "user" else []
        made = compose_settings(choices)
        assert isinstance(made, RunSettings)
        assert (made.model.name, made.engine.name) == (model, engine)


@pytest.mark.parametrize("strategy", leave_for_slow(SEARCHES, 2))
def test_every_combination_of_a_search_composes(strategy):
    for objective, engine in itertools.product(GROUPS["objective"], GROUPS["engine"]):
        choices = [f"strategy={strategy}", f"objective={objective}", f"engine={engine}"]
        made = compose_settings([*choices, *NEEDED.get(objective, [])])
        assert made.search is not None
        assert (made.objective.name, made.engine.name) == (objective, engine)
        assert made.num_clients is None
    # One that is ready to run beside the method alone.
    assert compose_settings([f"strategy={strategy}"]).objective.name == "synthetic"


@pytest.mark.parametrize("data", GROUPS["data"])
def test_every_data_file_composes(data):
    made = compose_settings([f"data={data}"])
    assert made.data.name == compose_config([f"data={data}"]).data.name in SOURCES


@pytest.mark.parametrize("experiment", leave_for_slow(GROUPS["experiment"], 4))
def test_every_experiment_composes_by_itself_and_with_every_other_file(experiment):
    compose_settings([f"experiment={experiment}"])
    if experiment.startswith("dp_fts_de_"):
        names = ("dp_fts_de", "dp_fts_de_paper") if "ablation" in experiment else ()
        for word in (*(f"strategy={name}" for name in names), "engine=simulation"):
            assert compose_settings([f"experiment={experiment}", word]).search is not None
        return
    # What was published is the setting of one strategy, and need not fit another.
    strategies = () if experiment.startswith(("dp_fedpaq_", "niss_")) else ("strategy",)
    for group in (*strategies, "data", "model", "engine"):
        for name in TRAININGS if group == "strategy" else GROUPS[group]:
            path = ["model.path=package.module:build"] if (group, name) == ("model", "user") else []
            # A loss on the clients' data is of seeded runs only.
            path += ["randomness=seeded"] if name == "deployment" else []
            made = compose_settings([f"experiment={experiment}", f"{group}={name}", *path])
            chosen = getattr(made, group)
            # A label of the experiment's own stands for the strategy's.
            assert chosen.name in (name, "mnist") or group == "strategy"


def test_the_names_of_files_methods_and_folders_agree():
    (method_type,) = (get_type_hints(StrategySettings)["name"],)
    methods = set(METHODS)
    assert methods == set(get_args(method_type))
    folders = {path.parent.name for path in (REPOSITORY / "strategies").glob("*/server.py")}
    assert methods == folders
    assert methods <= set(GROUPS["strategy"])
    for name in GROUPS["strategy"]:
        method = compose_config([f"strategy={name}"]).strategy.name
        assert method in methods
        if name in methods:
            assert method == name
    sources = {name: compose_config([f"data={name}"]).data.name for name in GROUPS["data"]}
    assert {name for name, source in sources.items() if name == source} == set(SOURCES)
    assert set(sources.values()) == set(SOURCES)
    assert set(GROUPS["model"]) == set(MODELS)
    assert set(GROUPS["objective"]) == set(OBJECTIVES)
    assert set(GROUPS["engine"]) == set(get_args(get_type_hints(EngineSettings)["name"]))


def test_conf_gives_every_key_that_the_settings_have():
    """So no value comes from a default that the user cannot read in conf/."""
    composed = compose_config([])
    made = dataclasses.asdict(settings_from(composed))
    # How a run is started is not among its settings.
    written = {key for key in composed if key not in ("hydra", "resume")}
    assert written | {"objective"} == set(made)
    assert made["objective"] is None
    for name in GROUPS["strategy"]:
        values = compose_config([f"strategy={name}"]).strategy
        kind = StrategySettings.choose(values)
        assert set(values) == {f.name for f in dataclasses.fields(kind)}
    for group, kind in (("data", DataSettings), ("model", ModelSettings)):
        for name in GROUPS[group]:
            chosen = compose_config([f"{group}={name}"])[group]
            assert set(chosen) == {f.name for f in dataclasses.fields(kind)}
    for name in GROUPS["objective"]:
        values = compose_config([f"objective={name}"]).objective
        kind = ObjectiveSettings.choose(values)
        assert set(values) == {f.name for f in dataclasses.fields(kind)}
    for name in GROUPS["engine"]:
        chosen = compose_config([f"engine={name}"]).engine
        assert set(chosen) == {f.name for f in dataclasses.fields(EngineSettings)}
    assert set(composed.data.partition) == {f.name for f in dataclasses.fields(PartitionSettings)}
    assert set(composed.published) == {f.name for f in dataclasses.fields(PublishedSettings)}
    assert set(composed.faults) == {f.name for f in dataclasses.fields(FaultSettings)}


def find_unexplained(text: str) -> list[str]:
    """Return the keys without a comment on their line, Hydra's list of defaults aside."""
    missing = []
    text_block = -1
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        if 0 <= text_block < depth:
            continue
        text_block = -1
        key, colon, rest = line.strip().partition(":")
        if not colon or not key.isidentifier() or key == "defaults":
            continue
        if rest.lstrip().startswith("|"):
            text_block = depth
        if not re.search(r" # \S", rest):
            missing.append(key)
    return missing


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_every_key_is_explained(file):
    text = file.read_text(encoding="utf-8")
    assert find_unexplained(text) == []
    assert max(map(len, text.splitlines())) <= 120


def test_a_key_without_comment_is_found():
    text = "defaults:\n  - data: digits\nseed: 0\ngroup:\n  key: 1 # one\n  other: 2\n"
    assert find_unexplained(text) == ["seed", "group", "other"]
    assert find_unexplained("a: | # text\n  b: 1\nc: 1#\n") == ["c"]


def test_comments_name_the_allowed_words():
    """Each word of a Literal stands in the comment of its key, or in the lines below it."""
    files = {
        TrainingSettings: "strategy/dp_fedpaq.yaml",
        NissSettings: "strategy/niss.yaml",
        RunSettings: "config.yaml",
    }
    for kind, file in files.items():
        lines = (CONF / file).read_text(encoding="utf-8").splitlines()
        for key, hint in get_type_hints(kind).items():
            words = [word for word in get_args(hint) if isinstance(word, str)]
            if not words or key not in kind.__annotations__:
                continue
            (number,) = (i for i, line in enumerate(lines) if line.startswith(f"{key}:"))
            more = itertools.takewhile(lambda line: line.startswith(" "), lines[number + 1 :])
            comment = " ".join(line.partition("#")[2] for line in (lines[number], *more))
            assert [word for word in words if word not in comment] == [], key


@pytest.mark.parametrize("group", GROUPS)
def test_every_file_has_a_description(group):
    described = describe_choices(group)
    assert sorted(described) == GROUPS[group]
    assert all(len(text) > 10 and "@package" not in text for text in described.values())


def test_the_default_composes_to_what_the_file_says():
    made = compose_settings([])
    assert (made.strategy.name, made.data.name, made.engine.name) == (
        *("dp_fedpaq", "digits"),
        "in_process",
    )
    assert made.strategy.target_delta == 1e-5
    assert made.rounds == yaml.safe_load((CONF / "config.yaml").read_text())["num_rounds"]
