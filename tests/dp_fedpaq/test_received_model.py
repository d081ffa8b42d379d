"""The received model: parsed once, compared by its bytes, and safe from those who share it."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from strategies.dp_fedpaq.messages import MessageError, model_arrays, model_record
from strategies.dp_fedpaq.received_model import receive_model
from strategies.mechanisms.layout import ArrayLayout

models = st.dictionaries(
    st.sampled_from("abc"),
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    | hnp.arrays(np.float64, 2)
    | hnp.arrays(np.int64, 2),
    min_size=1,
)


@given(first=models, second=models)
def test_every_model_is_parsed_as_if_it_were_the_only_one(first: dict, second: dict) -> None:
    for arrays in (first, second, first, second, second):
        record = model_record(arrays)
        received = receive_model(record)
        expected = model_arrays(record)
        assert list(received.arrays) == list(expected)
        for name, array in expected.items():
            assert received.arrays[name].dtype == array.dtype
            assert np.array_equal(received.arrays[name], array, equal_nan=array.dtype.kind == "f")
        assert received.layout == ArrayLayout.of(expected)
        vector = received.layout.flatten(expected)
        assert np.array_equal(received.vector, vector, equal_nan=True)
        assert received.is_finite == np.isfinite(vector).all()


def test_the_same_bytes_are_parsed_once() -> None:
    arrays = {"w": np.arange(3.0, dtype=np.float32)}
    received = receive_model(model_record(arrays))
    assert receive_model(model_record(arrays)) is received
    assert receive_model(model_record({"w": arrays["w"] + 1})) is not received


@pytest.mark.parametrize(
    "other", [{"v": np.zeros(3)}, {"w": np.zeros((3, 1))}, {"w": -np.zeros(3)}]
)
def test_a_name_a_shape_or_a_sign_makes_another_model(other: dict) -> None:
    assert receive_model(model_record({"w": np.zeros(3)})) is not receive_model(model_record(other))


def test_a_record_that_is_changed_later_is_another_model() -> None:
    record = model_record({"w": np.zeros(2)})
    receive_model(record)
    record["w"].data = Array(np.ones(2)).data
    assert np.array_equal(receive_model(record).vector, np.ones(2))


def test_shared_arrays_are_read_only_and_copies_are_not() -> None:
    received = receive_model(model_record({"w": np.zeros(2), "n": np.zeros(1, dtype=np.int64)}))
    for array in (*received.arrays.values(), received.vector):
        assert not array.flags.writeable
    copies = received.copy_arrays()
    for array in copies.values():
        array += 1
    assert np.array_equal(received.arrays["w"], np.zeros(2))
    assert np.array_equal(received.arrays["n"], np.zeros(1))


def test_a_bad_array_does_not_disturb_the_model_that_is_kept() -> None:
    record = model_record({"w": np.zeros(2)})
    received = receive_model(record)
    with pytest.raises(MessageError):
        receive_model(ArrayRecord({"w": Array("float64", (2,), "numpy.ndarray", b"damaged")}))
    assert receive_model(record) is received
