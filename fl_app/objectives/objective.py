"""An objective, and what an agent observes of it whatever happens."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.search_space import AxisValue, SearchSpace
from strategies.mechanisms.guarantee import Guarantee
from strategies.mechanisms.parameter_checks import ParameterError, check_integer


class Objective(ABC):
    """N functions of one search space, one for each agent; higher is better.

    Parameters
    ----------
    space : SearchSpace
        What is searched.
    num_agents : int
        ``N``, at least 1.
    value_range : tuple of float
        Lowest and highest value, public: known without looking at anybody's data.

    Attributes
    ----------
    space, num_agents, value_range
        As given. All three are public facts.
    """

    def __init__(
        self, space: SearchSpace, num_agents: int, value_range: tuple[float, float]
    ) -> None:
        check_integer("num_agents", num_agents, 1)
        low, high = value_range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ParameterError("value_range", value_range, "two finite numbers, low < high")
        self.space = space
        self.num_agents = num_agents
        self.value_range = (float(low), float(high))

    @abstractmethod
    def evaluate(self, agent: int, point: Mapping[str, AxisValue], trial: int = 0) -> float:
        """Evaluate one agent's function; computed from that agent's data alone.

        Parameters
        ----------
        agent : int
            In [0, N).
        point : mapping
            A value for each axis of the space, as `SearchSpace.decode` gives it.
        trial : int
            Number of the observation, >= 0. Whatever is random (noise, training) is a function of
            the seed and the three arguments: the same ones give the same value, another trial a
            fresh draw.

        Returns
        -------
        float
            Not to be trusted to be finite or in the range: see `observe`.
        """

    def optimum(self, agent: int) -> float | None:
        """Return the largest value without noise, where it is known; None elsewhere."""
        return None

    def guarantees(self, num_evaluations: int) -> list[Guarantee]:
        """Return what an agent's evaluations show to others, for privacy.json; none by default.

        Parameters
        ----------
        num_evaluations : int
            How many the search has planned for each agent, >= 1.
        """
        return []

    def values(self, agent: int, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values without noise, shape (n,), at places x of the unit cube, shape (n, D).

        Of objectives that know their optimum; experiments take regrets of them.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Observation:
    """What an agent learnt about a point.

    Attributes
    ----------
    value : float
        In the objective's public range.
    failed : bool
        Whether nothing was learnt but that the evaluation failed; `value` is then the lowest.
    reason : str or None
        Why it failed: an exception's class, never its text, which may quote the data.
    outside : float or None
        What was found, where that is outside the range; `value` is then the nearer end.
    error : BaseException or None
        What was raised, for the agent's own log alone.
    """

    value: float
    failed: bool = False
    reason: str | None = None
    outside: float | None = None
    error: BaseException | None = field(default=None, compare=False, repr=False)


def observe(
    objective: Objective, agent: int, point: Mapping[str, AxisValue], trial: int = 0
) -> Observation:
    """Evaluate a point, and make an observation of whatever happens.

    An evaluation that raises, or returns anything but a finite number (an array or tensor without
    axes is one), is a failed observation: it counts as the lowest value of the public range, so
    that the point is avoided and the agent goes on. A finite value outside the range counts as the
    nearer end.

    Parameters
    ----------
    objective : Objective
    agent, point, trial
        As in `Objective.evaluate`.

    Raises
    ------
    ParameterError
        If there is no such agent, or the point is none of the space: mistakes of the caller.
    """
    check_integer("agent", agent, 0)
    if agent >= objective.num_agents:
        raise ParameterError("agent", agent, f"an integer in [0, {objective.num_agents})")
    check_integer("trial", trial, 0)
    objective.space.encode(point)
    low, high = objective.value_range
    try:
        value = _without_axes(objective.evaluate(agent, dict(point), trial))
        number = float(value) if _is_real(value) else None
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # SystemExit and asyncio's CancelledError are no Exceptions
        return Observation(low, failed=True, reason=type(error).__name__, error=error)
    if number is None:
        return Observation(low, failed=True, reason=f"returned {_describe(value)}")
    if not math.isfinite(number):
        return Observation(low, failed=True, reason=f"returned {number}, not a finite number")
    kept = min(max(number, low), high)
    return Observation(kept, outside=None if kept == number else number)


def _without_axes(value: Any) -> Any:
    """Return the number in an array or tensor of no axes; anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () else value


def _is_real(value: object) -> bool:
    return isinstance(value, Real | np.floating) and not isinstance(value, bool | np.bool_)


def _describe(value: Any) -> str:
    """Say what is no number, and what to return in its place."""
    kind, shape = type(value).__name__, getattr(value, "shape", None)
    if not isinstance(shape, tuple):
        return f"{kind}: return a float"
    return f"{kind} of shape {tuple(shape)}: return a float, for instance value.item()"
