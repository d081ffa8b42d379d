"""Where a guarantee needs secret cohorts or samples, no file that is shared shows their sizes."""

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_app.checkpoint import read_checkpoint
from fl_app.client_app import app as client_app
from fl_app.config import compose_settings
from fl_app.device_state import FolderState
from fl_app.engines.in_process import InProcessGrid
from fl_app.registry import build_strategy
from fl_app.report import read_run_folder
from fl_app.report.html import write_report
from fl_app.search_task import build_search
from strategies.dp_fedpaq.messages import model_record
from strategies.dp_fts_de.messages import broadcast_record
from tests.conftest import Outcome, read_outcome

SEARCH = (
    *("strategy=dp_fts_de", "objective=synthetic", "objective.num_agents=6", "num_rounds=3"),
    "num_clients=6",
    *("strategy.num_random_features=8", "strategy.num_initial=2", "strategy.target_epsilon=4"),
    *("strategy.release_rounds=[1,2]", "strategy.sample_rate=0.5"),
)
CURATOR = (
    *("strategy=dp_fedpaq", "strategy.noise_at=server", "strategy.unit=client"),
    *("strategy.quantizer=none", "strategy.sensitivity=whole_update", "num_clients=6"),
    *("strategy.target_epsilon=4", "num_sampled_clients=3", "num_rounds=2"),
    *("strategy.max_participations=2", "participation=poisson"),
    "strategy.neighboring_relation=zero_out",
)
SECRET = "randomness=secret"
# Of a secret run nothing repeats these.
OF_THE_MOMENT = ("date", "wall_seconds")
ANSWERS = ("num_replies", "num_failures", "num_ineligible", "uplink_bytes", "control_bytes")


@pytest.mark.parametrize(
    ("words", "figures"),
    [
        (SEARCH, (*ANSWERS, "seconds", "num_uploaded")),
        (CURATOR, (*ANSWERS, "seconds", "num_sampled", "downlink_bytes")),
    ],
    ids=["search", "curator"],
)
def test_sizes_are_left_out_of_all_but_the_checkpoint(
    fl_app: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], figures: tuple[str, ...]
) -> None:
    # All, so that their total is no small number, which may be anywhere.
    for draw in ("dp_fts_de.server.sample_agents", "dp_fedpaq.cohort.sample_cohort"):
        monkeypatch.setattr(f"strategies.{draw}", lambda *_: list(range(6)))
    ended = fl_app("run", *words, SECRET, "hydra.run.dir=run")
    assert ended.code == 0, ended.errors
    outcome = read_outcome(Path("run"))
    assert any("draw" in line for line in said(outcome))
    for row in outcome.rows:
        assert {row[name] for name in figures} == {None}
    assert (outcome.summary["uplink_bytes_total"], outcome.summary["wall_seconds"]) == (None, None)
    assert "how many clients were drawn" in outcome.summary["left_out"]
    # What a resumed run needs is beside them.
    checkpoint = read_checkpoint(Path("run/checkpoint"))
    assert checkpoint is not None
    total = checkpoint.totals["uplink_bytes"]
    assert total >= 6 * 2 * 8 * 4
    shared = [file for file in Path("run").iterdir() if file.is_file()]
    texts = {file.name: file.read_text(errors="replace") for file in shared}
    for name in ("metrics.jsonl", "summary.json", "privacy.json", "run.log"):
        assert str(total) not in re.findall(r"[\d.]+", texts[name])
    assert "how many clients were drawn" in " ".join(texts["report.html"].split())
    assert "how many clients were drawn" in " ".join(ended.output.split())
    assert "dropped" not in texts["run.log"]


@pytest.mark.parametrize("secret", [True, False])
def test_a_secret_search_says_where_its_clients_values_are(fl_app: Any, secret: bool) -> None:
    """They are kept for the clients' own best points, so whoever passes the folder on must know."""
    ended = fl_app("run", *SEARCH, *([SECRET] if secret else []), "hydra.run.dir=run")
    assert ended.code == 0, ended.errors
    text = "holds all clients' points and values"
    assert (text in " ".join(ended.output.split())) == secret
    report = html.unescape(Path("run/report.html").read_text())
    assert (text in " ".join(report.split())) == secret
    outcome = read_outcome(Path("run"))
    assert (text in str(outcome.summary["kept"])) == secret
    assert any("checkpoint/devices.sqlite" in line for line in said(outcome)) == secret
    values = FolderState(Path("run/checkpoint"), "simulated", 0).read_observations()
    assert len(values) == 4


