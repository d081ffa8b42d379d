"""What clients say of their evaluations: where an owner looks, once, and nowhere else."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fl_app import evaluation_log
from fl_app.cli import _warnings_on_terminal
from fl_app.client_app import STATE_KEY, _simulated_log
from fl_app.config import compose_settings
from fl_app.engines import SIMULATED_KEY
from fl_app.evaluation_log import EvaluationLog
from fl_app.objectives import Observation, observe
from fl_app.objectives.settings import SyntheticSettings
from fl_app.objectives.synthetic import Synthetic
from fl_app.run_log import log_to
from tests.fl_app.ended import Ended

OBJECTIVES = "tests.fl_app.failing_objective:"
INITIAL = 4
SMALL = (
    *("strategy=dp_fts_de", "num_rounds=3", f"strategy.num_initial={INITIAL}", "objective=user"),
    *("objective.num_agents=3", "strategy.target_epsilon=4", "strategy.num_random_features=8"),
    "objective.search_space=[{name: x, kind: float, low: 0, high: 1}]",
)
SECRET = "randomness=secret"
OUTSIDE = "outside objective.low..high (0 to 1)"


@pytest.fixture(autouse=True)
def new_process() -> None:
    evaluation_log._said_here.cache_clear()


@pytest.fixture
def search(fl_app: Callable[..., Ended], no_report: None) -> Callable[..., Ended]:
    def run(name: str, *words: str) -> Ended:
        path = f"objective.path={OBJECTIVES}{name}"
        return fl_app("run", *SMALL, path, "hydra.run.dir=run", *words)

    return run


def logs(secret: bool) -> tuple[str, str]:
    """Return what the clients have logged, and all that lies beside it."""
    apart = Path("run", "checkpoint", "clients.log")
    assert apart.exists() == secret
    own = apart if secret else Path("run", "run.log")
    files = [file for file in Path("run").iterdir() if file.is_file() and file != own]
    return own.read_text(), "".join(file.read_text(errors="replace") for file in files)


def read_queries() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("run", "queries.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("secret", "workers"),
    [
        *[(True, 1), (False, 1)],
        *(pytest.param(secret, 2, marks=pytest.mark.slow) for secret in (True, False)),
    ],
)
def test_a_failure_s_traceback_is_in_the_clients_log_alone(
    search: Callable[..., Ended], secret: bool, workers: int
) -> None:
    ended = search("differently", f"engine.workers={workers}", *([SECRET] if secret else []))
    assert ended.code == 0, ended.errors
    own, beside = logs(secret)
    where = "checkpoint/clients.log" if secret else "run.log"
    # Each client once; of the others that fail in the same way, the log has a line each.
    warnings = [line for line in ended.errors.splitlines() if "client " in line]
    assert sorted(warnings) == [
        f"WARNING client 1: evaluation 1 failed: KeyError (traceback in {where})",
        f"WARNING client 2: evaluation 1 failed: IndexError (traceback in {where})",
    ]
    assert own.count(" failed: ") == 2 * (INITIAL + 2)
    for text in ("Traceback", "KeyError: 'my secret'", "IndexError: list index"):
        assert own.count(text) == (2 if text == "Traceback" else 1)
    assert own.count("failing_objective.py") == 2
    for text in (ended.errors, ended.output, beside):
        assert "my secret" not in text
        assert "list index" not in text


def test_values_outside_the_range_are_counted_and_warned_of(search: Callable[..., Ended]) -> None:
    ended = search("percent_of_two")
    assert ended.code == 0, ended.errors
    queries = read_queries()
    counts = dict.fromkeys(range(3), 0)
    for row in queries:
        assert row["outside"] == row["values"].count(1.0)
        counts[row["agent"]] += row["outside"]
    best = json.loads(Path("run", "best_point.json").read_text())["agents"]
    assert [each["outside"] for each in best] == [counts[agent] for agent in range(3)]
    assert [each["failures"] for each in best] == [0, 0, 0]
    assert (counts[0], counts[1] > 0, counts[2] > 0) == (0, True, True)
    first = [row["outside"] for row in queries if row["round"] == 1]
    assert (
        f"WARNING round 1: {sum(first)} values of 2 clients were {OUTSIDE} and count as the "
        "nearer end\n"
    ) in ended.errors
    # The value itself, once a client.
    own, _ = logs(secret=False)
    for client in (1, 2):
        (line,) = [each for each in own.splitlines() if f"client {client}: " in each]
        assert f"gave the value 87.5 {OUTSIDE}" in line
    assert "87.5" not in ended.errors


def test_of_a_secret_run_values_outside_are_in_the_clients_log_only(
    search: Callable[..., Ended],
) -> None:
    ended = search("percent", SECRET)
    assert ended.code == 0, ended.errors
    own, beside = logs(secret=True)
    useless = f"every evaluation of every client has failed, or was {OUTSIDE}: whatever this run "
    for text in (own, ended.errors):
        assert text.count(useless) == 1
        assert text.count(OUTSIDE) == 4
    for client in range(3):
        line = f"client {client}: evaluation 1 gave a value {OUTSIDE}, which counts as the nearer"
        assert line in own
        assert f"WARNING {line}" in ended.errors
    assert "outside" not in beside
    assert "outside" not in ended.output


def test_a_secret_run_in_which_all_fails_ends_with_a_word(search: Callable[..., Ended]) -> None:
    """Its server, which a deployment would share with others, is told nothing."""
    ended = search("everywhere", SECRET)
    assert ended.code == 0, ended.errors
    own, beside = logs(secret=True)
    path = Path("run", "checkpoint", "clients.log").absolute()
    assert f"! 4 warnings of clients and their work: see {path}\n" in ended.output
    assert own.count(" WARNING ") == 4
    assert "every evaluation of every client has failed" in own
    assert "every evaluation of every client has failed" in ended.errors
    assert "every evaluation" not in beside
    assert "warnings" not in beside
    for words in ((SECRET, "fine"), ("differently",)):
        ended = search(words[-1], *words[:-1], f"hydra.run.dir={words[-1]}")
        assert ended.code == 0, ended.errors
        assert "of clients and their work" not in ended.output
        assert "every evaluation" not in ended.errors


def test_a_run_with_no_value_in_the_range_ends(search: Callable[..., Ended]) -> None:
    ended = search("percent")
    assert ended.code == 1
    (line,) = [each for each in ended.errors.splitlines() if each.startswith("fl-app: ")]
    assert line.startswith(f"fl-app: every value of every client is {OUTSIDE}: set objective.low ")
    assert "better the higher it is" in line
    assert line.endswith("what was returned is in run.log")
    assert "gave the value " in Path("run", "run.log").read_text()
    assert search("percent", "objective.high=100", "hydra.run.dir=in-range").code == 0


def test_failures_beside_values_outside_change_nothing(search: Callable[..., Ended]) -> None:
    ended = search("percent_or_nothing")
    assert ended.code == 1
    assert f"fl-app: every value of every client is {OUTSIDE}" in ended.errors


def test_a_range_of_the_application_s_own_is_nobody_s_to_set(
    fl_app: Callable[..., Ended], no_report: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl_app.objectives.synthetic._WIDTH", 1e-3)
    ended = fl_app(
        "run",
        *SMALL[:3],
        "seed=77",
        "objective.num_agents=3",
        "objective=synthetic",
        "hydra.run.dir=run",
    )
    assert ended.code == 0, ended.errors
    assert "outside" not in ended.errors
    rows = read_queries()
    assert {row["outside"] for row in rows} == {0}
    assert max(abs(each) for row in rows for each in row["values"]) < 0.01


class Says(Exception):  # noqa: N818
    pass


def fail(text: str) -> Observation:
    try:
        raise Says(text)
    except Says as error:
        return Observation(0.0, failed=True, reason="Says", error=error)


def own_log(is_device: bool, context: Context | None = None, secret: bool = True) -> EvaluationLog:
    given = context or make_context(is_device)
    return EvaluationLog(given, 3, "secret" if secret else "seeded")


def make_context(is_device: bool) -> Context:
    return Context(1, 7, {} if is_device else {SIMULATED_KEY: True}, RecordDict(), {})


def test_a_device_says_all_in_its_own_log(caplog: pytest.LogCaptureFixture) -> None:
    log = own_log(is_device=True)
    log.tell_failure(1, fail("one"))
    log.tell_failure(2, fail("two"))
    log.tell_outside(3, 87.5, (0.0, 1.0))
    log.tell_outside(4, 88.5, (0.0, 1.0))
    first, second, third = caplog.records
    assert first.getMessage() == "client 3: evaluation 1 failed: Says (traceback below)"
    assert first.exc_info
    assert second.getMessage() == "client 3: evaluation 2 failed: Says"
    assert not second.exc_info
    assert f"gave the value 87.5 {OUTSIDE}" in third.getMessage()
    assert {each.levelno for each in caplog.records} == {logging.WARNING}


def test_what_was_said_is_remembered_between_messages(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    context = make_context(is_device=False)
    for number in (1, 2):
        own_log(is_device=False, context=context).tell_failure(number, fail("one"))
        other = Observation(0.0, failed=True, reason="returned nan, not a finite number")
        own_log(is_device=False, context=context).tell_failure(number, other)
    levels = [each.levelname for each in caplog.records]
    assert levels == ["WARNING", "WARNING", "INFO", "INFO"]
    own_log(is_device=False).tell_failure(1, fail("one"))
    assert caplog.records[-1].exc_info


def test_another_line_is_another_kind(caplog: pytest.LogCaptureFixture) -> None:
    log = own_log(is_device=False)

    def fail_elsewhere() -> Observation:
        try:
            raise Says("elsewhere")
        except Says as error:
            return Observation(0.0, failed=True, reason="Says", error=error)

    log.tell_failure(1, fail("one"))
    log.tell_failure(2, fail_elsewhere())
    assert [bool(each.exc_info) for each in caplog.records] == [True, True]


@pytest.mark.parametrize("secret", [True, False])
@pytest.mark.parametrize("by_flower", [True, False])
def test_a_client_that_flower_runs_writes_the_run_s_log_itself(
    tmp_path: Path, by_flower: bool, secret: bool
) -> None:
    """Of others the process that runs them writes it."""
    states = tmp_path / "checkpoint"
    states.mkdir()
    node = {} if by_flower else {SIMULATED_KEY: True}
    context = Context(1, 7, node, RecordDict(), {STATE_KEY: str(states)})
    randomness = "secret" if secret else "seeded"
    settings = compose_settings(["strategy=dp_fts_de", f"randomness={randomness}"])
    with _simulated_log(context, settings):
        EvaluationLog(context, 3, randomness).tell_failure(1, fail("my secret"))
    expected = states / "clients.log" if secret else tmp_path / "run.log"
    found = [file for file in (states / "clients.log", tmp_path / "run.log") if file.exists()]
    assert found == ([expected] if by_flower else [])
    if by_flower:
        assert "Says: my secret" in expected.read_text()


@pytest.mark.slow
def test_on_flower_s_own_simulation_tracebacks_are_in_the_same_place(
    search: Callable[..., Ended],
) -> None:
    ended = search("differently", SECRET, "engine=simulation")
    assert ended.code == 0, ended.errors
    own, beside = logs(secret=True)
    assert own.count("Traceback") == 2
    assert own.count(" failed: ") == 2 * (INITIAL + 2)
    assert "! 2 warnings of clients and their work: see " in ended.output
    assert "KeyError" not in beside


def test_a_worker_s_traceback_passes_the_terminal_by(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The terminal's handler comes first, and leaves the record to the file as it was."""
    values: dict[str, Any] = {"name": "fl_app.x", "levelno": logging.WARNING, "msg": "line"}
    values |= {"levelname": "WARNING", "exc_text": "Traceback: my secret"}
    with _warnings_on_terminal(), log_to(tmp_path, "seeded"):
        logging.getLogger("fl_app.x").handle(logging.makeLogRecord(values))
    assert "my secret" in (tmp_path / "run.log").read_text()
    assert capfd.readouterr().err == "WARNING line\n"


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError, SystemExit, GeneratorExit, KeyboardInterrupt]
)
def test_all_but_an_interruption_is_a_failed_evaluation(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(*_: object) -> float:
        raise error

    objective = Synthetic(SyntheticSettings("synthetic", num_agents=2), 0)
    monkeypatch.setattr(Synthetic, "evaluate", fail)
    point = objective.space.decode(np.full(objective.space.dimension, 0.5))
    if error in (GeneratorExit, KeyboardInterrupt):
        with pytest.raises(error):
            observe(objective, 0, point)
    else:
        assert observe(objective, 0, point).reason == error.__name__
