"""Sets in Hugging Face's formats, made here: images and tables, folders of both kinds."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fl_app.data import DataError
from fl_app.data.hugging_face import read_hugging_face

datasets = pytest.importorskip("datasets", reason="needs the extra hf")

TABLE = {
    "age": [40, 51, 33, 60],
    "dose": [0.5, 1.5, 2.5, 0.25],
    "smoker": [True, False, True, False],
    "trace": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]],
    "grid": [[[1, 2], [3, 4]]] * 4,
    "outcome": ["worse", "better", "same", "better"],
    "code": [7, 3, 7, 5],
    "hospital": ["b", "a", "b", "c"],
}
TEST_TABLE = {**TABLE, "code": [3, 3, 5, 9]}


def pixels(mode: str, count: int = 3, size: tuple[int, int] = (4, 6)) -> list[np.ndarray]:
    rng = np.random.Generator(np.random.PCG64(0))
    depth = () if mode == "L" else (len(mode),)
    return [rng.integers(0, 256, (*size, *depth), dtype=np.uint8) for _ in range(count)]


def make_table(values: dict | None = None, **more):
    return datasets.Dataset.from_dict({**(values or TABLE), **more})


def make_images(arrays: list[np.ndarray], labels: list[int] | None = None):
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog", "emu"])
    )
    values = {
        "image": [Image.fromarray(array) for array in arrays],
        "label": list(range(len(arrays))) if labels is None else labels,
    }
    return datasets.Dataset.from_dict(values, features=features)


def save(folder: Path, kind: str, train, test) -> str:
    if kind == "disk":
        datasets.DatasetDict(train=train, test=test).save_to_disk(str(folder))
    else:
        folder.mkdir()
        for name, split in (("train", train), ("test", test)):
            getattr(split, f"to_{kind}")(str(folder / f"{name}.{kind}"))
    return str(folder)


@pytest.fixture(autouse=True)
def _no_cache(tmp_path_factory, monkeypatch):
    """Point the library's caches to empty folders, which must stay empty."""
    cache = tmp_path_factory.mktemp("cache")
    for name in ("HF_DATASETS_CACHE", "DOWNLOADED_DATASETS_PATH", "EXTRACTED_DATASETS_PATH"):
        monkeypatch.setattr(datasets.config, name, cache / name)
    yield
    assert list(cache.iterdir()) == []


@pytest.fixture
def _offline(monkeypatch):
    def connect(*_, **__):
        raise AssertionError("the network was used")

    monkeypatch.setattr("socket.socket.connect", connect)
    monkeypatch.setattr("socket.getaddrinfo", connect)


@pytest.fixture(params=["parquet", "disk"])
def table(request, tmp_path):
    return save(tmp_path / "table", request.param, make_table(), make_table(TEST_TABLE))


def test_columns_of_numbers_are_stacked(table):
    train, test, num_classes, groups = read_hugging_face(
        table, features=["dose", "age", "smoker"], label="outcome"
    )
    assert train.features.tolist() == [[0.5, 40, 1], [1.5, 51, 0], [2.5, 33, 1], [0.25, 60, 0]]
    assert train.features.dtype == np.float32
    assert train.labels.tolist() == test.labels.tolist() == [2, 0, 1, 0]
    assert (num_classes, groups) == (3, None)


@pytest.mark.parametrize(
    ("column", "shape"), [("age", (4, 1)), ("trace", (4, 2)), ("grid", (4, 2, 2))]
)
def test_one_column_keeps_its_shape(table, column, shape):
    train, *_ = read_hugging_face(table, features=column, label="outcome")
    assert train.features.shape == shape
    assert np.array_equal(train.features.reshape(4, -1)[0], np.ravel(TABLE[column][0]))


