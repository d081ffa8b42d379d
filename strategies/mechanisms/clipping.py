"""Clipping of update vectors: the step that bounds what one participant can contribute.

Everything here is a pure function of float64 arrays. Clipping is decided on the *true* norm, not on
a rounded one: where rounding could tip the comparison, the sum of squares is compared exactly.
"""

import math
from itertools import chain
from numbers import Real

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)
_VELTKAMP = 2.0**27 + 1.0  # splits a 53-bit significand into two halves of at most 26 bits
_LEAST_SQUARES = 1e-200  # sums of squares between this and its inverse are safe in float64
_FLOOR = 2.0**-480  # the smallest entry whose square splits exactly into two float64 numbers


def l2_norm(v: npt.ArrayLike) -> float:
    """Return the Euclidean norm of all entries of ``v``, without overflow or underflow on the way.

    Parameters
    ----------
    v : array_like of real numbers, any shape
        0-d and empty arrays included.

    Returns
    -------
    float
        The norm, to a relative error of at most ``(v.size + 8) * 2**-53``; 0.0 for an empty array;
        ``inf`` only if the norm itself exceeds the largest float64 (about 1.8e308).

    Raises
    ------
    ValueError
        If ``v`` is not a real array or has a NaN or infinite entry.
    """
    vector, moderate = _as_finite_float64(v)
    if moderate is not None:
        return moderate
    scaled, exponent = _scale_to_unit(vector)
    with np.errstate(over="ignore", under="ignore"):
        return float(np.ldexp(_plain_norm(scaled), exponent))


def clip_by_l2_norm(v: npt.ArrayLike, clipping_norm: float | None) -> FloatArray:
    """Project ``v`` on the L2 ball of radius C = ``clipping_norm``: ``v * min(1, C / ||v||)``.

    Parameters
    ----------
    v : array_like of real numbers, any shape
        One participant's whole update, all parameters together.
    clipping_norm : float or None
        Radius C >= 0, in the unit of ``v``. None leaves the vector as it is (no guarantee).

    Returns
    -------
    numpy.ndarray of float64, shape of ``v``
        ``v`` itself if it is a float64 array that stays as it is; otherwise a new array. The input
        is never written to.

    Raises
    ------
    ValueError
        If ``clipping_norm`` is negative, infinite, NaN or not a real number, or if ``v`` is not a
        real array or has a non-finite entry (call `replace_non_finite` first).

    Notes
    -----
    Formal guarantees, for n entries and u = 2**-53:

    1. *Bounded.* The real number ``||result||_2`` is at most C, with no allowance for rounding.
    2. *Identity inside.* If the real number ``||v||_2`` is at most C (1 - n 2**-960), the result
       equals ``v`` bit for bit, and so it does up to C if no entry is below 2**-480 of the
       largest. Clipping twice is clipping once.
    3. *Direction kept.* Otherwise the result is a positive multiple of ``v``, each entry up to a
       few u (plus a few C 2**-1074 where it underflows), with norm at least C (1 - 6 (n + 8) u)
       unless C itself is close to the subnormal range.
    4. *Non-expansive.* ``||clip(v) - clip(w)|| <= ||v - w||`` up to the rounding of guarantee 3:
       projection on a convex set is 1-Lipschitz, so clipping never increases a sensitivity.

    The guarantees are about the float64 result; a cast to float32 afterwards may round the norm up.

    ==========================  =====================================================
    input                       result
    ==========================  =====================================================
    ``clipping_norm`` None      ``v``, unchanged
    C = 0                       zeros
    C infinite                  refused (None is the way to say "no clipping")
    C negative or NaN           refused
    NaN or infinite entry       refused
    zero vector                 zeros (no 0/0)
    ``||v||`` = C exactly       ``v``, unchanged
    0-d array                   0-d array, ``sign(v) min(|v|, C)`` up to rounding
    empty array                 empty array
    entries such as 1e200       clipped: squares do not overflow, nor does a norm > 1.8e308
    subnormal entries           clipped: squares do not underflow
    subnormal C                 a vector on the subnormal grid, inside the ball
    ==========================  =====================================================
    """
    vector, moderate = _as_finite_float64(v)
    if clipping_norm is None:
        return vector
    if isinstance(clipping_norm, bool) or not isinstance(clipping_norm, Real):
        raise ValueError(f"clipping_norm must be a real number or None, got {clipping_norm!r}")
    radius = float(clipping_norm)
    if not (math.isfinite(radius) and radius >= 0.0):
        raise ValueError(
            f"clipping_norm must be finite and >= 0, got {clipping_norm!r} (None: no clipping)"
        )
    if _norm_at_most(vector, moderate, radius):
        return vector
    # Wide enough that the check below is settled by the plain norm: the exact one is far slower.
    margin = 4.0 * _rounding_slack(vector.size)
    with np.errstate(under="ignore"):
        if moderate is not None and radius > _LEAST_SQUARES:
            clipped = np.asarray(vector * (radius * (1.0 - margin) / moderate))
        else:
            # Direction first, radius second: C / ||v|| may underflow where the product does not.
            scaled, _ = _scale_to_unit(vector)
            clipped = np.asarray(scaled / _plain_norm(scaled) * (radius * (1.0 - margin)))
        # Entered only when C is near the subnormal range, where entries round up to the grid.
        while not _norm_at_most(clipped, _moderate_norm(clipped), radius):
            clipped = np.asarray(clipped * (1.0 - margin))
            margin = min(0.5, 2.0 * margin)
    return clipped


