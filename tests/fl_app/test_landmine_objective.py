"""Landmine detection: the published halves and areas, and every kind of damage to the file."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import io
from sklearn import model_selection
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from fl_app.data import DataError
from fl_app.objectives import LandmineSettings, load_objective, observe
from fl_app.objectives.landmine import FILE, Landmine, area_under_curve, read_fields
from tests.conftest import SHARED_DATA

REAL = SHARED_DATA / "landmine"
needs_data = pytest.mark.skipif(not REAL.is_dir(), reason="landmine is not in ../shared/data")


def make_cells(num_fields: int = 3) -> dict[str, np.ndarray]:
    """Make fields whose classes differ by a shift of the first feature."""
    rng = np.random.default_rng(0)
    cells = {key: np.empty((1, num_fields), dtype=object) for key in ("feature", "label")}
    for field in range(num_fields):
        labels = (np.arange(40 + 2 * field) % 4 == 0).astype(np.uint8)
        features = rng.normal(size=(len(labels), 9))
        features[:, 0] += 4.0 * labels
        cells["feature"][0, field], cells["label"][0, field] = features, labels[:, None]
    return cells


@pytest.fixture
def write(tmp_path):
    def save(cells: dict[str, np.ndarray]) -> str:
        io.savemat(tmp_path / FILE, cells)
        return str(tmp_path)

    return save


def score_plainly(features, labels, c: float, gamma: float) -> float:
    """Score as scikit-learn does it: written without the program's own code."""
    halves = train_test_split(features, labels, test_size=0.5, stratify=labels, random_state=0)
    machine = SVC(kernel="rbf", C=c, gamma=gamma).fit(halves[0], halves[2].ravel())
    return float(roc_auc_score(halves[3].ravel(), machine.decision_function(halves[1])))


@needs_data
def test_the_areas_are_those_of_scikit_learn():
    content = io.loadmat(REAL / FILE)
    objective = load_objective(LandmineSettings("landmine", str(REAL)), 0)
    assert objective.num_agents == 29
    for field in (0, 9, 28):
        for c, gamma in ((1e-4, 1e-2), (10.0, 10.0), (1.0, 0.1), (5.0, 2.5)):
            expected = score_plainly(
                content["feature"][0, field], content["label"][0, field], c, gamma
            )
            area = objective.evaluate(field, {"C": c, "gamma": gamma})
            # decision values that are equal but for rounding may be ranked otherwise
            assert area == pytest.approx(expected, abs=1e-3)
            assert 0.0 < area < 1.0


@needs_data
def test_the_real_file():
    fields = read_fields(str(REAL))
    assert len(fields) == 29
    assert {features.shape[1] for features, _ in fields} == {9}
    assert sum(len(labels) for _, labels in fields) == 14_820
    assert sum(int(labels.sum()) for _, labels in fields) == 904


@needs_data
def test_platt_scaling_reverses_some_rankings_and_is_a_function_of_the_trial():
    ranked, scaled = (
        load_objective(LandmineSettings("landmine", str(REAL), scores=scores), 0)
        for scores in ("decision", "platt")
    )
    point = {"C": 3.0, "gamma": 4.0}
    areas = [scaled.evaluate(9, point, trial) for trial in range(12)]
    assert [scaled.evaluate(9, point, trial) for trial in range(12)] == areas
    area = ranked.evaluate(9, point, 0)
    assert area == ranked.evaluate(9, point, 1)
    assert abs(area - 0.5) > 0.01
    # up to ties of probabilities
    kept = [abs(each - area) < 5e-3 for each in areas]
    reversed_ = [abs(each - (1 - area)) < 5e-3 for each in areas]
    assert all(one != other for one, other in zip(kept, reversed_, strict=True))


def test_halves_are_the_published_ones_whatever_the_seed(write):
    cells = make_cells()
    root = write(cells)
    one, other = (Landmine(LandmineSettings("landmine", root), seed) for seed in (0, 1))
    for field in range(3):
        features, labels = cells["feature"][0, field], cells["label"][0, field]
        expected = train_test_split(
            features, labels, test_size=0.5, stratify=labels, random_state=0
        )
        for objective in (one, other):
            found = objective._fields[field]
            assert np.array_equal(found.features, expected[0])
            assert np.array_equal(found.held_out, expected[1])
            assert np.array_equal(found.labels, expected[2].ravel())
            assert np.array_equal(found.held_out_labels, expected[3].ravel())
            assert abs(2 * int(found.labels.sum()) - int(labels.sum())) <= 1
    assert one.evaluate(1, {"C": 1.0, "gamma": 0.1}) == other.evaluate(1, {"C": 1.0, "gamma": 0.1})


def test_separable_fields_have_large_areas_on_either_score(write):
    root = write(make_cells())
    for scores in ("decision", "platt"):
        objective = Landmine(LandmineSettings("landmine", root, scores=scores), 0)
        areas = [observe(objective, field, {"C": 1.0, "gamma": 0.1}) for field in range(3)]
        assert all(area.value > 0.9 and not area.failed for area in areas)