def test_integer_labels_are_numbered_over_both_splits_and_groups_over_the_first(table):
    train, test, num_classes, groups = read_hugging_face(
        table, features="trace", label="code", group="hospital"
    )
    assert train.labels.tolist() == [2, 0, 2, 1]
    assert test.labels.tolist() == [0, 0, 1, 3]
    assert num_classes == 4
    assert groups.tolist() == [1, 0, 1, 2]
    assert groups.dtype == np.int64
    other = read_hugging_face(table, features="trace", label="outcome", group="code")
    assert other[3].tolist() == [2, 0, 2, 1]


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_tables_in_text_are_read_too(tmp_path, kind):
    columns = ["age", "dose", "outcome"]
    root = save(tmp_path / "text", kind, *[make_table().select_columns(columns)] * 2)
    train, *_ = read_hugging_face(root, features=["age", "dose"], label="outcome")
    assert train.features.tolist() == [[40, 0.5], [51, 1.5], [33, 2.5], [60, 0.25]]
    assert train.labels.tolist() == [2, 0, 1, 0]


@pytest.mark.parametrize("kind", ["parquet", "disk"])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_images_become_channels_rows_columns(tmp_path, kind, mode):
    arrays = pixels(mode)
    splits = make_images(arrays, [0, 1, 0]), make_images(arrays[:1], [1])
    root = save(tmp_path / "images", kind, *splits)
    train, test, num_classes, _ = read_hugging_face(root, features="image", label="label")
    expected = [a[None] if mode == "L" else a[..., :3].transpose(2, 0, 1) for a in arrays]
    assert np.array_equal(train.features, np.stack(expected))
    assert train.features.dtype == np.float32
    assert train.labels.tolist() == [0, 1, 0]
    # The class names and not the labels found say how many classes there are.
    assert (test.labels.tolist(), num_classes) == ([1], 3)


def test_a_folder_of_images_is_read(tmp_path):
    for split in ("train", "test"):
        for name, array in zip(("cat", "dog"), pixels("RGB", 2), strict=True):
            (tmp_path / split / name).mkdir(parents=True)
            Image.fromarray(array).save(tmp_path / split / name / "0.png")
    train, test, num_classes, _ = read_hugging_face(str(tmp_path), features="image", label="label")
    assert np.array_equal(train.features, np.stack(pixels("RGB", 2)).transpose(0, 3, 1, 2))
    assert train.labels.tolist() == test.labels.tolist() == [0, 1]
    assert num_classes == 2


def test_splits_are_chosen_by_name_and_a_relative_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    datasets.DatasetDict(part_a=make_table(), part_b=make_table(TEST_TABLE)).save_to_disk("set")
    train, test, *_ = read_hugging_face(
        "set", features="age", label="code", train_split="part_b", test_split="part_a"
    )
    assert train.labels.tolist() == [0, 0, 1, 3]
    assert test.labels.tolist() == [2, 0, 2, 1]


def test_progress_bars_are_left_as_they_were_and_none_is_shown(table, capfd):
    assert not datasets.are_progress_bars_disabled()
    read_hugging_face(table, features="age", label="code")
    assert not datasets.are_progress_bars_disabled()
    assert capfd.readouterr() == ("", "")


