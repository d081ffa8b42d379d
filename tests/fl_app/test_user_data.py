"""The user's own data by import path: the contract, and what happens when it is broken."""

import dataclasses
import re

import numpy as np
import pytest

from fl_app.data import DataError, DataSettings, PartitionSettings, load_dataset
from fl_app.data.user import read_user_data

READER = """
import csv, pathlib, sys
import numpy as np
from fl_app.data import RawDataset, Records


def load(root):
    def read(name):
        with (pathlib.Path(root) / name).open() as file:
            rows = list(csv.reader(file))
        table = np.array(rows, dtype=np.float32)
        people, labels = table[:, 0].astype(np.int64), table[:, 3].astype(np.int64)
        return people, Records(table[:, 1:3].copy(), labels)

    people, train = read("train.csv")
    return RawDataset(train, read("test.csv")[1], num_classes=3, train_groups=people)


KEPT = RawDataset(
    Records(np.full((4, 2), 6, np.float32), np.arange(4) % 2),
    Records(np.full((2, 2), 6, np.float32), np.arange(2)),
    2,
)
FEATURES = KEPT.train.features


def kept(root):
    return KEPT


def not_finite(root):
    features = KEPT.train.features.copy()
    features[1, 1] = np.inf
    return RawDataset(Records(features, KEPT.train.labels), KEPT.test, 2)


def not_finite_test(root):
    return RawDataset(KEPT.train, Records(KEPT.test.features * np.nan, KEPT.test.labels), 2)


def wrong_type(root):
    return Records(np.zeros((3, 2)), np.zeros(3, np.int64))


def wrong_groups(root):
    return RawDataset(KEPT.train, KEPT.test, 2, np.arange(3))


def nothing(root):
    pass


def pair(root):
    return KEPT.train, KEPT.test


def quotes(root):
    raise ValueError("patient Miller")


def opens(root):
    open(pathlib.Path(root) / "absent.csv")


def no_arguments():
    return KEPT
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's own, importable under a new name."""
    name = "reader_" + re.sub(r"\W", "_", tmp_path.name)
    (tmp_path / f"{name}.py").write_text(READER)
    (tmp_path / f"{name}_broken.py").write_text("import not_there_at_all")
    (tmp_path / f"{name}_raises.py").write_text("raise RuntimeError('no licence')")
    (tmp_path / f"{name}_leaves.py").write_text("raise SystemExit(3)")
    (tmp_path / "train.csv").write_text("5,1,2,0\n5,3,4,1\n8,5,6,2\n")
    (tmp_path / "test.csv").write_text("0,7,8,1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_the_users_own_function_is_called_with_the_root(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path.parent)
    natural = PartitionSettings("natural_id")
    path = f"{module}:load"
    settings = DataSettings("user", tmp_path.name, 2.0, 1.0, natural, path=path)
    dataset = load_dataset(settings, None, 0)
    assert dataset.train.features.tolist() == [[-0.5, 0.0], [0.5, 1.0], [1.5, 2.0]]
    assert (dataset.test.features.tolist(), dataset.num_classes) == ([[2.5, 3.0]], 3)
    assert [each.tolist() for each in dataset.partitions] == [[0, 1], [2]]


def test_what_the_user_keeps_is_not_scaled(module):
    settings = DataSettings("user", None, 3.0, 0.0, path=f"{module}:kept")
    for scale in (3.0, 2.0):
        dataset = load_dataset(dataclasses.replace(settings, scale=scale), 2, 0)
        assert np.all(dataset.train.features == 6 / scale)
        assert np.all(dataset.test.features == 6 / scale)
    assert np.all(read_user_data(f"{module}:kept", None).train.features == 6)


BROKEN = {
    "not_finite": "train: features that are not finite",
    "not_finite_test": "test: features that are not finite",
    "wrong_type": "raised DataError: features: float64; .*float32",
    "wrong_groups": r"raised DataError: train_groups: shape \(3,\); \(4,\)",
    "nothing": "returned a NoneType; a fl_app.data.RawDataset",
    "pair": "returned a tuple; a fl_app.data.RawDataset",
    "quotes": r"raised ValueError \(--debug shows where\)$",
    "opens": "raised FileNotFoundError: .*absent.csv",
    "no_arguments": r"raised TypeError \(--debug shows where\)$",
    "FEATURES": r"a function is needed \(this is a value of type ndarray\)",
    "absent": "a name that .* has is needed",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_contract_is_named(module, tmp_path, name):
    path = f"{module}:{name}"
    with pytest.raises(DataError, match=f"^data.path: '{path}'.*{BROKEN[name]}") as error:
        read_user_data(path, str(tmp_path))
    assert "Miller" not in str(error.value)


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        ("_absent", "no module reader_.*_absent"),
        (".absent", r"no module reader_.*absent|importing .* raised"),
        ("_broken", "importing .* raised ModuleNotFoundError: .*not_there_at_all"),
        ("_raises", "importing .* raised RuntimeError: no licence"),
        ("_leaves", "importing .* raised SystemExit"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(module, suffix, message):
    path = f"{module}{suffix}:load"
    with pytest.raises(DataError, match=f"^data.path: '{re.escape(path)}'; {message}"):
        read_user_data(path, None)


def test_a_missing_path_says_what_is_needed():
    with pytest.raises(DataError, match=r"data\.path: null; .*package\.module:name.*RawDataset"):
        load_dataset(DataSettings("user"), 2, 0)


@pytest.mark.parametrize("path", ["a.b", "a:b:c", "a:", ":b", "a.:b", "a:b c", "a:b()", "1a:b"])
def test_only_import_paths_are_accepted(path):
    with pytest.raises(DataError, match=f"^data.path: {re.escape(repr(path))};.*module:name"):
        DataSettings("user", path=path)


def test_a_reader_that_ends_the_program_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "leaving_reader.py").write_text("import sys\ndef load(root):\n    sys.exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DataError, match=r"data\.path: 'leaving_reader:load' raised SystemExit"):
        read_user_data("leaving_reader:load", None)