def test_folds_of_platt_scaling_are_fresh_in_every_trial_of_every_agent(write, monkeypatch):
    root, drawn = write(make_cells()), []

    class Recorded(model_selection.KFold):
        def __init__(self, n_splits, *, shuffle, random_state):
            drawn.append((n_splits, shuffle, random_state))
            super().__init__(n_splits, shuffle=shuffle, random_state=random_state)

    monkeypatch.setattr(model_selection, "KFold", Recorded)
    for seed in (0, 1):
        objective = Landmine(LandmineSettings("landmine", root, scores="platt"), seed)
        for agent, trial in ((0, 0), (0, 1), (1, 0), (1, 1)):
            objective.evaluate(agent, {"C": 1.0, "gamma": 0.5}, trial)
    assert len(set(drawn)) == len(drawn) == 8
    assert {each[:2] for each in drawn} == {(5, True)}
    again = Landmine(LandmineSettings("landmine", root, scores="platt"), 0)
    again.evaluate(1, {"C": 3.0, "gamma": 0.1}, 1)
    assert drawn[-1] == drawn[3]


def test_axes_are_linear_or_logarithmic_over_the_same_bounds(write):
    root = write(make_cells())
    middle = np.full(2, 0.5)
    linear, log = (
        Landmine(LandmineSettings("landmine", root, axes=axes), 0) for axes in ("linear", "log")
    )
    assert linear.space.decode(middle) == pytest.approx({"C": 5.00005, "gamma": 5.005})
    assert log.space.decode(middle) == pytest.approx({"C": 10**-1.5, "gamma": 10**-0.5})
    for objective in (linear, log):
        assert objective.space.decode(np.zeros(2)) == {"C": 1e-4, "gamma": 1e-2}
        assert objective.space.decode(np.ones(2)) == {"C": 10.0, "gamma": 10.0}
        assert objective.value_range == (0.0, 1.0)
        assert objective.num_agents == 3


@given(
    labels=st.lists(st.booleans(), min_size=2, max_size=40).filter(lambda x: len(set(x)) == 2),
    data=st.data(),
)
def test_the_area_is_that_of_scikit_learn(labels, data):
    scores = data.draw(
        st.lists(st.integers(-3, 3), min_size=len(labels), max_size=len(labels)), label="scores"
    )
    flags = np.array(labels, dtype=np.int64)
    numbers = np.array(scores, dtype=np.float64)
    assert area_under_curve(flags, numbers) == pytest.approx(
        roc_auc_score(flags, numbers), abs=1e-12
    )


def change(key, value, field=1):
    cells = make_cells()
    cells[key][0, field] = value
    return cells


GOOD = make_cells()
FEATURES, LABELS = GOOD["feature"][0, 1], GOOD["label"][0, 1]
DAMAGE = {
    "one array for all": ({**GOOD, "label": np.zeros((3, 4))}, "3 cells of features, 12 of labels"),
    "no cells": (
        {"feature": np.empty((1, 0), object), "label": np.empty((1, 0), object)},
        "0 cells",
    ),
    "text": (change("feature", "text"), "field 1, feature: <U"),
    "one dimension of labels too many": (
        change("label", np.zeros((42, 2))),
        "field 1, label: float64",
    ),
    "fewer labels": (change("label", LABELS[1:]), r"field 1, label: uint8 of shape \(41, 1\)"),
    "complex features": (change("feature", FEATURES * 1j), "field 1, feature: complex128"),
    "not finite": (
        change("feature", FEATURES * np.inf),
        "field 1 has features that are not finite",
    ),
    "label 2": (
        change("label", LABELS * 2),
        "field 1 has features that are not finite, or labels not 0 or 1",
    ),
    "one class": (change("label", LABELS * 0), "field 1 has fewer than 2 records of a class"),
    "eight features": (change("feature", FEATURES[:, :8]), "fields with 8, 9 features"),
    "an array missing": ({"feature": GOOD["feature"]}, r"cannot be read \(KeyError\)"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_other_arrays_are_refused(write, damage):
    cells, message = DAMAGE[damage]
    root = write(cells)
    with pytest.raises(DataError, match=rf"^objective\.root: .*{FILE}, {message}.*MATLAB"):
        read_fields(root)


@pytest.mark.parametrize("cut", [0, 10, 127, 128, 200, -60, -500])
def test_a_truncated_file_is_refused(write, tmp_path, cut):
    write(GOOD)
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=rf"{FILE}, cannot be read"):
        read_fields(str(tmp_path))


def test_a_missing_file_says_how_to_get_it(tmp_path):
    for root, message in (
        (None, "null"),
        (str(tmp_path), f"lacks {FILE}"),
        ("nowhere", "no.*folder"),
    ):
        with pytest.raises(DataError, match=rf"^objective\.root: .*{message}.*MATLAB"):
            load_objective(LandmineSettings("landmine", root), 0)


def test_a_point_that_cannot_be_evaluated_is_a_failed_observation(write):
    objective = Landmine(LandmineSettings("landmine", write(make_cells())), 0)
    objective._fields[0].features[:] = math.nan
    assert observe(objective, 0, {"C": 1.0, "gamma": 1.0}).failed


def test_a_relative_folder_is_that_of_the_call(tmp_path, monkeypatch):
    settings = LandmineSettings("landmine", "data")
    for num_fields in (2, 3):
        folder = tmp_path / str(num_fields)
        (folder / "data").mkdir(parents=True)
        io.savemat(folder / "data" / FILE, make_cells(num_fields))
        monkeypatch.chdir(folder)
        assert load_objective(settings, 0).num_agents == num_fields