GOOD = {"features": "trace", "label": "code"}
REFUSED = [
    ({"features": "weight"}, "data.features: 'weight'; the columns are age, dose, smoker"),
    ({"features": []}, "data.features: []; the names of one or more columns"),
    ({"features": ["age", ""]}, "data.features: ['age', '']; the names"),
    ({"features": "outcome"}, "data.features: 'outcome'; numbers, lists of numbers"),
    ({"features": ["age", "trace"]}, "data.features: 'trace'; numbers are needed"),
    ({"features": ["age", "code"]}, "data.features: ['age', 'code']; columns other than data.la"),
    ({"label": "class"}, "data.label: 'class'; the columns are"),
    ({"label": "dose"}, "data.label: 'dose'; integers or text are needed, not double"),
    ({"label": "grid"}, "data.label: 'grid'; integers or text are needed"),
    ({"group": "site"}, "data.group: 'site'; the columns are"),
    ({"group": "dose"}, "data.group: 'dose'; integers or text"),
    ({"train_split": "dev"}, "data.train_split: 'dev'; the data set has train, test"),
    ({"test_split": "validation"}, "data.test_split: 'validation'; the data set has train, test"),
    ({"test_split": "train"}, "data.test_split: 'train'; another split"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_a_wrong_key_is_named(table, change, message):
    with pytest.raises(DataError) as caught:
        read_hugging_face(table, **{**GOOD, **change})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


DAMAGED = [
    ({"trace": [[1.0, 2.0], [3.0], [5.0, 6.0], [7.0, 8.0]]}, "data.features: 'trace'; numbers, li"),
    ({"trace": [[1.0, None]] * 4}, "data.features: 'trace'; 4 values are missing or not finite"),
    ({"trace": [[float("inf"), 1.0]] * 4}, "data.features: 'trace'; 4 values are missing or not"),
    ({"trace": [[1e300, 1.0]] * 4}, "data.features: 'trace'; 4 values are missing or not finite"),
    ({"trace": [None, *TABLE["trace"][1:]]}, "data.features: 'trace'; 1 values are missing"),
    ({"trace": [[]] * 4}, "data.features: 'trace'; numbers, lists"),
    ({"code": [1, None, 2, 3]}, "data.label: 'code'; 1 values are missing"),
    ({"code": ["1", "2", "3", "4"]}, "data.label: 'code'; the same type in both splits"),
    ({"trace": [[1.0]] * 4}, "data.features: shape (2,) in data.test_split=test; the training"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGED)
def test_damaged_columns_are_named(tmp_path, change, message):
    root = save(tmp_path / "set", "disk", make_table(**change), make_table())
    with pytest.raises(DataError) as caught:
        read_hugging_face(root, **GOOD)
    assert str(caught.value).startswith(message)


def test_files_that_differ_in_their_types_are_refused_with_the_reason(tmp_path):
    root = save(tmp_path / "set", "parquet", make_table(code=[[1]] * 4), make_table())
    with pytest.raises(
        DataError, match=r"data\.root: .* cannot be read: Couldn't cast array of ty"
    ):
        read_hugging_face(root, **GOOD)


def read_in_memory(monkeypatch, train, test, **keys):
    found = datasets.DatasetDict(train=train, test=test)
    monkeypatch.setattr(datasets, "load_dataset", lambda _: found)
    return read_hugging_face("some/set", **keys, download=True)


def test_labels_must_differ_and_splits_must_hold_something(tmp_path, monkeypatch):
    same = make_table(code=[1] * 4)
    root = save(tmp_path / "same", "disk", same, same)
    with pytest.raises(DataError, match=r"data\.label: 'code'; at least two different"):
        read_hugging_face(root, **GOOD)
    with pytest.raises(DataError, match=r"data\.test_split: 'test'; at least one record"):
        read_in_memory(monkeypatch, make_table(), make_table().select([]), **GOOD)


def test_class_labels_must_agree_and_be_known(tmp_path):
    train, test = make_images(pixels("L")), make_images(pixels("L"))
    other = test.cast_column("label", datasets.ClassLabel(names=["cat", "emu", "dog"]))
    root = save(tmp_path / "names", "disk", train, other)
    with pytest.raises(DataError, match=r"data\.label: 'label'; the same class names"):
        read_hugging_face(root, features="image", label="label")
    root = save(tmp_path / "unlabelled", "disk", train, make_images(pixels("L"), [0, -1, 2]))
    with pytest.raises(DataError, match=r"data\.label: 'label'; a label in \[0, 3\)"):
        read_hugging_face(root, features="image", label="label")


def image_cell(content: bytes | None, path: str | None = None):
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("int64"))
    values = {"image": [{"bytes": content, "path": path}] * 2, "label": [0, 1]}
    return datasets.Dataset.from_dict(values, features=features)


def png(mode: str, size: tuple[int, int] = (4, 4)) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ((b"no image",), "cannot identify image file"),
        ((png("L")[:-30],), ""),
        ((None, "https://example.org/cat.png"), "images in files here are needed"),
        ((None, "missing.png"), "No such file"),
        ((png("I;16"),), "8 bits a channel"),
    ],
)
@pytest.mark.usefixtures("_offline")
def test_images_that_cannot_be_read_are_refused(monkeypatch, cell, message):
    splits = [image_cell(*cell)] * 2
    with pytest.raises(DataError, match=rf"data\.features: 'image'; .*{message}"):
        read_in_memory(monkeypatch, *splits, features="image", label="label")


