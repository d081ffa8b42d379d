"""No noise, one sub-region, everybody in: FTS without noise, by another program.

The other program knows the drawn features (frequencies and phases), lambda, and what each agent has
observed; it computes features, posteriors, averages and where they are largest by itself.
"""

import numpy as np
import pytest

from strategies.dp_fts_de.algorithm import build_features, clip_vector, draw_vector
from strategies.dp_fts_de.messages import parse_reply
from strategies.mechanisms.random_features import RandomFeatures
from strategies.mechanisms.rng import SeededStream
from tests.dp_fts_de.searches import Run

Floats = np.ndarray
TICKS = np.arange(101) / 100
GRID = np.array([[x, y] for x in TICKS for y in TICKS])


def independent_features(x: Floats, frequencies: Floats, phases: Floats) -> Floats:
    rows = np.sqrt(2.0 / len(phases)) * np.cos(x @ frequencies.T + phases)
    return np.asarray(rows / np.sqrt((rows**2).sum(axis=1, keepdims=True)))


def independent_vector(
    phi: Floats, y: Floats, regularizer: float, clipping_norm: float | None
) -> Floats:
    """(Phi^T Phi + lambda I)^-1 Phi^T y, clipped."""
    mean = np.linalg.solve(phi.T @ phi + regularizer * np.eye(phi.shape[1]), phi.T @ y)
    longest = np.inf if clipping_norm is None else clipping_norm
    return np.asarray(mean * min(1.0, longest / float(np.linalg.norm(mean))))


@pytest.mark.parametrize("clipping_norm", [None, 0.7])
def test_a_run_without_noise_is_fts(clipping_norm: float | None) -> None:
    """Vectors and their averages to 1e-10, and queries as good as the best of a grid."""
    run = Run(
        5,
        noise_multiplier=0.0,
        clipping_norm=clipping_norm,
        standardize=False,
        features="rff",
        lengthscale=0.3,
        num_random_features=30,
        num_initial=6,
        prob_own=0.0,
    ).start()
    parameters = run.strategy.parameters
    drawn = build_features(parameters)
    assert isinstance(drawn, RandomFeatures)

    def phi(x: Floats) -> Floats:
        return independent_features(x, drawn.frequencies, drawn.phases)

    on_grid = phi(GRID)
    seen: dict[int, list[tuple[tuple[float, ...], float]]] = {n: [] for n in range(5)}
    average: Floats | None = None
    for t in range(1, 5):
        sent = []
        for reply in run.grid.replies:
            if reply.metadata.group_id != str(t):
                continue
            data, told = parse_reply(reply)
            assert data is not None
            assert told is not None
            if average is not None:
                assert told.is_shared
                query, values = np.array(told.points), on_grid @ average
                assert (phi(query) @ average)[0] >= values.max() - 1e-12
                assert np.abs(query[0] - GRID[values.argmax()]).max() <= 0.011
            history = seen[reply.metadata.src_node_id - 1_000_000]
            history += zip(told.points, told.values, strict=True)
            x, y = (np.array(each) for each in zip(*history, strict=True))
            wanted = independent_vector(phi(x), y, parameters.regularizer, clipping_norm)
            vector, _ = clip_vector(parameters, draw_vector(parameters, x, y, SeededStream(b"")))
            np.testing.assert_allclose(vector, wanted, rtol=0, atol=1e-10)
            # A message has single precision.
            sent.append(np.frombuffer(data, "<f4").astype(float))
            np.testing.assert_allclose(sent[-1], wanted, rtol=1e-7, atol=1e-10)
        assert len(sent) == 5
        released = run.broadcasts[t - 1]
        assert released is not None
        assert released.shape == (1, 30)
        average = np.sum(sent, axis=0) / 5
        # What rounding added to a norm is clipped off again.
        slack = 1e-10 if clipping_norm is None else 1e-7
        np.testing.assert_allclose(released[0], average, rtol=0, atol=slack)
        average = released[0]
    assert [len(each) for each in seen.values()] == [9] * 5
