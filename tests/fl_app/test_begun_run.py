"""Going on with a run from the command line: what is taken over, and what it is."""

import itertools
import sqlite3

import pytest
import yaml

from fl_app import federated_run, run_inputs
from fl_app.asked_clients import read_asked
from fl_app.checkpoint import Checkpoint, digest_settings, read_checkpoint, write_checkpoint
from fl_app.config import compose_settings
from fl_app.device_state import FolderState, list_entries
from fl_app.errors import RunError
from fl_app.run_store import RunStore
from tests.conftest import read_outcome
from tests.fl_app.begun_runs import SMALL, assert_refused_untouched, read_all, whole
from tests.fl_app.ended import EXTRAS, FILES, assert_refused

pytestmark = pytest.mark.usefixtures("no_report")


@pytest.mark.parametrize(
    ("after", "before"),
    [(3, True), *(pytest.param(*each, marks=pytest.mark.slow) for each in [(1, True), (5, False)])],
)
@pytest.mark.parametrize("randomness", ["seeded", "secret"])
def test_a_run_goes_on_wherever_it_ended(fl_app, break_after, tmp_path, after, before, randomness):
    words = (*SMALL, f"randomness={randomness}", "faults.late_rate=0.3")
    break_after(after, before)
    ended = fl_app("run", *words, "hydra.run.dir=run")
    assert ended.code == 1
    folder = tmp_path / "run"
    assert not (folder / "summary.json").exists()
    # As if the process had been killed while it wrote.
    (folder / "metrics.jsonl").open("a").write('{"round": 77, "sec')
    ended = fl_app("run", "resume=run")
    assert (ended.code, ended.errors.count("fl-app")) == (0, 0)
    outcome = read_outcome(folder)
    assert [row["round"] for row in outcome.rows] == [0, 1, 2, 3, 4, 5]
    assert {each.entry.participations for each in list_entries(folder / "checkpoint")} == {5}
    assert {each.entry.last_round for each in list_entries(folder / "checkpoint")} == {5}
    if randomness == "secret":
        # The repeated round got the stored bytes; then they were forgotten.
        assert sum(row["num_failures"] for row in outcome.rows) == sum(
            row["num_failures"] for row in whole(fl_app, tmp_path, words).rows
        )
        with sqlite3.connect(folder / "checkpoint" / "devices.sqlite") as connection:
            assert connection.execute("SELECT max(length(reply)) FROM ledger").fetchone() == (0,)
        assert all(row["valid"] for row in outcome.guarantees)
    else:
        expected = whole(fl_app, tmp_path, words)
        assert outcome.sha256 == expected.sha256
        assert [row["epsilon"] for row in outcome.rows] == [row["epsilon"] for row in expected.rows]
    assert {path.name for path in folder.iterdir()} <= FILES | EXTRAS
    # What failed may quote the data.
    client_log = folder / "checkpoint" / "clients.log"
    assert client_log.exists() == (randomness == "secret")
    log = (folder / "run.log").read_text()
    assert ("BrokenError" in log) == (randomness == "seeded")
    log += client_log.read_text() if client_log.exists() else ""
    # A secret run has a checkpoint before its first round, too.
    assert ("going on with round" in log) == (randomness == "secret" or after > 1)
    assert "BrokenError" in log


def test_in_a_secret_run_the_interrupted_round_s_bytes_are_kept(fl_app, break_after, tmp_path):
    break_after(3, before=True)
    fl_app("run", *SMALL, "randomness=secret", "hydra.run.dir=run")
    with sqlite3.connect(tmp_path / "run" / "checkpoint" / "devices.sqlite") as connection:
        rows = connection.execute("SELECT last_round, length(reply) FROM ledger").fetchall()
    assert len(rows) == 4
    assert all(last == 3 and size > 600 for last, size in rows)


