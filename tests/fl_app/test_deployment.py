"""The launcher of a deployment against commands that stand in for Flower's."""

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from fl_app.config import compose_settings
from fl_app.engines import connection, deployment
from fl_app.engines.deployment import run_deployment
from fl_app.engines.submitted_run import FOLDER, OUTCOME, PREFIX, PROGRESS, WARNING
from fl_app.errors import ConfigError, RunError
from fl_app.run_config import to_yaml

SETTINGS = compose_settings(["engine=deployment", "engine.superlink=dep", "num_clients=2"])
# A command like `flwr`: what it is told to do is in files beside it, its calls are noted.
FLWR = """\
import json, pathlib, sys, time
here = pathlib.Path({here!r})
words = sys.argv[1:]
with (here / "calls").open("a") as file:
    file.write(json.dumps(words) + "\\n")
name = words[0] + ("-show" if "--show" in words else "")
if words[0] == "run":
    (here / "run.toml").write_text(pathlib.Path(words[words.index("--run-config") + 1]).read_text())
    sent = pathlib.Path(words[1]) / "fl_app" / "server_app.py"
    assert words[1].startswith("@") or sent.is_file()
for number in range(9, -1, -1):
    file = here / f"{{name}}.{{number}}"
    if file.exists() and sum(json.loads(c)[0] == words[0] for c in open(here / "calls")) > number:
        break
else:
    file = here / name
text = file.read_text()
if text.startswith("wait"):
    print(text.partition("\\n")[2], end="", flush=True)
    while not (here / "go on").exists():
        time.sleep(0.02)
    text = (here / "go on").read_text()
print(text, end="")
"""


class Flower:
    """The files that say what the command answers."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self.answer("run", '{"success": true, "run-id": "12"}')
        self.answer("list", '{"success": true, "runs": [{"status": "finished:completed"}]}')
        self.answer("stop", '{"success": true}')

    def answer(self, name: str, text: str) -> None:
        (self.here / name).write_text(text)

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.here / "calls").read_text().splitlines()]


def record(kind: str, text: str) -> str:
    return PREFIX + json.dumps({"kind": kind, "text": text}) + "\n"


@pytest.fixture
def flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flower:
    here = tmp_path / "flower"
    here.mkdir()
    (here / "flwr.py").write_text(FLWR.format(here=str(here)))
    command = here / "flwr-command"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{here}/flwr.py" "$@"\n')
    command.chmod(0o755)
    monkeypatch.setattr(connection, "find_command", lambda name, environment: str(command))
    monkeypatch.setattr(deployment, "RETRY_SECONDS", 0.05)
    return Flower(here)


ROW = '{"round": 0}\n'


def test_a_run_in_another_folder_comes_back(flower: Flower, tmp_path: Path, capsys) -> None:
    flower.answer(
        "log",
        "Start `flwr-serverapp` process\n"
        + record(FOLDER, "/there/run")
        + record("config.yaml", "seed: 0\n")
        + record("metrics.jsonl", ROW)
        + "some other line\n"
        + record("metrics.jsonl", '{"round": 1}\n')
        + record("summary.json", "{}")
        + record(OUTCOME, ""),
    )
    folder = tmp_path / "run"
    run_deployment(SETTINGS, folder)
    assert (folder / "metrics.jsonl").read_text() == ROW + '{"round": 1}\n'
    # Not what the log says: whoever writes the log would choose code that a later command runs.
    assert (folder / "config.yaml").read_text() == to_yaml(SETTINGS)
    assert {file.name for file in folder.iterdir()} == {
        *("config.yaml", "metrics.jsonl", "summary.json")
    }
    assert "/there/run" in capsys.readouterr().out
    (run, *_) = flower.calls()
    assert (run[0], run[2], run[-2:]) == ("run", "dep", ["--format", "json"])
    sent = (flower.here / "run.toml").read_text()
    assert f'output-dir = "{folder}"' in sent
    assert not Path(run[1]).exists()


def test_a_folder_that_both_see_is_left_to_the_run(flower: Flower, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flower.answer(
        "log", record(FOLDER, str(folder)) + record("metrics.jsonl", ROW) + record(OUTCOME, "")
    )
    run_deployment(SETTINGS, folder)
    assert (folder / "metrics.jsonl").read_text() == ""


@pytest.mark.parametrize("there", ["/there/run", None])
def test_what_the_run_says_beside_its_results(
    flower: Flower, tmp_path: Path, caplog: pytest.LogCaptureFixture, there: str | None
) -> None:
    """On one line each: whoever writes the log moves no terminal."""
    folder = tmp_path / "run"
    flower.answer(
        "log",
        record(PROGRESS, "waiting for devices: 0 of 2")
        + record(FOLDER, there or str(folder))
        + record(PROGRESS, "waiting for devices: 1 of 2\x1b[2J\n" + "x" * 2000)
        + record(WARNING, "client 1: left out\nof 2 of 2 rounds")
        + record(OUTCOME, ""),
    )
    told: list[str] = []
    with caplog.at_level(logging.WARNING):
        run_deployment(SETTINGS, folder, tell=told.append)
    assert told[:2] == ["run 12 is on SuperLink dep", "waiting for devices: 0 of 2"]
    assert told[2].startswith("waiting for devices: 1 of 2 [2J x")
    assert len(told[2]) == 1000
    assert caplog.messages == ["client 1: left out of 2 of 2 rounds"]


def test_signed_code_is_named_and_not_sent(flower: Flower, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flower.answer("log", record(FOLDER, str(folder)) + record(OUTCOME, ""))
    signed = compose_settings(
        ["engine=deployment", "engine.superlink=dep", "num_clients=2", "engine.signed=true"]
    )
    run_deployment(signed, folder)
    assert flower.calls()[0][1] == "@private-fl/private-fl-app==0.1.0"


def test_a_run_that_fails_says_why(flower: Flower, tmp_path: Path) -> None:
    flower.answer("log", "Traceback ...\n" + record(OUTCOME, "no data") + "the end\n")
    with pytest.raises(RunError, match=r"^no data$"):
        run_deployment(SETTINGS, tmp_path / "run")
    log = (tmp_path / "run" / "run.log").read_text()
    assert "log of run 12" in log
    assert "Traceback ..." in log


def test_a_log_that_breaks_off_is_taken_up_again(flower: Flower, tmp_path: Path) -> None:
    """A stream begins at the log's beginning: nothing is taken twice, and nothing is missed."""
    rows = [record("metrics.jsonl", f'{{"round": {number}}}\n') for number in range(4)]
    head = record(FOLDER, "/there/run")
    flower.answer("log", head + "".join(rows[:2]))
    flower.answer("list", '{"success": true, "runs": [{"status": "running"}]}')
    flower.answer("log.1", head + "".join(rows[:3]))
    flower.answer("log.2", head + "".join(rows) + record(OUTCOME, ""))
    run_deployment(SETTINGS, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2, 3]


