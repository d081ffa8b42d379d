"""A run's folder as it is read: whole, unfinished, corrupt."""

import dataclasses

import pytest

from fl_app.report import ReportError, read_run_folder
from tests.fl_app.report_samples import GUARANTEE, SUMMARY, save_run


def test_a_finished_run_is_read_whole(tmp_path):
    run = read_run_folder(save_run(tmp_path / "run"))
    assert [entry["round"] for entry in run.metrics] == [0, 1, 2, 3]
    assert run.summary == SUMMARY
    assert run.privacy == [GUARANTEE]
    assert run.config_text == "seed: 3\n"
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.summary = None


@pytest.mark.parametrize(
    "rest", ['{"round": 4, "test_acc', '{"round": 4, "note": "é'.encode()[:-1], "\0\0\0", "{"]
)
def test_a_half_written_last_line_is_left_out(tmp_path, rest):
    folder = save_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(rest if isinstance(rest, bytes) else rest.encode())
    assert len(read_run_folder(folder).metrics) == 4
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b"\n")
    with pytest.raises(ReportError, match=r"metrics\.jsonl, line 5: is not valid JSON"):
        read_run_folder(folder)


def test_a_whole_last_line_without_its_newline_is_kept(tmp_path):
    folder = save_run(tmp_path / "run")
    (folder / "metrics.jsonl").write_bytes((folder / "metrics.jsonl").read_bytes().rstrip())
    assert len(read_run_folder(folder).metrics) == 4


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("[1]", "must be a JSON object"),
        ('{"round": 1, "test_loss": NaN}', "NaN is not a finite number"),
        ('{"round": 1, "test_loss": 1e999}', "test_loss must be finite"),
        ('{"round": 1, "epsilon": true}', "epsilon must be a number or null"),
        ('{"round": 1, "epsilon": "8"}', "epsilon must be a number or null"),
        ('{"round": 1, "uplink_bytes": -1}', "uplink_bytes must not be negative"),
        ('{"round": 1.5}', "round must be an integer"),
        ('{"seconds": 1}', "round must be an integer"),
        ('{"round": 0}', "round 0 must come after round 0"),
        ('{"round": 1, "format_version": 2}', "format_version is 2"),
        ("[" * 100_000, "is not valid JSON"),
    ],
)
def test_a_corrupt_line_is_named(tmp_path, line, fault):
    folder = save_run(tmp_path / "run", rounds=1)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ReportError, match=fault) as caught:
        read_run_folder(folder)
    assert "metrics.jsonl, line 2" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("summary.json", "{", "is not valid JSON"),
        ("summary.json", "{}", "format_version is None"),
        ("summary.json", '{"format_version": 2}', "format_version is 2"),
        ("summary.json", '{"format_version": true}', "format_version is True"),
        ("summary.json", '{"format_version": 1, "epsilon": "low"}', "epsilon must be a number"),
        ("privacy.json", "[]", "must be a JSON object"),
        ("privacy.json", '{"format_version": 1}', "guarantees must be a list"),
        ("privacy.json", '{"format_version": 7, "guarantees": []}', "format_version is 7"),
    ],
)
def test_a_corrupt_file_is_named(tmp_path, name, content, fault):
    folder = save_run(tmp_path / "run")
    (folder / name).write_text(content)
    with pytest.raises(ReportError, match=fault) as caught:
        read_run_folder(folder)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"adversary": None}, "adversary must be a string"),
        ({"valid": "yes"}, "valid must be true or false"),
        ({"epsilon": -1}, "epsilon must not be negative"),
        ({"delta": 1.5}, "delta must lie in"),
        ({"unit": 3}, "unit must be a string or null"),
        ({"assumptions": "none"}, "assumptions must be a list of strings"),
    ],
)
def test_a_guarantee_that_cannot_be_read_is_refused(tmp_path, changes, fault):
    folder = save_run(tmp_path / "run", guarantees=[GUARANTEE, GUARANTEE | changes])
    with pytest.raises(ReportError, match=fault) as caught:
        read_run_folder(folder)
    assert "guarantee 2" in str(caught.value)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ReportError, match="no such folder"):
        read_run_folder(tmp_path / "nowhere")
    with pytest.raises(ReportError, match=r"it has no metrics\.jsonl"):
        read_run_folder(tmp_path)
