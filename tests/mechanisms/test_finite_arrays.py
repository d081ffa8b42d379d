import numpy as np
import pytest

from strategies.mechanisms.finite_arrays import finite_matrix, finite_vector, unit_cube_points
from strategies.mechanisms.parameter_checks import ParameterError


def test_what_is_allowed_comes_back():
    matrix = np.ones((2, 3))
    assert finite_matrix("x", matrix) is matrix
    assert finite_matrix("x", [[1, 2]], 2).dtype == np.float64
    assert finite_matrix("x", np.empty((0, 2)), 2).shape == (0, 2)
    assert finite_vector("y", [1, 2], 2).tolist() == [1.0, 2.0]
    assert unit_cube_points("x", [[0.0, 1.0]]).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(
    "bad", [[1.0], [[1.0]], np.empty((2, 0)), [[1.0, np.nan]], [["a", "b"]], [[True, False]]]
)
def test_other_matrices_are_refused(bad):
    with pytest.raises(ParameterError, match=r"^x: "):
        finite_matrix("x", bad, 2)


@pytest.mark.parametrize("bad", [1.0, [[1.0, 2.0]], [1.0], [1.0, np.inf], [1j, 2.0]])
def test_other_vectors_are_refused(bad):
    with pytest.raises(ParameterError, match=r"^y: "):
        finite_vector("y", bad, 2)


@pytest.mark.parametrize("outside", [-1e-16, 1.0 + 2.0**-52, 7.25])
def test_points_outside_the_cube_are_refused_without_their_coordinates(outside):
    with pytest.raises(ParameterError, match="outside") as error:
        unit_cube_points("x", [[0.5, outside]])
    assert "7.25" not in str(error.value)


def test_a_message_holds_no_entry():
    with pytest.raises(ParameterError) as error:
        finite_matrix("x", [[1234.5, np.nan]])
    assert "1234" not in str(error.value)
