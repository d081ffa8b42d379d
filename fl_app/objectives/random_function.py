"""Functions drawn from a Gaussian process, as sums of random waves.

For frequencies ``s_m`` from the covariance's spectral density and ``a_m, b_m ~ N(0, 1)``,
``f(x) = sum_m (a_m cos(s_m x) + b_m sin(s_m x)) / sqrt(M)`` has mean 0, variance 1 at every point
and, on average over the frequencies, exactly that covariance [1]_. It can be evaluated anywhere,
unlike a draw on a grid.

References
----------
.. [1] A. Rahimi and B. Recht, "Random features for large-scale kernel machines", NeurIPS 2007.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.mechanisms.rng import Stream

Array = NDArray[np.float64]

NUM_WAVES = 512
# Of the Matern covariance, doubled: degrees of freedom of its spectral density.
_TWICE_SMOOTHNESS = 5
# Of the non-stationary covariance: its lengthscale grows by this factor from 0 to 1 along an axis.
GROWTH = 10.0


@dataclass(frozen=True, eq=False)
class RandomFunction:
    """One function on [0, 1]^D.

    Attributes
    ----------
    frequencies : ndarray of float64, shape (M, D)
    cosine, sine : ndarray of float64, shape (M,)
        The waves' amplitudes.
    is_warped : bool
        Whether each coordinate is bent first, so that the function changes fast near 0.
    """

    frequencies: Array
    cosine: Array
    sine: Array
    is_warped: bool

    def __call__(self, x: Array) -> Array:
        """Return the values, shape (n,), at places of shape (n, D)."""
        places = bend(x) if self.is_warped else x
        phases = places @ self.frequencies.T
        values: Array = np.cos(phases) @ self.cosine + np.sin(phases) @ self.sine
        return values

    def on_grid(self, nodes: Array) -> Array:
        """Return the values on the product of the same nodes along each axis, for D = 1 or 2.

        The wave of two axes is the product of one along each: M (n + n) of them instead of M n^2.

        Parameters
        ----------
        nodes : ndarray of float64, shape (n,)

        Returns
        -------
        ndarray of float64, shape (n,) * D
        """
        places = bend(nodes) if self.is_warped else nodes
        waves = [np.exp(1j * np.outer(places, each)) for each in self.frequencies.T]
        amplitudes = self.cosine - 1j * self.sine
        if len(waves) == 1:
            return np.asarray((waves[0] @ amplitudes).real)
        return np.asarray(((waves[0] * amplitudes) @ waves[1].T).real)


def bend(x: Array) -> Array:
    """Map [0, 1] to itself with a slope that falls by `GROWTH` from 0 to 1; any shape."""
    bent: Array = np.log1p((GROWTH - 1.0) * x) / math.log(GROWTH)
    return bent


def unbend(x: Array) -> Array:
    """Map [0, 1] back to what `bend` has bent; any shape."""
    even: Array = np.clip(np.expm1(x * math.log(GROWTH)) / (GROWTH - 1.0), 0.0, 1.0)
    return even


def draw_function(
    stream: Stream, dimension: int, family: str, lengthscale: float, num_waves: int = NUM_WAVES
) -> RandomFunction:
    """Draw one function.

    Parameters
    ----------
    stream : Stream
        Equal streams give equal functions.
    dimension : int
        ``D``.
    family : {"squared_exponential", "matern", "non_stationary"}
        ``exp(-r^2 / (2 l^2))``; Matern 5/2; the first one of bent coordinates.
    lengthscale : float
        ``l``, positive.
    num_waves : int
        ``M``.
    """
    frequencies = stream.standard_normal(num_waves * dimension).reshape(num_waves, dimension)
    frequencies = frequencies / lengthscale
    if family == "matern":
        # A multivariate t distribution.
        normal = stream.standard_normal(num_waves * _TWICE_SMOOTHNESS)
        squares = (normal.reshape(num_waves, _TWICE_SMOOTHNESS) ** 2).sum(axis=1, keepdims=True)
        frequencies = frequencies * np.sqrt(_TWICE_SMOOTHNESS / squares)
    amplitudes = stream.standard_normal(2 * num_waves) / math.sqrt(num_waves)
    return RandomFunction(
        frequencies, amplitudes[:num_waves], amplitudes[num_waves:], family == "non_stationary"
    )
