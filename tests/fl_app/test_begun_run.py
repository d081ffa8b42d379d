"""Going on with a run from the command line: what is taken over, refused, and left as it is."""

import itertools
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
import yaml

from fl_app import federated_run, run_inputs
from fl_app.asked_clients import read_asked
from fl_app.checkpoint import Checkpoint, digest_settings, read_checkpoint, write_checkpoint
from fl_app.config import compose_settings
from fl_app.device_state import FolderState, create_state, list_entries
from fl_app.errors import RunError
from fl_app.run_store import RunStore
from strategies.device_state import Observation
from tests.conftest import read_outcome
from tests.fl_app.ended import EXTRAS, FILES, assert_refused, list_files

SMALL = ("num_rounds=5", "num_clients=4", "strategy.batch_size=4")


@pytest.fixture(autouse=True)
def _no_report(monkeypatch):
    """Leave out what takes longest and is not looked at."""
    monkeypatch.setattr("fl_app.report.plots.write_plots", lambda run, folder: [])
    monkeypatch.setattr("fl_app.report.html.write_report", lambda run, path: path)


class BrokenError(Exception):
    pass


@pytest.fixture
def break_after(monkeypatch):
    """Let a run end without a word, before or after the checkpoint of a round."""

    def arrange(server_round: int, before: bool = False) -> None:
        save = federated_run.FederatedRun._save

        def broken(self, arrays):
            hit = self._totals["rounds"] == server_round
            if not (hit and before):
                save(self, arrays)
            if hit:
                monkeypatch.setattr(federated_run.FederatedRun, "_save", save)
                raise BrokenError

        monkeypatch.setattr(federated_run.FederatedRun, "_save", broken)

    return arrange


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return tmp_path_factory.mktemp("template") / "run"


@pytest.fixture
def begun(fl_app, break_after, tmp_path, template):
    """A run that has ended after the second of five rounds."""
    if not template.exists():
        break_after(2)
        assert fl_app("run", *SMALL, "hydra.run.dir=run").code == 1
        shutil.copytree(tmp_path / "run", template)
    else:
        shutil.copytree(template, tmp_path / "run")
    return tmp_path / "run"


def read_all(folder: Path) -> dict[str, bytes]:
    # Reading an SQLite file in its write-ahead mode puts two files beside it.
    return {
        name: (folder / name).read_bytes()
        for name in list_files(folder)
        if (folder / name).is_file() and not name.endswith(("-wal", "-shm"))
    }


def assert_refused_untouched(fl_app, folder, words, start):
    before = read_all(folder)
    line = assert_refused(fl_app("run", *words), 2, start)
    assert read_all(folder) == before
    return line


@pytest.mark.parametrize(("after", "before"), [(1, True), (3, True), (5, False)])
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
    log = (folder / "run.log").read_text()
    # A secret run has a checkpoint before its first round, too.
    assert ("going on with round" in log) == (randomness == "secret" or after > 1)
    assert "BrokenError" in log


def whole(fl_app, tmp_path, words):
    assert fl_app("run", *words, "hydra.run.dir=whole").code == 0
    return read_outcome(tmp_path / "whole")


def test_in_a_secret_run_the_interrupted_round_s_bytes_are_kept(fl_app, break_after, tmp_path):
    break_after(3, before=True)
    fl_app("run", *SMALL, "randomness=secret", "hydra.run.dir=run")
    with sqlite3.connect(tmp_path / "run" / "checkpoint" / "devices.sqlite") as connection:
        rows = connection.execute("SELECT last_round, length(reply) FROM ledger").fetchall()
    assert len(rows) == 4
    assert all(last == 3 and size > 600 for last, size in rows)


