"""A search's folder that is damaged: refused by name, and its results are never half of them."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.fl_app.begun_runs import assert_refused_untouched
from tests.fl_app.small_searches import read, search

pytestmark = pytest.mark.usefixtures("no_report")
BROKEN = 3


@pytest.fixture(scope="module")
def broken_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("search") / "run"


@pytest.fixture
def begun(fl_app: Any, break_after: Any, broken_once: Path) -> Path:
    """A search that has ended after the third of its six rounds."""
    if broken_once.exists():
        shutil.copytree(broken_once, "run")
    else:
        break_after(BROKEN)
        search(fl_app, "run", code=1)
        shutil.copytree("run", broken_once)
    return Path("run").absolute()


def cut(lines: list[str]) -> str:
    return "\n".join(lines[:-1]) + "\n"


def half(lines: list[str]) -> str:
    return "\n".join(lines)[:-20]


def other_type(lines: list[str]) -> str:
    return "\n".join([lines[0], "[]", *lines[2:]]) + "\n"


def other_round(lines: list[str]) -> str:
    return "\n".join([lines[0], lines[1].replace('"round": 1', '"round": 9'), *lines[2:]]) + "\n"


def no_round(lines: list[str]) -> str:
    row = {key: value for key, value in json.loads(lines[1]).items() if key != "round"}
    return "\n".join([lines[0], json.dumps(row) + " " * 12, *lines[2:]]) + "\n"


@pytest.mark.parametrize("damage", [cut, half, other_type, other_round, no_round])
def test_queries_that_are_not_all_there_are_refused(
    fl_app: Any, begun: Path, damage: Callable[[list[str]], str]
) -> None:
    """Failures and best points are counted from them."""
    file = begun / "queries.jsonl"
    file.write_text(damage(file.read_text().splitlines()))
    line = assert_refused_untouched(fl_app, begun, [f"resume={begun}"], "resume: ")
    assert str(file) in line


def test_without_its_queries_a_search_does_not_go_on(fl_app: Any, begun: Path) -> None:
    (begun / "queries.jsonl").unlink()
    assert_refused_untouched(fl_app, begun, [f"resume={begun}"], "resume: ")


def test_what_came_after_the_checkpoint_is_done_again(fl_app: Any, begun: Path) -> None:
    file = begun / "queries.jsonl"
    before = file.read_text()
    file.write_text(before + before.splitlines()[-1].replace('"round": 3', '"round": 4') + '\n{"ro')
    assert fl_app("run", f"resume={begun}").code == 0
    undisturbed = search(fl_app, "whole")
    assert read(begun) == undisturbed


@pytest.mark.parametrize(
    "content", ["xx", "[NaN, NaN]", "[0.5, Infinity]", "[true]", "{}", "[[0.5], 1.0]"]
)
def test_an_observation_that_is_none_is_refused(fl_app: Any, begun: Path, content: str) -> None:
    change(begun, "UPDATE observations SET content = ? WHERE number = 2", content)
    line = assert_refused_untouched(fl_app, begun, [f"resume={begun}"], "resume: ")
    assert "devices.sqlite is damaged" in line
    assert content not in line


@pytest.mark.parametrize(
    "which",
    [
        "number > 20",
        "client = 3 AND number > 10",
        "number = (SELECT max(number) FROM observations WHERE client = 2)",
    ],
)
def test_observations_that_are_missing_are_noticed(fl_app: Any, begun: Path, which: str) -> None:
    """Also if it is one client's, and its newest."""
    change(begun, f"DELETE FROM observations WHERE {which} AND 1 = ?", 1)
    line = assert_refused_untouched(fl_app, begun, [f"resume={begun}"], "resume: ")
    assert "devices.sqlite'; allowed: a file with all observations" in line


@pytest.mark.parametrize("content", ["[1.0]", "[7.5, 1.0]", "[0.5, 0.5, 1.0]", "[0.5, 1e300]"])
def test_observations_of_another_space_are_noticed(fl_app: Any, begun: Path, content: str) -> None:
    change(begun, "UPDATE observations SET content = ?", content)
    ended = fl_app("run", f"resume={begun}")
    assert ended.code == 1
    assert "observations are missing or damaged" in ended.errors


def change(folder: Path, statement: str, value: Any) -> None:
    with closing(sqlite3.connect(folder / "checkpoint" / "devices.sqlite")) as connection:
        connection.execute(statement, (value,))
        connection.commit()
