"""MNIST's writers: the right column of the right file, and every kind of damage."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from fl_app.data import DataError, DataSettings, PartitionSettings, load_dataset
from fl_app.data.mnist import read_mnist
from fl_app.data.mnist_writers import FILE, read_writers
from tests.conftest import SHARED_DATA
from tests.fl_app.test_mnist import encode, make_contents, write

LABELS = np.arange(20, dtype=np.int64) % 10
WRITERS = np.arange(20)[::-1] // 3 + 2000
IMAGES, REAL = SHARED_DATA / "mnist", SHARED_DATA / "qmnist-writer-labels"


def make_rows() -> np.ndarray:
    rows = np.arange(160).reshape(20, 8) + 5000
    rows[:, 0], rows[:, 2] = LABELS, WRITERS
    return rows


def idx(rows: np.ndarray, type_code: int = 12) -> bytes:
    header = struct.pack(f">BBBB{rows.ndim}I", 0, 0, type_code, rows.ndim, *rows.shape)
    return header + rows.astype(">i4").tobytes()


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("named", ["file", "folder"])
def test_writers_are_read_plain_or_compressed_from_a_file_or_folder(tmp_path, gz, named):
    write(tmp_path, {FILE: idx(make_rows())}, gz=gz)
    path = tmp_path / (f"{FILE}.gz" if gz else FILE) if named == "file" else tmp_path
    writers = read_writers(str(path), LABELS)
    assert writers.dtype == np.int64
    assert np.array_equal(writers, WRITERS)


def test_writers_are_the_natural_clients_of_mnist(tmp_path, monkeypatch):
    write(tmp_path / "images", encode(make_contents()))
    write(tmp_path / "writers", {FILE: idx(make_rows())})
    monkeypatch.chdir(tmp_path)
    settings = DataSettings(
        *("mnist", "images", 255.0, 0.0, PartitionSettings("natural_id")), writer_labels="writers"
    )
    dataset = load_dataset(settings, None, 0)
    assert dataset.num_partitions == 7
    assert dataset.partitions[0].tolist() == [17, 18, 19]
    assert dataset.partitions[6].tolist() == [0, 1]
    assert read_mnist(str(tmp_path / "images")).train_groups is None


def test_relative_writer_labels_are_looked_up_anew_from_another_folder(tmp_path, monkeypatch):
    write(tmp_path / "images", encode(make_contents()))
    for name, writers in (("a", WRITERS), ("b", WRITERS // 2)):
        rows = make_rows()
        rows[:, 2] = writers
        write(tmp_path / name, {FILE: idx(rows)})
        monkeypatch.chdir(tmp_path / name)
        natural = PartitionSettings("natural_id")
        settings = DataSettings(
            "mnist", str(tmp_path / "images"), partition=natural, writer_labels=FILE
        )
        assert load_dataset(settings, None, 0).num_partitions == len(np.unique(writers))


def test_without_writer_labels_the_message_says_what_is_missing(tmp_path):
    write(tmp_path, encode(make_contents()))
    settings = DataSettings("mnist", str(tmp_path), partition=PartitionSettings("natural_id"))
    with pytest.raises(
        DataError, match=r"mnist has no natural clients without data\.writer_labels"
    ):
        load_dataset(settings, 2, 0)


def change(column: int, value: int) -> bytes:
    rows = make_rows()
    rows[4, column] = value
    return idx(rows)


DAMAGE = {
    "another image's class": (change(0, 7), "describes other images: 1 of its 20"),
    "a negative writer": (change(2, -1), "negative writer"),
    "fewer rows": (idx(make_rows()[:19]), "has 19 rows of 8; 20 rows"),
    "fewer columns": (idx(make_rows()[:, :7]), "has 20 rows of 7"),
    "truncated": (idx(make_rows())[:-1], r"ends after 639 bytes .* \(20, 8\), 640 bytes"),
    "too long": (idx(make_rows()) + b"\x00", "has at least"),
    "ends within its header": (idx(make_rows())[:9], "within its header"),
    "unsigned bytes": (idx(make_rows(), 8), "32-bit integers"),
    "one dimension": (idx(np.arange(20)), "starts with"),
    "empty": (b"", "starts with"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_refused_by_key_and_name(tmp_path, damage):
    data, message = DAMAGE[damage]
    write(tmp_path, {FILE: data})
    with pytest.raises(DataError, match=f"^data.writer_labels: .*{FILE}.*{message}"):
        read_writers(str(tmp_path), LABELS)


def test_a_missing_or_broken_file_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"^data.writer_labels: .*is not there\. .*QMNIST"):
        read_writers(str(tmp_path), LABELS)
    (tmp_path / f"{FILE}.gz").write_bytes(gzip.compress(idx(make_rows()))[:-9])
    with pytest.raises(DataError, match=r"^data.writer_labels: .*cannot be read.*QMNIST"):
        read_writers(str(tmp_path), LABELS)


needs_data = pytest.mark.skipif(
    not (IMAGES.is_dir() and REAL.is_dir()),
    reason="MNIST's or QMNIST's files are not in ../shared/data",
)


@needs_data
def test_the_real_writers():
    """539 writers with 19 to 131 images: counted in the file by an independent awk script."""
    groups = read_mnist(str(IMAGES), str(REAL)).train_groups
    assert groups is not None
    counts = np.unique(groups, return_counts=True)[1]
    assert (len(counts), counts.min(), counts.max(), counts.sum()) == (539, 19, 131, 60_000)


@needs_data
def test_the_real_test_file_is_refused():
    file = Path(REAL) / "qmnist-test-labels-idx2-int.gz"
    with pytest.raises(DataError, match="describes other images"):
        read_mnist(str(IMAGES), str(file))
