"""Landmine detection: a support vector machine with an RBF kernel for each field.

Each field's records are divided in halves, stratified by class, and the objective is the area under
the ROC curve on the second half. The published program [2]_ ranks by probabilities of Platt
scaling, which is fitted in cross-validation; on these data its slope often has the wrong sign, and
the area is then that of the reversed ranking. ``scores=platt`` does the same (the folds are a fresh
draw in each trial), ``scores=decision`` ranks by the machine's own decision values.

References
----------
.. [1] Y. Xue, X. Liao, L. Carin and B. Krishnapuram, "Multi-task learning for classification with
   Dirichlet process priors", JMLR 8, 2007: the data, 29 fields with 9 features.
.. [2] Z. Dai, B. K. H. Low and P. Jaillet, "Differentially private federated Bayesian optimization
   with distributed exploration", NeurIPS 2021, arXiv:2110.14153.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import io, stats
from scipy.spatial.distance import cdist

from fl_app.data.folder import require_files
from fl_app.data.records import DataError
from fl_app.objectives.objective import Objective
from fl_app.objectives.settings import LandmineSettings
from fl_app.search_space import AxisValue
from strategies.mechanisms.rng import Randomness

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

FILE = "LandmineData.mat"
HOW_TO_GET = (
    f"A folder with {FILE} is needed: a MATLAB file with two cell arrays of one cell a field, "
    "feature (n, 9) and label (n, 1) of 0 and 1; it comes with the publications on multi-task "
    "learning that use it"
)
KEY = "objective.root"
NUM_FOLDS = 5


@dataclass(frozen=True, eq=False)
class Field:
    """One field's halves.

    Attributes
    ----------
    features, labels : ndarray, shapes (n, 9) and (n,)
        To train on.
    held_out, held_out_labels : ndarray, shapes (m, 9) and (m,)
        To score on.
    distances : ndarray, shape (m, n)
        Squared distances of the second half's records from the first's.
    """

    features: Array
    labels: Labels
    held_out: Array
    held_out_labels: Labels
    distances: Array


class Landmine(Objective):
    """Validation AUC of a field's machine as a function of C and gamma.

    Parameters
    ----------
    settings : LandmineSettings
    seed : int
        Of the folds of Platt scaling; the halves are the published ones whatever it is.

    Raises
    ------
    DataError
        If the file is missing or damaged.
    """

    def __init__(self, settings: LandmineSettings, seed: int) -> None:
        self._fields = [_split(*cells) for cells in read_fields(settings.root)]
        super().__init__(settings.space(), len(self._fields), (0.0, 1.0))
        self._is_scaled = settings.scores == "platt"
        self._randomness = Randomness("seeded", seed)

    def evaluate(self, agent: int, point: Mapping[str, AxisValue], trial: int = 0) -> float:  # noqa: D102
        from sklearn import config_context
        from sklearn.svm import SVC

        field, gamma = self._fields[agent], float(point["gamma"])
        machine = SVC(C=float(point["C"]), gamma=gamma)
        # The data were checked when they were read; to check them each time takes a tenth of it.
        with config_context(assume_finite=True, skip_parameter_validation=True):
            if self._is_scaled:
                return self._score_scaled(machine, field, agent, trial)
            machine.fit(field.features, field.labels)
        # Its decision_function computes the distances anew, in ten times the time.
        kernel = np.exp(-gamma * field.distances[:, machine.support_])
        decisions = kernel @ machine.dual_coef_[0] + machine.intercept_[0]
        return area_under_curve(field.held_out_labels, decisions)

    def _score_scaled(self, machine: object, field: Field, agent: int, trial: int) -> float:
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.model_selection import KFold

        seed = int(self._randomness.stream("folds", agent, trial).half_words(1)[0])
        folds = KFold(NUM_FOLDS, shuffle=True, random_state=seed)
        scaled = CalibratedClassifierCV(machine, method="sigmoid", ensemble=False, cv=folds)
        scaled.fit(field.features, field.labels)
        probabilities = scaled.predict_proba(field.held_out)[:, 1]
        return area_under_curve(field.held_out_labels, probabilities)


def area_under_curve(labels: Labels, scores: Array) -> float:
    """Return the probability that a positive outranks a negative, ties counting half.

    Parameters
    ----------
    labels : ndarray of int64, shape (n,)
        0 and 1, both present.
    scores : ndarray of float64, shape (n,)
    """
    # scikit-learn's takes ten times as long for so few.
    ranks = stats.rankdata(scores)
    positives = int(labels.sum())
    pairs = positives * (len(labels) - positives)
    return float((ranks[labels == 1].sum() - positives * (positives + 1) / 2) / pairs)


def read_fields(root: str | None) -> list[tuple[Array, Labels]]:
    """Read each field's features (n, d) and labels (n,).

    Raises
    ------
    DataError
        If the file is missing, damaged or of other arrays. The message quotes no value.
    """
    (path,) = require_files(root, (FILE,), "landmine", HOW_TO_GET, KEY)
    try:
        content = io.loadmat(path, variable_names=("feature", "label"))
        cells = [content[key].ravel() for key in ("feature", "label")]
    # SciPy says in many ways that a file is damaged.
    except (
        *(OSError, ValueError, TypeError, KeyError, NotImplementedError, MemoryError),
        *(IndexError, AttributeError, OverflowError, struct.error, zlib.error),
        io.matlab.MatReadError,
    ) as error:
        raise _refuse(path, f"cannot be read ({type(error).__name__})") from error
    if not len(cells[0]) or len(cells[0]) != len(cells[1]):
        raise _refuse(path, f"{len(cells[0])} cells of features, {len(cells[1])} of labels")
    fields = [
        _check_field(path, number, *each) for number, each in enumerate(zip(*cells, strict=True))
    ]
    widths = {features.shape[1] for features, _ in fields}
    if len(widths) > 1:
        raise _refuse(path, f"fields with {', '.join(map(str, sorted(widths)))} features")
    return fields


def _check_field(path: Path, number: int, features: object, labels: object) -> tuple[Array, Labels]:
    place = f"field {number}"
    if not isinstance(features, np.ndarray) or not isinstance(labels, np.ndarray):
        raise _refuse(path, f"{place} is no array")
    if features.dtype.kind not in "fiu" or features.ndim != 2 or not features.shape[1]:
        raise _refuse(path, f"{place}, feature: {features.dtype} of shape {features.shape}")
    flat = labels.ravel()
    if flat.dtype.kind not in "fiu" or flat.shape != features.shape[:1]:
        raise _refuse(path, f"{place}, label: {labels.dtype} of shape {labels.shape}")
    if not np.isfinite(features).all() or not np.isin(flat, (0, 1)).all():
        raise _refuse(path, f"{place} has features that are not finite, or labels not 0 or 1")
    classes = flat.astype(np.int64)
    if min(int(classes.sum()), len(classes) - int(classes.sum())) < 2:
        raise _refuse(path, f"{place} has fewer than 2 records of a class")
    return features.astype(np.float64), classes


def _split(features: Array, labels: Labels) -> Field:
    from sklearn.model_selection import train_test_split

    train, held_out, train_labels, held_out_labels = train_test_split(
        features, labels, test_size=0.5, stratify=labels, random_state=0
    )
    distances = cdist(held_out, train, "sqeuclidean")
    return Field(train, train_labels, held_out, held_out_labels, distances)


def _refuse(path: Path, reason: str) -> DataError:
    return DataError(f"{KEY}: {path}, {reason}. {HOW_TO_GET}")
