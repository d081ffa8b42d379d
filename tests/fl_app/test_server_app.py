"""The entry points: settings and nodes found, the folder, the log, and how the end is told."""

import json
import logging
import platform
from collections.abc import Iterable
from pathlib import Path

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.superlink.grid import HttpGrid

from fl_app import server_app
from fl_app.client_app import app as client_app
from fl_app.config import compose_settings, resumed_settings
from fl_app.engines.in_process import InProcessGrid, run_in_process
from fl_app.engines.outcome import Outcome, read_outcome, write_outcome
from fl_app.engines.relay import GridRelay
from fl_app.engines.workers import WorkerWatch
from fl_app.errors import ConfigError, RunError
from fl_app.roll_call import QUERY_TYPE
from fl_app.server_app import read_folder, read_settings
from fl_app.settings import EngineSettings
from tests.fl_app.flower_like_grid import FlowerLikeGrid

SMALL = ["num_rounds=1", "num_clients=3"]
ALL_OUT = "strategy.batch_size=1000"


@pytest.mark.parametrize("way", ["send_and_receive", "pull_messages"])
def test_a_dead_worker_ends_a_simulation(way: str) -> None:
    """Flower goes on without it, and with errors in place of its replies."""
    inner = InProcessGrid(client_app, 3, {})
    requests = [
        Message(RecordDict(), dst_node_id=node, message_type=QUERY_TYPE)
        for node in inner.get_node_ids()
    ]
    replies = list(inner.send_and_receive(requests))

    class Broken(GridRelay):
        def send_and_receive(self, *_: object, **__: object) -> list[Message]:  # type: ignore
            return replies

        pull_messages = send_and_receive  # type: ignore[assignment]

    watch = WorkerWatch(Broken(inner))
    assert list(getattr(watch, way)([])) == replies
    # A client's own failure is not the worker's.
    replies[0] = Message(Error(2, "?"), reply_to=replies[0])
    assert list(getattr(watch, way)([])) == replies
    replies[2] = Message(Error(0, "?"), reply_to=replies[2])
    with pytest.raises(RunError, match=r"a worker .* has died, and replies with it"):
        getattr(watch, way)([])


def test_a_simulation_is_watched(tmp_path: Path) -> None:
    def lose_training(replies: list[Message]) -> list[Message]:
        training = replies[0].metadata.message_type == "train"
        return [Message(Error(0, "?"), reply_to=each) for each in replies] if training else replies

    settings = compose_settings([*SMALL, "engine=simulation"])
    config = {"settings": settings.to_json(), "output-dir": str(tmp_path)}
    grid = FlowerLikeGrid(3)
    grid.get_node_ids = lambda: list(grid._inner.get_node_ids())  # type: ignore[method-assign]
    grid.change = lose_training  # type: ignore[method-assign]
    context = Context(1, 0, {}, RecordDict(), config)
    with pytest.raises(RunError, match="has died, and replies with it"):
        server_app.main(grid, context)


def test_settings_from_the_launcher() -> None:
    settings = compose_settings([*SMALL, "seed=9"])
    assert read_settings({"settings": settings.to_json(), "overrides": ""}) == (settings, True)
    with pytest.raises(ConfigError, match="overrides: 'seed=1'; allowed: empty beside settings"):
        read_settings({"settings": settings.to_json(), "overrides": "seed=1"})


@pytest.mark.parametrize(
    ("overrides", "given"), [("", False), ("seed=3", False), ("num_clients=4 seed=3", True)]
)
def test_settings_from_overrides(overrides: str, given: bool) -> None:
    settings, found = read_settings({"overrides": overrides})
    assert found is given
    assert settings.seed == (3 if overrides else 0)
    assert settings.engine.name == "simulation"
    assert read_settings({}) == read_settings({"overrides": "", "settings": ""})


def test_overrides_are_split_as_in_a_shell() -> None:
    settings, _ = read_settings({"overrides": "data=mnist 'data.root=\"a b\"' num_rounds=2"})
    assert (settings.data.root, settings.num_rounds) == ("a b", 2)
    with pytest.raises(ConfigError, match="overrides"):
        read_settings({"overrides": "data.root='a"})
    with pytest.raises(ConfigError, match="num_roundz"):
        read_settings({"overrides": "num_roundz=2"})


