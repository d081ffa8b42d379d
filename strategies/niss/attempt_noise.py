"""The noise of one attempt of a round, as the server knows it, in either mode."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from strategies.mechanisms.fixed_point import FixedPoint
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.rng import Stream
from strategies.niss.calibration import needed_of
from strategies.niss.noise_plan import NoisePlan, plan_round, std_of_sum
from strategies.niss.parameters import NissParameters
from strategies.niss.published import lacks_neighbours, published_noise_std
from strategies.niss.published_round import plan_published_round
from strategies.niss.roster import Group, Roster


class AttemptNoise(Protocol):
    """What clients are told about their noise, and what of it is left in a sum."""

    @property
    def grid(self) -> FixedPoint:
        """The grid of the uploads."""

    def describe(self, client: int, peers: Sequence[int]) -> dict[str, Any]:
        """Return what a client is told beside its ready set: fields of a request for an upload."""

    def weight_of(self, uploaded: Collection[int]) -> float:
        """Return what the sum of some uploads is divided by."""

    def residual_std(self, uploaded: Collection[int]) -> float:
        """Return the standard deviation of the noise left in the sum of some uploads."""


@dataclass(frozen=True)
class SoundAttempt:
    """An attempt in mode `sound`.

    Attributes
    ----------
    parameters : NissParameters
    groups : mapping
        Client numbers by circle and trust list: those of a group mask towards each other.
    plans : mapping of int to NoisePlan
        By circle.
    num_records : mapping of int to int, or None
        n_k by client, where it may be known.
    """

    parameters: NissParameters
    groups: Mapping[Group, Sequence[int]]
    plans: Mapping[int, NoisePlan]
    num_records: Mapping[int, int] | None

    @property
    def grid(self) -> FixedPoint:
        """The grid of the uploads, the same for all circles."""
        return next(iter(self.plans.values())).grid

    def describe(self, client: int, peers: Sequence[int]) -> dict[str, Any]:
        """Return the grid and the size of the pair noise in the client's circle."""
        circle = next(key[0] for key, members in self.groups.items() if client in members)
        scale = self.plans[circle].pair_scale
        return {"step_exponent": self.grid.exponent, "pair_scale": scale}

    def weight_of(self, uploaded: Collection[int]) -> float:
        """Return the number of uploads: weights are uniform."""
        return float(len(uploaded))

    def residual_std(self, uploaded: Collection[int]) -> float:
        """Return the standard deviation of the noise left in the sum of some uploads."""
        needed = {each: needed_of(self.parameters, self.num_records, each) for each in uploaded}
        return std_of_sum(self.groups, self.plans, needed)


def plan_attempt(
    parameters: NissParameters,
    server_round: int,
    num_parameters: int,
    groups: Mapping[Group, Sequence[int]],
    roster: Roster,
    told: Mapping[int, int],
    num_records: Mapping[int, int] | None,
    stream: Stream,
) -> AttemptNoise:
    """Plan the noise of an attempt whose ready set is known.

    Parameters
    ----------
    parameters : NissParameters
    server_round, num_parameters : int
    groups : mapping
        The ready clients by circle and trust list.
    roster : Roster
    told : mapping of int to int
        n_k as ready clients told it, 0 where they do not (mode `sound`).
    num_records : mapping of int to int, or None
        n_k where it may be known.
    stream : Stream
        The tracker's, in mode `paper`.
    """
    if parameters.mode == "paper":
        numbers = {client: roster.cards[client].number for client in told}
        members = list(groups.values())
        return plan_published_round(parameters, server_round, members, told, numbers, stream)
    plans = plan_round(parameters, server_round, num_parameters)
    return SoundAttempt(parameters, groups, plans, num_records)


def check_noise(parameters: NissParameters, num_parameters: int, num_rounds: int = 1) -> list[str]:
    """Return what is to be said of the first round's noise, before anybody is asked.

    Raises
    ------
    ParameterError
        If the noise of the first or the last round cannot be made: the others' lies in between.
    """
    if parameters.mode == "sound":
        plan_round(parameters, 1, num_parameters)
        try:
            plan_round(parameters, num_rounds, num_parameters)
        except ParameterError as error:
            schedule = parameters.update.lr_schedule
            allowed = f"one with which 32-bit words hold the noise of round {num_rounds}, too"
            raise ParameterError(
                "lr_schedule", schedule, f"{allowed} ({error.key}: {error.allowed})"
            ) from None
        return []
    noise_std, unit = published_noise_std(parameters, -1, 1), parameters.unit_noise_std
    most = parameters.max_ready - 1
    if parameters.pair_noise == "none" or not lacks_neighbours(noise_std, unit, most):
        return []
    return [
        f"unit_noise_std: {unit} asks for more shares than the {most} other clients of a round; "
        "shares are larger"
    ]