def test_the_last_lines_may_be_missing_in_the_stream(flower: Flower, tmp_path: Path) -> None:
    head = record(FOLDER, "/there/run") + record("metrics.jsonl", ROW)
    flower.answer("log", head)
    flower.answer("log-show", head + record("summary.json", "{}") + record(OUTCOME, ""))
    run_deployment(SETTINGS, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == ROW
    assert (tmp_path / "run" / "summary.json").read_text() == "{}"


def test_nothing_that_the_log_brings_moves_the_terminal(
    flower: Flower, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "/there\x1b[2J\r\nall is well"
    told = record(FOLDER, hostile) + record(OUTCOME, hostile)
    for name in ("log", "log-show"):
        flower.answer(name, told)
    with pytest.raises(RunError) as failed:
        run_deployment(SETTINGS, tmp_path / "run")
    flower.answer("log", record(FOLDER, hostile) + record(OUTCOME, ""))
    run_deployment(SETTINGS, tmp_path / "other")
    shown = str(failed.value) + capsys.readouterr().out.replace("\n", "")
    assert shown.count("all is well") == 2
    assert shown.isprintable()


def test_a_server_app_that_was_killed_says_nothing(flower: Flower, tmp_path: Path) -> None:
    for name in ("log", "log-show"):
        flower.answer(name, record(FOLDER, "/there/run"))
    flower.answer("list", '{"success": true, "runs": [{"status": "finished:failed"}]}')
    with pytest.raises(RunError, match=r"finished:failed.*fl-app run resume=/there/run goes on"):
        run_deployment(SETTINGS, tmp_path / "run")


def test_a_superlink_that_does_not_answer_any_more(
    flower: Flower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment, "RECONNECT_SECONDS", 0.2)
    flower.answer("log", record(FOLDER, "/there/run"))
    flower.answer("list", '{"success": false, "error-message": "Connection is unavailable."}')
    with pytest.raises(RunError, match=r"SuperLink dep: Connection is unavailable\."):
        run_deployment(SETTINGS, tmp_path / "run")
    assert sum(call[0] == "list" for call in flower.calls()) >= 2


@pytest.mark.parametrize(
    "text", ['{"success": false, "error-message": "Not\\nthere"}', "Not there", '["Not there"]']
)
def test_a_refused_submission(flower: Flower, tmp_path: Path, text: str) -> None:
    flower.answer("run", text)
    with pytest.raises(RunError, match=r"^SuperLink dep: .*Not there"):
        run_deployment(SETTINGS, tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == [tmp_path / "run" / "metrics.jsonl"]


def test_a_superlink_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.superlink: null; allowed: the name of"):
        run_deployment(compose_settings(["engine=deployment"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("shared", [True, False])
def test_ctrl_c(flower: Flower, tmp_path: Path, shared: bool) -> None:
    """The first one ends a run after the round where its folder is seen, else at once."""
    folder = tmp_path / "run"
    there = str(folder) if shared else "/there/run"
    flower.answer("log", "wait\n" + record(FOLDER, there) + record("metrics.jsonl", ROW))
    stop = folder / deployment.STOP_FILE
    seen = []

    def interrupt() -> None:
        if not shared:
            _wait_for(lambda: (folder / "metrics.jsonl").read_text() == ROW)
        else:
            _wait_for(lambda: any(call[0] == "log" for call in flower.calls()))
        os.kill(os.getpid(), signal.SIGINT)
        asked = stop.exists if shared else lambda: any(c[0] == "stop" for c in flower.calls())
        _wait_for(asked)
        seen.append(any(call[0] == "stop" for call in flower.calls()))
        (flower.here / "go on").write_text(record(OUTCOME, ""))

    thread = threading.Thread(target=interrupt)
    thread.start()
    run_deployment(SETTINGS, folder)
    thread.join()
    assert seen == [not shared]
    assert not stop.exists()


def test_the_second_ctrl_c_ends_the_run_at_once(flower: Flower, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flower.answer("log", "wait\n" + record(FOLDER, str(folder)))

    def interrupt() -> None:
        _wait_for(lambda: (flower.here / "calls").exists() and len(flower.calls()) > 1)
        os.kill(os.getpid(), signal.SIGINT)
        _wait_for((folder / deployment.STOP_FILE).exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_deployment(SETTINGS, folder)
    thread.join()
    assert flower.calls()[-1][:3] == ["stop", "12", "dep"]


def _wait_for(condition) -> None:
    done = threading.Event()
    while not done.wait(0.02):
        try:
            if condition():
                return
        except OSError:
            continue
