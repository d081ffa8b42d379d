"""Synthetic objectives: f_n = g + deviation * h_n, with g and all h_n from a Gaussian process."""

import hashlib
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, optimize

from fl_app.objectives.objective import Objective
from fl_app.objectives.random_function import RandomFunction, draw_function, unbend
from fl_app.objectives.settings import SyntheticSettings
from fl_app.search_space import AxisValue
from strategies.mechanisms.rng import Randomness

Array = NDArray[np.float64]

# The range is this many standard deviations wide to either side: a function leaves it once in
# about ten million.
_WIDTH = 6.0
# Nodes along an axis, for one and two axes: so many, or more where functions are rough: so many to
# a lengthscale. And the peaks of that grid which an optimum is sought from.
_NODES, _NODES_PER_LENGTHSCALE, _STARTS = {1: 2001, 2: 65}, 8, 16


class Synthetic(Objective):
    """N functions on [0, 1]^D with axes x1, ..., xD; everything is a function of the seed.

    Parameters
    ----------
    settings : SyntheticSettings
    seed : int
        Of the functions and the noise.
    """

    def __init__(self, settings: SyntheticSettings, seed: int) -> None:
        largest = _WIDTH * math.hypot(1.0, settings.deviation, settings.noise_std)
        super().__init__(settings.space(), settings.num_agents, (-largest, largest))
        self._settings = settings
        self._randomness = Randomness("seeded", seed)
        self._common = self._draw("common function")
        self._own: dict[int, RandomFunction] = {}
        self._optima: dict[int, float] = {}
        least = math.ceil(_NODES_PER_LENGTHSCALE / settings.lengthscale) + 1
        even = np.linspace(0.0, 1.0, max(_NODES[settings.dimension], least))
        self._nodes = unbend(even) if self._common.is_warped else even
        self._common_grid: Array | None = None

    def values(self, agent: int, x: Array) -> Array:
        """Return an agent's values without noise, shape (n,), at places x of shape (n, D)."""
        return self._common(x) + self._settings.deviation * self._own_function(agent)(x)

    def evaluate(self, agent: int, point: Mapping[str, AxisValue], trial: int = 0) -> float:  # noqa: D102
        place = self.space.encode(point)
        label = int.from_bytes(hashlib.sha256(place.astype("<f8").tobytes()).digest()[:8], "big")
        noise = self._randomness.stream("observation noise", agent, trial, label)
        value = self.values(agent, place[None])[0]
        return float(value + self._settings.noise_std * noise.standard_normal(1)[0])

    def optimum(self, agent: int) -> float:
        """Return an agent's largest value without noise, by a fine grid and ascent of its peaks."""
        if agent not in self._optima:
            dimension = self._settings.dimension
            if self._common_grid is None:
                self._common_grid = self._common.on_grid(self._nodes)
            own = self._own_function(agent).on_grid(self._nodes)
            values = self._common_grid + self._settings.deviation * own
            best = float(values.max())
            # Of one peak several nodes may be higher than any of another, which rises beyond them.
            peaks = np.flatnonzero(values == ndimage.maximum_filter(values, size=3))
            highest = peaks[np.argsort(-values.ravel()[peaks])][:_STARTS]
            for start in self._nodes[np.array(np.unravel_index(highest, values.shape)).T]:
                found = optimize.minimize(
                    lambda x: -float(self.values(agent, x[None])[0]),
                    start,
                    method="L-BFGS-B",
                    bounds=[(0.0, 1.0)] * dimension,
                    options={"ftol": 1e-15, "gtol": 1e-9},
                )
                best = max(best, -float(found.fun))
            self._optima[agent] = best
        return self._optima[agent]

    def _own_function(self, agent: int) -> RandomFunction:
        if agent not in self._own:
            self._own[agent] = self._draw("own function", agent)
        return self._own[agent]

    def _draw(self, purpose: str, *labels: int) -> RandomFunction:
        chosen = self._settings
        return draw_function(
            self._randomness.stream(purpose, *labels),
            chosen.dimension,
            chosen.family,
            chosen.lengthscale,
        )
