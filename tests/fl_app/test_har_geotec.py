"""Activity windows: within one execution, nobody in both sets, damage, and the real file."""

import numpy as np
import pytest

from fl_app.data import DataError, DataSettings, PartitionSettings, load_dataset
from fl_app.data.har_geotec import ACTIVITIES, FILE, read_har_geotec
from tests.conftest import SHARED_DATA

REAL = SHARED_DATA / "har-geotec"
# Subject, execution and rows of each recording: the second one ends where the third, by the same
# subject, begins; the third and fourth share their execution's number.
RUNS = [(1, 1, 10), (2, 1, 9), (2, 2, 12), (4, 2, 8), (7, 1, 3)]


def make_arrays() -> dict[str, np.ndarray]:
    rows = sum(size for _, _, size in RUNS)
    x = np.arange(rows, dtype=np.float32)[:, None] + np.arange(6, dtype=np.float32) / 8
    subject, execution = (np.repeat([run[i] for run in RUNS], [r[2] for r in RUNS]) for i in (0, 1))
    return {
        **{"x": x, "y": (np.arange(rows) // 5 % 5).astype(np.int8)},
        **{"subject": subject.astype(np.int16), "execution": execution.astype(np.int16)},
    }


def read(folder, window: int = 4, stride: int = 3, num_test: int = 1, **changes: np.ndarray):
    np.savez_compressed(folder / FILE, **{**make_arrays(), **changes})
    return read_har_geotec(str(folder), window, stride, num_test)


def list_rows(records) -> list[list[int]]:
    """Return the row numbers of each window, from the first axis of acceleration."""
    return np.rint(records.features[:, 0] * 9.80665).astype(int).tolist()


def test_windows_lie_within_one_execution_of_one_subject(tmp_path):
    raw = read(tmp_path)
    assert list_rows(raw.train) == [
        *([0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]),
        *([10, 11, 12, 13], [13, 14, 15, 16]),
        *([19, 20, 21, 22], [22, 23, 24, 25], [25, 26, 27, 28]),
    ]
    assert list_rows(raw.test) == [[31, 32, 33, 34], [34, 35, 36, 37]]
    assert raw.train_groups.tolist() == [1, 1, 1, 2, 2, 2, 2, 2]


def test_channels_are_scaled_by_public_units(tmp_path):
    first = read(tmp_path).train.features[0]
    assert first.shape == (6, 4)
    stored = make_arrays()["x"][:4].T
    assert np.allclose(first[:3] * 9.80665, stored[:3], rtol=1e-6)
    assert np.array_equal(first[3:], stored[3:])


def test_a_window_has_the_label_of_most_of_its_rows(tmp_path):
    labels = np.array([3] * 4 + [2, 2, 2, 1] + [4, 4, 1, 1] + [0] * 30, dtype=np.int8)
    raw = read(tmp_path, stride=4, y=labels)
    assert raw.train.labels[:2].tolist() == [3, 2]
    labels[:4] = [4, 1, 4, 1]
    assert read(tmp_path, stride=4, y=labels).train.labels[0] == 1


def test_nobody_is_in_both_sets(tmp_path):
    raw = read(tmp_path, num_test=2)
    assert set(raw.train_groups.tolist()) == {1, 4}
    assert list_rows(raw.test)[0] == [10, 11, 12, 13]
    assert len(raw.test) == 5


def test_a_window_as_long_as_a_recording_is_one_record(tmp_path):
    raw = read(tmp_path, window=8, stride=100)
    assert list_rows(raw.test) == [list(range(31, 39))]
    assert [rows[0] for rows in list_rows(raw.train)] == [0, 10, 19]


@pytest.mark.parametrize(("window", "side"), [(9, "test"), (13, "test")])
def test_windows_longer_than_the_recordings_are_refused(tmp_path, window, side):
    with pytest.raises(DataError, match=rf"data\.window: {window}; no windows .* {side} set"):
        read(tmp_path, window=window)


def test_somebody_must_be_left_to_train(tmp_path):
    with pytest.raises(DataError, match=r"data\.num_test_subjects: 4; 1 to 3 of 4"):
        read(tmp_path, num_test=4)
    # The second of two is held out; the first has the recording of three rows alone.
    subject = np.where(make_arrays()["subject"] == 7, 1, 7)
    with pytest.raises(DataError, match="no windows are left for the training set"):
        read(tmp_path, subject=subject)


X = make_arrays()["x"]
DAMAGE = {
    "float64": ({"x": X.astype(np.float64)}, r"x: float64 .*float32 .*\(rows, 6\)"),
    "five channels": ({"x": X[:, :5]}, r"x: .*\(42, 5\)"),
    "one dimension": ({"x": X[:, 0]}, r"x: .*\(42,\)"),
    "not finite": ({"x": np.where(X == 5, np.nan, X).astype(np.float32)}, "x: .*not finite"),
    "other lengths": ({"y": np.zeros(41, np.int8)}, r"y: int8 of shape \(41,\); .*\(42,\)"),
    "labels that are no integers": ({"y": np.zeros(42)}, "y: float64"),
    "label 5": ({"y": np.full(42, 5)}, "y: labels outside 0 to 4"),
    "label -1": ({"y": np.full(42, -1, np.int8)}, "y: labels outside"),
    "subjects as text": ({"subject": np.full(42, "s01")}, "subject: <U3"),
    "pickled objects": ({"y": np.array([None] * 42)}, r"cannot be read \(ValueError\)"),
    "no rows": ({key: value[:0] for key, value in make_arrays().items()}, "no rows"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_other_arrays_are_refused_by_name(tmp_path, damage):
    changes, message = DAMAGE[damage]
    with pytest.raises(DataError, match=rf"^data\.root: .*{FILE}.*{message}"):
        read(tmp_path, **changes)


def test_a_missing_array_is_refused(tmp_path):
    arrays = make_arrays()
    del arrays["execution"]
    np.savez(tmp_path / FILE, **arrays)
    with pytest.raises(DataError, match=r"cannot be read \(KeyError\).*Zenodo"):
        read_har_geotec(str(tmp_path))


@pytest.mark.parametrize("cut", [0, 3, 100, 600, -1, -30])
def test_a_truncated_file_is_refused(tmp_path, cut):
    read(tmp_path)
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=f"{FILE} cannot be read"):
        read_har_geotec(str(tmp_path), 4)


def test_corrupted_bytes_are_refused_or_change_nothing(tmp_path):
    """Wherever one byte is changed: a named error, or fields that the reader does not use."""
    whole = read(tmp_path)
    path = tmp_path / FILE
    good = path.read_bytes()
    messages = []
    positions = range(0, len(good), 7)
    for position in positions:
        data = bytearray(good)
        data[position] ^= 0xFF
        path.write_bytes(data)
        try:
            raw = read_har_geotec(str(tmp_path), 4, 3, 1)
        except DataError as error:
            messages.append(str(error))
        else:
            assert np.array_equal(raw.train.features, whole.train.features)
    assert all(FILE in message for message in messages)
    assert len(messages) > len(positions) / 2


def test_a_plain_array_in_its_place_is_refused(tmp_path):
    with (tmp_path / FILE).open("wb") as file:
        np.save(file, X)
    with pytest.raises(DataError, match=f"{FILE} cannot be read"):
        read_har_geotec(str(tmp_path))


def test_missing_data_say_how_to_get_them(tmp_path):
    for root, message in ((None, "data.root: null"), (str(tmp_path), f"lacks {FILE}")):
        with pytest.raises(DataError, match=f"{message}.*8398688.*subject, execution"):
            read_har_geotec(root)


@pytest.mark.skipif(not REAL.is_dir(), reason="har-geotec is not in ../shared/data")
def test_the_real_file():
    settings = DataSettings("har_geotec", str(REAL), 1.0, 0.0, PartitionSettings("natural_id"))
    dataset = load_dataset(settings, None, 0)
    assert (len(dataset.train), len(dataset.test)) == (2842, 872)
    assert dataset.feature_shape == (6, 128)
    # Counted by a plain loop over the 223 recordings: all windows, and those of each person.
    both = np.bincount(dataset.train.labels) + np.bincount(dataset.test.labels)
    assert both.tolist() == [244, 431, 1806, 803, 430]
    assert len(ACTIVITIES) == dataset.num_classes == 5
    assert dataset.partition_sizes().tolist() == [
        *(100, 161, 160, 150, 196, 167, 157, 160, 164),
        *(145, 187, 136, 168, 184, 162, 166, 137, 142),
    ]
    assert len(dataset.test) == 145 + 196 + 172 + 181 + 178  # subjects 3, 7, 12, 17 and 21