def test_the_folder_is_given_or_new_under_flowers_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert read_folder({"output-dir": str(tmp_path)}, 1) == tmp_path
    assert read_folder({"output-dir": "~/x"}, 1) == Path("~/x")
    with pytest.raises(ConfigError, match="output-dir: 'x/y'; allowed: an absolute path"):
        read_folder({"output-dir": "x/y"}, 1)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    one, two = read_folder({}, 12345), read_folder({}, 12346)
    assert one.is_relative_to(tmp_path / "fl-app")
    assert one != two  # even within a second
    monkeypatch.delenv("FLWR_HOME")
    assert read_folder({}, 1).is_relative_to(Path.home() / ".flwr" / "fl-app")


def launch(folder: Path, *overrides: str, **run_config: str) -> None:
    settings = compose_settings([*SMALL, *overrides])
    config = {"settings": settings.to_json(), "output-dir": str(folder), **run_config}
    run_in_process(server_app.app, client_app, 3, config)


def test_a_launcher_is_told_the_end_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "outcome.json"
    launch(tmp_path / "run", **{"outcome-file": str(file)})
    assert read_outcome(file) == Outcome(None)
    with pytest.raises(RunError) as raised:
        launch(tmp_path / "run", ALL_OUT, **{"outcome-file": str(file)})
    assert read_outcome(file) == Outcome(str(raised.value))
    assert "clients of round 1 sit out" in str(raised.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("remote", [True, False])
def test_what_is_missing_is_missing_on_the_superlink_s_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    """Where the run was started, it may be installed."""
    monkeypatch.setattr(server_app, "is_remote", lambda grid: remote)
    file = tmp_path / "outcome.json"
    with pytest.raises(ValueError, match="nowhere"):
        launch(
            tmp_path / "run",
            "model=user",
            "model.path=nowhere:build",
            **{"outcome-file": str(file)},
        )
    outcome = read_outcome(file)
    assert outcome is not None
    said = str(outcome.failure)
    place = "on the SuperLink's machine: " if remote else ""
    assert said.startswith(f"{place}ValueError: model.path: 'nowhere:build'; no module nowhere is")
    assert platform.node() in said


def test_whoever_uses_flower_alone_reads_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"overrides": "num_rounds=1", "output-dir": str(tmp_path)}
    run_in_process(server_app.app, client_app, 3, config)
    (line,) = capsys.readouterr().out.splitlines()
    assert line == f"fl-app: done; the folder of the run is {tmp_path}"
    config["overrides"] = "num_rounds=one"
    with pytest.raises(ConfigError):
        run_in_process(server_app.app, client_app, 3, config)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("fl-app: num_rounds: 'one'; allowed:")


def test_whoever_uses_flower_alone_gets_a_report(tmp_path: Path) -> None:
    config = {"overrides": "num_rounds=1", "output-dir": str(tmp_path / "alone")}
    run_in_process(server_app.app, client_app, 3, config)
    assert "<html" in (tmp_path / "alone" / "report.html").read_text(encoding="utf-8")
    assert list((tmp_path / "alone" / "plots").iterdir())
    # The launcher draws its own.
    launch(tmp_path / "launched")
    assert not (tmp_path / "launched" / "report.html").exists()


@pytest.mark.parametrize("part", ["read_run_folder", "write_plots", "write_report"])
def test_a_report_that_cannot_be_drawn_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"fl_app.report.{part}", fail)
    config = {"overrides": "num_rounds=1", "output-dir": str(tmp_path)}
    run_in_process(server_app.app, client_app, 3, config)
    assert f"fl-app: done; the folder of the run is {tmp_path}" in capsys.readouterr().out
    assert (tmp_path / "summary.json").exists()
    assert "WARNING fl_app.server_app: no report: OSError: " in (tmp_path / "run.log").read_text()


def test_errors_of_others_are_named_and_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("one\ntwo")

    monkeypatch.setattr(server_app, "load_server_data", fail)
    file = tmp_path / "outcome.json"
    with pytest.raises(KeyError):
        launch(tmp_path / "run", **{"outcome-file": str(file)})
    assert read_outcome(file) == Outcome("KeyError: 'one\\ntwo'")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_whatever_ends_the_run_is_not_taken_for_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def stop(*_: object) -> None:
        raise error

    monkeypatch.setattr(server_app, "load_server_data", stop)
    file = tmp_path / "outcome.json"
    with pytest.raises(type(error)):
        launch(tmp_path / "run", **{"outcome-file": str(file)})
    outcome = read_outcome(file)
    assert outcome is not None
    assert outcome.failure is not None
    assert type(error).__name__ in outcome.failure


