"""Updates as integers modulo 2^32, so that noise cancels in a sum to the last bit."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from strategies.mechanisms.offset_noise import OffsetNoise
from strategies.mechanisms.packing import PackingError
from strategies.mechanisms.parameter_checks import ParameterError, check_integer, check_number
from strategies.mechanisms.sensitivity import Sensitivity
from strategies.mechanisms.smoothing import check_smoothing

WORD_BITS = 32
LEAST_OWN_STEPS = 4.0
"""Least standard deviation of a client's own noise, in steps."""

_TAIL_STDS = 12.0  # Gaussian noise goes beyond with probability 4e-33
_LARGEST = 2 ** (WORD_BITS - 1) - 1
MOST_READY = 100_000  # pair noise of 512 steps and its tail fit for any coarser grid
_WORD = np.dtype("<u4")


@dataclass(frozen=True)
class FixedPoint:
    """A grid of numbers that are a whole number of steps, sent as 32-bit words.

    Attributes
    ----------
    step : float
        A power of two, so that scaling rounds nothing; 2^-500 to 2^49.
    """

    step: float

    def __post_init__(self) -> None:
        check_number("step", self.step, positive=True, below=2.0**50)
        if math.frexp(self.step)[0] != 0.5 or self.step < 2.0**-500:
            raise ParameterError("step", self.step, "a power of two, 2^-500 to 2^49")

    @property
    def exponent(self) -> int:
        """The step's logarithm to base 2."""
        return math.frexp(self.step)[1] - 1

    def encode(self, vector: NDArray[np.float64]) -> NDArray[np.int64]:
        """Round to the nearest number of steps, a tie to the even one.

        Parameters
        ----------
        vector : ndarray of float64, any shape
            Finite; each entry rounds to a signed 32-bit number of steps.

        Returns
        -------
        ndarray of int64, the same shape
            Each entry is off by at most half a step; zero is exact.

        Raises
        ------
        ValueError
            If an entry is not finite or does not fit. The message has no entry in it.
        """
        with np.errstate(over="ignore"):  # infinite then, and refused
            scaled = np.rint(np.asarray(vector, dtype=np.float64) * (1.0 / self.step))
        # NaN fails both comparisons.
        if not np.all((scaled >= -_LARGEST - 1) & (scaled <= _LARGEST)):
            raise ValueError(
                f"vector: an entry that is not finite or too large for a step of {self.step!r}; "
                f"allowed: -2^31 to 2^31 - 1 steps"
            )
        return np.asarray(scaled.astype(np.int64))

    def decode(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return numbers of steps as numbers; exact for those below 2^53 steps."""
        return np.asarray(np.asarray(numbers).astype(np.float64) * self.step)


def wrap(numbers: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the numbers modulo 2^32, as words."""
    return np.asarray(np.asarray(numbers, dtype=np.int64).astype(np.uint32))


def unwrap(words: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the signed numbers -2^31 to 2^31 - 1 that the words stand for."""
    return np.asarray(np.asarray(words, dtype=np.uint32).astype(np.int32).astype(np.int64))


def pack(words: NDArray[np.uint32]) -> bytes:
    """Serialise words, 4 bytes each, the lowest first."""
    return np.asarray(words, dtype=np.uint32).astype(_WORD).tobytes()


def unpack(data: bytes, size: int) -> NDArray[np.uint32]:
    """Parse what `pack` wrote.

    Parameters
    ----------
    data : bytes
        Exactly 4 `size` bytes.
    size : int
        How many words.

    Returns
    -------
    ndarray of uint32, shape (size,)

    Raises
    ------
    PackingError
        If the length is wrong.
    """
    check_integer("size", size, 0)
    if len(data) != size * _WORD.itemsize:
        raise PackingError(f"{len(data)} bytes; {size} words take {size * _WORD.itemsize}")
    return np.frombuffer(data, dtype=_WORD).astype(np.uint32)


def choose_step(
    noise: OffsetNoise,
    *,
    largest_entry: float,
    max_ready: int,
    largest_own_variance: float | None = None,
) -> FixedPoint:
    """Choose the finest step at which the sum of a round cannot overflow.

    Parameters
    ----------
    noise : OffsetNoise
        Variances of the pair noise and of the least own noise, in the unit of the updates squared.
    largest_entry : float
        Bound on the absolute value of each entry of an update; the clipping norm is one.
    max_ready : int
        M, the most clients of a ready set; 2 to 100,000.
    largest_own_variance : float or None
        The largest own variance of any client; by default that of `noise`.

    Returns
    -------
    FixedPoint
        Such that M (largest_entry + step) plus 12 standard deviations of the noise in the sum is
        below 2^31 steps, whatever ready sets of up to M clients and whoever vanishes, with the pair
        noise that clients make on this grid (`OffsetNoise.on_grid`).

    Raises
    ------
    ParameterError
        If at that step the least own noise has a standard deviation below 4 steps, or it does not
        smooth the grid for a ready set of M honest clients (`smoothing.check_smoothing`).
    """
    check_number("largest_entry", largest_entry, positive=True)
    check_integer("max_ready", max_ready, 2)
    if max_ready > MOST_READY:
        raise ParameterError("max_ready", max_ready, f"at most {MOST_READY}")
    check_number("largest_own_variance", largest_own_variance, positive=True, optional=True)
    own = noise.own_variance if largest_own_variance is None else largest_own_variance
    if own < noise.own_variance:
        raise ParameterError("largest_own_variance", own, f"at least {noise.own_variance!r}")
    # Finer than this, the updates alone overflow.
    exponent = math.floor(math.log2(max_ready * largest_entry)) - WORD_BITS
    while True:
        step = 2.0**exponent
        on_grid = replace(noise.on_grid(step), own_variance=own)
        reach = _TAIL_STDS * math.sqrt(on_grid.largest_sum_variance(max_ready))
        if max_ready * (largest_entry + step) + reach <= _LARGEST * step:
            break
        exponent += 1
    if math.sqrt(noise.own_variance) < LEAST_OWN_STEPS * step:
        raise ParameterError(
            "max_ready",
            max_ready,
            f"so few clients, or so small a clipping_norm ({largest_entry!r} here), that own noise "
            f"of std {math.sqrt(noise.own_variance):.4g} is at least {LEAST_OWN_STEPS:g} steps of "
            f"the grid, whose finest step without overflow is {step!r}",
        )
    check_smoothing(noise, step, max_ready=max_ready)
    return FixedPoint(step)


def rounding_sensitivity(sensitivity: Sensitivity, step: float, num_parameters: int) -> Sensitivity:
    """Give the sensitivity of an update that is rounded onto a grid before noise is added.

    Parameters
    ----------
    sensitivity : Sensitivity
        Of the update before rounding, Delta_f.
    step : float
        Step of the grid > 0.
    num_parameters : int
        d >= 1.

    Returns
    -------
    Sensitivity
        Delta_f + step sqrt(d); with ``zero_out`` Delta_f + step sqrt(d) / 2. One more condition.

    Notes
    -----
    *Proof.* Rounding moves each of d coordinates by at most step / 2, so a vector by at most
    step sqrt(d) / 2. Two neighbouring updates both move; the zero update, which a client that is
    zeroed out is compared with, lies on the grid and does not.
    """
    check_number("step", step, positive=True)
    check_integer("num_parameters", num_parameters, 1)
    moved = 0.5 if sensitivity.neighboring_relation == "zero_out" else 1.0
    # The next number up: a square root and a sum round by at most that.
    value = math.nextafter(sensitivity.value + moved * step * math.sqrt(num_parameters), math.inf)
    condition = (
        f"the update is rounded to a grid of step {step!r} in each of {num_parameters} coordinates "
        f"before noise is added; this adds {moved * step * math.sqrt(num_parameters):.4g} to the "
        "sensitivity"
    )
    return replace(sensitivity, value=value, conditions=(*sensitivity.conditions, condition))
