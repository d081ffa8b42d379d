"""Columns of a table in Hugging Face's formats: labels and groups as numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.data.records import DataError


def choose_column(split: Any, key: str, name: str) -> Any:
    """Return a column's Arrow data; missing values are refused."""
    if name not in split.column_names:
        raise DataError(f"{key}: {name!r}; the columns are {', '.join(split.column_names)}")
    column = split.with_format("arrow")[:][name]
    if column.null_count:
        raise DataError(f"{key}: {name!r}; {column.null_count} values are missing, give each one")
    return column


def read_labels(
    train: Any, test: Any, name: str, classes: Sequence[str | int] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return the labels of two splits as numbers from 0, and how many there are."""
    import datasets

    key = "data.label"
    of_train, of_test = (read_values(split, key, name) for split in (train, test))
    kinds = [split.features[name] for split in (train, test)]
    if isinstance(kinds[0], datasets.ClassLabel):
        if kinds[0] != kinds[1]:
            raise DataError(f"{key}: {name!r}; the same class names in both splits are needed")
        num_classes = int(kinds[0].num_classes)
        found = np.concatenate([of_train, of_test])
        if found.min() < 0 or found.max() >= num_classes:
            raise DataError(f"{key}: {name!r}; a label in [0, {num_classes}) is needed for each")
        labels = found
    elif classes is not None:
        labels, num_classes = _number(np.concatenate([of_train, of_test]), classes), len(classes)
        if labels.max() >= num_classes:
            raise DataError(f"{key}: {name!r}; one of data.classes is needed for each record")
    else:
        if of_train.dtype.kind != of_test.dtype.kind:
            raise DataError(f"{key}: {name!r}; the same type in both splits is needed")
        labels, num_classes = rank(np.concatenate([of_train, of_test]))
    if num_classes < 2:
        raise DataError(f"{key}: {name!r}; at least two different labels are needed")
    parts = np.split(labels.astype(np.int64), [len(of_train)])
    return parts[0], parts[1], num_classes


def read_own_labels(
    split: Any, name: str, classes: Sequence[str | int] | None
) -> tuple[NDArray[np.int64], int]:
    """Return a split's labels as numbers, and the number of classes (`read_own_hugging_face`)."""
    import datasets

    kind, values = split.features[name], read_values(split, "data.label", name)
    if classes is not None:
        wanted = str if getattr(kind, "dtype", "") in ("string", "large_string") else int
        if not all(isinstance(each, wanted) for each in classes):
            raise DataError(
                f"data.classes: {classes!r}; labels of the type of column {name!r}, "
                f"{wanted.__name__}"
            )
        return _number(values, classes), len(classes)
    if not isinstance(kind, datasets.ClassLabel):
        raise DataError(
            f"data.classes: null; {name} has no class names of its own: all labels are needed, in "
            "the order of their numbers"
        )
    count = int(kind.num_classes)
    return np.where((values < 0) | (values >= count), count, values).astype(np.int64), count


def _number(values: NDArray[Any], classes: Sequence[str | int]) -> NDArray[np.int64]:
    """Return each value's place among the classes; their number for one that is none of them."""
    places = {each: place for place, each in enumerate(classes)}
    return np.array([places.get(each, len(places)) for each in values.tolist()], dtype=np.int64)


def read_values(split: Any, key: str, name: str) -> NDArray[Any]:
    """Read a column of integers, truth values or text."""
    column = choose_column(split, key, name)
    values = np.array(column.to_pylist())
    if values.ndim != 1 or values.dtype.kind not in "biuU":
        raise DataError(f"{key}: {name!r}; integers or text are needed, not {column.type}")
    return values.astype(np.int64) if values.dtype.kind in "biu" else values


def rank(values: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """Return each value's number in the sorted order of the different ones, and their count."""
    different, ranks = np.unique(values, return_inverse=True)
    return ranks.astype(np.int64), len(different)