def test_images_of_two_sizes_are_refused(tmp_path):
    arrays = [*pixels("L", 2), *pixels("L", 1, (5, 5))]
    root = save(tmp_path / "set", "disk", make_images(arrays), make_images(arrays))
    with pytest.raises(DataError, match=r"images of one size .* \(1, 4, 6\), \(1, 5, 5\)"):
        read_hugging_face(root, features="image", label="label")


# Where the set lies


@pytest.mark.usefixtures("_offline")
@pytest.mark.parametrize("root", ["ylecun/mnist", "nowhere", "./nowhere"])
def test_a_name_is_not_fetched_unless_that_is_asked_for(tmp_path, monkeypatch, root):
    monkeypatch.chdir(tmp_path)
    loads = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: loads.append((a, k)))
    with pytest.raises(DataError, match=r"data\.root: .* is not a folder .*data\.download=true"):
        read_hugging_face(root, **GOOD)
    assert loads == []


def test_a_name_is_fetched_when_that_is_asked_for(monkeypatch):
    found = datasets.DatasetDict(train=make_table(), test=make_table(TEST_TABLE))
    loads = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: loads.append((a, k)) or found)
    train, *_ = read_hugging_face("somebody/set", **GOOD, download=True)
    assert loads == [(("somebody/set",), {})]
    assert len(train) == 4


def test_what_cannot_be_fetched_is_one_clear_line(monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match=r"data\.root: 'a/b' cannot be read: no route to host"):
        read_hugging_face("a/b", **GOOD, download=True)


@pytest.mark.usefixtures("_offline")
@pytest.mark.parametrize("card", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize("lead", ["", "\n \n"])
def test_a_card_that_names_files_elsewhere_is_refused(tmp_path, card, lead):
    root = save(tmp_path / "set", "parquet", make_table(), make_table())
    body = "configs:\n- config_name: default\n  data_files: https://example.org/train.parquet\n"
    text = f"{lead}---\n{body}---\n# A set\n" if card == "README.md" else body
    (tmp_path / "set" / card).write_text(text)
    with pytest.raises(DataError, match=r"data\.root: .* names files outside the folder"):
        read_hugging_face(root, **GOOD)
    (tmp_path / "set" / card).write_text(
        "configs:\n- config_name: default\n  data_files:\n"
        "  - {split: train, path: test.parquet}\n  - {split: x, path: train.parquet}\n"
        if card != "README.md"
        else "# A set from https://example.org\n"
    )
    splits = {"test_split": "x"} if card != "README.md" else {}
    assert len(read_hugging_face(root, **GOOD, **splits)[0]) == 4


@pytest.mark.parametrize("content", [None, "no parquet"])
def test_a_folder_without_a_set_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "train.parquet").write_text(content)
    with pytest.raises(DataError, match=r"data\.root: .* cannot be read: "):
        read_hugging_face(str(tmp_path), **GOOD)


def test_a_folder_with_one_split_says_which(tmp_path):
    make_table().save_to_disk(str(tmp_path / "one"))
    with pytest.raises(DataError, match=r"data\.test_split: 'test'; the data set has train"):
        read_hugging_face(str(tmp_path / "one"), **GOOD)


def test_no_root_and_no_package_are_named(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"data\.root: null; "):
        read_hugging_face(None, **GOOD)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"data\.name: .*'private-fl-app\[hf\]'"):
        read_hugging_face(str(tmp_path), **GOOD)
