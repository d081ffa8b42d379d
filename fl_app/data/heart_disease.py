"""Heart disease in four hospitals: 920 patients, each hospital a natural client.

Every constant here is a clinical reference value and none a statistic of these patients: a mean or
a deviation taken from them would leak. Where a value is missing, one flag says so and the constant
stands for it; a missing category is no category at all.

References
----------
.. [1] A. Janosi, W. Steinbrunn, M. Pfisterer & R. Detrano, "Heart Disease", UCI Machine Learning
   Repository, data set 45, 1988 (CC BY 4.0).
"""

import math
from pathlib import Path

import numpy as np

from fl_app.data.folder import require_files, require_folder
from fl_app.data.holdout import split_stratified
from fl_app.data.records import DataError, RawDataset, Records

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
FILES = tuple(f"processed.{hospital}.data" for hospital in HOSPITALS)
HOW_TO_GET = (
    f"A folder with {', '.join(FILES)} is needed. Download them from the UCI Machine Learning "
    "Repository (data set 45, heart disease), and set data.root to the folder"
)
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
# The feature of a number is (value - reference) / unit, so that a missing one becomes 0.
NUMBERS: dict[str, tuple[float, float]] = {
    "age": (50.0, 10.0),  # years
    "trestbps": (120.0, 20.0),  # mm Hg at rest; upper end of normal
    "chol": (200.0, 50.0),  # mg/dl; upper end of desirable
    "thalach": (145.0, 25.0),  # beats/min in exercise; its target, 85% of 220 - age, at 50 years
    "oldpeak": (0.0, 1.0),  # mm of ST depression; none
    "ca": (0.0, 1.0),  # vessels coloured by fluoroscopy; none
}
# Nobody alive has these at 0; all of Switzerland's cholesterol, and some of va's, is stored so.
ZERO_IS_MISSING = ("trestbps", "chol")
# 0 or 1; a missing one becomes 0, the normal finding.
BINARY = ("sex", "fbs", "exang")
# One feature for each category, 0 or 1.
CATEGORIES: dict[str, tuple[float, ...]] = {
    "cp": (1.0, 2.0, 3.0, 4.0),  # chest pain: typical, atypical, non-anginal, none
    "restecg": (0.0, 1.0, 2.0),  # normal, ST-T abnormality, hypertrophy
    "slope": (1.0, 2.0, 3.0),  # of the ST segment: up, flat, down
    "thal": (3.0, 6.0, 7.0),  # normal, fixed defect, reversible defect
}
ALLOWED = {
    **dict.fromkeys(BINARY, (0.0, 1.0)),
    **CATEGORIES,
    "ca": (0.0, 1.0, 2.0, 3.0),
    "num": (0.0, 1.0, 2.0, 3.0, 4.0),
}
NEVER_MISSING = ("age", "sex", "cp", "num")
FLAGS = tuple(name for name in COLUMNS if name not in NEVER_MISSING)
FEATURES = (
    *NUMBERS,
    *BINARY,
    *(f"{name}={value:g}" for name, values in CATEGORIES.items() for value in values),
    *(f"{name} missing" for name in FLAGS),
)


def read_heart_disease(root: str | None, test_fraction: float = 0.2) -> RawDataset:
    """Read the four hospitals' patients; label 1 is a diagnosis (num > 0).

    Parameters
    ----------
    root : str or None
        Folder with the four `FILES`.
    test_fraction : float
        Share of each hospital's patients in the public test set, in (0, 1), chosen by
        `split_stratified`. 0.2 gives 735 training and 185 test records.

    Returns
    -------
    RawDataset
        Features of shape (n, 32), named in `FEATURES`; group i is `HOSPITALS[i]`.

    Raises
    ------
    DataError
        If a file is missing or damaged: the message names the line and the column, not the value.
    """
    train, test, groups = [], [], []
    for hospital, path in enumerate(require_files(root, FILES, "heart_disease", HOW_TO_GET)):
        records = _read_hospital(path)
        in_train, in_test = split_stratified(records.labels, test_fraction)
        train.append(records.take(in_train))
        test.append(records.take(in_test))
        groups.append(np.full(len(in_train), hospital, dtype=np.int64))
    return RawDataset(_join(train), _join(test), 2, np.concatenate(groups), HOSPITALS)


def read_own_heart_disease(root: str | None) -> tuple[Records, int]:
    """Read all patients of those of the four files that are there, and the number of classes.

    Raises
    ------
    DataError
        If none is there, or one is damaged.
    """
    folder = require_folder(root, "heart_disease", HOW_TO_GET)
    paths = [folder / name for name in FILES if (folder / name).is_file()]
    if not paths:
        raise DataError(f"data.root: {root!r} holds none of the files. {HOW_TO_GET}")
    return _join([_read_hospital(path) for path in paths]), 2


def _read_hospital(path: Path) -> Records:
    rows = _read_rows(path)
    labels = np.array([row["num"] > 0 for row in rows], dtype=np.int64)
    return Records(np.array([_features(row) for row in rows], dtype=np.float32), labels)


def _join(parts: list[Records]) -> Records:
    features = np.concatenate([part.features for part in parts])
    return Records(features, np.concatenate([part.labels for part in parts]))


def _features(row: dict[str, float]) -> list[float]:
    """Return the features in the order of `FEATURES`; a missing value is nan in `row`."""
    numbers = [(row[name] - centre) / unit for name, (centre, unit) in NUMBERS.items()]
    numbers += [row[name] for name in BINARY]
    known = [0.0 if math.isnan(number) else number for number in numbers]
    chosen = [row[name] == value for name, values in CATEGORIES.items() for value in values]
    return [*known, *map(float, chosen), *(float(math.isnan(row[name])) for name in FLAGS)]


def _read_rows(path: Path) -> list[dict[str, float]]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not plain text"
        raise DataError(f"data.root: {path} cannot be read: {reason}. {HOW_TO_GET}") from error
    rows = [
        _read_row(line, f"data.root: {path}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not rows:
        raise DataError(f"data.root: {path} is empty. {HOW_TO_GET}")
    return rows


def _read_row(line: str, place: str) -> dict[str, float]:
    words = line.split(",")
    if len(words) != len(COLUMNS):
        raise DataError(f"{place}: {len(words)} columns; {len(COLUMNS)} are needed")
    row = {}
    for name, word in zip(COLUMNS, words, strict=True):
        missing = word.strip() == "?"
        try:
            value = math.nan if missing else float(word)
        except ValueError:
            value = math.inf
        if missing and name in NEVER_MISSING:
            raise DataError(f"{place}: {name} is missing, which none of the four files has")
        allowed = ALLOWED.get(name)
        if math.isinf(value) or (math.isnan(value) and not missing):
            raise DataError(f"{place}: {name} is no number; a finite one or ? is needed")
        if allowed and not missing and value not in allowed:
            choices = ", ".join(f"{each:g}" for each in allowed)
            raise DataError(f"{place}: {name} is none of {choices}")
        row[name] = math.nan if name in ZERO_IS_MISSING and value == 0 else value
    return row
