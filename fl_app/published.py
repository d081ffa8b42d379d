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

    def __post_init__(self) -> None:
        pairs = (("rounds", "global_train_loss"), ("local_epochs", "final_train_loss"))
        for places, losses in pairs:
            at, values = getattr(self, places), getattr(self, losses)
            if len(at) != len(values):
                raise ConfigError(f"published.{losses}", values, f"one for each of {places} {at}")
            if any(place < 1 for place in at) or list(at) != sorted(set(at)):
                raise ConfigError(f"published.{places}", at, "increasing integers >= 1")
            if any(value < 0 for value in values):
                raise ConfigError(f"published.{losses}", values, "numbers >= 0")
        accuracy = self.test_accuracy
        if accuracy is not None and not 0.0 <= accuracy <= 1.0:
            raise ConfigError("published.test_accuracy", accuracy, "a number in [0, 1] or null")


def compare_with_published(
    published: PublishedSettings,
    *,
    losses: Mapping[int, float],
    test_accuracy: float | None,
    local_epochs: int | None,
    num_rounds: int,
) -> list[dict[str, Any]]:
    """List what was published of a run beside what the run gave.

    Parameters
    ----------
    published : PublishedSettings
    losses : mapping of int to float
        Round to the loss on all clients' training records, where it was computed.
    test_accuracy : float or None
        After the last round.
    local_epochs : int or None
        E of the run.
    num_rounds : int
        The run's last round.

    Returns
    -------
    list of dict
        One for each published value: ``quantity`` (global_train_loss or test_accuracy), ``round``,
        ``published``, ``ours`` and ``difference`` (ours - published); the last two are None where
        the run has no such value.
    """
    wanted = [
        ("global_train_loss", at, value, losses.get(at))
        for at, value in zip(published.rounds, published.global_train_loss, strict=True)
    ]
    series = dict(zip(published.local_epochs, published.final_train_loss, strict=True))
    if local_epochs in series:
        ours = losses.get(num_rounds)
        wanted.append(("global_train_loss", num_rounds, series[local_epochs], ours))
    if published.test_accuracy is not None:
        wanted.append(("test_accuracy", num_rounds, published.test_accuracy, test_accuracy))
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
