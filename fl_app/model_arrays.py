"""A model's state as NumPy arrays: taken out and put back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fl_app.model_files import Arrays, as_native

# NumPy has no bfloat16, and float16 would lose what a server's mean of many models gains.
_EXPORTED_AS: dict[torch.dtype, type[np.generic]] = {
    torch.float64: np.float64,
    torch.float32: np.float32,
    torch.float16: np.float32,
    torch.bfloat16: np.float32,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}


def to_arrays(model: nn.Module) -> Arrays:
    """Copy a model's parameters and buffers into arrays.

    Parameters
    ----------
    model : torch.nn.Module
        On any device.

    Returns
    -------
    dict of str to numpy.ndarray
        In the order of the state dict; 0-d and empty arrays are kept. A tensor that is tied to
        several names is given once, under the first. float16 and bfloat16 become float32; other
        real types stay.

    Raises
    ------
    ValueError
        If the state holds complex numbers or something other than tensors of real numbers.
    """
    return {
        name: tensor.detach().to("cpu", _export_dtype(name, tensor)).numpy().copy(order="C")
        for name, tensor in _state(model).items()
    }


def load_arrays(model: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Copy arrays into a model's parameters and buffers.

    Values are copied, never shared: training the model later leaves `arrays` as they are. They
    are cast to each tensor's own floating-point type (too large for it: infinity). Everything is
    checked before anything is copied, so a refused load leaves the model as it was.

    Parameters
    ----------
    model : torch.nn.Module
        On any device.
    arrays : mapping of str to numpy.ndarray
        Exactly the names and shapes of `to_arrays(model)`, in any order: floating point for
        floating-point tensors, the same type for integers and truth values.

    Raises
    ------
    ValueError
        If names, shapes or types differ.
    """
    state = _state(model)
    check_names(state, arrays)
    sources = {name: _as_source(name, arrays[name], tensor) for name, tensor in state.items()}
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(sources[name])


def check_shapes(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless these are the names and shapes of `to_arrays(model)`."""
    state = _state(model)
    check_names(state, shapes)
    for name, tensor in state.items():
        if tuple(shapes[name]) != tuple(tensor.shape):
            raise ValueError(f"arrays: {name} has another shape than the model's")


def check_names(state: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Raise ValueError unless the names are the same."""
    if set(arrays) != set(state):
        raise ValueError(
            f"arrays: missing {sorted(set(state) - set(arrays))}, "
            f"unknown {sorted(set(arrays) - set(state))}; the model's names are needed"
        )


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    # keep_vars gives the tensors themselves, so that tied ones can be told by identity.
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"model: {name} of its state is a {type(tensor).__name__}; only tensors can be sent"
            )
        if id(tensor) not in seen:
            seen.add(id(tensor))
            state[name] = tensor
    return state


def _export_dtype(name: str, tensor: torch.Tensor) -> torch.dtype:
    exported = _EXPORTED_AS.get(tensor.dtype)
    if exported is None:
        allowed = ", ".join(str(dtype) for dtype in _EXPORTED_AS)
        raise ValueError(f"model: {name} is {tensor.dtype}; allowed are {allowed}")
    return torch.float32 if exported is np.float32 else tensor.dtype


def _as_source(name: str, value: Any, tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(value, (np.ndarray, np.generic)):
        raise ValueError(f"arrays: {name} is a {type(value).__name__}; a NumPy array is needed")
    array = np.asarray(value)  # arithmetic on 0-d arrays gives NumPy scalars
    if array.shape != tuple(tensor.shape):
        raise ValueError(f"arrays: {name} has shape {array.shape}; {tuple(tensor.shape)} is needed")
    _export_dtype(name, tensor)
    expected = np.dtype(_EXPORTED_AS[tensor.dtype])
    both_float = array.dtype.kind == expected.kind == "f" and array.dtype.itemsize <= 8
    if not both_float and array.dtype != expected:
        raise ValueError(f"arrays: {name} is {array.dtype}; {expected} is needed")
    return torch.from_numpy(np.require(as_native(array), requirements=["W"]))
