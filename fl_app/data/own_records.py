"""One owner's own records: all of what a folder or file of theirs holds to train on.

Nothing is divided and nothing is held out: a partition, or a test set that is drawn by labels,
changes in many records where one record changes, and no guarantee for a record survives that.

Formal guarantees, for what a source calls a record (har_geotec: a window; see the source):

* Each record that is returned is a function of one stored record and of the settings alone, in the
  order of storage: one record changed changes one, one removed removes one.
* Shape and number of classes follow from the settings, or from what the files say of their columns,
  never from a label that occurs.
* A record whose label is none of the classes counts as features of zeros with label 0: refusing it
  would be an answer about it.

A file that cannot be read is refused whatever is asked.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fl_app.data.records import DataError, FederatedDataset, Records, scale_records
from fl_app.data.sources import SOURCES

if TYPE_CHECKING:
    from fl_app.data.settings import DataSettings

_log = logging.getLogger(__name__)


@lru_cache(maxsize=2)
def load_own_dataset(settings: DataSettings) -> FederatedDataset:
    """Load all records of an owner as the one partition of a data set without a test set.

    Parameters
    ----------
    settings : DataSettings
        The owner's; what they say about partitions and test sets has no influence.

    Raises
    ------
    DataError
        If there is no such data, or they cannot be read.
    """
    read = SOURCES[settings.name].read_own
    if read is None:
        raise DataError(f"data.name: {settings.name!r}; a set that is read from a folder is needed")
    records, num_classes = read(settings)
    scale_records(records, settings.scale, settings.offset)
    train = _keep_to_classes(records, num_classes)
    rows = np.arange(len(train))
    return FederatedDataset(settings.name, train, train.take(rows[:0]), num_classes, (rows,))


def _keep_to_classes(records: Records, num_classes: int) -> Records:
    others = records.labels >= num_classes
    if not others.any():
        return records
    # For the owner, who alone sees the log.
    _log.warning("%d records have labels beyond the %d classes", others.sum(), num_classes)
    features, labels = records.features.copy(), records.labels.copy()
    features[others], labels[others] = 0.0, 0
    return Records(features, labels)
