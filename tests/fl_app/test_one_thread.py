"""A run's bits do not depend on how many cores there are."""

import json
import os
import subprocess
import sys

import pytest

from fl_app.client_app import train
from fl_app.server_app import main
from tests.conftest import REPOSITORY

# Products as large as those of a search's step: BLAS divides them among its threads.
PROGRAM = """
import hashlib, json, sys, numpy as np, scipy.linalg
from threadpoolctl import threadpool_info
if sys.argv[1] == "one":
    from fl_app.one_thread import use_one_thread
    use_one_thread()
x = np.random.default_rng(0).normal(size=(301, 257))
found = scipy.linalg.cho_factor(x.T @ x + np.eye(257), lower=True)[0]
threads = [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]
print(json.dumps([hashlib.sha256(found.tobytes()).hexdigest(), threads]))
"""


def compute(word: str, threads: str) -> tuple[str, list[int]]:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, word],
        env={**os.environ, **dict.fromkeys(names, threads)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    digest, found = json.loads(done.stdout)
    return digest, found


@pytest.mark.slow
def test_products_have_the_same_bits_with_any_number_of_threads() -> None:
    alone = compute("one", "1")
    many = compute("one", "4")
    assert many == alone
    assert set(many[1]) == {1}
    if (os.cpu_count() or 1) > 1:
        # The twin: left alone, BLAS takes as many as it may.
        assert max(compute("as it is", "2")[1]) == 2


@pytest.mark.parametrize("entry", [train, main])
def test_both_apps_compute_in_one_thread(entry: object, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[entry.__module__]  # type: ignore[attr-defined]
    called = []

    class StopError(BaseException):
        pass

    def stop() -> None:
        called.append(entry)
        raise StopError

    monkeypatch.setattr(module, "use_one_thread", stop)
    with pytest.raises(StopError):
        entry(None, None)  # type: ignore[operator]
    assert called == [entry]
