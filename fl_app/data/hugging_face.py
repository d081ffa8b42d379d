"""Data sets in Hugging Face's formats, from a folder or, if asked for, from the Hub.

The package datasets comes with the extra `hf`, and is imported only where it is used. A folder is
read without touching the network, and without leaving a copy of the records in a cache.
"""

import io
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from fl_app.data.flwr_partition import HOW_TO_GET
from fl_app.data.records import DataError, Records
from fl_app.data.table_columns import choose_column, rank, read_labels, read_own_labels, read_values

_CARDS = ("README.md", ".huggingface.yaml")
# In a folder that save_to_disk wrote, and files whose columns say their types.
_SAVED, _TYPED = ("dataset_dict.json", "state.json"), (".parquet", ".arrow")


def read_hugging_face(
    root: str | None,
    *,
    features: str | Sequence[str],
    label: str,
    classes: Sequence[str | int] | None = None,
    group: str | None = None,
    train_split: str = "train",
    test_split: str = "test",
    download: bool = False,
) -> tuple[Records, Records, int, NDArray[np.int64] | None]:
    """Read the training and the test split of a data set, values as they are stored.

    Parameters
    ----------
    root : str or None
        A folder: what save_to_disk wrote, or files that datasets.load_dataset reads (parquet, csv,
        json, arrow, folders of images). With `download`, a data set's name on the Hub.
    features : str or sequence of str
        One column of images (uint8 pixels of one size, gray or colour; transparency is dropped),
        or of lists of numbers of one shape; or one or more columns of numbers.
    label : str
        Column of class labels, of integers or of text. The latter two are numbered in their sorted
        order over both splits: which labels exist is taken to be public.
    classes : sequence of str or int, or None
        All labels, in the order of their numbers; None: as above.
    group : str or None
        Column that says whose a record is, integers or text; None: there is none.
    train_split, test_split : str
        Names of two different splits.
    download : bool
        Whether a name that is no folder may be fetched from the Hub, with its present files.

    Returns
    -------
    train, test : Records
        Features of shape (n, channels, height, width) for images, (n, *shape) for lists, (n, k)
        for k columns of numbers.
    num_classes : int
        Number of labels, at least 2.
    train_groups : numpy.ndarray or None
        int64, shape (n,): the number of each training record's group in their sorted order.

    Raises
    ------
    DataError
        If a key is wrong, a split or a column is missing, or values are missing, not finite or of
        different shapes; the message names the key.
    """
    names = _choose_names(features, label)
    if train_split == test_split:
        raise DataError(f"data.test_split: {test_split!r}; another split than for training")
    # Read as long as the temporary copy exists; what is returned lies in memory.
    with _open(root, download) as splits:
        train, test = (
            _choose_split(splits, key, name)
            for key, name in (("data.train_split", train_split), ("data.test_split", test_split))
        )
        train_features, test_features = (_read_features(split, names) for split in (train, test))
        train_labels, test_labels, num_classes = read_labels(train, test, label, classes)
        groups = None if group is None else read_values(train, "data.group", group)
    if train_features.shape[1:] != test_features.shape[1:]:
        raise DataError(
            f"data.features: shape {test_features.shape[1:]} in data.test_split={test_split}; the "
            f"training records' {train_features.shape[1:]} is needed"
        )
    return (
        Records(train_features, train_labels),
        Records(test_features, test_labels),
        num_classes,
        None if groups is None else rank(groups)[0],
    )


def read_own_hugging_face(
    root: str | None,
    *,
    features: str | Sequence[str],
    label: str,
    classes: Sequence[str | int] | None = None,
    train_split: str = "train",
) -> tuple[Records, int]:
    """Read a folder's training split alone, and the number of classes.

    That number never follows from the records: it is that of the column's type, or `classes`. The
    label of a record that is none of them is that number.

    Raises
    ------
    DataError
        As `read_hugging_face`, and for files whose columns get their types from what is in them
        (CSV, JSON, folders of images), for a column of plain numbers or text without `classes`, and
        for classes of another type than the column's.
    """
    names = _choose_names(features, label)
    _require_typed(root)
    with _open(root, download=False) as splits:
        split = _choose_split(splits, "data.train_split", train_split)
        found = _read_features(split, names)
        numbers, num_classes = read_own_labels(split, label, classes)
    return Records(found, numbers), num_classes


def _require_typed(root: str | None) -> None:
    """Refuse files of which one record could change the type of a column, and so all records."""
    folder = Path(root or "").expanduser()
    if not root or not folder.is_dir() or any((folder / name).is_file() for name in _SAVED):
        return
    others = (each for each in folder.rglob("*") if each.is_file() and each.suffix not in _TYPED)
    if any(each.name != "README.md" and not each.name.startswith(".") for each in others):
        raise DataError(
            f"data.root: {root!r}; for a device's own data a folder that save_to_disk wrote, or "
            "one with nothing but parquet or arrow files, is needed: columns of others get their "
            "types from all records"
        )


def _choose_names(features: str | Sequence[str], label: str) -> list[str]:
    names = [features] if isinstance(features, str) else list(features)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise DataError(f"data.features: {features!r}; the names of one or more columns are needed")
    if label in names:
        raise DataError(f"data.features: {features!r}; columns other than data.label are needed")
    return names


