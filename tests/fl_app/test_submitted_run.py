"""Records in a log: nothing is lost or taken for a record, and no name in one leads elsewhere."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_app.engines.submitted_run import (
    FILES,
    FOLDER,
    OUTCOME,
    PREFIX,
    PROGRESS,
    WARNING,
    RebuiltStore,
    Record,
    ToldStore,
    is_marked,
    mark_folder,
    print_progress,
    print_record,
    read_record,
    told_warnings,
)
from fl_app.run_store import RunStore


@given(st.sampled_from([FOLDER, OUTCOME, WARNING, PROGRESS, *FILES]), st.text())
def test_a_record_survives_the_log(kind, text):
    with pytest.MonkeyPatch.context() as patch:
        written = []
        patch.setattr("sys.stdout.write", written.append)
        print_record(kind, text)
    # One piece, one line: Flower carries pieces, and other threads print between them.
    (line,) = written
    assert line.endswith("\n")
    assert len(line.splitlines()) == 1
    assert line.isascii()
    for around in ("", "INFO: half a line ", "\x1b[92m"):
        assert read_record(around + line) == Record(kind, text)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "fl-app: done",
        PREFIX,
        f"{PREFIX}3",
        f"{PREFIX}[]",
        f'{PREFIX}{{"kind": "outcome"}}',
        f'{PREFIX}{{"kind": "outcome", "text": 3}}',
        f'{PREFIX}{{"kind": ["outcome"], "text": ""}}',
        f'{PREFIX}{{"kind": "../x", "text": ""}}',
        f'{PREFIX}{{"kind": "run.log", "text": ""}}',
        f'{PREFIX}{{"kind": "config.yaml", "text": ""}}',
        f'{PREFIX}{{"kind": "checkpoint/state.sqlite", "text": ""}}',
        f'{PREFIX}{{"kind": "outcome", "text": ""',
    ],
)
def test_what_is_no_record(line):
    assert read_record(line) is None


def test_a_folder_is_rebuilt_from_the_records(tmp_path, capsys):
    told = ToldStore(tmp_path / "there")
    told.write_config("seed: 0\n")
    told.append_metrics({"round": 0, "loss": 1.5})
    told.append_queries([{"round": 1, "x": 0.5}])
    told.append_metrics({"round": 1, "loss": float("nan")})
    told.write_privacy([{"epsilon": 1.0}])
    told.write_summary({"seed": 0})
    told.write_best_point({"point": [0.5]})
    told.close()
    rebuilt = RebuiltStore(tmp_path / "here")
    rebuilt.close()
    records = [read_record(line) for line in capsys.readouterr().out.splitlines()]
    for record in records:
        assert record is not None
        rebuilt.take(record)
    names = {file.name for file in (tmp_path / "here").iterdir()}
    assert names == {*("metrics.jsonl", "privacy.json", "summary.json", "best_point.json")}
    for name in names:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


def test_an_ordinary_run_prints_no_records(tmp_path, capsys):
    store = RunStore(tmp_path)
    store.append_metrics({"round": 0})
    store.write_summary({})
    assert capsys.readouterr().out == ""


def test_a_folder_is_told_by_its_mark(tmp_path):
    mark = mark_folder(tmp_path)
    assert is_marked(tmp_path, mark)
    assert len(mark) == 32
    assert mark_folder(tmp_path) != mark
    assert not is_marked(tmp_path, mark)
    assert not is_marked(tmp_path / "elsewhere", mark)
    (tmp_path / ".submitted").write_bytes(b"\xff")
    assert not is_marked(tmp_path, mark)


def test_half_a_line_at_the_end_of_a_log_is_no_record():
    line = PREFIX + json.dumps({"kind": OUTCOME, "text": "why"})
    assert all(read_record(line[:length]) is None for length in range(len(line)))


def test_warnings_are_told_once_whatever_their_round(capsys):
    log, other = logging.getLogger("strategies.some"), logging.getLogger("elsewhere")
    with told_warnings():
        log.warning("round %d: dropped %s", 1, {"x": 1})
        log.warning("round %d: dropped %s", 2, {"x": 1})
        log.warning("round %d: dropped %s", 3, {"x": 2})
        log.info("not a warning")
        other.warning("not ours")
        print_progress("waiting")
    log.warning("over")
    lines = capsys.readouterr().out.splitlines()
    assert [read_record(line) for line in lines] == [
        Record(WARNING, "round 1: dropped {'x': 1}"),
        Record(WARNING, "round 3: dropped {'x': 2}"),
        Record(PROGRESS, "waiting"),
    ]
