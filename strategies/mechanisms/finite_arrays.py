"""Checks of arrays of numbers that say what is wrong, and never what the numbers are."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.mechanisms.parameter_checks import ParameterError

Floats = NDArray[np.float64]


def finite_matrix(key: str, value: ArrayLike, num_columns: int | None = None) -> Floats:
    """Return a two-dimensional array of finite numbers.

    Parameters
    ----------
    key : str
        Name of the array, for the message.
    value : array_like of real numbers, shape (n, num_columns)
        n >= 0.
    num_columns : int or None
        The only width allowed; None allows any from 1 on.

    Returns
    -------
    ndarray of float64, shape (n, num_columns)
        The input itself where it is that already.

    Raises
    ------
    ParameterError
        If the dtype, the shape or a number is not allowed. The message holds no entry.
    """
    array = _finite(key, value)
    width = "a width >= 1" if num_columns is None else f"width {num_columns}"
    if array.ndim != 2 or array.shape[1] != (num_columns or max(1, array.shape[1])):
        raise ParameterError(key, f"shape {array.shape}", f"two dimensions and {width}")
    return array


def finite_vector(key: str, value: ArrayLike, size: int | None = None) -> Floats:
    """Return a one-dimensional array of finite numbers; `size` is the only length allowed.

    Raises
    ------
    ParameterError
        If the dtype, the shape or a number is not allowed. The message holds no entry.
    """
    array = _finite(key, value)
    if array.ndim != 1 or (size is not None and array.size != size):
        length = "any length" if size is None else f"length {size}"
        raise ParameterError(key, f"shape {array.shape}", f"one dimension and {length}")
    return array


def unit_cube_points(key: str, value: ArrayLike, num_dimensions: int | None = None) -> Floats:
    """Return points of [0, 1]^D as an array of shape (n, D).

    Raises
    ------
    ParameterError
        If it is no such array. The message holds no coordinate.
    """
    points = finite_matrix(key, value, num_dimensions)
    if points.size and not (points.min() >= 0.0 and points.max() <= 1.0):
        raise ParameterError(key, "a coordinate outside the domain", "coordinates in [0, 1]")
    return points


def _finite(key: str, value: ArrayLike) -> Floats:
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise ParameterError(key, f"dtype {array.dtype}", "real numbers")
    array = array.astype(np.float64, copy=False)
    if not np.isfinite(array).all():
        raise ParameterError(key, "a NaN or an infinity", "finite numbers")
    return array
