"""The mechanism's noise is its stream's, scaled; its law is tested with the streams."""

import numpy as np
import pytest

from strategies.mechanisms.gaussian import GaussianMechanism
from strategies.mechanisms.rng import SeededStream
from strategies.mechanisms.sensitivity import whole_update_sensitivity


def mechanism(noise_multiplier: float) -> GaussianMechanism:
    sensitivity = whole_update_sensitivity(0.7, unit="client", neighboring_relation="zero_out")
    return GaussianMechanism(sensitivity, noise_multiplier)


@pytest.mark.parametrize("size", [0, 1, 17, 40_001])
def test_noise_is_the_streams_numbers_times_the_standard_deviation(size: int) -> None:
    chosen, vector = mechanism(1.3), np.random.default_rng(0).normal(size=size)
    before = vector.copy()
    noisy = chosen.add_noise(vector, SeededStream(b"noise"))
    noise = SeededStream(b"noise").standard_normal(size)
    assert np.array_equal(noisy, noise * chosen.noise_std + vector)
    assert np.array_equal(vector, before)


def test_without_noise_the_vector_is_returned() -> None:
    vector = np.ones(3)
    assert mechanism(0.0).add_noise(vector, SeededStream(b"noise")) is vector