@pytest.mark.parametrize("after", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_in_a_secret_run_the_interrupted_round_s_clients_are_asked_again(
    fl_app, break_after, tmp_path, after
):
    """Others in their place would leave what the first ones uploaded uncharged."""
    words = (*SMALL, "num_clients=40", "num_sampled_clients=4", "randomness=secret")
    words = (*words, "strategy.max_participations=5")  # nobody sits out
    break_after(after, before=True)
    fl_app("run", *words, "hydra.run.dir=run")
    folder = tmp_path / "run" / "checkpoint"
    asked = read_asked(folder)
    entries = [each for each in list_entries(folder) if each.entry.last_round == after]
    assert asked == (after, dict.fromkeys((each.client for each in entries), 1), 1)
    assert fl_app("run", "resume=run").code == 0
    assert read_asked(folder)[0] == 5
    charged = dict(read_checkpoint(folder).strategy["uploads"])
    kept = {each.client: each.entry.participations for each in list_entries(folder)}
    assert charged == {client: count for client, count in kept.items() if count}
    assert sum(charged.values()) == 20


def test_seconds_add_up(fl_app, begun):
    first = read_checkpoint(begun / "checkpoint")
    write_checkpoint(
        begun / "checkpoint", Checkpoint(**{**first.__dict__, "seconds": first.seconds + 5000.0})
    )
    assert fl_app("run", "resume=run").code == 0
    assert 5000 < read_outcome(begun).summary["wall_seconds"] < 5500


def test_a_finished_run_stays_as_it_is(fl_app, tmp_path):
    assert fl_app("run", *SMALL, "hydra.run.dir=run").code == 0
    before = read_all(tmp_path / "run")
    ended = fl_app("run", "resume=run")
    assert ended == (0, f"{tmp_path / 'run'}: the run is finished, and stays as it is\n", "")
    assert read_all(tmp_path / "run") == before


def test_a_stopped_run_goes_on_and_its_old_results_are_gone(fl_app, tmp_path, break_after):
    stop = federated_run.FederatedRun
    calls = []

    def is_stopped(self, *arguments, **options):
        calls.append(1)
        original(self, *arguments, **options)
        if len(calls) == 1:
            self._is_stopped = lambda: self._totals["rounds"] == 2

    original = stop.__init__
    stop.__init__ = is_stopped
    try:
        ended = fl_app("run", *SMALL, "hydra.run.dir=run")
        assert ended.code == 1
        goes_on = f"fl-app run resume={tmp_path / 'run'} goes on"
        assert ended.errors == f"fl-app: interrupted; {goes_on}\n"
        outcome = read_outcome(tmp_path / "run")
        assert (outcome.summary["interrupted"], outcome.summary["num_rounds"]) == (True, 2)
        break_after(4)
        assert fl_app("run", "resume=run").code == 1
        assert not (tmp_path / "run" / "summary.json").exists()
        assert not (tmp_path / "run" / "model.safetensors").exists()
        assert fl_app("run", "resume=run").code == 0
    finally:
        stop.__init__ = original
    outcome = read_outcome(tmp_path / "run")
    assert (outcome.summary["interrupted"], outcome.summary["num_rounds"]) == (False, 5)
    assert outcome.sha256 == whole(fl_app, tmp_path, SMALL).sha256


def test_a_run_whose_folder_is_named_by_a_number_or_with_spaces(fl_app, break_after, tmp_path):
    for name in ("7", "my run"):
        break_after(2)
        fl_app("run", *SMALL, f"hydra.run.dir={name}")
        assert fl_app("run", f"resume={name}").code == 0
        assert read_outcome(tmp_path / name).summary["num_rounds"] == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7", "my run"]


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["seed=1"], "seed: '1'; allowed: engine.* and hydra.* beside resume=run"),
        # A key of another strategy than the default one.
        (
            ["strategy.max_attempts=5"],
            "strategy.max_attempts: '5'; allowed: engine.* and hydra.* b",
        ),
        (["strategy=niss"], "strategy: 'niss'; allowed: engine.* and hydra.* beside resume=run"),
        (["strategy.target_epsilon=9"], "strategy.target_epsilon: '9'; allowed: engine.*"),
        (["strategy=fedavg"], "strategy: 'fedavg'; allowed: engine.*"),
        (["faults.seed=2"], "faults.seed: '2'; allowed: engine.*"),
        (["engine.workers=0"], "engine.workers: 0; allowed: an integer >= 1"),
        (["engine=other"], "engine: 'other'; allowed: deployment, in_process, simulation"),
        (
            ["engine.name=other"],
            "engine.name: 'other'; allowed: in_process or simulation or deployment",
        ),
        (["hydra.run.dir=elsewhere"], "hydra.run.dir: "),
        (["-m"], "resume: 'run'; allowed: the folder of a sweep (one run goes on without -m)"),
        (["-m", "seed=1,2"], "resume: 'run'; allowed: the folder of a sweep"),
        (["resume=''"], "resume: ''; allowed: the folder of a run"),
        (["resume=true"], "resume: true; allowed: the folder of a run"),
        (["resume=1.5"], "resume: 1.5; allowed: the folder of a run"),
        (["resume=nowhere"], "resume: 'nowhere'; allowed: the folder of a run, with config.yaml"),
    ],
)
def test_what_does_not_belong_to_the_run_is_refused(fl_app, begun, words, start):
    assert_refused_untouched(fl_app, begun, ["resume=run", *words], start)
    assert [path.name for path in begun.parent.iterdir()] == ["run"]


def test_nothing_to_resume_is_a_new_run(fl_app, tmp_path):
    assert fl_app("run", "resume=null", *SMALL, "hydra.run.dir=run").code == 0
    assert "resume" not in yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert "resume" not in compose_settings([]).to_json()


def test_paths_hold_in_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ["data=mnist_writers", "num_clients=539", "data.root=mine", "data.writer_labels=~/x"]
    data = run_inputs.with_absolute_paths(compose_settings(words)).data
    assert (data.root, data.writer_labels) == (str(tmp_path / "mine"), str(tmp_path / "x"))
    words = ["data=hugging_face", "data.features=image", "data.root=org/set", "data.download=true"]
    named = compose_settings(words)
    assert run_inputs.with_absolute_paths(named).data.root == "org/set"
    (tmp_path / "org" / "set").mkdir(parents=True)
    found = run_inputs.with_absolute_paths(named).data.root
    assert found == str(tmp_path / "org" / "set")