def test_the_log_has_the_run_s_messages_and_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before = (list(root.handlers), logging.getLogger("fl_app").level)
    launch(tmp_path / "good")
    with pytest.raises(RunError):
        launch(tmp_path / "bad", ALL_OUT)
    assert (list(root.handlers), logging.getLogger("fl_app").level) == before
    good, bad = ((tmp_path / name / "run.log").read_text() for name in ("good", "bad"))
    # Whatever level the process's own loggers have.
    assert "INFO strategies.dp_fedpaq.server: DP-FedPaq: unit record" in good
    assert "Traceback" not in good
    assert "the run failed\nTraceback" in bad
    assert "sit out" in bad
    assert "DEBUG" not in good + bad
    # The terminal is the launcher's.
    assert "run failed" not in "".join(capsys.readouterr())


def test_the_folder_holds_the_number_of_nodes_found(tmp_path: Path) -> None:
    config = {"overrides": "num_rounds=1", "output-dir": str(tmp_path)}
    run_in_process(server_app.app, client_app, 4, config)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["num_clients"], summary["engine"]) == (4, "simulation")
    assert "num_clients: 4" in (tmp_path / "config.yaml").read_text()


def test_a_client_tells_its_partition_and_trains_nothing() -> None:
    grid = InProcessGrid(client_app, 5, {})
    node = list(grid.get_node_ids())[3]
    message = Message(RecordDict(), dst_node_id=node, message_type=QUERY_TYPE, group_id="")
    (reply,) = grid.send_and_receive([message])
    assert dict(reply.content["config"].items()) == {"partition-id": 3, "num-partitions": 5}
    assert list(reply.content) == ["config"]


def test_an_outcome_is_written_whole(tmp_path: Path) -> None:
    file = tmp_path / "outcome.json"
    assert read_outcome(file) is None
    write_outcome(file, Outcome("why, in ünicode"))
    assert read_outcome(file) == Outcome("why, in ünicode")
    write_outcome(file, Outcome(None))
    assert read_outcome(file) == Outcome(None)
    assert [each.name for each in tmp_path.iterdir()] == ["outcome.json"]


def test_a_context_without_a_configuration_runs_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    context = Context(1, 0, {}, RecordDict(), {"overrides": "num_rounds=1"})
    server_app.main(InProcessGrid(client_app, 2, {}), context)
    (summary,) = tmp_path.rglob("summary.json")
    assert json.loads(summary.read_text())["num_clients"] == 2


class RemoteGrid(HttpGrid):
    """Flower's own grid to a SuperLink, as far as what is asked of it; nodes of this process."""

    def __init__(self, num_clients: int) -> None:
        self._inner = InProcessGrid(client_app, num_clients, {})

    def get_node_ids(self) -> Iterable[int]:
        return self._inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._inner.pull_messages(message_ids)


def test_the_nodes_of_a_superlink_are_devices_whatever_the_settings_say(tmp_path: Path) -> None:
    for overrides in (
        "num_rounds=1",
        "num_rounds=1 num_clients=3",
        "num_rounds=1 engine=in_process",
    ):
        folder = tmp_path / overrides.replace(" ", "_")
        run_config = {"overrides": overrides, "output-dir": str(folder)}
        context = Context(1, 0, {}, RecordDict(), run_config)
        server_app.main(RemoteGrid(3), context)
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["engine"], summary["num_clients"]) == ("deployment", 3)


@pytest.mark.parametrize("signed", [True, False])
def test_a_run_remembers_whose_code_it_runs(tmp_path: Path, signed: bool) -> None:
    """What resumes it must not send other code than the run began with."""
    overrides = f"num_rounds=1 engine=deployment engine.superlink=clinic engine.signed={signed}"
    context = Context(
        1, 0, {}, RecordDict(), {"overrides": overrides, "output-dir": str(tmp_path / "run")}
    )
    server_app.main(RemoteGrid(3), context)
    found = resumed_settings([f"resume={tmp_path / 'run'}"])
    assert found is not None
    assert found[1].engine == EngineSettings("deployment", superlink="clinic", signed=signed)
