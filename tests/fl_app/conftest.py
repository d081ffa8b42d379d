"""A command line, run in the test's own process."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from fl_app import cli
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
