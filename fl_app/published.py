"""Published results: what an experiment's file says of them, and how a run compares."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl_app.errors import ConfigError


@dataclass(frozen=True)
class PublishedSettings:
    """What was published of a run (conf/experiment); nothing of it changes the run.

    Attributes
    ----------
    rounds, global_train_loss : tuple of int, tuple of float
        Rounds, increasing, and the mean cross entropy on all clients' training records, in nats,
        after each of them.
    test_accuracy : float or None
        After the last round, in [0, 1].
    local_epochs, final_train_loss : tuple of int, tuple of float
        For a series of runs: values of E, and the loss as above after the last round of each.
    iterations, search_error : tuple of int, tuple of float
        Of a search: iterations t, increasing (0: the initial points), and 1 - the best value so far
        after each of them, mean over agents.

    Raises
    ------
    ConfigError
        If a list does not fit its other half, or a value is out of range.
    """

    rounds: tuple[int, ...] = ()
    global_train_loss: tuple[float, ...] = ()
    test_accuracy: float | None = None
    local_epochs: tuple[int, ...] = ()
    final_train_loss: tuple[float, ...] = ()
    iterations: tuple[int, ...] = ()
    search_error: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        pairs = (
            ("rounds", "global_train_loss", 1),
            ("local_epochs", "final_train_loss", 1),
            ("iterations", "search_error", 0),
        )
        for places, losses, least in pairs:
            at, values = getattr(self, places), getattr(self, losses)
            if len(at) != len(values):
                raise ConfigError(f"published.{losses}", values, f"one for each of {places} {at}")
            if any(place < least for place in at) or list(at) != sorted(set(at)):
                raise ConfigError(f"published.{places}", at, f"increasing integers >= {least}")
            if any(value < 0 for value in values):
                raise ConfigError(f"published.{losses}", values, "numbers >= 0")
        accuracy = self.test_accuracy
        if accuracy is not None and not 0.0 <= accuracy <= 1.0:
            raise ConfigError("published.test_accuracy", accuracy, "a number in [0, 1] or null")


def compare_with_published(
    published: PublishedSettings,
    *,
    losses: Mapping[int, float] | None = None,
    test_accuracy: float | None = None,
    local_epochs: int | None = None,
    num_rounds: int | None = None,
    best_values: Mapping[int, float] | None = None,
) -> list[dict[str, Any]]:
    """List what was published of a run beside what the run gave.

    Parameters
    ----------
    published : PublishedSettings
    losses : mapping of int to float, optional
        Round to the loss on all clients' training records, where it was computed.
    test_accuracy : float, optional
        After the last round.
    local_epochs : int, optional
        E of the run.
    num_rounds : int, optional
        The run's last round.
    best_values : mapping of int to float, optional
        Of a search: round to the best value so far, mean over agents.

    Returns
    -------
    list of dict
        One for each published value: ``quantity`` (global_train_loss, test_accuracy or
        search_error), ``round`` (t + 1 for iteration t), ``published``, ``ours`` and ``difference``
        (ours - published); the last two are None where the run has no such value.
    """
    known = losses or {}
    wanted: list[tuple[str, int | None, float, float | None]] = [
        ("global_train_loss", at, value, known.get(at))
        for at, value in zip(published.rounds, published.global_train_loss, strict=True)
    ]
    series = dict(zip(published.local_epochs, published.final_train_loss, strict=True))
    if local_epochs in series:
        ours = known.get(num_rounds) if num_rounds else None
        wanted.append(("global_train_loss", num_rounds, series[local_epochs], ours))
    if published.test_accuracy is not None:
        wanted.append(("test_accuracy", num_rounds, published.test_accuracy, test_accuracy))
    for iteration, value in zip(published.iterations, published.search_error, strict=True):
        best = (best_values or {}).get(iteration + 1)
        wanted.append(("search_error", iteration + 1, value, None if best is None else 1.0 - best))
    return [
        {
            "quantity": quantity,
            "round": at,
            "published": value,
            "ours": ours if _is_known(ours) else None,
            "difference": ours - value if ours is not None and _is_known(ours) else None,
        }
        for quantity, at, value, ours in wanted
    ]


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