@pytest.mark.parametrize("after", [1, 3])
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
    # A new run in the folder draws its own.
    (folder / "asked.json").write_text('{"format_version": 2, "round": 1, "uploads": []}')
    assert fl_app("run", *words, "num_rounds=1", "hydra.run.dir=run").code == 0
    assert len(read_asked(folder)[1]) == 4


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", '{"format_version": 1, "round": 1, "attempt": 1, "uploads": []}'),
        '{"format_version": 2, "round": 1, "attempt": 1, "uploads": [[0, "1"]]}',
        '{"format_version": 2, "round": 1, "attempt": 1, "uploads": [0]}',
    ],
)
def test_a_damaged_note_of_the_clients_is_refused(fl_app, break_after, tmp_path, text):
    break_after(2)
    fl_app("run", *SMALL, "randomness=secret", "hydra.run.dir=run")
    (tmp_path / "run" / "checkpoint" / "asked.json").write_text(text)
    line = assert_refused(fl_app("run", "resume=run"), 2)
    assert "asked.json" in line


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
        (["-m"], "resume: 'run'; allowed: one run, without -m"),
        (["-m", "seed=1,2"], "resume: 'run'; allowed: one run, without -m"),
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


def damage_checkpoint(folder: Path, **changes: object) -> None:
    found = read_checkpoint(folder / "checkpoint")
    write_checkpoint(folder / "checkpoint", Checkpoint(**{**found.__dict__, **changes}))


def edit_config(folder: Path, old: str, new: str) -> None:
    text = (folder / "config.yaml").read_text()
    assert old in text
    (folder / "config.yaml").write_text(text.replace(old, new))


DAMAGES = {
    "cut": lambda folder: _cut(folder / "checkpoint" / "server.safetensors", 100),
    "empty": lambda folder: (folder / "checkpoint" / "server.safetensors").write_bytes(b""),
    "a model": lambda folder: (folder / "checkpoint" / "server.safetensors").write_bytes(
        (folder / "checkpoint" / "server.safetensors")
        .read_bytes()
        .replace(b"checkpoint", b"x" * 10)
    ),
    "missing": lambda folder: (folder / "checkpoint" / "server.safetensors").unlink(),
    "no clients": lambda folder: (folder / "checkpoint" / "devices.sqlite").unlink(),
    "strategy": lambda folder: damage_checkpoint(folder, strategy=[]),
    "round": lambda folder: damage_checkpoint(folder, server_round=-1),
    "round true": lambda folder: damage_checkpoint(folder, server_round=True),
    "settings": lambda folder: damage_checkpoint(folder, settings="x"),
    "metrics cut": lambda folder: _cut(folder / "metrics.jsonl", 200),
    "metrics gone": lambda folder: (folder / "metrics.jsonl").unlink(),
    "metrics moved": lambda folder: damage_checkpoint(folder, metrics_bytes=100),
    "config gone": lambda folder: (folder / "config.yaml").unlink(),
    "config changed": lambda folder: edit_config(folder, "seed: 0", "seed: 1"),
    "config no yaml": lambda folder: edit_config(folder, "seed: 0", "seed: [0"),
    "config newer": lambda folder: edit_config(folder, "format_version: 1", "format_version: 2"),
    "config unknown": lambda folder: edit_config(folder, "seed: 0", "sed: 0"),
}


def _cut(file: Path, length: int) -> None:
    file.write_bytes(file.read_bytes()[:length])


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_folder_is_refused_and_stays_as_it_is(fl_app, begun, damage):
    damage(begun)
    line = assert_refused_untouched(fl_app, begun, ["resume=run"], "")
    assert str(begun) in line or "run" in line
    assert "Error:" not in line


def test_a_strategy_s_state_of_another_kind_is_refused(fl_app, begun):
    damage_checkpoint(begun, strategy={"num_rounds": 2, "participations": [[1, "2"]]})
    assert_refused(fl_app("run", "resume=run"), 2, "resume: ")


