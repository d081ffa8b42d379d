"""What is configured about data (conf/data); the files there explain each key."""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from fl_app.data.flwr_partition import PARTITIONERS
from fl_app.data.records import DataError
from fl_app.data.sources import SOURCES
from fl_app.import_path import check_import_path
from fl_app.plain_mapping import PlainMapping

PartitionKind = Literal[
    "iid", "dirichlet", "label_shards", "similarity", "natural_id", "flwr_datasets"
]


@dataclass(frozen=True)
class PartitionSettings:
    """How the training records are divided among clients.

    Attributes
    ----------
    kind : str
        "iid", "dirichlet", "label_shards", "similarity", "natural_id" (see
        `fl_app.data.partition`) or "flwr_datasets" (see `fl_app.data.flwr_partition`).
    alpha : float
        Concentration of the Dirichlet, positive (dirichlet only).
    min_records : int
        Records each client has at least, at least 1 (dirichlet only).
    labels_per_client : int
        Different labels a client has, at least 1 (label_shards only).
    similarity : float
        Share of the records that is dealt out at random, in [0, 1] (similarity only).
    partitioner : str
        Class of Flower Datasets, a key of `PARTITIONERS` (flwr_datasets only).
    arguments : PlainMapping or None
        Its arguments but the number of partitions and the seed (flwr_datasets only).

    Raises
    ------
    DataError
        If a value is not allowed.
    """

    kind: PartitionKind = "iid"
    alpha: float = 0.5
    min_records: int = 1
    labels_per_client: int = 2
    similarity: float = 0.1
    partitioner: str = "IidPartitioner"
    arguments: PlainMapping | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(PartitionKind):
            raise DataError(
                f"data.partition.kind: {self.kind!r}; choose one of "
                f"{', '.join(get_args(PartitionKind))}"
            )
        if not _is_finite(self.alpha) or self.alpha <= 0:
            raise DataError(
                f"data.partition.alpha: {self.alpha!r}; a positive, finite number is needed"
            )
        require_int("data.partition.min_records", self.min_records, 1)
        require_int("data.partition.labels_per_client", self.labels_per_client, 1)
        if not _is_finite(self.similarity) or not 0 <= self.similarity <= 1:
            raise DataError(
                f"data.partition.similarity: {self.similarity!r}; a number in [0, 1] is needed"
            )
        if self.partitioner not in PARTITIONERS:
            raise DataError(
                f"data.partition.partitioner: {self.partitioner!r}; choose one of "
                f"{', '.join(PARTITIONERS)}"
            )
        if self.arguments is not None and not isinstance(self.arguments, PlainMapping):
            raise DataError(
                f"data.partition.arguments: {self.arguments!r}; a PlainMapping or None is needed"
            )


@dataclass(frozen=True)
class DataSettings:
    """Which data set, and how it is prepared.

    The features become value / scale - offset, the same for every record. Both constants are
    public and configured: a mean or a deviation taken from client data would leak.

    Attributes
    ----------
    name : str
        A key of `SOURCES`.
    root : str or None
        Folder of the user's own copy, for sets that are not bundled; None for those that are.
    scale : float
        What features are divided by, in [1e-30, 1e30]. 16 for the digits, 255 for MNIST.
    offset : float
        What is subtracted after that, in [-1e30, 1e30].
    partition : PartitionSettings
        How training records are divided among clients.
    test_fraction : float
        Share of the public test set, in (0, 1), for sets without one of their own (digits,
        heart_disease).
    path : str or None
        Import path package.module:name of the user's own reader (user only).
    writer_labels : str or None
        QMNIST's label file of the training images, or its folder (mnist only).
    window, stride : int
        Rows of a window, and from one window's beginning to the next, at least 1 (har_geotec only).
    num_test_subjects : int
        People who are held out as the public test set, at least 1 (har_geotec only).
    features, label : str
        Columns of the features, with commas between them, and of the labels (hugging_face only).
    classes : tuple of str or of int, or None
        The labels in the order of their numbers; None: those of the column's type, or else those
        that are found (hugging_face only).
    group : str or None
        Column that says whose a record is (hugging_face only).
    train_split, test_split : str
        Names of the two splits (hugging_face only).
    download : bool
        Whether a set that is not a folder may be fetched from the Hub (hugging_face only).

    Raises
    ------
    DataError
        If a value is not allowed, or belongs to another source.
    """

    name: str = "digits"
    root: str | None = None
    scale: float = 16.0
    offset: float = 0.3
    partition: PartitionSettings = field(default_factory=PartitionSettings)
    test_fraction: float = 0.2
    path: str | None = None
    writer_labels: str | None = None
    window: int = 128
    stride: int = 64
    num_test_subjects: int = 5
    features: str = "image"
    label: str = "label"
    classes: tuple[str | int, ...] | None = None
    group: str | None = None
    train_split: str = "train"
    test_split: str = "test"
    download: bool = False

    def __post_init__(self) -> None:
        if self.name not in SOURCES:
            raise DataError(f"data.name: {self.name!r}; choose one of {', '.join(SOURCES)}")
        for key in ("root", "writer_labels"):
            value = getattr(self, key)
            if value is not None and (not isinstance(value, str) or not value):
                raise DataError(f"data.{key}: {value!r}; a path or null is needed")
        # The limits keep both within float32, in which features are computed.
        if not _is_finite(self.scale) or not 1e-30 <= self.scale <= 1e30:
            raise DataError(f"data.scale: {self.scale!r}; a number in [1e-30, 1e30] is needed")
        if not _is_finite(self.offset) or abs(self.offset) > 1e30:
            raise DataError(f"data.offset: {self.offset!r}; a number in [-1e30, 1e30] is needed")
        if not _is_finite(self.test_fraction) or not 0 < self.test_fraction < 1:
            raise DataError(
                f"data.test_fraction: {self.test_fraction!r}; a number in (0, 1) is needed"
            )
        if self.path is not None:
            try:
                check_import_path("data.path", self.path)
            except ValueError as error:
                raise DataError(str(error)) from None
        for key in ("window", "stride", "num_test_subjects"):
            require_int(f"data.{key}", getattr(self, key), 1)
        if self.classes is not None and not 2 <= len(set(self.classes)) == len(self.classes):
            raise DataError(f"data.classes: {self.classes!r}; two or more different labels or null")
        self._refuse_keys_of_others()

    def _refuse_keys_of_others(self) -> None:
        """Refuse what would be ignored."""
        if self.root is not None and not SOURCES[self.name].has_root:
            raise DataError(
                f"data.root: {self.root!r}; {self.name} are bundled and need null: choose data=... "
                "with a set that is read from a folder"
            )
        defaults = {each.name: each.default for each in dataclasses.fields(self)}
        for name, source in SOURCES.items():
            for key in source.keys:
                value = getattr(self, key)
                if name != self.name and value != defaults[key]:
                    raise DataError(
                        f"data.{key}: {value!r}; it belongs to {name}, and {self.name} needs "
                        f"{'null' if defaults[key] is None else defaults[key]}"
                    )

    def with_absolute_paths(self) -> "DataSettings":
        """Return the same settings independently of the current folder."""
        paths = {
            key: str(Path(value).expanduser().absolute())
            for key in ("root", "writer_labels")
            if (value := getattr(self, key)) is not None
        }
        return dataclasses.replace(self, **paths)  # type: ignore[arg-type]


def require_int(key: str, value: Any, least: int) -> None:
    """Raise DataError unless the value is an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DataError(f"{key}: {value!r}; an int of at least {least} is needed")


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)
