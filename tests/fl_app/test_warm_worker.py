"""The command that stands for Flower's: its words arrive, and without the worker it is Flower's."""

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fl_app import warm_worker
from fl_app.warm_worker import _write_command
from tests.conftest import REPOSITORY

WORDS = ["--token", "a b", "", "--path", "/x y/'z\"$HOME", "ü\nü"]
PATIENCE = 120.0
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
warm_worker.main(warm_worker.Path(sys.argv[1]), int(sys.argv[2]))
"""
# A device whose worker is a script of the test's; it says where the worker's folder is.
DEVICE = """\
import os, sys
from fl_app import supernode, warm_worker
warm_worker.__file__ = sys.argv[1]
supernode.start_worker()
print(os.environ["PATH"].split(os.pathsep)[0], flush=True)
sys.stdin.read()
"""
# Flower's own loading of a run's app, and then what the app would look for.
LOADS = """
def answer():
    from flwr.supercore.object_ref import load_app
    load_app("fl_app.client_app:app", RuntimeError, {bundle!r})
    import fl_app, fl_app.client_app, mine, strategies
    found = [each.__file__ for each in (fl_app, fl_app.client_app, mine, strategies)]
    with open({out!r}, "a") as file:
        file.write("\\n".join(found))
"""


def write_worker(tmp_path: Path, more: str = "") -> Path:
    text = WORKER.format(folder=str(Path(warm_worker.__file__).parent), out=str(tmp_path / "out"))
    place = text.index("warm_worker.find_command")
    script = tmp_path / "worker.py"
    script.write_text(text[:place] + more + text[place:])
    return script


@contextmanager
def start_device(tmp_path: Path, script: Path, pythonpath: str = "") -> Iterator[Path]:
    """Start a device's worker; yield its folder once it answers."""
    temporary = tmp_path / "device's folder"
    temporary.mkdir()
    before = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join([*filter(None, [pythonpath, before]), str(REPOSITORY)])
    parent = subprocess.Popen(
        [sys.executable, "-c", DEVICE, str(script)],
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    folder = Path(parent.stdout.readline().strip())
    while not (folder / warm_worker.COMMAND).exists():
        assert parent.poll() is None
        assert folder.exists(), "the worker has ended"
        time.sleep(0.01)
    try:
        yield folder
    finally:
        parent.kill()
        parent.communicate()
    # The worker ends with its parent, and takes its folder with it.
    while folder.exists():
        time.sleep(0.05)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Path]:
    with start_device(tmp_path, write_worker(tmp_path)) as folder:
        yield folder


def test_a_worker_whose_device_has_ended_already_ends(tmp_path: Path) -> None:
    """Else it would take whoever took it over for its parent, for good."""
    folder = tmp_path / "folder"
    folder.mkdir()
    words = [sys.executable, "-P", str(write_worker(tmp_path)), str(folder)]
    # The shell ends at once, and has written down the worker's number.
    started = subprocess.run(
        ["sh", "-c", '"$@" $$ > /dev/null 2>&1 & echo $!', "sh", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    number = int(started.stdout)
    deadline = time.monotonic() + PATIENCE
    try:
        while folder.exists():
            assert time.monotonic() < deadline, "the worker goes on"
            time.sleep(0.05)
    finally:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def test_modules_of_the_owner_s_are_found_and_the_bundle_comes_first(tmp_path: Path) -> None:
    """Whatever lies on the PYTHONPATH with which the device was started."""
    own, bundle = tmp_path / "own", tmp_path / "bundle"
    for place in (own, bundle):
        for package in ("fl_app", "strategies"):
            (place / package).mkdir(parents=True)
            (place / package / "__init__.py").touch()
        (place / "fl_app" / "client_app.py").write_text("app = 1\n")
    (own / "mine.py").touch()
    out = tmp_path / "out"
    more = LOADS.format(bundle=str(bundle), out=str(out)) + "loads = answer\n"
    script = write_worker(tmp_path, more)
    script.write_text(script.read_text().replace("lambda name: answer", "lambda name: loads"))
    with start_device(tmp_path, script, str(own)) as folder:
        assert subprocess.run([folder / warm_worker.COMMAND]).returncode == 0
        deadline = time.monotonic() + PATIENCE
        while not out.exists() or len(out.read_text().splitlines()) < 4:
            assert time.monotonic() < deadline, "not everything was found"
            time.sleep(0.02)
    assert [Path(line) for line in out.read_text().splitlines()] == [
        bundle / "fl_app" / "__init__.py",
        bundle / "fl_app" / "client_app.py",
        own / "mine.py",
        bundle / "strategies" / "__init__.py",
    ]


def test_each_call_is_answered_by_a_process_of_its_own(worker: Path, tmp_path: Path) -> None:
    calls = [
        subprocess.Popen([str(worker / warm_worker.COMMAND), *WORDS, str(number)])
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
