"""The README's claims that can be run."""

import re
from dataclasses import fields

import numpy as np
import pytest

from bench.accuracy import RESULTS, print_table
from fl_app.engines.in_process import run_in_process
from strategies.dp_fedpaq import PAPER_MAP
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


def test_the_results_table_is_what_the_committed_results_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import json

    results = json.loads(RESULTS.read_text())
    assert results.keys() == {"format_version", "command", "seeds", "versions", "date", "rows"}
    print_table(results)
    assert capsys.readouterr().out in README


def test_the_paper_map_is_shown_whole() -> None:
    rows = [line for line in README.splitlines() if line.startswith("| Alg. 2")]
    for step, path in PAPER_MAP.items():
        number = step.rsplit(" ", 1)[1]
        (row,) = [row for row in rows if re.search(rf"(step|and) {number} ", row.split("|")[1])]
        assert path.rsplit(".", 1)[1] in row


def test_a_guarantee_can_be_printed_whole() -> None:
    from strategies.dp_fedpaq.guarantees import Guarantee

    assert [field.name for field in fields(Guarantee)][:2] == ["adversary", "colluding_fraction"]
