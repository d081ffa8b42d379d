"""The order in which a model's float arrays form one vector."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ArrayLayout:
    """Names, shapes and types of the float arrays of a model, sorted by name.

    Every float array of any shape (0-d and empty ones too) has its place exactly once; integer and
    boolean arrays are not part of the vector and so are never sent by a client.

    Attributes
    ----------
    names : tuple of str
    shapes : tuple of tuple of int
    dtypes : tuple of str
        NumPy names of the types, for example ``"float32"``.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[np.generic]]) -> "ArrayLayout":
        """Read the layout off a model's arrays.

        Raises
        ------
        ValueError
            If an array is neither real floating point, integer nor boolean.
        """
        names = []
        for name in sorted(arrays):
            kind = arrays[name].dtype.kind
            if kind == "f":
                names.append(name)
            elif kind not in "iub":
                raise ValueError(
                    f"array {name!r} of type {arrays[name].dtype}; allowed: real floating point "
                    "(made private), integer or boolean (left out)"
                )
        return cls(
            tuple(names),
            tuple(arrays[name].shape for name in names),
            tuple(str(arrays[name].dtype) for name in names),
        )

    @property
    def num_parameters(self) -> int:
        """Length d of the vector."""
        return sum(math.prod(shape) for shape in self.shapes)

    def flatten(self, arrays: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float64]:
        """Concatenate the float arrays into one float64 vector of shape (d,).

        Raises
        ------
        ValueError
            If an array is missing, superfluous among the float arrays, or of another shape.
        """
        self._check(arrays)
        vector = np.empty(self.num_parameters)
        for name, _, place in self._places():
            vector[place] = arrays[name].ravel()
        return vector

    def subtract(
        self, arrays: Mapping[str, NDArray[np.generic]], vector: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return ``flatten(arrays) - vector``, in one pass; errors as in `flatten`."""
        self._check(arrays)
        difference = np.empty(self.num_parameters)
        for name, _, place in self._places():
            np.subtract(
                arrays[name].ravel(), vector[place], out=difference[place], dtype=np.float64
            )
        return difference

    def unflatten(self, vector: NDArray[np.float64]) -> dict[str, NDArray[np.generic]]:
        """Cut a vector of shape (d,) into arrays of the layout's names, shapes and types.

        A number too large for its array's type becomes infinite.
        """
        if vector.shape != (self.num_parameters,):
            raise ValueError(f"vector of shape {vector.shape}; allowed: ({self.num_parameters},)")
        arrays: dict[str, NDArray[np.generic]] = {}
        for (name, shape, place), dtype in zip(self._places(), self.dtypes, strict=True):
            with np.errstate(over="ignore"):
                arrays[name] = vector[place].reshape(shape).astype(dtype)
        return arrays

    def _places(self) -> Iterator[tuple[str, tuple[int, ...], slice]]:
        """Yield each array's name, shape and place in the vector."""
        start = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            end = start + math.prod(shape)
            yield name, shape, slice(start, end)
            start = end

    def _check(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        floats = {name for name, array in arrays.items() if array.dtype.kind == "f"}
        if floats != set(self.names):
            raise ValueError(f"float arrays {sorted(floats)}; allowed: {list(self.names)}")
        for name, shape in zip(self.names, self.shapes, strict=True):
            if arrays[name].shape != shape:
                raise ValueError(f"array {name!r} of shape {arrays[name].shape}; allowed: {shape}")
