"""A run's folder from anybody: nothing that its configuration names is called unasked."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fl_app.cli import main
from fl_app.config import compose_settings, resumed_settings
from fl_app.data import RawDataset, Records
from fl_app.errors import ConfigError
from fl_app.model_arrays import to_arrays
from fl_app.model_files import save_model
from fl_app.models import build_model
from fl_app.named_code import list_named_code, name_again
from fl_app.run_config import to_yaml
from fl_app.saved_run import evaluate_run, load_model

MODEL, DATA = "tests.fl_app.own_models:build", f"{__name__}:read_few"
MINE = ("model=user", f"model.path={MODEL}", "data=user", f"data.path={DATA}")


def read_few(root: str | None) -> RawDataset:
    records = Records(np.ones((6, 1, 8, 8), np.float32), np.arange(6, dtype=np.int64) % 2)
    return RawDataset(records, records, 2)


def write_run(folder: Path, **groups: dict[str, Any]) -> Path:
    """Write what a finished run leaves, with other values in its configuration."""
    chosen = compose_settings(["num_clients=2", *(() if groups else MINE)])
    values = json.loads(chosen.to_json())
    for name, group in groups.items():
        values[name].update(group)
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    model = build_model(chosen.model, (1, 8, 8), 2, 0)
    save_model(folder / "model.safetensors", to_arrays(model))
    (folder / "metrics.jsonl").write_text(json.dumps({"round": 0, "format_version": 1}) + "\n")
    return folder


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    found: list[object] = []
    monkeypatch.setattr("os.system", found.append)
    return found


@pytest.mark.parametrize("way", ["evaluate", "load", "resume", "report"])
@pytest.mark.parametrize("group", ["data", "model"])
def test_code_of_a_folder_s_choice_does_not_run(
    tmp_path: Path, ran: list[object], way: str, group: str
) -> None:
    evil = {"name": "user", "path": "os:system"}
    root = {"root": "touch pwned"} if group == "data" else {}
    folder = write_run(tmp_path / "run", **{group: {**evil, **root}})
    ways = {
        "evaluate": lambda: evaluate_run(folder, []),
        "load": lambda: load_model(folder),
        "resume": lambda: resumed_settings([f"resume={folder}"]),
        "report": lambda: main(["report", str(folder)]),
    }
    if way == "report":
        with pytest.raises(SystemExit):
            ways[way]()
    else:
        hint = r"allow=\(" if way == "load" else rf"{group}.path=os:system"
        with pytest.raises(ConfigError, match=f"{group}.path: 'os:system'.*again: {hint}"):
            ways[way]()
    assert ran == []


def test_named_again_it_runs(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    again = [f"model.path={MODEL}", f"data.path={DATA}"]
    assert evaluate_run(folder, again).num_records == 6
    assert load_model(folder, allow=(MODEL, DATA)).training is False
    found = resumed_settings([f"resume={folder}", *again])
    assert found is not None
    assert found[1].model.path == MODEL
    for words in (again[:1], again[1:], ["model.path=a:b", again[1]]):
        with pytest.raises(ConfigError, match="named again"):
            evaluate_run(folder, words)
        with pytest.raises(ConfigError, match="named again"):
            resumed_settings([f"resume={folder}", *words])
        with pytest.raises(ConfigError, match="named again"):
            load_model(folder, allow=[word.partition("=")[2] for word in words])


def test_with_other_data_the_folder_s_reader_is_not_needed(
    tmp_path: Path, ran: list[object]
) -> None:
    folder = write_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="data that the run's model takes"):
        evaluate_run(folder, ["data=digits", f"model.path={MODEL}"])
    assert ran == []


def test_a_run_within_a_run_names_code_as_well() -> None:
    quoted = "objective.run=['num_clients=2','model=user','model.path=os:system']"
    chosen = compose_settings(
        ["num_clients=5", "strategy=dp_fts_de", "objective=training_run", quoted]
    )
    assert list_named_code(chosen) == [("model.path", "os:system")]


def test_a_search_s_own_function_is_named_again(tmp_path: Path) -> None:
    mine = compose_settings(
        [
            *("num_clients=10", "strategy=dp_fts_de", "objective=user", "objective.path=os:system"),
            "objective.search_space=[{name: x, kind: float, low: 0, high: 1}]",
        ]
    )
    (tmp_path / "config.yaml").write_text(to_yaml(mine))
    with pytest.raises(ConfigError, match=r"objective.path=os:system"):
        resumed_settings([f"resume={tmp_path}"])
    assert resumed_settings([f"resume={tmp_path}", "objective.path=os:system"]) is not None


def test_a_ray_cluster_is_named_again(tmp_path: Path) -> None:
    words = ("engine=simulation", "engine.ray_address=10.0.0.1:6379")
    (tmp_path / "config.yaml").write_text(to_yaml(compose_settings(["num_clients=2", *words])))
    with pytest.raises(ConfigError) as refused:
        resumed_settings([f"resume={tmp_path}"])
    assert refused.value.key == "engine.ray_address"
    for again in (words[1:], ("engine=in_process",)):
        assert resumed_settings([f"resume={tmp_path}", *again]) is not None


@pytest.mark.parametrize(
    "words",
    [
        (),
        MINE,
        ("engine=simulation", "engine.ray_address=10.0.0.1:6379", *MINE[:2]),
        ("strategy=dp_fts_de", "objective=training_run", f"objective.run={[*MINE]}"),
    ],
)
def test_what_a_stopped_run_prints_makes_it_go_on(tmp_path: Path, words: tuple[str, ...]) -> None:
    settings = compose_settings(["num_clients=2", *words])
    folder = tmp_path / "a run"
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(settings))
    printed = name_again(folder, settings)
    assert resumed_settings(shlex.split(printed)) == (folder, settings)


@pytest.mark.parametrize(
    "name",
    [
        *("a=b", "a,b", "it's", "a(b)", "{x}", "[1]", 'say "x"', "ü run", "back\\slash", "end\\"),
        *("2026-11-30", "null", "~", " a ", "100%", "a:b", '\\"', "${x}", "$HOME"),
    ],
)
def test_a_folder_of_any_name_goes_on(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    settings = compose_settings(["num_clients=2"])
    (folder / "config.yaml").write_text(to_yaml(settings))
    found = resumed_settings(shlex.split(name_again(folder, settings)))
    assert found == (folder, settings)