@pytest.mark.parametrize("upload", ["sampled", "all"])
def test_whoever_was_drawn_the_folder_says_the_same(
    fl_app: Any, monkeypatch: pytest.MonkeyPatch, upload: str
) -> None:
    """Nobody, or everybody: what would differ by a single agent differs then at the latest."""
    found = {}
    for name, drawn in (("nobody", []), ("everybody", list(range(6)))):
        monkeypatch.setattr("strategies.dp_fts_de.server.sample_agents", lambda *_, d=drawn: d)
        words = (*SEARCH, SECRET, f"strategy.upload={upload}", f"hydra.run.dir={name}")
        ended = fl_app("run", *words)
        assert ended.code == 0, ended.errors
        outcome = read_outcome(Path(name))
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in outcome.rows]
        summary = {k: v for k, v in outcome.summary.items() if k not in OF_THE_MOMENT}
        log = Path(name, "run.log").read_text().splitlines()
        without_times = [line.split(" ", 2)[2].replace(name, "") for line in log]
        output = [line for line in ended.output.splitlines() if "Time" not in line]
        found[name] = (rows, summary, outcome.guarantees, without_times, len(output))
    for nobody, everybody in zip(*found.values(), strict=True):
        assert nobody == everybody


@pytest.mark.parametrize("secret", [True, False])
def test_whose_evaluations_failed_is_not_beside_the_results(fl_app: Any, secret: bool) -> None:
    """That one failed is a value, and comes of the client's data."""
    words = (
        *("strategy=dp_fts_de", "num_rounds=3", "strategy.num_initial=2", "objective=user"),
        *("objective.path=tests.fl_app.failing_objective:raises", "objective.num_agents=3"),
        "objective.search_space=[{name: x, kind: float, low: 0, high: 1}]",
        *("strategy.target_epsilon=4", "strategy.release_rounds=[1,2]"),
    )
    ended = fl_app("run", *words, *([SECRET] if secret else []), "hydra.run.dir=run")
    assert ended.code == 0, ended.errors
    apart = Path("run", "checkpoint", "clients.log")
    assert apart.exists() == secret
    for file in Path("run").iterdir():
        if file.is_file() and secret:
            assert b"ValueError" not in file.read_bytes()
    log = apart if secret else Path("run", "run.log")
    assert log.read_text().count("failed: ValueError") == 4
    assert "DP-FTS-DE: " in Path("run", "run.log").read_text()


def said(outcome: Outcome) -> list[str]:
    return [line for row in outcome.guarantees for line in row["assumptions"]]


@pytest.mark.parametrize(
    "words",
    [
        SEARCH,
        (*SEARCH, SECRET, "strategy.sample_rate=1"),
        (*SEARCH, SECRET, "strategy.upload=all"),
        CURATOR,
        (*CURATOR, SECRET, "num_sampled_clients=6", "participation=fixed"),
        (*CURATOR[:1], *CURATOR[5:8], SECRET, "num_rounds=2"),
    ],
    ids=["seeded", "everybody", "equal uploads", "seeded curator", "all", "own noise"],
)
def test_elsewhere_they_are_told(run: Any, words: tuple[str, ...]) -> None:
    outcome = run(*words)
    for row in outcome.rows:
        assert all(row[name] is not None for name in (*ANSWERS, "seconds", "num_sampled"))
    assert outcome.rows[1]["uplink_bytes"] > 0
    assert outcome.summary["left_out"] is None
    assert outcome.summary["uplink_bytes_total"] > 0


@pytest.mark.parametrize("words", [SEARCH, CURATOR], ids=["search", "curator"])
def test_what_was_dropped_is_not_logged(
    words: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """A reply that is dropped tells that somebody was asked for it."""
    for secret in ((), (SECRET,)):
        settings = compose_settings([*words, *secret])
        strategy = build_search(settings) if settings.search else build_strategy(settings)
        grid = InProcessGrid(client_app, 6, {})
        strategy.client_ids = dict(grid.partition_ids)
        start = broadcast_record(None) if settings.search else model_record({"w": np.ones(3)})
        strategy.prepare_run(grid, start, settings.rounds)
        caplog.clear()
        strategy.log_dropped(1, {"reply without an upload": 2})
        assert ("dropped" in caplog.text) == (not secret)


def test_a_run_with_figures_left_out_can_be_reported(run: Any, tmp_path: Path) -> None:
    outcome = run(*SEARCH, SECRET)
    write_report(read_run_folder(outcome.folder), tmp_path / "report.html")
    assert "Every round" in (tmp_path / "report.html").read_text()
    rows = [json.loads(line) for line in (outcome.folder / "metrics.jsonl").open()]
    assert [row["num_releases"] for row in rows] == [None, 1, 2, 2]
