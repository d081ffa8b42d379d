"""The measuring programs still fit the application that they measure."""

import json
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

BENCH = REPOSITORY / "bench"


def run_bench(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.slow
def test_a_round_is_timed_against_a_plain_loop() -> None:
    """Its own model and data stand where the application builds and reads its own."""
    found = json.loads(run_bench("bench/plain_ratio.py", "--alone", "logreg", "6", "2"))
    assert found.keys() == {"start_seconds", "peak_mib"}
    program = "from bench.plain_ratio import compare; print(compare('logreg', (6, 2), 1, 2))"
    assert "'num_sampled_clients': 2" in run_bench("-c", program)


@pytest.mark.slow
def test_each_program_can_be_imported() -> None:
    names = sorted(file.stem for file in BENCH.glob("*.py"))
    assert len(names) > 15
    program = "import sys; sys.path.insert(0, 'bench')\n" + "".join(
        f"import {name}\n" for name in names
    )
    assert run_bench("-c", program) == ""
