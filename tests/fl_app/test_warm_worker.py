"""The command that stands for Flower's: its words arrive, and without the worker it is Flower's."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fl_app import warm_worker
from fl_app.warm_worker import _write_command

WORDS = ["--token", "a b", "", "--path", "/x y/'z\"$HOME", "ü\nü"]
# A worker whose libraries and whose command of Flower's are the test's.
WORKER = """\
import random, sys
sys.path.insert(0, {folder!r})
import warm_worker
def answer():
    import numpy as np
    with open({out!r}, "a") as file:
        file.write(repr((sys.argv, random.random(), np.random.random())) + "\\n")
warm_worker.find_command = lambda name: answer
warm_worker.LIBRARIES = ("numpy.random", "no_such_library")
warm_worker.main(warm_worker.Path({worker!r}))
"""


@pytest.fixture
def worker(tmp_path: Path):
    folder = tmp_path / "worker's folder"
    folder.mkdir()
    text = WORKER.format(
        folder=str(Path(warm_worker.__file__).parent),
        out=str(tmp_path / "out"),
        worker=str(folder),
    )
    start = "import subprocess, sys; subprocess.Popen(sys.argv[1:]); sys.stdin.read()"
    words = [sys.executable, "-c", start, sys.executable, "-I", "-c", text]
    parent = subprocess.Popen(words, stdin=subprocess.PIPE)
    while not (folder / warm_worker.COMMAND).exists():
        assert parent.poll() is None
        time.sleep(0.01)
    yield folder, parent
    parent.kill()
    parent.communicate()
    # The worker ends with its parent, and takes its folder with it.
    while folder.exists():
        time.sleep(0.05)


def test_each_call_is_answered_by_a_process_of_its_own(worker, tmp_path: Path) -> None:
    folder, _ = worker
    calls = [
        subprocess.Popen([str(folder / warm_worker.COMMAND), *WORDS, str(number)])
        for number in range(20)
    ]
    assert all(call.wait() == 0 for call in calls)
    out = tmp_path / "out"
    while not out.exists() or len(out.read_text().splitlines()) < 20:
        time.sleep(0.02)
    told = [ast.literal_eval(line) for line in out.read_text().splitlines()]
    expected = [[warm_worker.COMMAND, *WORDS, str(number)] for number in range(20)]
    assert sorted(words for words, *_ in told) == sorted(expected)
    # Children of one process, but no two draw the same.
    assert len({first for _, first, _ in told}) == len({second for *_, second in told}) == 20


def test_without_the_worker_the_command_is_flower_s_own(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    real = tmp_path / "real command"
    real.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    real.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: process.pid)
        _write_command(tmp_path / "command", tmp_path / "nothing", str(real))
    done = subprocess.run([tmp_path / "command", *WORDS], capture_output=True, text=True)
    assert done.stdout == "".join(f"{word}|" for word in WORDS)


def test_the_app_is_not_among_what_all_children_share() -> None:
    """It comes with each run's bundle; the worker itself needs nothing of it."""
    text = Path(warm_worker.__file__).read_text()
    assert not any(name.startswith(("fl_app", "strategies")) for name in warm_worker.LIBRARIES)
    assert "import fl_app" not in text
    assert "from fl_app" not in text
