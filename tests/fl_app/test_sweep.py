"""Sweeps: what is said while they go on, and how one that was stopped goes on to the same end."""

import logging
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fl_app import hydra_jobs
from fl_app.report.printing import SweepJob
from fl_app.sweep import show_overrides
from tests.conftest import read_outcome
from tests.fl_app.begun_runs import read_all
from tests.fl_app.ended import Ended, assert_refused

pytestmark = pytest.mark.usefixtures("no_report")

SMALL = ("num_clients=3", "strategy.batch_size=4")
WORDS = ("seed=0,1,2,3", "num_rounds=3", *SMALL)


@pytest.fixture
def stop_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Press Ctrl-C in a round of a job, once."""

    def arrange(job: str, server_round: int) -> None:
        from fl_app.recorded_run import RecordedRun

        save = RecordedRun._save

        def stopping(self: RecordedRun, arrays: Any) -> None:
            save(self, arrays)
            if self._store.folder.name == job and self._totals["rounds"] == server_round:
                monkeypatch.setattr(RecordedRun, "_save", save)
                self._interrupted.set()

        monkeypatch.setattr(RecordedRun, "_save", stopping)

    return arrange


def read_jobs(folder: Path) -> dict[str, bytes]:
    """Return the files of all jobs; Hydra writes one of its own beside them, with its settings."""
    return {name: each for name, each in read_all(folder).items() if name != "multirun.yaml"}


def table_rows(ended: Ended) -> list[list[str]]:
    lines = (line for line in ended.output.splitlines() if re.match(r" +\d ", line))
    return [line.split() for line in lines]


@pytest.mark.slow
def test_a_stopped_sweep_goes_on_as_its_last_line_says(
    fl_app: Any, tmp_path: Path, stop_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_in("1", 2)
    ended = fl_app("run", "-m", *WORDS, "hydra.sweep.dir=my sweep")
    assert ended.code == 1
    (line,) = ended.errors.splitlines()
    command = re.fullmatch("fl-app: interrupted; fl-app (run -m .*) goes on", line)
    assert command is not None
    assert "1 of 4 jobs finished; 1 unfinished, 2–3 not begun." in ended.output
    first, second = table_rows(ended)
    assert (first[:2], "%" in first) == (["0", "0"], True)
    assert second == ["1", "1", "2", "of", "3", "rounds"]
    before = read_all(tmp_path / "my sweep" / "0")
    # As it is typed, in any folder.
    os.chdir("/")
    again = fl_app(*shlex.split(command[1]))
    os.chdir(tmp_path)
    assert (again.code, again.errors) == (0, "")
    assert [row[:2] for row in table_rows(again)] == [[str(n), str(n)] for n in range(4)]
    assert all("%" in row for row in table_rows(again))
    assert "finished;" not in again.output
    # What was finished stays as it was; what had begun ends as if nothing had happened.
    assert read_all(tmp_path / "my sweep" / "0") == before
    assert "going on with round 3" in (tmp_path / "my sweep" / "1" / "run.log").read_text()
    assert fl_app("run", "seed=1", *WORDS[1:], "hydra.run.dir=whole").code == 0
    resumed, whole = (read_outcome(tmp_path / name) for name in ("my sweep/1", "whole"))
    assert resumed.sha256 == whole.sha256
    # A whole one is tabulated again, and nothing of it runs.
    every = read_jobs(tmp_path / "my sweep")
    monkeypatch.setattr(hydra_jobs, "execute", None)
    assert fl_app(*shlex.split(command[1])).code == 0
    assert read_jobs(tmp_path / "my sweep") == every


def test_a_run_in_its_last_round_is_finished_and_the_sweep_stops(fl_app: Any, stop_in: Any) -> None:
    stop_in("0", 3)
    ended = fl_app("run", "-m", *WORDS, "hydra.sweep.dir=sweep")
    assert ended.code == 1
    assert "1 of 4 jobs finished; 1–3 not begun." in ended.output
    assert [row[:2] for row in table_rows(ended)] == [["0", "0"]]
    assert [each.name for each in Path("sweep").iterdir() if each.is_dir()] == ["0"]


def test_comparisons_are_of_finished_jobs(fl_app: Any, stop_in: Any) -> None:
    """Two finished arms, and a third that has begun: no iteration 0 of it."""
    stop_in("2", 1)
    ended = fl_app(
        *("run", "-m", "strategy=dp_fts_de", "strategy.control=none,no_sharing,random"),
        *("num_rounds=4", "objective.num_agents=4", "strategy.num_initial=3"),
        "hydra.sweep.dir=sweep",
    )
    assert ended.code == 1
    said = "2 of 3 jobs finished; 2 unfinished. What follows compares the finished ones alone."
    table, _, below = ended.output.partition(said)
    assert "1 of 4 rounds" in table
    assert re.search(r"control=none +control=no_sharing +3 ", below)
    assert "random" not in below


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["resume=nowhere"], "resume: 'nowhere'; allowed: the folder of the sweep that was"),
        (["resume=true"], "resume: true; allowed: the folder of the sweep that was stopped"),
        (["resume=notes"], "resume: 'notes'; allowed: the folder of a sweep, with its multirun."),
        (
            ["resume=sweep", "hydra.sweep.dir=sweep"],
            "hydra.sweep.dir: 'sweep'; allowed: the folder of resume: leave it out",
        ),
    ],
)
def test_a_sweep_that_cannot_go_on_is_refused(
    fl_app: Any, tmp_path: Path, words: list[str], start: str
) -> None:
    for name, file in (("notes", "mine.txt"), ("sweep", "multirun.yaml")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    assert_refused(fl_app("run", "-m", *WORDS, *words), 2, start)
    assert [each.name for each in (tmp_path / "notes").iterdir()] == ["mine.txt"]


def test_a_job_of_other_settings_is_not_taken_over(fl_app: Any, tmp_path: Path) -> None:
    words = ("num_rounds=1", *SMALL)
    assert fl_app("run", "-m", "seed=0,1", *words, "hydra.sweep.dir=sweep").code == 0
    before = read_jobs(tmp_path / "sweep")
    ended = fl_app("run", "-m", "seed=0,5,6", *words, "resume=sweep")
    assert ended.code == 1
    line, last = ended.errors.splitlines()
    # What is another's gets nothing new.
    assert "seed=6" in last
    assert "no new job in a sweep of other settings" in last
    assert not (tmp_path / "sweep" / "2" / "config.yaml").exists()
    assert re.search(r"seed=5 .*: resume: '.*sweep/1'; allowed: .* the run in it has other", line)
    assert [row[2] for row in table_rows(ended)][1] == "failed"
    assert read_jobs(tmp_path / "sweep") == before


def test_where_one_job_is_damaged_the_others_go_on(fl_app: Any, tmp_path: Path) -> None:
    words = ("num_rounds=1", *SMALL)
    assert fl_app("run", "-m", "seed=0,1", *words, "hydra.sweep.dir=sweep").code == 0
    Path(tmp_path, "sweep", "0", "config.yaml").write_text("num_rounds: [\n")
    Path(tmp_path, "sweep", "1", "summary.json").write_text("{")
    ended = fl_app("run", "-m", "seed=0,1,2", *words, "resume=sweep")
    assert ended.code == 1
    first, second = ended.errors.splitlines()
    assert "config.yaml" in first
    assert "summary.json" in second
    assert "other settings" not in ended.errors
    # The third had not begun, and is no part of what is damaged.
    assert [row[2] for row in table_rows(ended)][:2] == ["failed", "failed"]
    assert Path(tmp_path, "sweep", "2", "summary.json").exists()


def test_a_file_sees_each_job_begin_and_end(fl_app: Any) -> None:
    ended = fl_app(
        *("run", "-m", "strategy.batch_size=4,5000", "num_rounds=2", "num_clients=3"),
        "hydra.sweep.dir=sweep",
    )
    lines = ended.output.splitlines()[:4]
    assert lines[0] == "job 0 (1 of 2): strategy.batch_size=4"
    assert re.fullmatch(r"job 0: 2 rounds in \S+ m?s", lines[1])
    assert lines[2:] == ["job 1 (2 of 2): strategy.batch_size=5000", "job 1: failed"]


def test_a_warning_says_of_which_jobs_it_is(fl_app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = hydra_jobs.execute

    def warning(settings: Any, *arguments: Any, **options: Any) -> Any:
        for text in (f"of seed {settings.seed}", "of all"):
            logging.getLogger("fl_app").warning(text)
        return execute(settings, *arguments, **options)

    monkeypatch.setattr(hydra_jobs, "execute", warning)
    ended = fl_app("-m", "seed=0,1,2", "num_rounds=1", *SMALL, "hydra.sweep.dir=sweep")
    assert ended.errors.splitlines() == [
        "job 0: WARNING of seed 0",
        "job 0: WARNING of all",
        "job 1: WARNING of seed 1",
        "job 2: WARNING of seed 2",
        "the same in jobs 1–2: of all",
    ]
    alone = fl_app("num_rounds=1", *SMALL, "hydra.run.dir=run")
    assert alone.errors.splitlines() == ["WARNING of seed 0", "WARNING of all"]


def test_overrides_are_shown_as_typed() -> None:
    """Hydra puts a backslash before what would mean something else in its syntax."""
    given = [r"objective.path=mine\:good", r"a=\[x\, y\]", r"b='c\:d'", "c=[1,2]", "hydra.x=1"]
    assert show_overrides(given) == [
        *("objective.path=mine:good", "a=[x, y]"),
        *(r"b='c\:d'", "c=[1,2]"),
    ]


@pytest.mark.parametrize(
    ("job", "words", "is_finished"),
    [
        (SweepJob([], None, 3, is_failed=True), "failed", False),
        (SweepJob([], None, 3), "stopped", False),
    ],
)
def test_a_job_without_results_says_so(job: SweepJob, words: str, is_finished: bool) -> None:
    assert (job.describe(), job.is_finished) == (words, is_finished)