def replace_non_finite(v: npt.ArrayLike) -> FloatArray:
    """Return ``v``, or zeros of its shape if any entry is NaN or infinite.

    A training run that diverged on its data must not be told apart from any other, so the update is
    not refused: it becomes the zero vector and goes through clipping and noise. Replacing single
    entries instead would be as private, but would upload the rest of a broken update.

    Parameters
    ----------
    v : array_like of real numbers, any shape
        One participant's whole update.

    Returns
    -------
    numpy.ndarray of float64, shape of ``v``
        Finite entries only: ``v`` itself if it is that already, otherwise a new array.

    Raises
    ------
    ValueError
        If ``v`` is not a real array.
    """
    vector = _as_float64(v)
    is_finite = _moderate_norm(vector) is not None or np.isfinite(vector).all()
    return vector if is_finite else np.zeros_like(vector)


def _as_float64(v: npt.ArrayLike) -> FloatArray:
    array = np.asarray(v)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"v must be an array of real numbers, got dtype {array.dtype}")
    return array.astype(np.float64, copy=False)


def _as_finite_float64(v: npt.ArrayLike) -> tuple[FloatArray, float | None]:
    """Return the checked vector and its `_moderate_norm`, which alone tells most finite ones."""
    vector = _as_float64(v)
    moderate = _moderate_norm(vector)
    if moderate is None and not np.isfinite(vector).all():
        raise ValueError("v must have finite entries only; got a NaN or an infinity")
    return vector, moderate


def _scale_to_unit(vector: FloatArray) -> tuple[FloatArray, int]:
    """Return (w, e) with ``vector = w * 2**e`` and max |w| in [.5, 1); (zeros, 0) for zeros.

    A power of two, so that only entries that become subnormal are rounded.
    """
    largest = float(np.max(np.abs(vector), initial=0.0))
    _, exponent = math.frexp(largest)
    with np.errstate(under="ignore"):
        return np.asarray(np.ldexp(vector, -exponent)), exponent


def _moderate_norm(vector: FloatArray) -> float | None:
    """Return the norm in one pass, or None where squares might over- or underflow.

    Its relative error is within `_rounding_slack`: what underflows is far below one rounding. A
    norm means that all entries are finite.
    """
    flat = vector.ravel()
    with np.errstate(over="ignore", under="ignore"):
        squares = float(np.dot(flat, flat))
    return math.sqrt(squares) if _LEAST_SQUARES < squares < 1.0 / _LEAST_SQUARES else None


def _plain_norm(scaled: FloatArray) -> float:
    with np.errstate(under="ignore"):
        return math.sqrt(float(np.sum(scaled * scaled)))


def _rounding_slack(size: int) -> float:
    """Bound the relative error of `_plain_norm`, whatever the order in which it adds."""
    return (size + 8) * _EPS / 2.0


def _norm_at_most(vector: FloatArray, moderate: float | None, radius: float) -> bool:
    """Decide ``||vector||_2 <= radius`` for the real numbers; True is never wrong.

    `moderate` is the vector's `_moderate_norm`.

    False is wrong only for a norm that misses the radius by less than 2**-960 of it per entry.
    """
    if moderate is not None and abs(moderate - radius) > _rounding_slack(vector.size) * moderate:
        return moderate <= radius
    scaled, exponent = _scale_to_unit(vector)
    with np.errstate(over="ignore", under="ignore"):
        bound = float(np.ldexp(radius, -exponent))
    norm = _plain_norm(scaled)
    # The norm is 0 or in [.5, sqrt n): a bound that over- or underflowed is far away from it.
    if abs(norm - bound) > _rounding_slack(vector.size) * norm:
        return norm <= bound
    # Entries whose squares would underflow count as _FLOOR: never too small a norm.
    counted = np.where((vector != 0.0) & (np.abs(scaled) < _FLOOR), _FLOOR, scaled)
    high, low = _exact_squares(np.append(counted.ravel(), bound))
    # fsum rounds once, at the end, so the sign of the difference is the true one.
    terms = chain(high[:-1].data, low[:-1].data, (-high[-1], -low[-1]))
    return math.fsum(terms) <= 0.0


def _exact_squares(w: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (high, low) with ``high + low = w**2`` exactly, |w| in [_FLOOR, 1e150] (Dekker)."""
    with np.errstate(under="ignore"):
        high = w * w
        carry = _VELTKAMP * w
        head = carry - (carry - w)
        tail = w - head
        low = ((head * head - high) + 2.0 * head * tail) + tail * tail
    return high, low
