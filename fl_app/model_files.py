"""A model's arrays in a file, and their identity; torch need not be there."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

Arrays = dict[str, NDArray[Any]]

FORMAT_VERSION = "1"


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
        As `fl_app.model_arrays.to_arrays` gives them.
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
    content = {name: as_native(array) for name, array in arrays.items()}
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
        array = as_native(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        # The lengths make the boundaries part of what is hashed.
        head = json.dumps([name, array.dtype.str, array.shape]).encode()
        digest.update(len(head).to_bytes(8, "little") + head)
        digest.update(array.tobytes())
    return digest.hexdigest()


def as_native(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array, or a copy, contiguous and in this machine's byte order."""
    array = np.asarray(array)
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
