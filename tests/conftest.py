"""Fixtures for whole runs, and torch's thread count put back after each test."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

# How long an example takes depends on what else the machine does.
settings.register_profile("project", deadline=None)
settings.load_profile("project")

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED_DATA = REPOSITORY.parent / "shared" / "data"


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    folder: Path
    summary: dict[str, Any]
    rows: list[dict[str, Any]]
    guarantees: list[dict[str, Any]]

    @property
    def sha256(self) -> str:
        return str(self.summary["model_sha256"])


def read_outcome(folder: Path) -> Outcome:
    return Outcome(
        folder,
        json.loads((folder / "summary.json").read_text()),
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()],
        json.loads((folder / "privacy.json").read_text())["guarantees"],
    )


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes longest and is not looked at."""
    monkeypatch.setattr("fl_app.report.plots.write_plots", lambda run, folder: [])
    monkeypatch.setattr("fl_app.report.html.write_report", lambda run, path: path)


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Outcome]:
    """Run overrides on the in-process engine."""

    def execute(*overrides: str) -> Outcome:
        from fl_app.client_app import app as client_app
        from fl_app.config import compose_settings
        from fl_app.engines.in_process import run_in_process
        from fl_app.server_app import app as server_app

        settings = compose_settings(list(overrides))
        folder = tmp_path_factory.mktemp("run")
        assert settings.num_clients is not None
        run_config = {
            "settings": settings.to_json(),
            "output-dir": str(folder),
            "state-dir": str(folder / "checkpoint"),
        }
        run_in_process(server_app, client_app, settings.num_clients, run_config)
        return read_outcome(folder)

    return execute


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
