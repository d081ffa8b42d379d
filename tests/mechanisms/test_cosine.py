import math

import mpmath
import numpy as np
import pytest

from strategies.mechanisms.cosine import cosines_of_turns

BOUND = 2e-14


@pytest.mark.parametrize("largest", [1.0, 100.0, 1e6])
def test_as_numpy_s(largest):
    turns = np.random.default_rng(0).uniform(-largest, largest, (40, 1000))
    # 2 pi t is rounded before NumPy takes the cosine, so whole turns are taken off first.
    expected = np.cos(2.0 * math.pi * (turns - np.rint(turns)))
    np.testing.assert_allclose(cosines_of_turns(turns), expected, rtol=0, atol=BOUND)


def test_as_a_hundred_digits_say():
    turns = np.concatenate([np.linspace(-0.5, 0.5, 201), [0.25 - 1e-9, 7.75, -3.125]])
    with mpmath.workdps(100):
        expected = [float(mpmath.cos(2 * mpmath.pi * mpmath.mpf(float(t)))) for t in turns]
    np.testing.assert_allclose(cosines_of_turns(turns), expected, rtol=0, atol=BOUND)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 3, 4), (2**14,), (3, 2**14 - 1)])
def test_any_shape_and_the_argument_stays(shape):
    turns = np.asarray(np.random.default_rng(1).uniform(-5.0, 5.0, shape))
    before = turns.copy()
    found = cosines_of_turns(turns)
    assert found.shape == shape
    assert np.array_equal(turns, before)
    np.testing.assert_allclose(found, np.cos(2.0 * math.pi * turns), rtol=0, atol=1e-13)


def test_a_number_s_cosine_does_not_depend_on_its_neighbours():
    turns = np.random.default_rng(2).uniform(-5.0, 5.0, 40_000)
    whole = cosines_of_turns(turns)
    assert np.array_equal(whole[20_001:20_008], cosines_of_turns(turns[20_001:20_008]))


def test_the_sine_is_a_quarter_turn_behind():
    turns = np.linspace(-2.0, 2.0, 999)
    np.testing.assert_allclose(
        cosines_of_turns(turns - 0.25), np.sin(2.0 * math.pi * turns), rtol=0, atol=BOUND
    )
