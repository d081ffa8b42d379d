"""The user's own data: a function of theirs, named by import path."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.data.records import DataError, RawDataset, Records
from fl_app.import_path import import_function


def read_user_data(path: str | None, root: str | None) -> RawDataset:
    """Call the user's function with data.root and check what it returns.

    Parameters
    ----------
    path : str or None
        Import path, package.module:name, of a function that takes data.root (str or None) and
        returns a `RawDataset`. Every process of a run calls it on its own: it must return the same
        records, in the same order, each time.
    root : str or None
        Handed on as it is; absolute unless None.

    Returns
    -------
    RawDataset
        With copies of the arrays.

    Raises
    ------
    DataError
        If there is no such function, it raises, or it returns anything else or features that are
        not finite.
    """
    if path is None:
        raise DataError(
            "data.path: null; the import path package.module:name of a function is needed, which "
            "takes data.root and returns a fl_app.data.RawDataset"
        )
    try:
        function = import_function("data.path", path)
    except ValueError as error:
        raise DataError(str(error)) from error
    try:
        returned = function(root)
    except (Exception, SystemExit) as error:
        # Other texts may quote the data.
        quotable = isinstance(error, DataError | OSError)
        more = f": {error}" if quotable else " (--debug shows where)"
        raise DataError(f"data.path: {path!r} raised {type(error).__name__}{more}") from error
    if not isinstance(returned, RawDataset):
        raise DataError(
            f"data.path: {path!r} returned a {type(returned).__name__}; a fl_app.data.RawDataset "
            "is needed"
        )
    groups = None if returned.train_groups is None else returned.train_groups.copy()
    return RawDataset(
        _copy(returned.train, f"data.path: {path!r}, train"),
        _copy(returned.test, f"data.path: {path!r}, test"),
        returned.num_classes,
        groups,
        tuple(returned.group_names),
    )


def read_own_user_data(path: str | None, root: str | None) -> tuple[Records, int]:
    """Return what the function gives to train on, and its number of classes.

    For one record's influence to be bounded, a record of what the function returns must follow from
    one record of the owner's, and the shape and the number of classes from none.
    """
    raw = read_user_data(path, root)
    return raw.train, raw.num_classes


def _copy(records: Records, name: str) -> Records:
    """Copy, because the features are scaled in place and the user may keep theirs."""
    features: NDArray[Any] = records.features.copy()
    if not np.isfinite(features).all():
        raise DataError(f"{name}: features that are not finite; replace them before returning")
    return Records(features, records.labels.copy())