def test_a_newer_checkpoint_is_refused(fl_app, begun, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("fl_app.checkpoint.FORMAT_VERSION", 2)
        found = read_checkpoint_of(begun)
        write_checkpoint(begun / "checkpoint", found)
    line = assert_refused_untouched(fl_app, begun, ["resume=run"], "format_version: 2; allowed: 1")
    assert "server.safetensors" in line


def read_checkpoint_of(folder: Path) -> Checkpoint:
    from fl_app import checkpoint

    version, checkpoint.FORMAT_VERSION = checkpoint.FORMAT_VERSION, 1
    try:
        return read_checkpoint(folder / "checkpoint")
    finally:
        checkpoint.FORMAT_VERSION = version


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


def test_the_previous_checkpoint_outlives_a_failed_write(fl_app, begun, monkeypatch):
    before = (begun / "checkpoint" / "server.safetensors").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fl_app.model_arrays.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_checkpoint(begun / "checkpoint", read_checkpoint(begun / "checkpoint"))
    assert (begun / "checkpoint" / "server.safetensors").read_bytes() == before
    assert not list((begun / "checkpoint").glob(".server*"))


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


# The ledger


def test_where_devices_keep_theirs_is_said(fl_app, tmp_path):
    create_state(tmp_path / "run" / "checkpoint")
    shown = fl_app("ledger", "run")
    assert (shown.code, shown.output.count("--state-dir DIR")) == (0, 1)


def test_the_ledger_is_shown(fl_app, begun, tmp_path):
    shown = fl_app("ledger", "run")
    assert (shown.code, shown.errors) == (0, "")
    rows = [line.split() for line in shown.output.splitlines() if "simulated" in line]
    assert rows == [["simulated", str(n), "dp_fedpaq", "2", "2"] for n in range(4)]
    # As a device's: one row a run and client, and what it amounts to (seeded: no bound).
    spent = fl_app("ledger", "--state-dir", "run/checkpoint")
    assert (spent.code, spent.errors) == (0, "")
    rows = [line.split() for line in spent.output.splitlines() if "simulated" in line]
    assert [(row[1], row[-4], row[-2]) for row in rows] == [(str(n), "2", "∞") for n in range(4)]


def test_an_owner_reads_the_best_points_of_its_own_searches(fl_app, tmp_path):
    folder = tmp_path / "state"
    for client, observations in ((0, [(0.25, -1.0), (0.5, 2.5), (0.75, 2.5)]), (3, [(1.0, -7.0)])):
        state = FolderState(folder, "autumn", client)
        for coordinate, value in observations:
            state.add_observation(Observation((coordinate, 0.125), value))
    shown = fl_app("ledger", "--state-dir", "state", "--best")
    assert (shown.code, shown.errors) == (0, "")
    rows = [line.split() for line in shown.output.splitlines() if "autumn" in line]
    assert rows == [
        ["autumn", "0", "3", "2.5", "0.5", "0.125"],
        ["autumn", "3", "1", "-7", "1", "0.125"],
    ]
    # What was spent may be shown to others: no value is in it.
    spent = fl_app("ledger", "--state-dir", "state")
    assert (spent.code, "2.5" in spent.output) == (0, False)
    refused = fl_app("ledger", "--state-dir", "state", "--best", "max-epsilon=3")
    assert_refused(refused, 2, "ledger: '--best'; allowed: max-epsilon=...")


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ([], "ledger: ''; allowed: RUN"),
        (["a", "b"], "ledger: 'a b'; allowed: RUN"),
        (["--state-dir"], "ledger: '--state-dir'; allowed: RUN"),
        (["nowhere"], "ledger: 'nowhere'; allowed: a folder with nowhere/checkpoint/devices"),
        (["--state-dir", "x"], "ledger: 'x'; allowed: a folder with x/devices.sqlite"),
    ],
)
def test_a_ledger_that_is_not_there(fl_app, words, start):
    assert_refused(fl_app("ledger", *words), 2, start)


def test_the_rows_are_json(begun):
    rows = (begun / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["round"] for row in rows] == [0, 1, 2]


def test_a_flipped_bit_in_the_checkpoint_is_noticed(fl_app, begun):
    file = begun / "checkpoint" / "server.safetensors"
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)
    assert_refused_untouched(fl_app, begun, [f"resume={begun}"], f"resume: '{file}'")


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'{"round": 1,', b'X"round": 1,'), (b'{"round": 1,', b'{"round": 7,'), (b"{", b"\xff")],
)
def test_an_edited_row_is_named_before_anything_is_trained(fl_app, begun, old, new):
    file = begun / "metrics.jsonl"
    first, rest = file.read_bytes().split(b"\n", 1)
    file.write_bytes(first + b"\n" + rest.replace(old, new, 1))
    assert_refused_untouched(fl_app, begun, [f"resume={begun}"], f"resume: '{file}, line 2'")


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
