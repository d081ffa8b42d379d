"""A command line, run in the test's own process."""

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra

from fl_app import cli
from fl_app.recorded_run import RecordedRun
from tests.fl_app.begun_runs import SMALL, BrokenError
from tests.fl_app.ended import Ended


@pytest.fixture
def fl_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Ended]]:
    """Run ``fl-app`` in an empty folder; what it changes in the process is checked or undone."""
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def run(*words: str) -> Ended:
        arguments, folder = list(sys.argv), Path.cwd()
        with pytest.raises(SystemExit) as ended:
            cli.main(list(words))
        assert GlobalHydra.instance().hydra is None
        assert "fl-app terminal" not in [each.name for each in root.handlers]
        assert (sys.argv, Path.cwd()) == (arguments, folder)
        assert "HYDRA_FULL_ERROR" not in os.environ
        return Ended(int(ended.value.code or 0), *capfd.readouterr())

    yield run
    # Hydra's --info configures logging, for good.
    for handler in list(root.handlers):
        if handler not in handlers and type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def break_after(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let a run end without a word, before or after the checkpoint of a round."""

    def arrange(server_round: int, before: bool = False) -> None:
        save = RecordedRun._save

        def broken(self: RecordedRun, arrays: Any) -> None:
            hit = self._totals["rounds"] == server_round
            if not (hit and before):
                save(self, arrays)
            if hit:
                monkeypatch.setattr(RecordedRun, "_save", save)
                raise BrokenError

        monkeypatch.setattr(RecordedRun, "_save", broken)

    return arrange


@pytest.fixture(scope="session")
def begun_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first run that ``begun`` needs is kept for those after it."""
    return tmp_path_factory.mktemp("begun") / "run"


@pytest.fixture
def begun(
    fl_app: Callable[..., Ended],
    break_after: Callable[..., None],
    tmp_path: Path,
    begun_once: Path,
    no_report: None,
) -> Path:
    """A run that has ended after the second of five rounds."""
    if not begun_once.exists():
        break_after(2)
        assert fl_app("run", *SMALL, "hydra.run.dir=run").code == 1
        shutil.copytree(tmp_path / "run", begun_once)
    else:
        shutil.copytree(begun_once, tmp_path / "run")
    return tmp_path / "run"
