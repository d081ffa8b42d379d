"""MNIST's idx files: every layout that is promised, and every kind of damage."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from fl_app.data import DataError, DataSettings, PartitionSettings, load_dataset
from fl_app.data.mnist import FILES, read_mnist

REAL_FILES = Path(__file__).resolve().parents[3] / "shared" / "data" / "mnist"
LAYOUTS = [("", False), ("", True), ("MNIST/raw", False), ("MNIST/raw", True)]


def idx(values: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return header + values.astype(np.uint8).tobytes()


def make_contents(num_train: int = 20, num_test: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = {"train": num_train, "t10k": num_test}
    return {
        name: rng.integers(0, 256, (sizes[name.split("-")[0]], 28, 28))
        if "images" in name
        else np.arange(sizes[name.split("-")[0]]) % 10
        for name in FILES
    }


def write(folder: Path, contents: dict[str, bytes], *, gz: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        path = folder / (f"{name}.gz" if gz else name)
        path.write_bytes(gzip.compress(data) if gz else data)


def encode(contents: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: idx(values) for name, values in contents.items()}


@pytest.mark.parametrize(("folder", "gz"), LAYOUTS)
def test_reads_every_layout(tmp_path, folder, gz):
    contents = make_contents()
    write(tmp_path / folder, encode(contents), gz=gz)
    raw = read_mnist(str(tmp_path))
    for records, prefix in ((raw.train, "train"), (raw.test, "t10k")):
        assert records.feature_shape == (1, 28, 28)
        assert np.array_equal(records.features[:, 0], contents[f"{prefix}-images-idx3-ubyte"])
        assert np.array_equal(records.labels, contents[f"{prefix}-labels-idx1-ubyte"])


def test_plain_and_compressed_files_may_be_mixed(tmp_path):
    encoded = encode(make_contents())
    write(tmp_path, {FILES[0]: encoded[FILES[0]]}, gz=True)
    write(tmp_path, {name: encoded[name] for name in FILES[1:]})
    assert len(read_mnist(str(tmp_path)).train) == 20


def test_home_and_relative_folders_are_found(tmp_path, monkeypatch):
    write(tmp_path / "mine", encode(make_contents()))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(read_mnist("~/mine").test) == 5
    monkeypatch.chdir(tmp_path)
    settings = DataSettings(name="mnist", root="mine", scale=255.0, offset=0.0)
    dataset = load_dataset(settings, 4, 0)
    assert dataset.partition_sizes().tolist() == [5, 5, 5, 5]
    assert dataset.train.features.max() <= 1


def test_a_relative_folder_is_looked_up_anew_from_another_folder(tmp_path, monkeypatch):
    settings = DataSettings(name="mnist", root="mine")
    for name, num_train in (("a", 20), ("b", 30)):
        write(tmp_path / name / "mine", encode(make_contents(num_train)))
        monkeypatch.chdir(tmp_path / name)
        assert len(load_dataset(settings, 2, 0).train) == num_train


def test_missing_root_says_how_to_get_the_data():
    with pytest.raises(DataError, match=r"data\.root: null.*train-images-idx3-ubyte.*Download"):
        load_dataset(DataSettings(name="mnist"), 2, 0)


def test_missing_folder_and_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"absent' is not a folder.*Download"):
        read_mnist(str(tmp_path / "absent"))
    with pytest.raises(DataError, match="holds none of the files"):
        read_mnist(str(tmp_path))
    encoded = encode(make_contents())
    del encoded[FILES[3]]
    write(tmp_path, encoded)
    with pytest.raises(DataError, match=f"lacks .*{FILES[3]}"):
        read_mnist(str(tmp_path))


def damage_header(data: bytes) -> bytes:
    return b"\x00\x00\x0d" + data[3:]  # type code of float32


DAMAGE = {
    "another type": (0, damage_header, "starts with"),
    "another number of dimensions": (0, lambda data: idx(np.zeros((2, 784))), "starts with"),
    "not idx": (1, lambda data: b"<html>", "starts with"),
    "empty": (1, lambda data: b"", "starts with"),
    "ends within its header": (0, lambda data: data[:9], "within its header"),
    "truncated": (0, lambda data: data[:-1], "ends after"),
    "too long": (1, lambda data: data + b"\x00", "has at least"),
    "too long for no images": (0, lambda data: idx(np.zeros((0, 28, 28))) + b"1", "has at least"),
    "claims 2^96 bytes": (0, lambda data: data[:4] + b"\xff" * 12 + data[16:], "ends after"),
    "another image size": (0, lambda data: idx(np.zeros((20, 28, 27))), "images of"),
    "fewer labels": (1, lambda data: idx(np.zeros(19)), "19 labels"),
    "label 10": (3, lambda data: idx(np.full(5, 10)), "label 10"),
}


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_refused_by_name(tmp_path, damage, gz):
    position, change, message = DAMAGE[damage]
    encoded = encode(make_contents())
    encoded[FILES[position]] = change(encoded[FILES[position]])
    write(tmp_path, encoded, gz=gz)
    with pytest.raises(DataError, match=message) as error:
        read_mnist(str(tmp_path))
    assert FILES[position] in str(error.value)


@pytest.mark.parametrize("cut", [0, 5, 30, -1, -9])
def test_truncated_gzip_is_refused(tmp_path, cut):
    write(tmp_path, encode(make_contents()), gz=True)
    path = tmp_path / f"{FILES[0]}.gz"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=FILES[0]):
        read_mnist(str(tmp_path))


@pytest.mark.parametrize("position", [12, 5000, -6])
def test_corrupted_gzip_is_refused(tmp_path, position):
    write(tmp_path, encode(make_contents()), gz=True)
    path = tmp_path / f"{FILES[0]}.gz"
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"{FILES[0]}.gz cannot be read"):
        read_mnist(str(tmp_path))


def test_a_file_that_is_not_gzip_is_refused(tmp_path):
    write(tmp_path, encode(make_contents()), gz=True)
    (tmp_path / f"{FILES[2]}.gz").write_bytes(b"not gzip at all")
    with pytest.raises(DataError, match=f"{FILES[2]}.gz cannot be read"):
        read_mnist(str(tmp_path))


def test_no_images_are_refused(tmp_path):
    write(tmp_path, encode(make_contents(num_test=0)))
    with pytest.raises(DataError, match="0 images"):
        read_mnist(str(tmp_path))


@pytest.mark.skipif(
    not REAL_FILES.is_dir(), reason="MNIST's four idx files are not in ../shared/data/mnist"
)
def test_the_real_files():
    partition = PartitionSettings("label_shards", labels_per_client=2)
    settings = DataSettings("mnist", str(REAL_FILES), 255.0, 0.0, partition)
    dataset = load_dataset(settings, 100, 0)
    assert (len(dataset.train), len(dataset.test)) == (60_000, 10_000)
    assert dataset.feature_shape == (1, 28, 28)
    # Mean of the training pixels over 255, as every tutorial on MNIST has it.
    assert abs(float(dataset.train.features.mean(dtype=np.float64)) - 0.1307) < 5e-5
    # Images per digit of MNIST's training set.
    per_digit = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(dataset.train.labels).tolist() == per_digit
    # DP-FedPaq's experiment: each digit cut in 20 near-equal parts, two digits a client.
    sizes = dataset.partition_sizes()
    assert sizes.sum() == 60_000
    assert 2 * (5421 // 20) <= sizes.min() <= sizes.max() <= 2 * (6742 // 20 + 1)
    for client in (0, 99):
        found = np.bincount(dataset.partition(client).labels, minlength=10)
        assert np.count_nonzero(found) == 2
        nonzero = np.flatnonzero(found)
        assert all(found[d] - per_digit[d] // 20 in (0, 1) for d in nonzero)
