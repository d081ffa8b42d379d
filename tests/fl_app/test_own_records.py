"""A device's own records: one that changes changes one, one that goes takes one along."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets
from hypothesis import given
from hypothesis import strategies as st

from fl_app.config import compose_settings
from fl_app.data import (
    DataError,
    DataSettings,
    PartitionSettings,
    RawDataset,
    Records,
    load_dataset,
    load_own_dataset,
)
from fl_app.data.sources import SOURCES
from fl_app.device_data import read_own_data
from fl_app.device_policy import read_policy
from fl_app.local_task import LocalTask
from tests.fl_app import test_har_geotec, test_heart_disease, test_mnist

# What an owner has stored: rows of a number that tells them apart, and a label.
Rows = list[tuple[int, int]]
BASE = compose_settings(["randomness=secret"])
ROWS: Rows = [(10 * row + 1, row % 2) for row in range(12)]


def write_mnist(folder: Path, rows: Rows) -> dict[str, Any]:
    images = np.zeros((len(rows), 28, 28))
    images[:, 0, 0] = [number for number, _ in rows]
    labels = np.array([label for _, label in rows])
    for name, values in zip(test_mnist.FILES[:2], (images, labels), strict=True):
        (folder / name).write_bytes(test_mnist.idx(values))
    return {"name": "mnist"}


def write_heart_disease(folder: Path, rows: Rows) -> dict[str, Any]:
    """Of one hospital."""
    lines = [test_heart_disease.make_line(number, num=str(label)) for number, label in rows]
    (folder / test_heart_disease.FILES[2]).write_text("\n".join(lines), encoding="ascii")
    return {"name": "heart_disease"}


def write_har_geotec(folder: Path, rows: Rows) -> dict[str, Any]:
    """Each record a window, an execution of its own."""
    numbers, labels = (np.repeat([row[i] for row in rows], 4) for i in (0, 1))
    arrays = {
        "x": np.repeat(numbers[:, None], 6, axis=1).astype(np.float32),
        "y": labels.astype(np.int8),
        "subject": (numbers % 3).astype(np.int16),
        "execution": numbers.astype(np.int16),
    }
    np.savez_compressed(folder / test_har_geotec.FILE, **arrays)
    return {"name": "har_geotec", "window": 4, "stride": 4}


def write_hugging_face(folder: Path, rows: Rows) -> dict[str, Any]:
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    numbers, labels = ([row[i] for row in rows] for i in (0, 1))
    # Only the training split, and labels as text: none of them may move the others' numbers.
    names = ["later" if label == 1 else f"{label}" for label in labels]
    table = datasets.Dataset.from_dict({"x": numbers, "y": names})
    datasets.DatasetDict(train=table).save_to_disk(str(folder))
    return {"name": "hugging_face", "features": "x", "label": "y", "classes": ["0", "later"]}


def write_user(folder: Path, rows: Rows) -> dict[str, Any]:
    (folder / "rows.json").write_text(json.dumps(rows))
    return {"name": "user", "path": f"{__name__}:read_rows"}


def read_rows(root: str) -> RawDataset:
    rows = np.array(json.loads(Path(root, "rows.json").read_text()))
    records = Records(rows[:, :1].astype(np.float32), rows[:, 1].astype(np.int64))
    return RawDataset(records, records.take(np.arange(1)), 2, np.arange(len(rows)))


def write_cifar10(folder: Path, rows: Rows) -> dict[str, Any]:
    """In place of torchvision's reader, which takes the published files alone."""
    (folder / "rows.json").write_text(json.dumps(rows))
    return {"name": "cifar10"}


class Published:
    def __init__(self, root: str, train: bool, download: bool) -> None:
        rows = np.array(json.loads(Path(root, "rows.json").read_text()))
        self.data = np.zeros((len(rows), 32, 32, 3), dtype=np.uint8)
        self.data[:, 0, 0, 0], self.targets = rows[:, 0], rows[:, 1].tolist()


WRITERS: dict[str, Callable[[Path, Rows], dict[str, Any]]] = {
    "mnist": write_mnist,
    "cifar10": write_cifar10,
    "heart_disease": write_heart_disease,
    "har_geotec": write_har_geotec,
    "hugging_face": write_hugging_face,
    "user": write_user,
}


@pytest.fixture(autouse=True)
def _published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", Published)


