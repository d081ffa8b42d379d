"""Heart disease: what becomes of each column, missing values, damage, and the real files."""

import numpy as np
import pytest

from fl_app.data import DataError, DataSettings, PartitionSettings, load_dataset
from fl_app.data.heart_disease import COLUMNS, FEATURES, FILES, HOSPITALS, read_heart_disease
from tests.conftest import SHARED_DATA

REAL = SHARED_DATA / "heart-disease"
WHOLE = "50,1,2,140,250,1,2,120,1,2.5,3,2,7,3"
SPARSE = "60,0,4,?,?,?,?,?,?,?,?,?,?,0"
# Rows of each hospital: healthy and ill by turns, ages tell the rows apart.
SIZES = (10, 20, 30, 40)


def make_line(age: int, /, **changes: str) -> str:
    values = dict(zip(COLUMNS, WHOLE.split(","), strict=True))
    values.update({"age": str(age), "num": str(age % 2), **changes})
    return ",".join(values.values())


@pytest.fixture
def folder(tmp_path):
    for name, size in zip(FILES, SIZES, strict=True):
        lines = [make_line(30 + row) for row in range(size)]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="ascii")
    return tmp_path


def read_features(folder, *lines: str) -> list[dict[str, float]]:
    """Put lines in place of the first hospital's and return their features by name."""
    assert len(lines) % 2 == 0
    (folder / FILES[0]).write_text("\n".join(lines), encoding="ascii")
    raw = read_heart_disease(str(folder), 0.5)
    of_first = raw.train.features[raw.train_groups == 0]
    return [dict(zip(FEATURES, map(float, row), strict=True)) for row in of_first]


def test_every_column_becomes_what_the_table_says(folder):
    # Half are held out: of two pairs of equal rows one each remains.
    (row, *_) = read_features(folder, *[WHOLE] * 2, *[make_line(30, num="0")] * 2)
    expected = dict.fromkeys(FEATURES, 0.0)
    expected |= {"age": 0, "trestbps": 1, "chol": 1, "thalach": -1, "oldpeak": 2.5, "ca": 2}
    expected |= {"sex": 1, "fbs": 1, "exang": 1}
    expected |= {"cp=2": 1, "restecg=2": 1, "slope=3": 1, "thal=7": 1}
    assert row == expected


def test_what_is_missing_is_flagged_and_becomes_the_reference(folder):
    rows = read_features(folder, *[SPARSE] * 2, *[make_line(30, num="1")] * 2)
    row = rows[0] if rows[0]["age"] == 1 else rows[1]
    flags = {name for name in FEATURES if name.endswith(" missing")}
    assert {name.removesuffix(" missing") for name in flags} == set(COLUMNS) - {
        *("age", "sex", "cp", "num")
    }
    expected = {"age": 1.0, "cp=4": 1.0, **dict.fromkeys(flags, 1.0)}
    assert row == dict.fromkeys(FEATURES, 0.0) | expected


@pytest.mark.parametrize("column", ["chol", "trestbps"])
def test_a_value_of_zero_is_missing_where_nobody_can_have_it(folder, column):
    rows = read_features(folder, *[make_line(30, **{column: "0"})] * 2, *[make_line(31)] * 2)
    found = {row[f"{column} missing"]: row[column] for row in rows}
    assert found == {1.0: 0.0, 0.0: 1.0}


def test_zeros_elsewhere_are_values(folder):
    zeros = {"ca": "0", "oldpeak": "0.0", "exang": "0", "fbs": "0", "restecg": "0"}
    rows = read_features(folder, *[make_line(30, **zeros)] * 2, *[make_line(31, **zeros)] * 2)
    assert all(row[f"{name} missing"] == 0 for row in rows for name in zeros)
    assert all(row["restecg=0"] == 1 for row in rows)


@pytest.mark.parametrize("num", ["1", "2", "3", "4"])
def test_every_degree_of_disease_is_label_one(folder, num):
    lines = [make_line(30, num="0")] * 2 + [make_line(31, num=num)] * 2
    read_features(folder, *lines)
    raw = read_heart_disease(str(folder), 0.5)
    assert raw.train.labels[raw.train_groups == 0].tolist() == [0, 1]


def test_each_hospital_gives_its_share_of_the_test_set(folder):
    raw = read_heart_disease(str(folder), 0.2)
    assert np.bincount(raw.train_groups).tolist() == [8, 16, 24, 32]
    assert raw.group_names == HOSPITALS
    assert np.bincount(raw.test.labels).tolist() == [10, 10]
    ages = raw.test.features[:, FEATURES.index("age")] * 10 + 50
    labels = np.rint(ages).astype(int) % 2
    assert np.array_equal(raw.test.labels, labels)


