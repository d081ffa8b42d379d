"""CIFAR-10 through torchvision: a fake in its format, with MD5 sums of its own."""

import hashlib
import pickle

import numpy as np
import pytest
import torchvision.datasets

from fl_app.data import DataError, DataSettings, load_dataset
from fl_app.data.cifar10 import read_cifar10

BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
ROWS = 4


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Write files in CIFAR-10's format and let torchvision expect their sums; return the pixels."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)
    pixels = {name: rng.integers(0, 256, (ROWS, 3072), dtype=np.uint8) for name in BATCHES}

    def write(name: str, content: object) -> str:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return hashlib.md5(data).hexdigest()

    sums = {
        name: write(name, {"data": pixels[name], "labels": [place, 9, 0, 1]})
        for place, name in enumerate(BATCHES)
    }
    meta_sum = write("batches.meta", {"label_names": [f"class {number}" for number in range(10)]})

    class Fake(torchvision.datasets.CIFAR10):
        train_list = [[name, sums[name]] for name in BATCHES[:5]]  # noqa: RUF012
        test_list = [[BATCHES[5], sums[BATCHES[5]]]]  # noqa: RUF012
        meta = {**torchvision.datasets.CIFAR10.meta, "md5": meta_sum}  # noqa: RUF012

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", Fake)
    return pixels


def test_images_keep_their_order_and_their_channels(tmp_path, fake):
    raw = read_cifar10(str(tmp_path))
    assert (len(raw.train), len(raw.test), raw.num_classes) == (5 * ROWS, ROWS, 10)
    stored = np.concatenate([fake[name] for name in BATCHES[:5]])
    # A row holds 1,024 red pixels, then the green and the blue ones.
    assert np.array_equal(raw.train.features, stored.reshape(-1, 3, 32, 32))
    assert np.array_equal(raw.test.features, fake["test_batch"].reshape(-1, 3, 32, 32))
    assert raw.train.labels[::ROWS].tolist() == [0, 1, 2, 3, 4]
    assert raw.test.labels.tolist() == [5, 9, 0, 1]
    assert raw.train_groups is None


def test_loading_scales_the_pixels(tmp_path, fake):
    dataset = load_dataset(DataSettings("cifar10", str(tmp_path), 255.0, 0.5), 4, 0)
    assert dataset.partition_sizes().tolist() == [5, 5, 5, 5]
    expected = fake["data_batch_1"].reshape(-1, 3, 32, 32) / 255 - 0.5
    assert np.allclose(dataset.train.features[:ROWS], expected, atol=1e-6)


@pytest.mark.parametrize("name", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_file_with_another_sum_is_not_unpickled(tmp_path, fake, name):
    """The pickle would write a file; its sum is not the expected one."""

    class Bomb:
        def __reduce__(self):
            return open, (str(tmp_path / "exploded"), "w")

    path = tmp_path / "cifar-10-batches-py" / name
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match=r"^data\.root: .*not the published file.*cifar-10-batches"):
        read_cifar10(str(tmp_path))
    assert not (tmp_path / "exploded").exists()
    pickle.loads(path.read_bytes()).close()  # noqa: S301 - the twin: unpickled, it does write
    assert (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", ["data_batch_1", "test_batch", "batches.meta"])
def test_a_missing_file_says_how_to_get_it(tmp_path, fake, name):
    (tmp_path / "cifar-10-batches-py" / name).unlink()
    with pytest.raises(DataError, match=r"lacks a file of CIFAR-10.*download=True"):
        read_cifar10(str(tmp_path))


def test_without_the_fakes_sums_its_files_are_refused(tmp_path, fake, monkeypatch):
    monkeypatch.undo()
    with pytest.raises(DataError, match="not the published file"):
        read_cifar10(str(tmp_path))


def test_a_missing_root_says_how_to_get_the_data():
    with pytest.raises(DataError, match=r"data\.root: null; CIFAR-10 does not come with.*download"):
        read_cifar10(None)
