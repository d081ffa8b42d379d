"""A model's state as NumPy arrays: taken out, put back, stored in a file, and identified."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import nn

Arrays = dict[str, NDArray[Any]]

FORMAT_VERSION = "1"

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


def save_model(
    path: str | os.PathLike[str],
    arrays: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write arrays to a safetensors file, all or nothing.

    Parameters
    ----------
    path : path-like
        The file; an existing one is replaced only once the new one is complete on disk.
    arrays : mapping of str to numpy.ndarray
        As `to_arrays` gives them.
    metadata : mapping of str to str, optional
        Further entries of the file's header. "format_version" and "names" are taken.

    Raises
    ------
    ValueError
        If `metadata` uses a name that is taken.
    OSError
        If the file cannot be written.
    """
    target = Path(path)
    extra = dict(metadata or {})
    if taken := {"format_version", "names"} & set(extra):
        raise ValueError(f"metadata: {sorted(taken)} is written by the format itself")
    # safetensors orders by size; the model's order is part of what a model is here.
    header = {"format_version": FORMAT_VERSION, "names": json.dumps(list(arrays)), **extra}
    # safetensors stores an array's memory as it lies: it must be native and contiguous.
    content = {name: _native(array) for name, array in arrays.items()}
    data = safetensors.numpy.save(content, metadata=header)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def load_model_file(path: str | os.PathLike[str]) -> Arrays:
    """Read the arrays that `save_model` wrote, in their order.

    Raises
    ------
    ValueError
        If the file is not a safetensors file of this format, or of an unknown version of it.
    OSError
        If the file cannot be read.
    """
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            version = metadata.get("format_version")
            if version != FORMAT_VERSION:
                raise ValueError(
                    f"{path}: format_version {version!r}; {FORMAT_VERSION!r} is needed (a model "
                    "file that this application wrote)"
                )
            names = json.loads(metadata["names"])
            if sorted(names) != sorted(file.keys()):
                raise ValueError(f"{path}: the list of names differs from the arrays in the file")
            return {name: file.get_tensor(name) for name in names}
    except (SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not a model file of this application: {error}") from error


def sha256_of_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of names, types, shapes and values, in hexadecimal.

    Equal digests mean equal models, bit for bit (-0.0 differs from 0.0); neither the order of the
    names nor an array's layout in memory matters.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = _native(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        # The lengths make the boundaries part of what is hashed.
        head = json.dumps([name, array.dtype.str, array.shape]).encode()
        digest.update(len(head).to_bytes(8, "little") + head)
        digest.update(array.tobytes())
    return digest.hexdigest()


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
    return torch.from_numpy(np.require(_native(array), requirements=["W"]))


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array, or a copy, contiguous and in this machine's byte order."""
    array = np.asarray(array)
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
