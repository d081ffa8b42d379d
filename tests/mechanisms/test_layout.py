import numpy as np
import pytest

from strategies.mechanisms.layout import ArrayLayout

ARRAYS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scale": np.array(7.0, dtype=np.float64),
    "empty": np.zeros((0, 4), dtype=np.float32),
    "half": np.array([1.5, 2.5], dtype=np.float16),
    "steps": np.array(3, dtype=np.int64),
    "mask": np.array([True, False]),
}


def test_every_float_array_has_its_place_once() -> None:
    layout = ArrayLayout.of(ARRAYS)
    assert layout.names == ("empty", "half", "scale", "w")
    assert layout.num_parameters == 9
    vector = layout.flatten(ARRAYS)
    assert vector.tolist() == [1.5, 2.5, 7.0, 0, 1, 2, 3, 4, 5]
    assert vector.dtype == np.float64
    back = layout.unflatten(vector)
    for name in layout.names:
        assert back[name].dtype == ARRAYS[name].dtype
        assert back[name].shape == ARRAYS[name].shape
        assert np.array_equal(back[name], ARRAYS[name])


def test_the_order_does_not_depend_on_the_mapping() -> None:
    backwards = dict(reversed(ARRAYS.items()))
    assert ArrayLayout.of(backwards) == ArrayLayout.of(ARRAYS)


def test_a_model_without_floats_is_an_empty_vector() -> None:
    layout = ArrayLayout.of({"n": np.array(1)})
    assert layout.flatten({"n": np.array(2)}).shape == (0,)
    assert layout.unflatten(np.zeros(0)) == {}


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="'z' of type complex128"):
        ArrayLayout.of({"z": np.array(1j)})


@pytest.mark.parametrize(
    "arrays",
    [
        {"a": np.zeros(2), "b": np.zeros(1)},
        {"b": np.zeros(2)},
        {"a": np.zeros(3)},
        {"a": np.zeros(2, dtype=np.int64)},
        {},
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays: dict[str, np.ndarray]) -> None:
    layout = ArrayLayout.of({"a": np.zeros(2)})
    with pytest.raises(ValueError, match="allowed"):
        layout.flatten(arrays)
    with pytest.raises(ValueError, match="allowed"):
        layout.subtract(arrays, np.zeros(2))


def test_a_vector_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="vector of shape"):
        ArrayLayout.of({"a": np.zeros(2)}).unflatten(np.zeros(3))


@pytest.mark.parametrize("order", ["C", "F"])
def test_subtracting_is_flattening_and_then_subtracting(order: str) -> None:
    rng = np.random.default_rng(0)
    kinds = {"half": np.float16, "single": np.float32, "double": np.float64}
    arrays = {
        name: np.asarray(rng.normal(size=(3, 4)).astype(kind), order=order)
        for name, kind in kinds.items()
    }
    arrays |= {"scalar": np.array(0.1, dtype=np.float32), "empty": np.zeros((0, 2))}
    layout = ArrayLayout.of(arrays)
    vector = rng.normal(size=layout.num_parameters)
    before = vector.copy()
    difference = layout.subtract(arrays, vector)
    assert difference.dtype == np.float64
    assert np.array_equal(difference, layout.flatten(arrays) - vector)
    assert np.array_equal(vector, before)
