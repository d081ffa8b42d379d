"""Runs that have begun and ended too early, and what must be left as it is."""

from pathlib import Path

from tests.conftest import read_outcome
from tests.fl_app.ended import assert_refused, list_files

SMALL = ("num_rounds=5", "num_clients=4", "strategy.batch_size=4")


class BrokenError(Exception):
    pass


def read_all(folder: Path) -> dict[str, bytes]:
    # Reading an SQLite file in its write-ahead mode puts two files beside it.
    return {
        name: (folder / name).read_bytes()
        for name in list_files(folder)
        if (folder / name).is_file() and not name.endswith(("-wal", "-shm"))
    }


def assert_refused_untouched(fl_app, folder, words, start):
    before = read_all(folder)
    line = assert_refused(fl_app("run", *words), 2, start)
    assert read_all(folder) == before
    return line


def whole(fl_app, tmp_path, words):
    assert fl_app("run", *words, "hydra.run.dir=whole").code == 0
    return read_outcome(tmp_path / "whole")
