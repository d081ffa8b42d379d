"""Nothing computes on more than one thread, whatever the environment says."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

PROGRAM = """
import json, numpy, torch, scipy.linalg
from threadpoolctl import threadpool_info
{call}
found = [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]
print(json.dumps([torch.get_num_threads(), found]))
"""


def count_threads(call: str) -> tuple[int, list[int]]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2")
    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(call=call)],
        env={**os.environ, **threads, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    of_torch, of_libraries = json.loads(printed)
    return of_torch, of_libraries


def test_torch_and_linear_algebra_are_limited() -> None:
    of_torch, of_libraries = count_threads(
        "from fl_app.one_thread import use_one_thread; use_one_thread()"
    )
    assert of_torch == 1
    assert of_libraries
    assert set(of_libraries) == {1}


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core: there is nothing to limit")
def test_without_the_limit_they_are_not() -> None:
    of_torch, of_libraries = count_threads("")
    assert of_torch == 2
    assert 2 in of_libraries
