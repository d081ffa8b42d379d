"""A run whose folder is damaged: refused by name, and left as it is."""

import json
from pathlib import Path

import pytest

from fl_app.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from tests.fl_app.begun_runs import SMALL, assert_refused_untouched
from tests.fl_app.ended import assert_refused

pytestmark = pytest.mark.usefixtures("no_report")


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
        patched.setattr("fl_app.checkpoint.FORMAT_VERSION", 3)
        found = read_checkpoint_of(begun)
        write_checkpoint(begun / "checkpoint", found)
    line = assert_refused_untouched(fl_app, begun, ["resume=run"], "format_version: 3; allowed: 2")
    assert "server.safetensors" in line


def read_checkpoint_of(folder: Path) -> Checkpoint:
    from fl_app import checkpoint

    version, checkpoint.FORMAT_VERSION = checkpoint.FORMAT_VERSION, 2
    try:
        return read_checkpoint(folder / "checkpoint")
    finally:
        checkpoint.FORMAT_VERSION = version


def test_the_previous_checkpoint_outlives_a_failed_write(fl_app, begun, monkeypatch):
    before = (begun / "checkpoint" / "server.safetensors").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fl_app.model_files.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_checkpoint(begun / "checkpoint", read_checkpoint(begun / "checkpoint"))
    assert (begun / "checkpoint" / "server.safetensors").read_bytes() == before
    assert not list((begun / "checkpoint").glob(".server*"))


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
