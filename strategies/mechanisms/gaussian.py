"""The Gaussian mechanism: one object for those who add the noise and those who account for it."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.mechanisms.rng import Stream
from strategies.mechanisms.sensitivity import Sensitivity

_BLOCK = 2**14  # coordinates at once, so that both passes find them in a cache


@dataclass(frozen=True)
class GaussianMechanism:
    """Adds N(0, noise_std^2 I) to a vector whose L2 sensitivity is known.

    Attributes
    ----------
    sensitivity : Sensitivity
        Bound on how far the vector moves between neighbouring data sets, and its conditions.
    noise_multiplier : float
        z = noise_std / sensitivity, >= 0. The accountant reads this field.
    """

    sensitivity: Sensitivity
    noise_multiplier: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0.0):
            raise ValueError(f"noise_multiplier: {self.noise_multiplier}; allowed: finite, >= 0")

    @property
    def noise_std(self) -> float:
        """Standard deviation sigma = z * sensitivity of the noise in each coordinate."""
        return self.noise_multiplier * self.sensitivity.value

    def add_noise(self, vector: NDArray[np.float64], stream: Stream) -> NDArray[np.float64]:
        """Return the vector plus noise in every coordinate; without noise, the vector itself."""
        if self.noise_std == 0.0:
            return vector
        noise, scale = stream.standard_normal(vector.size), self.noise_std
        for start in range(0, vector.size, _BLOCK):
            part = noise[start : start + _BLOCK]
            part *= scale
            part += vector[start : start + _BLOCK]
        return noise
