"""What an agent says of itself in seeded experiments, and never else: simulation-only values."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from strategies.dp_fts_de.parameters import MAX_DIMENSION, DpFtsDeParameters

# Values beyond this are not believed: sums of them must stay finite.
MAX_VALUE = 1e30
MAX_POINTS = 10_000
_OPTIONAL = ("simple_regret", "cumulative_regret", "best_before")
_NUMBERS = ("value", "best_value", "clipped", "failures", "outside", "is_shared", *_OPTIONAL)


@dataclass(frozen=True)
class Progress:
    """How far an agent has come, and what the round brought.

    Attributes
    ----------
    value, best_value : float
        What it observed last, and the largest so far.
    clipped : float
        1 if its vector was longer than the clipping norm allows, else 0.
    failures : float
        Evaluations of this round that failed.
    outside : float
        Values of this round that lay outside the objective's public range.
    simple_regret, cumulative_regret : float or None
        The optimum minus the best value, and the sum of its distances from all values after the
        initial ones; None where the optimum is not known.
    best_point : tuple of float
        Where the best value was observed, in the unit cube.
    points : tuple of tuple of float
        This round's queries in their order, in the unit cube: N_init of them at first, then one;
        none where the own process cannot be fitted.
    values : tuple of float
        What was observed there.
    is_shared : bool
        Whether the round's query was the broadcast's.
    best_before : float or None
        The best value before the round; None before the first one.
    """

    value: float
    best_value: float
    clipped: float
    failures: float
    outside: float
    simple_regret: float | None
    cumulative_regret: float | None
    best_point: tuple[float, ...]
    points: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]
    is_shared: bool
    best_before: float | None

    def fits(self, parameters: DpFtsDeParameters) -> bool:
        """Return whether there are as many axes and queries as a round of the run can have."""
        num_queries = len(self.values)
        return len(self.best_point) == parameters.dimension and (
            num_queries == 1 or (not self.is_shared and num_queries <= parameters.num_initial)
        )


def write_progress(progress: Progress) -> dict[str, Any]:
    """Return the progress as numbers and lists of numbers by name, for a message or JSON."""
    values = asdict(progress)
    values["points"] = [each for point in progress.points for each in point]
    values["is_shared"] = int(progress.is_shared)
    return {
        name.replace("_", "-"): list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value is not None
    }


def read_progress(metrics: Mapping[str, Any]) -> Progress | None:
    """Return what `write_progress` wrote; None if there is nothing, or nothing to be believed.

    Numbers are finite, coordinates lie in [0, 1], and lengths fit one another.
    """
    numbers: dict[str, Any] = {name: metrics.get(name.replace("_", "-")) for name in _NUMBERS}
    lists = [metrics.get(name) for name in ("best-point", "points", "values")]
    if not all(isinstance(each, list) for each in lists):
        return None
    best_point, flat, values = (tuple(each or ()) for each in lists)
    size = len(best_point)
    told = [value for name, value in numbers.items() if value is not None or name not in _OPTIONAL]
    is_sound = (
        1 <= size <= MAX_DIMENSION
        and len(values) <= MAX_POINTS
        and len(flat) == size * len(values)
        and all(_is_number(each) for each in (*told, *values))
        and all(_is_number(each) and 0.0 <= each <= 1.0 for each in (*best_point, *flat))
        and numbers["is_shared"] in (0, 1)
        and all(numbers[name] in range(len(values) + 1) for name in ("failures", "outside"))
        and numbers["failures"] + numbers["outside"] <= len(values)
    )
    if not is_sound:
        return None
    points = tuple(flat[k : k + size] for k in range(0, len(flat), size))
    numbers["is_shared"] = bool(numbers["is_shared"])
    return Progress(best_point=best_point, points=points, values=values, **numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < MAX_VALUE
