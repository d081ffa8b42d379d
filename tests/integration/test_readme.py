"""The README's claims that can be run."""

import json
import re
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from bench import (
    accuracy,
    deployment_latency,
    mechanisms,
    niss_accuracy,
    niss_round,
    niss_table,
    published,
    search_published,
    search_sharing,
    secure_aggregation,
    sweeps,
)
from fl_app.engines.in_process import run_in_process
from strategies.dp_fedpaq import PAPER_MAP
from strategies.dp_fts_de import PAPER_MAP as SEARCH_MAP
from strategies.niss import PAPER_MAP as NISS_MAP
from tests.conftest import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def example() -> str:
    found = re.search(r"<!-- example -->\n```python\n(.*?)```", README, re.S)
    assert found is not None
    return found.group(1)


def test_the_example_is_short_and_needs_neither_the_application_nor_hydra() -> None:
    lines = [line for line in example().splitlines() if line.strip()]
    assert len(lines) <= 25
    assert "fl_app" not in example()
    assert "hydra" not in example()


def test_the_example_runs_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {}
    exec(example(), namespace)
    before = namespace["net"].weight.detach().clone()  # type: ignore[attr-defined]
    run_in_process(namespace["server_app"], namespace["client_app"], 20)  # type: ignore[arg-type]
    printed = capsys.readouterr().out
    assert float(printed.split()[0]) <= 50
    assert not np.allclose(before, namespace["net"].weight.detach())  # type: ignore[attr-defined]


BENCHES = [
    *(accuracy, deployment_latency, mechanisms, niss_accuracy, niss_round, niss_table, published),
    *(search_published, search_sharing, sweeps),
]


@pytest.mark.parametrize("bench", BENCHES, ids=lambda module: module.__name__)
def test_the_tables_are_what_the_committed_results_say(
    capsys: pytest.CaptureFixture[str], bench: ModuleType
) -> None:
    results = json.loads(bench.RESULTS.read_text())
    assert results.keys() >= {"format_version", "command", "seeds", "versions", "date"}
    bench.print_table(results)
    assert capsys.readouterr().out in README


def test_the_summary_of_secure_aggregation_is_what_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    secure_aggregation.print_summary(json.loads(secure_aggregation.RESULTS.read_text()))
    assert capsys.readouterr().out in README


def test_our_epsilon_of_dp_sgd_is_that_of_opacus() -> None:
    rows = json.loads(mechanisms.RESULTS.read_text())["rows"]
    counted = [row for row in rows if "opacus" in row]
    assert counted
    for row in counted:
        # Both are upper bounds; Opacus's adds its own allowance for error.
        assert row["epsilon"] == pytest.approx(row["opacus"]["prv"], rel=0.01)
        assert row["epsilon"] <= row["opacus"]["rdp"]


def test_the_paper_map_is_shown_whole() -> None:
    rows = [line.split("|")[1:-1] for line in README.splitlines() if line.count("|") == 4]
    for step, path in {**PAPER_MAP, **NISS_MAP, **SEARCH_MAP}.items():
        function = path.rsplit(".", 1)[1]
        shown = [row[0].strip() for row in rows if function in row[2]]
        if step.startswith("Alg. 2, step "):
            number = step.rsplit(" ", 1)[1]
            assert any(re.search(rf"Alg. 2, step (\d and )?{number}( and \d)?$", s) for s in shown)
        else:
            assert step in shown


def test_the_example_of_own_data_reads_what_it_says(tmp_path: Path) -> None:
    found = re.search(r"<!-- own data -->\n```python\n(.*?)```", README, re.S)
    assert found is not None
    table = np.array([[3, 0.5, -1.0, 1], [3, 0.25, 2.0, 0], [8, 1.0, 1.0, 1]])
    for name in ("train", "test"):
        np.savetxt(tmp_path / f"{name}.csv", table, delimiter=",")
    namespace: dict[str, Any] = {}
    exec(found.group(1), namespace)
    read = namespace["load"](str(tmp_path))
    assert read.train.features.tolist() == table[:, 1:3].tolist()
    assert read.test.labels.tolist() == [1, 0, 1]
    assert read.train_groups.tolist() == [3, 3, 8]


def test_a_guarantee_can_be_printed_whole() -> None:
    from strategies.mechanisms.guarantee import Guarantee

    assert [field.name for field in fields(Guarantee)][:2] == ["adversary", "colluding_fraction"]