def test_the_file_decides_the_hospital(folder):
    (folder / FILES[2]).write_text("\n".join([make_line(30), make_line(31)] * 2), encoding="ascii")
    raw = read_heart_disease(str(folder), 0.5)
    assert np.bincount(raw.train_groups).tolist() == [5, 10, 2, 20]


DAMAGE = {
    "a word": (make_line(30, chol="high"), "chol is no number"),
    "nan": (make_line(30, chol="nan"), "chol is no number"),
    "infinity": (make_line(30, oldpeak="-inf"), "oldpeak is no number"),
    "nothing": (make_line(30, thalach=""), "thalach is no number"),
    "no age": (make_line(30, age="?"), "age is missing"),
    "no diagnosis": (make_line(30, num="?"), "num is missing"),
    "another category": (make_line(30, thal="5"), "thal is none of 3, 6, 7"),
    "another truth": (make_line(30, sex="2"), "sex is none of 0, 1"),
    "another degree": (make_line(30, num="5"), "num is none of 0, 1, 2, 3, 4"),
    "half a vessel": (make_line(30, ca="1.5"), "ca is none of 0, 1, 2, 3"),
    "fewer columns": ("1,2,3", "3 columns; 14"),
    "a header": (",".join(COLUMNS), "age is no number"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_lines_are_named_without_the_value(folder, damage):
    line, message = DAMAGE[damage]
    path = folder / FILES[3]
    path.write_text(f"{make_line(30)}\n\n{line}\n", encoding="ascii")
    with pytest.raises(DataError, match=rf"^data\.root: .*{FILES[3]}, line 3: {message}") as error:
        read_heart_disease(str(folder))
    assert "high" not in str(error.value)


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xff\xfe1,2"])
def test_empty_and_unreadable_files_are_named(folder, data):
    (folder / FILES[1]).write_bytes(data)
    with pytest.raises(DataError, match=f"{FILES[1]} (is empty|cannot be read).*data set 45"):
        read_heart_disease(str(folder))


def test_a_hospital_too_small_to_divide_is_refused(folder):
    (folder / FILES[0]).write_text("\n".join([make_line(30)] * 5 + [make_line(31)]))
    with pytest.raises(DataError, match=r"data\.test_fraction"):
        read_heart_disease(str(folder))


def test_missing_data_say_how_to_get_them(tmp_path):
    with pytest.raises(DataError, match=r"data\.root: null.*data set 45"):
        read_heart_disease(None)
    with pytest.raises(DataError, match=r"absent' is not a folder"):
        read_heart_disease(str(tmp_path / "absent"))
    (tmp_path / FILES[1]).write_text(WHOLE)
    with pytest.raises(DataError, match=rf"lacks {FILES[0]}, {FILES[2]}, {FILES[3]}\. .*45"):
        read_heart_disease(str(tmp_path))


@pytest.mark.skipif(not REAL.is_dir(), reason="heart disease is not in ../shared/data")
def test_the_real_files():
    settings = DataSettings(
        *("heart_disease", str(REAL), 1.0, 0.0, PartitionSettings("natural_id"))
    )
    dataset = load_dataset(settings, None, 0)
    # 303, 294, 123 and 200 patients, of whom the description counts 164, 188, 8 and 51 healthy.
    assert dataset.partition_sizes().tolist() == [242, 235, 98, 160]
    assert (len(dataset.train), len(dataset.test)) == (735, 185)
    healthy = [int((dataset.partition(index).labels == 0).sum()) for index in range(4)]
    assert sum(healthy) + int((dataset.test.labels == 0).sum()) == 164 + 188 + 8 + 51
    assert dataset.num_classes == 2
    whole = np.concatenate([dataset.train.features, dataset.test.features])
    missing = {
        name.removesuffix(" missing"): int(whole[:, place].sum())
        for place, name in enumerate(FEATURES)
        if name.endswith("missing")
    }
    # "?" in each column, counted by awk; 172 cholesterols and one pressure of 0 beside them.
    assert missing == {
        **{"trestbps": 59 + 1, "chol": 30 + 172, "fbs": 90, "restecg": 2, "thalach": 55},
        **{"exang": 55, "oldpeak": 62, "slope": 309, "ca": 611, "thal": 486},
    }
    switzerland = dataset.partition(2).features
    assert switzerland[:, FEATURES.index("chol missing")].all()
    assert np.abs(whole).max() < 10
