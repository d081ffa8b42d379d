"""Who is asked in a round, and how often one client may be."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from strategies.dp_fedpaq.algorithm import plan_participations, sample_cohort
from strategies.dp_fedpaq.uplink_budget import UplinkBudget
from strategies.mechanisms.parameter_checks import ParameterError, check_integer, check_number
from strategies.mechanisms.rng import Stream

PARTICIPATION_KINDS = ("fixed", "poisson", "round_robin")


@dataclass(frozen=True)
class CohortPlan:
    """How a round's clients are drawn.

    Attributes
    ----------
    num_sampled_clients : int or None
        r, clients asked in a round. At most one of this and `fraction_train` is given.
    fraction_train : float or None
        r / M in (0, 1]; r is rounded to the nearest integer, at least 1. Neither: everybody.
    participation : {"fixed", "poisson", "round_robin"}
        Exactly r clients without replacement; each by itself with probability r / M; or everybody
        in turn, r a round, in the order of the client numbers.
    max_participations : int or None
        Uploads of one client in the run at most; None: planned (`plan_participations`).
    min_replies : int
        Valid uploads below which a round leaves the model as it was.

    Raises
    ------
    ParameterError
        If a value is not allowed or two contradict each other.
    """

    num_sampled_clients: int | None = None
    fraction_train: float | None = None
    participation: str = "fixed"
    max_participations: int | None = None
    min_replies: int = 1

    def __post_init__(self) -> None:
        if self.num_sampled_clients is not None and self.fraction_train is not None:
            raise ParameterError(
                "fraction_train", self.fraction_train, "null beside num_sampled_clients"
            )
        check_number(
            "fraction_train", self.fraction_train, positive=True, below=1.0 + 1e-12, optional=True
        )
        if self.participation not in PARTICIPATION_KINDS:
            raise ParameterError(
                "participation", self.participation, ", ".join(PARTICIPATION_KINDS)
            )
        check_integer("num_sampled_clients", self.num_sampled_clients, 1, optional=True)
        check_integer("max_participations", self.max_participations, 1, optional=True)
        check_integer("min_replies", self.min_replies, 1)

    def num_sampled(self, num_clients: int) -> int:
        """Return r for M clients."""
        if self.fraction_train is not None:
            return max(1, round(self.fraction_train * num_clients))
        wanted = num_clients if self.num_sampled_clients is None else self.num_sampled_clients
        if wanted > num_clients:
            raise ParameterError(
                "num_sampled_clients", wanted, f"at most the number of clients, {num_clients}"
            )
        return wanted

    def participations(self, num_rounds: int, num_clients: int) -> int:
        """Return how often one client may upload in a run of K rounds."""
        if self.max_participations is not None:
            return self.max_participations
        if self.participation == "round_robin":
            return math.ceil(num_rounds * self.num_sampled(num_clients) / num_clients)
        return plan_participations(num_rounds, self.num_sampled(num_clients), num_clients)

    def draw(self, clients: Iterable[int], stream: Stream, server_round: int) -> list[int]:
        """Draw a round's clients, in increasing order."""
        ordered = sorted(clients)
        sampled = self.num_sampled(len(ordered))
        if self.participation == "round_robin":
            first = (server_round - 1) * sampled
            return sorted(ordered[at % len(ordered)] for at in range(first, first + sampled))
        drawn = sample_cohort(len(ordered), sampled, self.participation, stream)
        return [ordered[position] for position in drawn]


def check_hidden_cohorts(cohorts: CohortPlan, budget: UplinkBudget) -> None:
    """Refuse what would show users of the models how many clients took part (`noise_at: server`).

    Raises
    ------
    ParameterError
        If rounds without enough replies would be left out, or Poisson cohorts would end the run.
    """
    if cohorts.min_replies > 1:
        raise ParameterError(
            "min_replies",
            cohorts.min_replies,
            "1 with noise_at=server (a round that is left out shows who was there)",
        )
    if cohorts.participation == "poisson" and budget.bits is not None:
        raise ParameterError(
            "participation",
            cohorts.participation,
            "fixed with noise_at=server and an uplink budget (its end shows how many took part)",
        )