def own(name: str, folder: Path, rows: Rows) -> tuple[DataSettings, dict[str, Any]]:
    folder.mkdir()
    node = {"data-path": str(folder), "data": json.dumps(WRITERS[name](folder, rows))}
    settings = read_own_data(node, folder)
    assert isinstance(settings, DataSettings)
    return settings, node


def load(name: str, folder: Path, rows: Rows) -> Records:
    dataset = load_own_dataset(own(name, folder, rows)[0])
    assert (dataset.num_partitions, len(dataset.test)) == (1, 0)
    return dataset.partition(0)


def differing(first: Records, second: Records) -> list[int]:
    """Return the places at which two sets of the same size differ."""
    assert len(first) == len(second)
    same = (first.features == second.features).reshape(len(first), -1).all(axis=1)
    return np.flatnonzero(~same | (first.labels != second.labels)).tolist()


def test_each_source_that_has_a_root_is_tested() -> None:
    assert {name for name, source in SOURCES.items() if source.has_root} == set(WRITERS)


@pytest.mark.parametrize("name", WRITERS)
class TestOneRecord:
    def test_all_are_there_in_their_order(self, name: str, tmp_path: Path) -> None:
        found = load(name, tmp_path / "a", ROWS)
        assert found.labels.tolist() == [label for _, label in ROWS]
        firsts = found.features.reshape(len(found), -1)[:, 0]
        assert (np.argsort(firsts) == np.arange(len(ROWS))).all()

    @pytest.mark.parametrize("place", [0, 5, len(ROWS) - 1])
    def test_a_change_changes_one(self, name: str, tmp_path: Path, place: int) -> None:
        before = load(name, tmp_path / "a", ROWS)
        for number, change in enumerate([(99, ROWS[place][1]), (ROWS[place][0], 1 - place % 2)]):
            rows = [*ROWS[:place], change, *ROWS[place + 1 :]]
            assert differing(before, load(name, tmp_path / f"{number}", rows)) == [place]

    @pytest.mark.parametrize("place", [0, 5, len(ROWS) - 1])
    def test_one_that_goes_takes_nothing_along(self, name: str, tmp_path: Path, place: int) -> None:
        before = load(name, tmp_path / "a", ROWS)
        after = load(name, tmp_path / "b", ROWS[:place] + ROWS[place + 1 :])
        kept = np.delete(np.arange(len(ROWS)), place)
        assert differing(before.take(kept), after) == []


@pytest.mark.parametrize("name", ["mnist", "hugging_face"])
@pytest.mark.parametrize("label", [10, 255, 77])
def test_a_label_beyond_the_classes_is_one_record_of_zeros(
    name: str, tmp_path: Path, label: int
) -> None:
    """No refusal, which would be an answer about it, and nothing of the others changes."""
    before = load(name, tmp_path / "a", ROWS)
    after = load(name, tmp_path / "b", [*ROWS[:3], (31, label), *ROWS[4:]])
    assert differing(before, after) == [3]
    assert not after.features[3].any()
    assert after.labels[3] == 0


def test_classes_of_a_table_are_never_those_that_are_found(tmp_path: Path) -> None:
    settings, _ = own("hugging_face", tmp_path / "a", ROWS)
    assert load_own_dataset(settings).num_classes == 2
    assert load_own_dataset(replace(settings, classes=("x", "0", "later"))).num_classes == 3
    with pytest.raises(DataError, match=r"^data.classes: null"):
        load_own_dataset(replace(settings, classes=None))


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_table_whose_types_follow_from_all_records_is_refused(tmp_path: Path, kind: str) -> None:
    """One label of another kind would make text of the column, and nothing of all others."""
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    table = datasets.Dataset.from_dict({"x": [1.0, 2.0], "y": [0, 1]})
    settings = DataSettings(
        "hugging_face", str(tmp_path), 1.0, 0.0, features="x", label="y", classes=(0, 1)
    )
    table.to_parquet(str(tmp_path / "train.parquet"))
    assert load_own_dataset(settings).train.labels.tolist() == [0, 1]
    load_own_dataset.cache_clear()
    getattr(table, f"to_{kind}")(str(tmp_path / f"train.{kind}"))
    with pytest.raises(DataError, match="nothing but parquet or arrow files"):
        load_own_dataset(settings)
    (tmp_path / f"train.{kind}").unlink()
    with pytest.raises(DataError, match=r"^data.classes: .* of column 'y', int"):
        load_own_dataset(replace(settings, classes=("0", "1")))


