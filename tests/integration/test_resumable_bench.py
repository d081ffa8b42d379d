"""A bench goes on where it was stopped, and computes nothing twice."""

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import published, sweeps
from bench.resumable_bench import ResumableBench, read_commit

JOBS: list[list[Any]] = [
    ["a", 0, ["x=1", "seed=0"]],
    ["b", 0, ["x=2", "seed=0"]],
    ["b", 1, ["x=2", "seed=1", "root={root}"]],
]


def make(file: Path, shown: list[Any]) -> ResumableBench:
    return ResumableBench(
        file,
        ("name", "seed"),
        [0, 1],
        lambda: [tuple(job) for job in JOBS],
        lambda summary, metrics: {"accuracy": summary["test_accuracy"], "rows": len(metrics)},
        lambda results: shown.append(("table", len(results["runs"]))),
        lambda results: shown.append(("plot", len(results["runs"]))),
        lambda runs: {"best": max(run["accuracy"] for run in runs)},
    )


def test_only_missing_runs_are_computed_and_each_is_kept_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[list[str]] = []

    def run_once(overrides: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        computed.append(overrides)
        if len(computed) == 3:
            raise KeyboardInterrupt
        return {"test_accuracy": len(computed) / 10, "versions": {"us": "1"}}, [{}, {}]

    monkeypatch.setattr(logging, "disable", lambda level: None)
    monkeypatch.setitem(sys.modules, "single_run", SimpleNamespace(run_once=run_once))
    file, shown = tmp_path / "results" / "mine.json", []
    monkeypatch.setattr(sys, "argv", ["mine.py", "--root", "there"])
    with pytest.raises(KeyboardInterrupt):
        make(file, shown).main("text")
    first = json.loads(file.read_text())
    assert [run["name"] for run in first["runs"]] == ["a", "b"]
    assert first["command"] == "python bench/mine.py --root=FOLDER_WITH_MNIST"
    monkeypatch.setattr(sys, "argv", ["mine.py", "--root", "there", "--table", "--plot"])
    make(file, shown).main("text")
    last = ["x=2", "seed=1", "root=there"]
    sent = [JOBS[0][2], JOBS[1][2], last, last]
    assert computed == [[*words, "data.root=there"] for words in sent]
    results = json.loads(file.read_text())
    assert (results["seeds"], results["versions"], results["best"]) == ([0, 1], {"us": "1"}, 0.4)
    *_, last = results["runs"]
    assert last.pop("seconds") >= 0
    assert last.pop("commit") == read_commit()
    assert last == {"name": "b", "seed": 1, "overrides": JOBS[2][2], "accuracy": 0.4, "rows": 2}
    assert shown == [("table", 3), ("plot", 3)]
    # What was made with other overrides is made again, and replaced.
    monkeypatch.setattr(sys.modules[__name__], "JOBS", [["a", 0, ["x=9", "seed=0"]], *JOBS[1:]])
    monkeypatch.setattr(sys, "argv", ["mine.py", "--root", "there"])
    make(file, shown).main("text")
    assert computed[4:] == [["x=9", "seed=0", "data.root=there"]]
    names = [(run["name"], run["overrides"][0]) for run in json.loads(file.read_text())["runs"]]
    assert names == [("b", "x=2"), ("b", "x=2"), ("a", "x=9")]


def test_the_committed_runs_are_those_that_the_programs_list() -> None:
    for program, keys in ((published, ("name", "seed")), (sweeps, ("sweep", "value", "seed"))):
        runs = json.loads(program.RESULTS.read_text())["runs"]
        listed = {tuple(job[:-1]): job[-1] for job in program.list_jobs()}
        kept = {tuple(run[key] for key in keys): run["overrides"] for run in runs}
        assert kept == listed
