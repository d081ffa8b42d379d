"""The global model as a client receives it, parsed once for all clients of a process."""

from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from strategies.dp_fedpaq.messages import model_arrays
from strategies.mechanisms.layout import ArrayLayout


@dataclass(frozen=True, eq=False)
class ReceivedModel:
    """A parsed model; every array is read-only, because clients share it.

    Attributes
    ----------
    arrays : dict of str to ndarray
        As the server sent them.
    layout : ArrayLayout
        Of the float arrays.
    vector : ndarray of float64, shape (d,)
        The float arrays in that layout.
    is_finite : bool
        Whether every number of the vector is finite.
    """

    arrays: dict[str, NDArray[np.generic]]
    layout: ArrayLayout
    vector: NDArray[np.float64]
    is_finite: bool

    def copy_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return arrays that may be written to."""
        return {name: array.copy() for name, array in self.arrays.items()}


_Sent = tuple[tuple[str, str, tuple[int, ...], str, bytes], ...]

# The last model that was read, and what it was read from: a round's requests all carry one model.
_last: tuple[_Sent, ReceivedModel] | None = None


def receive_model(record: ArrayRecord) -> ReceivedModel:
    """Parse a model's record, unless it is the one that was parsed last.

    Models are compared by their bytes, which costs nothing where clients of one process are given
    the very same bytes. One model is kept.

    Raises
    ------
    MessageError, ValueError
        If an array cannot be read, or is neither real floating point, integer nor boolean.
    """
    global _last
    sent = tuple((n, a.dtype, tuple(a.shape), a.stype, a.data) for n, a in record.items())
    kept = _last
    if kept is not None and kept[0] == sent:
        return kept[1]
    arrays = model_arrays(record)
    layout = ArrayLayout.of(arrays)
    vector = layout.flatten(arrays)
    for array in (*arrays.values(), vector):
        array.flags.writeable = False
    model = ReceivedModel(arrays, layout, vector, bool(np.isfinite(vector).all()))
    _last = sent, model
    return model
