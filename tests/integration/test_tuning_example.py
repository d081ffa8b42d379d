"""Tuning one's own model, as the README shows it: pasted, and run with the command it gives."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def block(name: str, kind: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```{kind}\n(.*?)```", README, re.S)
    assert found is not None
    return found.group(1)


@pytest.fixture
def pasted(tmp_path: Path) -> Path:
    (tmp_path / "tuning" / "experiment").mkdir(parents=True)
    (tmp_path / "tuning" / "mine.py").write_text(block("own objective", "python"))
    (tmp_path / "tuning" / "experiment" / "mine.yaml").write_text(block("own search", "yaml"))
    return tmp_path


def command() -> tuple[dict[str, str], list[str]]:
    """Return what the command sets in the environment, and its words behind ``fl-app``."""
    (line,) = re.findall(r"^    (PYTHONPATH=tuning fl-app run .+)$", README, re.M)
    setting, program, *words = shlex.split(line)
    assert program == "fl-app"
    name, _, folder = setting.partition("=")
    return {name: os.pathsep.join([folder, str(REPOSITORY)])}, words


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment, given = command()
    return subprocess.run(
        [sys.executable, "-m", "fl_app.cli", *given, *words],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.slow
def test_the_example_works_as_pasted(pasted: Path) -> None:
    done = run(pasted)
    assert "Releases" in done.stdout
    folder = pasted / "tuned"
    found = json.loads((folder / "best_point.json").read_text())
    assert found["agents"] == []
    assert found["shared"]["point"].keys() == {"learning_rate", "weight_decay"}
    assert (folder / "report.html").is_file()
    privacy = json.loads((folder / "privacy.json").read_text())["guarantees"]
    assert privacy[0]["valid"]
    assert privacy[0]["epsilon"] <= 5.0
    (line,) = re.findall(r"^    fl-app (ledger tuned .+)$", README, re.M)
    printed = subprocess.run(
        [sys.executable, "-m", "fl_app.cli", *shlex.split(line)],
        cwd=pasted,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "learning_rate" in printed
    rows = [line.split() for line in printed.splitlines() if line.startswith("  simulated ")]
    assert len(rows) == 10
    assert [int(row[1]) for row in rows] == list(range(10))
    values = [float(row[-3]) for row in rows]
    # Ten classes: a rate of learning that does not learn reaches a tenth.
    assert sum(values) / 10 > 0.6


@pytest.mark.slow
def test_a_seeded_search_lists_each_client_s_best_point(pasted: Path) -> None:
    run(pasted, "randomness=seeded", "num_rounds=2", "strategy.num_initial=2")
    found = json.loads((pasted / "tuned" / "best_point.json").read_text())
    assert [each["agent"] for each in found["agents"]] == list(range(10))
