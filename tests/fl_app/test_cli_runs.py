"""Runs and sweeps from the command line: their folders, what is printed, how they end."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from fl_app import cli, hydra_jobs
from tests.fl_app.ended import EXTRAS, FILES, after_rounds, assert_refused, list_files

SMALL = "num_rounds=2"


# Runs


def test_a_run_leaves_its_folder_and_prints_its_summary(fl_app, tmp_path):
    ended = fl_app("run", SMALL, "seed=3", "hydra.run.dir=here/it is")
    folder = tmp_path / "here" / "it is"
    assert ended.code == 0
    assert ended.errors == ""
    assert {path.name for path in folder.iterdir()} == FILES | EXTRAS
    assert list_files(tmp_path)[:2] == ["here", "here/it is"]
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["num_rounds"], summary["seed"]) == (2, 3)
    assert ended.output.startswith("round 0/2  accuracy ")
    lines = after_rounds(ended.output).splitlines()
    assert lines[0].split() == ["Strategy", "dp_fedpaq", "(sound", "mode)"]
    assert lines[-1] == f"report: {folder / 'report.html'}"
    assert "\x1b" not in ended.output
    assert not re.search(r"INFO|WARNING|flwr|\[ROUND|%\|", ended.output)
    assert "test accuracy" in (folder / "run.log").read_text()


@pytest.mark.parametrize("words", [[], ["run"], [SMALL], ["run", "-m"]], ids=" ".join)
def test_run_is_the_verb_that_may_be_left_out(fl_app, monkeypatch, words):
    monkeypatch.setattr(cli, "_run", lambda words, debug: print(words) or 0)
    ended = fl_app(*words)
    assert ended == (0, f"{[word for word in words if word != 'run']}\n", "")


def test_the_default_folder_tells_runs_of_one_second_apart(fl_app, tmp_path, no_report):
    for _ in range(2):
        assert fl_app(SMALL).code == 0
    folders = [path.parent for path in tmp_path.glob("outputs/*/*/summary.json")]
    assert len(folders) == 2
    assert all(re.fullmatch(r"\d\d-\d\d-\d\d-\d{6}", folder.name) for folder in folders)


def test_a_run_that_fails_says_why_in_one_line(fl_app, tmp_path):
    ended = fl_app("run", "strategy.batch_size=4000", "hydra.run.dir=run")
    line = assert_refused(ended, 1, "all 10 clients of round 1 sit out: ")
    assert "strategy.local_steps * strategy.batch_size = 32000 records are needed" in line
    assert "Traceback" in (tmp_path / "run" / "run.log").read_text()


@pytest.mark.parametrize("words", [["hydra.run.dir=file/run"], ["-m", "hydra.sweep.dir=file/run"]])
def test_a_folder_that_cannot_be_written_is_said_in_one_line(fl_app, tmp_path, words):
    (tmp_path / "file").write_text("")
    line = assert_refused(fl_app("run", SMALL, *words), 1, "cannot write to file/run")
    assert line.endswith("Not a directory")
    assert list_files(tmp_path) == ["file"]


def test_a_failure_nobody_foresaw_is_one_line_too(fl_app, monkeypatch):
    def fail(words, debug):
        raise OSError(28, "two\nlines")

    monkeypatch.setattr(cli, "_run", fail)
    line = assert_refused(fl_app("run"), 1, "OSError: ")
    assert line.endswith("two lines (--debug shows where)")
    assert "Traceback" in fl_app("run", "--debug").errors


def test_an_interrupted_command_ends_with_one(fl_app, monkeypatch):
    def interrupt(words, debug):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupt)
    assert_refused(fl_app("run"), 1, "interrupted")


# Sweeps


def test_a_sweep_runs_each_job_in_its_folder_and_prints_one_table(fl_app, tmp_path):
    ended = fl_app("run", "seed=0,1", "-m", SMALL, "hydra.sweep.dir=sweep")
    assert (ended.code, ended.errors) == (0, "")
    for job, seed in (("0", 0), ("1", 1)):
        assert {path.name for path in (tmp_path / "sweep" / job).iterdir()} == FILES | EXTRAS
        config = yaml.safe_load((tmp_path / "sweep" / job / "config.yaml").read_text())
        assert config["seed"] == seed
    (header,) = (line for line in ended.output.splitlines() if "Test accuracy" in line)
    # What is the same in all jobs tells none of them apart.
    assert header.split()[:3] == ["Job", "seed", "Test"]
    rows = [line.split()[:2] for line in ended.output.splitlines() if "%" in line]
    assert rows == [["0", "0"], ["1", "1"]]


def test_a_job_that_fails_does_not_stop_the_others(fl_app, tmp_path, no_report):
    ended = fl_app("-m", "strategy.batch_size=4000,16,5000", SMALL, "hydra.sweep.dir=sweep")
    assert ended.code == 1
    first, second = ended.errors.splitlines()
    assert first.startswith("fl-app: strategy.batch_size=4000 num_rounds=2: all 10 clients of ")
    assert second.startswith("fl-app: strategy.batch_size=5000 num_rounds=2: all 10 clients of ")
    assert (tmp_path / "sweep" / "1" / "summary.json").is_file()
    assert not (tmp_path / "sweep" / "0" / "summary.json").exists()
    rows = [line.split()[:3] for line in ended.output.splitlines() if re.match(r" +\d ", line)]
    assert [row[1] for row in rows] == ["4000", "16", "5000"]
    assert [row[2] == "failed" for row in rows] == [True, False, True]


@pytest.fixture
def stopped(monkeypatch):
    """Let every run end as after Ctrl-C."""
    execute = hydra_jobs.execute

    def stop(*arguments, **options):
        run = execute(*arguments, **options)
        run.summary["interrupted"] = True
        return run

    monkeypatch.setattr(hydra_jobs, "execute", stop)


def test_a_run_that_was_stopped_shows_what_it_reached(fl_app, tmp_path, no_report, stopped):
    ended = fl_app("run", SMALL, "hydra.run.dir=run")
    assert ended.code == 1
    assert ended.errors == f"fl-app: interrupted; fl-app run resume={tmp_path / 'run'} goes on\n"
    assert after_rounds(ended.output).startswith("Strategy ")


def test_a_run_with_code_of_one_s_own_says_how_it_goes_on(fl_app, tmp_path, no_report, stopped):
    named = "model.path=tests.fl_app.own_models:build"
    ended = fl_app("run", SMALL, "hydra.run.dir=my run", "model=user", named)
    assert ended.code == 1
    folder = tmp_path / "my run"
    assert ended.errors.endswith(f"interrupted; fl-app run 'resume={folder}' {named} goes on\n")


def test_an_experiment_of_the_user_may_sweep(fl_app, tmp_path, no_report):
    folder = tmp_path / "my conf" / "experiment"
    folder.mkdir(parents=True)
    text = "# @package _global_\nnum_rounds: 1\nhydra: {sweeper: {params: {seed: '5,-1'}}}\n"
    (folder / "mine.yaml").write_text(text)
    before = list_files(tmp_path)
    words = ("run", "-m", "--config-dir", "my conf", "experiment=mine")
    assert_refused(fl_app(*words), 2, "seed: -1; ")
    assert list_files(tmp_path) == before
    (folder / "mine.yaml").write_text(text.replace("-1", "6"))
    ended = fl_app(*words, "hydra.sweep.dir=sweep")
    assert ended.code == 0
    found = sorted(tmp_path.glob("sweep/*/config.yaml"))
    assert [yaml.safe_load(file.read_text())["seed"] for file in found] == [5, 6]


# In a process of its own


@pytest.mark.slow
def test_the_command_prints_nothing_but_rounds_and_the_summary(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "default", "-m", "fl_app.cli", "run", SMALL, "hydra.run.dir=run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    ours = [line for line in done.stderr.splitlines() if re.search(r"fl_app|strategies", line)]
    assert ours == []
    lines = after_rounds(done.stdout).splitlines()
    assert lines[0].startswith("Strategy ")
    assert lines[-1] == f"report: {tmp_path / 'run' / 'report.html'}"


def read_terminal(words: list[str], folder: Path) -> tuple[int, str]:
    """Run a command on a pseudo-terminal; return its exit code and all that it wrote."""
    reader, writer = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-m", "fl_app.cli", *words],
        cwd=folder,
        env=environment,
        stdin=writer,
        stdout=writer,
        stderr=writer,
    )
    os.close(writer)
    written = bytearray()
    while True:
        try:
            part = os.read(reader, 4096)
        except OSError:
            break
        if not part:
            break
        written += part
    os.close(reader)
    return process.wait(), written.decode("utf-8", errors="replace")


@pytest.mark.slow
def test_a_terminal_sees_the_rounds_go_by(tmp_path):
    code, text = read_terminal(["run", "num_rounds=300", "hydra.run.dir=run"], tmp_path)
    assert code == 0
    shown = {int(number) for number in re.findall(r"(\d+)/300", text)}
    assert len(shown) > 3
    assert "accuracy 0." in text
    assert "Test accuracy" in text


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep_after_the_round(tmp_path):
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "fl_app.cli", "-m", "seed=0,1", "num_rounds=1000000"),
            "hydra.sweep.dir=sweep",
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "sweep" / "0" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 2):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    (line,) = (line for line in errors.splitlines() if "WARNING" not in line)
    assert line.startswith("fl-app: interrupted; fl-app run -m seed=0,1 num_rounds=1000000 resume=")
    assert "0 of 2 jobs finished; 0 unfinished, 1 not begun." in output
    summary = json.loads((tmp_path / "sweep" / "0" / "summary.json").read_text())
    assert summary["interrupted"]
    assert summary["num_rounds"] == len(metrics.read_text().splitlines()) - 1
    assert not (tmp_path / "sweep" / "1").exists()


@pytest.mark.slow
def test_the_simulation_engine_prints_nothing_but_the_summary(tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "fl_app.cli", "run", SMALL, "engine=simulation"),
            *("num_clients=3", "hydra.run.dir=run"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = after_rounds(done.stdout).splitlines()
    assert lines[0].startswith("Strategy ")
    assert lines[-1] == f"report: {tmp_path / 'run' / 'report.html'}"
    assert not re.search(r"INFO|WARNING|ray|flwr|\x1b", done.stdout)
