"""A run's bits do not depend on how many cores there are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fl_app import client_app, server_app
from fl_app.client_app import train
from fl_app.config import compose_settings
from fl_app.engines.flower_internals import identify_process
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


class BegunError(Exception):
    pass


@pytest.mark.parametrize(
    ("words", "loads"),
    [
        ((), True),
        (("strategy=dp_fts_de", "objective=synthetic"), False),
        (("strategy=dp_fts_de", "objective=landmine", "objective.root=there"), False),
        (("strategy=dp_fts_de", "objective=local_training", "data=har_geotec"), True),
        (("strategy=dp_fts_de", "objective=training_run"), True),
        (
            (
                *("strategy=dp_fts_de", "objective=user", "objective.path=m:f"),
                "objective.search_space=[{name: x, kind: float, low: 0, high: 1}]",
            ),
            True,
        ),
    ],
)
def test_torch_is_loaded_with_one_thread_before_anything_that_may_use_it(
    words: tuple[str, ...], loads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    identify_process(1)
    settings = compose_settings([*words, "num_clients=5"])
    called = []

    def begin(*_: object) -> None:
        raise BegunError

    for app in (client_app, server_app):
        monkeypatch.setattr(app, "load_torch", lambda app=app: called.append(app))
    monkeypatch.setattr(client_app, "_opened", begin)
    for name in ("load_server_data", "read_search_space"):
        monkeypatch.setattr(server_app, name, begin)
    config = ConfigRecord({client_app.SETTINGS_KEY: settings.to_json()})
    node = {"partition-id": 0, "num-partitions": 5, "simulated": True}
    context = Context(1, 1, node, RecordDict(), {})
    with pytest.raises(BegunError):
        train(Message(RecordDict({"config": config}), 1, "train"), context)
    with pytest.raises(BegunError):
        server_app._build_run(settings)
    assert called == ([client_app, server_app] if loads else [])


# Whether torch is loaded before, and how many threads it has after each step.
LOADING = """
import sys
from fl_app.one_thread import load_torch, use_one_thread
found = []
if sys.argv[1] == "before":
    import torch
    found.append(torch.get_num_threads())
use_one_thread()
found.append("torch" in sys.modules and torch.get_num_threads())
load_torch()
import torch
print(*found, torch.get_num_threads())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("when", "said"), [("before", "2 1 1"), ("after", "False 1")])
def test_torch_has_one_thread_whenever_it_is_loaded(when: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING, when],
        env={**os.environ, "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == said


# What a process has loaded after a command, and how the command ended.
COMMAND = """
import sys
from fl_app.cli import main
heavy = ("torch", "scipy.stats", "scipy.signal", "sklearn", "datasets", "opacus")
sys.argv = ["fl-app", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    print(ended.code or 0, *(name for name in heavy if name in sys.modules))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "strategy=dp_fts_de", "objective=synthetic", "num_rounds=1"), "0"),
        (("run", "strategy=dp_fts_de", "strategy.sample_rate=3"), "2"),
        (("run", "num_rounds=0"), "2"),
        (("list",), "0"),
    ],
)
def test_what_trains_nothing_starts_without_torch(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == said, done.stdout + done.stderr