def test_class_names_of_a_column_are_its_classes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    kinds = datasets.Features(
        x=datasets.Value("float32"), y=datasets.ClassLabel(names=["a", "b", "c"])
    )
    for labels in ([0, 1, 0], [0, -1, 0]):
        table = datasets.Dataset.from_dict({"x": [1.0, 2.0, 3.0], "y": labels}, features=kinds)
        folder = tmp_path / f"{labels[1]}"
        datasets.DatasetDict(train=table).save_to_disk(str(folder))
        found = load_own_dataset(
            DataSettings("hugging_face", str(folder), 1.0, 0.0, features="x", label="y")
        )
        assert found.num_classes == 3
        assert found.train.labels.tolist() == [0, max(labels[1], 0), 0]
        assert found.train.features[1].tolist() == [2.0 if labels[1] == 1 else 0.0]


def test_a_row_changes_the_windows_that_hold_it(tmp_path: Path) -> None:
    """A record is a window; with a stride below the window, a row lies in several."""
    settings = DataSettings("har_geotec", "/x", 1.0, 0.0, window=4, stride=2)
    found = []
    for name, shift in (("a", 0.0), ("b", 1.0)):
        (tmp_path / name).mkdir()
        arrays = test_har_geotec.make_arrays()
        arrays["x"][5] += shift
        np.savez_compressed(tmp_path / name / test_har_geotec.FILE, **arrays)
        found.append(load_own_dataset(replace(settings, root=str(tmp_path / name))).train)
    assert differing(*found) == [1, 2]


def test_no_records_are_records_too(tmp_path: Path) -> None:
    assert len(load("mnist", tmp_path / "a", [])) == 0


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "label_shards"])
def test_a_partition_would_not_do(tmp_path: Path, kind: str) -> None:
    """The twin: as a run's server would divide the same file, many records change places."""
    found = []
    for name, change in (("a", ROWS), ("b", [(ROWS[0][0], 1 - ROWS[0][1]), *ROWS[1:-1]])):
        folder = tmp_path / name
        folder.mkdir()
        write_user(folder, change)
        partition = PartitionSettings(kind, labels_per_client=2)  # type: ignore[arg-type]
        data = DataSettings("user", str(folder), 1.0, 0.0, partition, path=f"{__name__}:read_rows")
        found.append(set(load_dataset(data, 3, 0).partition(0).features[:, 0].tolist()))
    assert len(found[0] ^ found[1]) > 2


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("own")
    _, keys = own("heart_disease", folder / "data", ROWS)
    return {"partition-id": 2, "num-partitions": 4, "state-dir": str(folder), **keys}


DIVIDED = st.builds(
    PartitionSettings,
    st.sampled_from(["iid", "dirichlet", "label_shards", "similarity", "natural_id"]),
    alpha=st.floats(0.01, 9),
    labels_per_client=st.integers(1, 3),
)
SOURCE = st.sampled_from(
    [
        *({"name": name, "root": "/elsewhere"} for name in ("heart_disease", "mnist", "cifar10")),
        {"name": "mnist", "root": "/elsewhere", "writer_labels": "/elsewhere"},
        {"name": "digits"},
        {"name": "har_geotec", "root": "/elsewhere", "window": 9, "stride": 1},
        {"name": "hugging_face", "root": "x", "group": "hiv", "download": True},
        {"name": "user", "path": "os:system", "root": "/bin/false"},
    ]
)
ASKED = st.builds(
    lambda source, **keys: DataSettings(**source, **keys),
    SOURCE,
    scale=st.floats(0.5, 300),
    offset=st.floats(-1, 1),
    test_fraction=st.floats(0.05, 0.9),
    partition=DIVIDED,
)


@given(ASKED, st.integers(0, 9), st.integers(1, 9))
def test_nothing_that_a_server_says_of_data_matters(
    node: dict[str, Any], asked: DataSettings, seed: int, num_clients: int
) -> None:
    policy = read_policy(node)
    settings = replace(BASE, data=asked, seed=seed, num_clients=num_clients)
    policy.check(settings)
    task = LocalTask(
        settings,
        policy.partition_id,
        policy.num_partitions,
        own=policy.localize(settings),
        owns_data=policy.data is not None,
    )
    found, dataset = task.records(), task.dataset()
    assert task.num_records() == len(ROWS)
    assert (dataset.feature_shape, dataset.num_classes) == ((32,), 2)
    ages = np.array([(number - 50) / 10 for number, _ in ROWS], dtype=np.float32)
    assert np.allclose(found.features[:, 0], ages, atol=1e-6)
    assert found.labels.tolist() == [label for _, label in ROWS]