@contextmanager
def _open(root: str | None, download: bool) -> Iterator[Mapping[str, Any]]:
    """Open the splits of a set."""
    if not root:
        raise DataError(
            "data.root: null; a folder with a data set (or, with data.download, a name)"
        )
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"data.name: 'hugging_face'; {HOW_TO_GET}") from error
    folder = Path(root).expanduser()
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with tempfile.TemporaryDirectory(prefix="fl-app-") as cache:
            if folder.is_dir():
                splits = _read_folder(folder.absolute(), cache)
            elif download:
                splits = datasets.load_dataset(root)
            else:
                raise DataError(
                    f"data.root: {root!r} is not a folder ({folder.absolute()}); a folder is "
                    "needed, or data.download=true to fetch the set of that name from the "
                    "Hugging Face Hub"
                )
            if isinstance(splits, datasets.Dataset):
                splits = {str(splits.split or "train"): splits}
            yield splits
    except DataError:
        raise
    # Whatever the library and the readers of many formats raise for what they cannot read.
    except Exception as error:
        # The library's own errors often say only that there was one.
        reason = _one_line(error.__cause__ or error)
        raise DataError(f"data.root: {root!r} cannot be read: {reason}") from error
    finally:
        if not bars:
            datasets.enable_progress_bars()


def _read_folder(folder: Path, cache: str) -> Any:
    import datasets

    if any((folder / name).is_file() for name in _SAVED):
        return datasets.load_from_disk(str(folder))
    for card in _CARDS:
        # A card may name files elsewhere as the set's, which the library would fetch.
        if (folder / card).is_file() and "://" in _read_card(folder / card):
            raise DataError(
                f"data.root: {folder / card} names files outside the folder as data; remove its "
                "configs, or use the set's name on the Hub with data.download=true"
            )
    return datasets.load_dataset(str(folder), cache_dir=cache)


def _read_card(file: Path) -> str:
    """Return what a data set's card says about its files."""
    if file.suffix == ".md":
        from huggingface_hub import DatasetCard

        values = DatasetCard.load(file, ignore_metadata_errors=True).data.to_dict()
    else:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    return str(values.get("configs")) if isinstance(values, dict) else ""


def _choose_split(splits: Mapping[str, Any], key: str, name: str) -> Any:
    if name not in splits:
        raise DataError(f"{key}: {name!r}; the data set has {', '.join(map(str, splits))}")
    if not len(splits[name]):
        raise DataError(f"{key}: {name!r}; at least one record is needed, it has none")
    return splits[name]


def _read_features(split: Any, names: list[str]) -> NDArray[np.float32]:
    import datasets

    columns = [choose_column(split, "data.features", name) for name in names]
    if len(names) == 1 and isinstance(split.features[names[0]], datasets.Image):
        return _read_images(columns[0].to_pylist(), names[0])
    with np.errstate(over="ignore"):  # what overflows float32 is refused as not finite
        arrays = split.select_columns(names).with_format("numpy")[:]
    parts = [_to_floats(arrays[name], name, scalar=len(names) > 1) for name in names]
    return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]


def _to_floats(values: NDArray[Any], name: str, scalar: bool) -> NDArray[np.float32]:
    """Convert numbers to shape (n, 1), or, unless `scalar`, lists of numbers to (n, *shape)."""
    shape = values.shape[1:] or (1,)
    if values.dtype.kind not in "biuf" or not math.prod(shape) or (scalar and values.ndim > 1):
        allowed = "numbers" if scalar else "numbers, lists of numbers of one shape, or images"
        raise DataError(f"data.features: {name!r}; {allowed} are needed")
    floats = values.astype(np.float32).reshape(len(values), *shape)
    if count := int(np.sum(~np.isfinite(floats))):
        raise DataError(f"data.features: {name!r}; {count} values are missing or not finite")
    return floats


def _read_images(cells: list[dict[str, Any]], name: str) -> NDArray[np.float32]:
    images = [_decode(cell, name) for cell in cells]
    shapes = sorted({image.shape for image in images})
    if len(shapes) > 1:
        raise DataError(
            f"data.features: {name!r}; images of one size (channels, height, width) are needed, "
            f"not of {', '.join(map(str, shapes[:3]))}"
        )
    return np.stack(images).astype(np.float32)


def _decode(cell: dict[str, Any], name: str) -> NDArray[Any]:
    from PIL import Image

    content, path = cell["bytes"], cell["path"]
    if content is None and (not path or "://" in path):
        raise DataError(f"data.features: {name!r}; images in files here are needed, not {path!r}")
    try:
        with Image.open(path if content is None else io.BytesIO(content)) as image:
            if image.mode in ("I", "F") or image.mode.startswith("I;"):
                raise DataError(f"data.features: {name!r}; images of 8 bits a channel are needed")
            gray = image.mode in ("1", "L", "LA")
            pixels = np.asarray(image.convert("L" if gray else "RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"data.features: {name!r}; {_one_line(error)}") from error
    return pixels[None] if gray else pixels.transpose(2, 0, 1)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