def test_a_file_cannot_ask_for_it(fl_app, tmp_path):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nresume: run\n"
    )
    words = ("run", "--config-dir", "conf", "experiment=mine")
    assert_refused(fl_app(*words), 2, "resume: 'run'; allowed: resume=FOLDER as an argument")


def test_a_run_that_is_going_on_is_not_resumed(fl_app, begun):
    store = RunStore(begun, resume=True)
    try:
        assert_refused(fl_app("run", "resume=run"), 1, "another run is writing to ")
    finally:
        store.close()
    assert fl_app("run", "resume=run").code == 0


def test_a_new_run_does_not_replace_one_that_can_go_on(fl_app, begun, tmp_path):
    ledger = (begun / "checkpoint" / "devices.sqlite").read_bytes()
    line = assert_refused(
        fl_app("run", *SMALL, "seed=9", "hydra.run.dir=run"), 1, f"{begun} holds a run that was"
    )
    assert f"resume={begun}" in line
    assert (begun / "checkpoint" / "devices.sqlite").read_bytes() == ledger
    assert fl_app("run", f"resume={begun}").code == 0
    # What is finished is replaced, as ever.
    assert fl_app("run", *SMALL, "seed=9", "hydra.run.dir=run").code == 0
    outcome = read_outcome(begun)
    assert [row["round"] for row in outcome.rows] == [0, 1, 2, 3, 4, 5]
    assert outcome.sha256 == whole(fl_app, tmp_path, (*SMALL, "seed=9")).sha256


def test_only_the_engine_is_not_part_of_what_a_run_is() -> None:
    base = compose_settings([])
    assert digest_settings(base) == digest_settings(
        compose_settings(["engine=simulation", "engine.workers=3"])
    )
    for other in ("seed=1", "num_rounds=21", "faults.seed=1", "strategy.learning_rate=0.1"):
        assert digest_settings(base) != digest_settings(compose_settings([other]))


def test_a_finished_secret_run_is_not_replaced(fl_app, tmp_path):
    """The ledger in its folder is all that knows what its clients have released."""
    words = (*SMALL, "num_rounds=1", "hydra.run.dir=run")
    assert fl_app("run", *words, "randomness=secret").code == 0
    kept = read_all(tmp_path / "run")
    for randomness in ("secret", "seeded"):
        line = assert_refused(
            fl_app("run", *words, f"randomness={randomness}"),
            1,
            f"{tmp_path / 'run'} holds a finished run with secret randomness",
        )
        assert line.endswith("choose another folder, or remove it yourself")
    assert read_all(tmp_path / "run") == kept


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "report.html", "plots/mine.png"])
def test_files_that_are_no_run_s_are_not_replaced(fl_app, tmp_path, name):
    file = tmp_path / "mine" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    ended = fl_app("run", *SMALL, "hydra.run.dir=mine")
    line = assert_refused(ended, 1, f"{tmp_path / 'mine'} is no run's folder, and holds {name}")
    assert line.endswith("choose another folder")
    assert file.read_text() == "mine"
    # Other files may lie in the folder.
    file.rename(tmp_path / "mine" / "notes.txt")
    assert fl_app("run", *SMALL, "hydra.run.dir=mine").code == 0
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


def test_a_full_disk_is_one_line_and_the_run_can_go_on(fl_app, tmp_path, monkeypatch):
    import os

    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 5:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    ended = fl_app("run", *SMALL, "hydra.run.dir=run")
    assert_refused(ended, 1, f"cannot write to {tmp_path / 'run'}: No space left on device")
    monkeypatch.setattr(os, "fsync", real)
    assert fl_app("run", "resume=run").code == 0
    assert read_outcome(tmp_path / "run").sha256 == whole(fl_app, tmp_path, SMALL).sha256


def test_a_client_that_cannot_keep_its_state_ends_the_run(fl_app, tmp_path, monkeypatch):
    """Before the checkpoint of the round that lacks it: a resumed run asks it again."""
    whole_run = whole(fl_app, tmp_path, SMALL)
    write = FolderState.write_entry
    writes = itertools.count()

    def fail(self, entry):
        if 14 < next(writes) < 18:
            raise RunError("cannot write to devices.sqlite: database or disk is full")
        write(self, entry)

    with monkeypatch.context() as patch:
        patch.setattr(FolderState, "write_entry", fail)
        ended = fl_app("run", *SMALL, "hydra.run.dir=run")
    assert ended.code == 1
    line = ended.errors.splitlines()[-1]
    assert "clients could not write to" in line
    assert "is the disk full?" in line
    assert fl_app("run", "resume=run").code == 0
    assert read_outcome(tmp_path / "run").sha256 == whole_run.sha256
