"""Arrays of a model: nothing lost, nothing shared, nothing accepted that does not fit."""

import errno
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from fl_app.model_arrays import load_arrays, to_arrays
from fl_app.model_files import load_model_file, save_model, sha256_of_arrays


class Odd(nn.Module):
    """State of every allowed kind: 0-d, empty, tied, frozen, narrow, integer and truth values."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.also_empty = nn.Parameter(torch.empty(0, 3))
        self.first = nn.Linear(2, 2)
        self.tied = nn.Linear(2, 2, bias=False)
        self.tied.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(3, dtype=torch.bfloat16), requires_grad=False)
        self.register_buffer("narrow", torch.tensor([0.1, -2.0], dtype=torch.float16))
        self.register_buffer("count", torch.tensor(2**60 + 1))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("hidden", torch.zeros(2), persistent=False)


ODD_DTYPES = {
    "scale": "float32",
    "empty": "float32",
    "also_empty": "float32",
    "frozen": "float32",
    "narrow": "float32",
    "count": "int64",
    "mask": "bool",
    "first.weight": "float32",
    "first.bias": "float32",
}

arrays_strategy = st.dictionaries(
    st.text(min_size=1, max_size=5).filter(lambda name: name != "__metadata__"),
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.bool_]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    max_size=4,
)


def test_every_kind_of_state_is_exported_once_in_order():
    arrays = to_arrays(Odd())
    assert {name: str(array.dtype) for name, array in arrays.items()} == ODD_DTYPES
    assert list(arrays) == [n for n in Odd().state_dict() if n != "tied.weight"]
    assert arrays["scale"].shape == ()
    assert isinstance(arrays["scale"], np.ndarray)
    assert arrays["empty"].shape == (0, 3)
    assert arrays["count"] == 2**60 + 1
    assert arrays["narrow"][0] == np.float32(np.float16(0.1))


def test_exported_arrays_are_copies():
    model = Odd()
    arrays = to_arrays(model)
    with torch.no_grad():
        model.first.weight.zero_()
        model.mask.zero_()
    assert arrays["first.weight"].any()
    assert arrays["mask"].any()


def test_a_transposed_parameter_is_exported_row_by_row():
    model = nn.Module()
    model.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3).T)
    array = to_arrays(model)["weight"]
    assert array.flags.c_contiguous
    assert array.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_loading_restores_every_kind_of_state():
    source, target = Odd(), Odd()
    with torch.no_grad():
        for tensor in target.state_dict().values():
            tensor.zero_()
    load_arrays(target, dict(reversed(to_arrays(source).items())))
    for name, value in source.state_dict().items():
        found = target.state_dict()[name]
        assert found.dtype == value.dtype
        assert torch.equal(found, value)
    assert target.tied.weight is target.first.weight


def test_loaded_values_are_never_shared():
    model = nn.Linear(2, 2)
    arrays = {name: array * 0 + 1 for name, array in to_arrays(model).items()}
    load_arrays(model, arrays)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(5)
    assert all((array == 1).all() for array in arrays.values())


def test_loading_takes_read_only_strided_swapped_and_scalar_arrays():
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(2, 3))
    model.scale = nn.Parameter(torch.zeros(()))
    weight = np.arange(12, dtype=">f8").reshape(3, 4)[:, ::-2].T
    weight.flags.writeable = False
    load_arrays(model, {"weight": weight, "scale": np.float64(2.5)})
    assert np.array_equal(model.weight.detach().numpy(), weight)
    assert float(model.scale.detach()) == 2.5


@pytest.fixture
def every_warning_is_an_error():
    torch.set_warn_always(True)  # torch gives most of its warnings once in a process
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    torch.set_warn_always(False)


@pytest.mark.usefixtures("every_warning_is_an_error")
def test_loading_a_read_only_array_gives_no_warning():
    model = nn.Linear(2, 1, bias=False)
    weight = np.ones((1, 2), np.float32)
    weight.flags.writeable = False
    load_arrays(model, {"weight": weight})
    assert bool((model.weight == 1).all())


def test_loading_casts_to_the_models_own_type():
    model = nn.Linear(1, 1).to(torch.bfloat16)
    load_arrays(model, {"weight": np.array([[1.001]]), "bias": np.array([1e39])})
    assert model.weight.dtype == torch.bfloat16
    assert float(model.weight.detach()) == 1.0
    assert float(model.bias.detach()) == np.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": np.zeros(1, np.float32)}, r"unknown \['extra'\]"),
        ({"scale": None}, r"missing \['scale'\]"),
        ({"scale": np.zeros(1, np.float32)}, r"scale has shape \(1,\)"),
        ({"empty": np.zeros((3, 0), np.float32)}, "empty has shape"),
        ({"scale": np.array(1)}, "scale is int64; float32 is needed"),
        ({"scale": np.array(1j)}, "scale is complex128"),
        ({"count": np.array(1.0)}, "count is float64; int64 is needed"),
        ({"count": np.array(1, np.int32)}, "count is int32"),
        ({"mask": np.array([1, 0])}, "mask is int64; bool is needed"),
        ({"scale": 1.0}, "scale is a float; a NumPy array"),
    ],
)
def test_a_refused_load_names_the_array_and_changes_nothing(change, message):
    model = Odd()
    before = to_arrays(model)
    arrays = {name: array * 0 for name, array in before.items()} | change
    arrays["mask"] = change.get("mask", np.array([False, False]))
    arrays = {name: array for name, array in arrays.items() if array is not None}
    with pytest.raises(ValueError, match=message):
        load_arrays(model, arrays)
    assert sha256_of_arrays(to_arrays(model)) == sha256_of_arrays(before)


def test_complex_numbers_and_other_state_are_refused():
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"weight is torch\.complex64"):
        to_arrays(model)

    class WithExtraState(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"epoch": 1}

    with pytest.raises(ValueError, match="_extra_state of its state is a dict"):
        to_arrays(WithExtraState(1, 1))


@given(arrays=arrays_strategy)
def test_a_file_gives_back_names_order_types_shapes_and_bits(arrays, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(path, arrays)
    loaded = load_model_file(path)
    assert list(loaded) == list(arrays)
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert loaded[name].tobytes() == array.tobytes()
    assert sha256_of_arrays(loaded) == sha256_of_arrays(arrays)


def test_arrays_that_lie_in_another_order_in_memory_are_stored_by_value(tmp_path):
    arrays = {
        "t": np.arange(6.0).reshape(2, 3).T,
        "s": np.arange(8)[::-2],
        "b": np.arange(3, dtype=">i4"),
        "f": np.float32(2.5),
    }
    save_model(tmp_path / "m", arrays)
    loaded = load_model_file(tmp_path / "m")
    assert all(np.array_equal(loaded[name], arrays[name]) for name in arrays)
    assert sha256_of_arrays(loaded) == sha256_of_arrays(arrays)


def test_other_tools_can_read_the_file(tmp_path):
    save_model(tmp_path / "m", {"w": np.ones(2, np.float32)}, {"round": "3"})
    assert safetensors.numpy.load_file(tmp_path / "m")["w"].tolist() == [1, 1]
    with safetensors.safe_open(tmp_path / "m", framework="numpy") as file:
        assert file.metadata() == {"format_version": "1", "names": '["w"]', "round": "3"}


def test_metadata_of_the_format_cannot_be_overwritten(tmp_path):
    with pytest.raises(ValueError, match="format_version"):
        save_model(tmp_path / "m", {}, {"format_version": "2"})


@pytest.mark.parametrize("metadata", [None, {"format_version": "2", "names": '["w"]'}])
def test_unknown_versions_are_refused(tmp_path, metadata):
    safetensors.numpy.save_file({"w": np.ones(1)}, tmp_path / "m", metadata=metadata)
    with pytest.raises(ValueError, match=r"format_version .*'1' is needed"):
        load_model_file(tmp_path / "m")


@pytest.mark.parametrize("names", ['["v"]', '["w", "w"]', "[]", "{", "3", None])
def test_a_wrong_list_of_names_is_refused(tmp_path, names):
    metadata = {"format_version": "1"} | ({} if names is None else {"names": names})
    safetensors.numpy.save_file({"w": np.ones(1)}, tmp_path / "m", metadata=metadata)
    with pytest.raises(ValueError, match=r"names|not a model file"):
        load_model_file(tmp_path / "m")


@pytest.mark.parametrize("keep", [0, 7, 40, -1])
def test_damaged_files_are_refused(tmp_path, keep):
    path = tmp_path / "m"
    save_model(path, {"w": np.ones(4)})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="not a model file"):
        load_model_file(path)


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_model_file(tmp_path / "absent")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    save_model(path, {"w": np.ones(2)})
    before = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        save_model(path, {"w": np.zeros(2)})
    assert path.read_bytes() == before
    assert list(Path(tmp_path).iterdir()) == [path]


def test_the_digest_tells_names_types_shapes_and_values_apart():
    base = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)}
    variants = [
        base,
        {"a": base["a"], "c": base["b"]},
        {"a": base["a"].reshape(3, 2), "b": base["b"]},
        {"a": base["a"].reshape(6), "b": base["b"]},
        {"a": base["a"].view(np.int32), "b": base["b"]},
        {"a": base["a"], "b": -base["b"]},
        {"a": base["b"], "b": base["a"]},
        {"a": base["a"]},
        {},
        {"ab": np.zeros(8, np.float32)},
    ]
    assert len({sha256_of_arrays(variant) for variant in variants}) == len(variants)


def test_the_digest_ignores_the_order_of_names_and_the_layout_in_memory():
    array = np.arange(6.0).reshape(2, 3)
    base = {"a": array, "b": np.ones(1)}
    digest = sha256_of_arrays(base)
    for same in (np.asfortranarray(array), array.astype(">f8"), array[::-1][::-1]):
        assert sha256_of_arrays({"b": np.ones(1), "a": same}) == digest
