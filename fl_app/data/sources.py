"""The sources of data, by name. A new one is one file that reads it and one row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fl_app.data.cifar10 import read_cifar10, read_own_cifar10
from fl_app.data.digits import read_digits
from fl_app.data.har_geotec import read_har_geotec, read_own_har_geotec
from fl_app.data.heart_disease import read_heart_disease, read_own_heart_disease
from fl_app.data.hugging_face import read_hugging_face, read_own_hugging_face
from fl_app.data.mnist import read_mnist, read_own_mnist
from fl_app.data.records import RawDataset, Records
from fl_app.data.user import read_own_user_data, read_user_data

if TYPE_CHECKING:
    from fl_app.data.settings import DataSettings


@dataclass(frozen=True)
class Source:
    """One source.

    Attributes
    ----------
    description : str
        What it is, in a line.
    read : callable
        From the settings to the data; raises DataError where they are missing or damaged. Each
        call returns arrays of its own, which the caller may change.
    keys : tuple of str
        The settings of this source that others do not have; elsewhere they must be left alone.
    read_own : callable or None
        From the settings to one owner's training records, which may be none, and the number of
        classes; see `fl_app.data.own_records`. None: it does not read from data.root, which must
        be left alone.
    """

    description: str
    read: Callable[[DataSettings], RawDataset]
    keys: tuple[str, ...] = ()
    read_own: Callable[[DataSettings], tuple[Records, int]] | None = None

    @property
    def has_root(self) -> bool:
        """Whether it reads from data.root, which must be left alone otherwise."""
        return self.read_own is not None


def _split_names(text: str) -> str | list[str]:
    columns = [name.strip() for name in text.split(",")]
    return columns[0] if len(columns) == 1 else columns


def _read_own_hugging_face(settings: DataSettings) -> tuple[Records, int]:
    return read_own_hugging_face(
        settings.root,
        features=_split_names(settings.features),
        label=settings.label,
        classes=settings.classes,
        train_split=settings.train_split,
    )


def _read_hugging_face(settings: DataSettings) -> RawDataset:
    return RawDataset(
        *read_hugging_face(
            settings.root,
            features=_split_names(settings.features),
            label=settings.label,
            classes=settings.classes,
            group=settings.group,
            train_split=settings.train_split,
            test_split=settings.test_split,
            download=settings.download,
        )
    )


SOURCES: dict[str, Source] = {
    "digits": Source(
        "scikit-learn's handwritten digits: 1,797 real 8x8 images, bundled (the default)",
        lambda settings: read_digits(settings.test_fraction),
    ),
    "mnist": Source(
        "MNIST from idx files in data.root: 60,000 + 10,000 images of 28x28; 539 writers",
        lambda settings: read_mnist(settings.root, settings.writer_labels),
        ("writer_labels",),
        lambda settings: read_own_mnist(settings.root),
    ),
    "cifar10": Source(
        "CIFAR-10 from cifar-10-batches-py in data.root: 50,000 + 10,000 colour images of 32x32",
        lambda settings: read_cifar10(settings.root),
        read_own=lambda settings: read_own_cifar10(settings.root),
    ),
    "heart_disease": Source(
        "UCI heart disease from data.root: 920 patients of 4 hospitals",
        lambda settings: read_heart_disease(settings.root, settings.test_fraction),
        read_own=lambda settings: read_own_heart_disease(settings.root),
    ),
    "har_geotec": Source(
        "activities of 23 people from a phone's motion sensors, from sp_raw.npz in data.root",
        lambda settings: read_har_geotec(
            settings.root, settings.window, settings.stride, settings.num_test_subjects
        ),
        ("window", "stride", "num_test_subjects"),
        lambda settings: read_own_har_geotec(settings.root, settings.window, settings.stride),
    ),
    "hugging_face": Source(
        "a set in Hugging Face's formats, from a folder in data.root (needs the extra hf)",
        _read_hugging_face,
        ("features", "label", "classes", "group", "train_split", "test_split", "download"),
        _read_own_hugging_face,
    ),
    "user": Source(
        "your own: a function named by data.path",
        lambda settings: read_user_data(settings.path, settings.root),
        ("path",),
        lambda settings: read_own_user_data(settings.path, settings.root),
    ),
}
