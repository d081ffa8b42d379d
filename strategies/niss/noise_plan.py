"""From a run's parameters to the noise of one round: what cancels, what stays, on which grid."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from strategies.dp_fedpaq.algorithm import client_noise_multiplier
from strategies.mechanisms.fixed_point import FixedPoint, choose_step, rounding_sensitivity
from strategies.mechanisms.offset_noise import (
    OffsetNoise,
    calibrate_offset_noise,
    extra_own_variance,
)
from strategies.mechanisms.pairwise_noise import GAUSSIAN_STD
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.sensitivity import Sensitivity
from strategies.mechanisms.smoothing import check_smoothing
from strategies.mechanisms.sparse_graph import edge_probability
from strategies.niss.circles import Circle
from strategies.niss.parameters import SPARSE_FAILURE, NissParameters

_ROOM = 1.1
# Beside the noise of the others, which takes a twelfth of the range at most.
_MOST_OWN_STEPS = 2.0**31 / 16
_SHARE_UNITS = 2**20


@dataclass(frozen=True)
class NoisePlan:
    """The noise of a round, for the clients of one circle.

    Attributes
    ----------
    sensitivity : Sensitivity
        Of an update on the grid.
    noise_multiplier : float
        z that every client of the run allows for at least.
    noise : OffsetNoise or None
        What is calibrated for z times the sensitivity, in the unit of an update squared; None
        without noise (secure aggregation alone).
    grid : FixedPoint
    pair_scale : int
        c: pair noise is c times a discrete Gaussian of standard deviation `GAUSSIAN_STD`, in
        steps of the grid; 0 without Gaussian pairs.
    """

    sensitivity: Sensitivity
    noise_multiplier: float
    noise: OffsetNoise | None
    grid: FixedPoint
    pair_scale: int

    @property
    def pair_std(self) -> float:
        """Standard deviation of the pair noise, at least the calibrated one."""
        return self.pair_scale * GAUSSIAN_STD * self.grid.step

    def own_std(self, noise_multiplier: float) -> float:
        """Return the standard deviation of the noise that a client adds by itself.

        Parameters
        ----------
        noise_multiplier : float
            z that the client needs; one above the plan's is met by more noise of its own.

        Raises
        ------
        ParameterError
            If so much noise does not fit beside that of the others.
        """
        if self.noise is None:
            return 0.0
        own = self.noise.own_variance
        if noise_multiplier > self.noise_multiplier:
            delta = self.sensitivity.value
            own += extra_own_variance(self.noise_multiplier * delta, noise_multiplier * delta)
        std = math.sqrt(own)
        if std > _MOST_OWN_STEPS * self.grid.step:
            raise ParameterError(
                "noise_multiplier",
                noise_multiplier,
                f"own noise of at most {_MOST_OWN_STEPS:g} steps of {self.grid.step}",
            )
        return std


@lru_cache(maxsize=16)
def choose_grid(parameters: NissParameters, server_round: int) -> FixedPoint:
    """Return the finest grid on which the sum of a round's uploads does not overflow.

    Raises
    ------
    ParameterError
        If none is fine enough for the noise.
    """
    update, ready = parameters.update, parameters.max_ready
    assert update.clipping_norm is not None
    if not update.adds_noise:
        return FixedPoint(2.0 ** math.ceil(math.log2(ready * update.clipping_norm / 2**30)))
    bound = update.sensitivity_in_round(server_round).value
    base = parameters.base_noise_multiplier * bound
    # A client that needs more than the others adds it by itself.
    beyond = (most_noise(parameters) * bound) ** 2 - base**2
    noises = [calibrate(parameters, circle, base) for circle in circles_of(parameters)]
    # The rounding of updates makes them, and so all noise, a little larger than counted here.
    try:
        grids = [
            choose_step(
                noise,
                largest_entry=update.clipping_norm,
                max_ready=ready,
                largest_own_variance=_ROOM * (noise.own_variance + max(0.0, beyond)),
            )
            for noise in noises
        ]
    except ParameterError as error:
        raise ParameterError(
            "clipping_norm",
            update.clipping_norm,
            f"a norm that 32-bit words hold beside noise of std {base:.3g} ({error})",
        ) from None
    return max(grids, key=lambda grid: grid.step)


def has_room(
    parameters: NissParameters, circle: Circle, server_round: int, noise_multiplier: float
) -> bool:
    """Return whether own noise of a client that needs z fits beside that of the others.

    A client asks before it says that it is ready: whoever vanishes later costs the others a round.
    """
    grid = choose_grid(parameters, server_round)
    bound = parameters.update.sensitivity_in_round(server_round).value
    base = parameters.base_noise_multiplier
    own = calibrate(parameters, circle, base * bound).own_variance
    own += max(0.0, noise_multiplier**2 - base**2) * bound**2
    return _ROOM * own <= (_MOST_OWN_STEPS * grid.step) ** 2


# Of a round, all clients in one process ask for the same.
@lru_cache(maxsize=16)
def plan_noise(
    parameters: NissParameters,
    circle: Circle,
    server_round: int,
    num_parameters: int,
    grid: FixedPoint,
) -> NoisePlan:
    """Return the noise of a round on a given grid.

    Formal guarantees: whoever sees all uploads, and knows the pair noise of all but `num_honest` of
    a client's peers (itself among them) and all other updates, learns of the client's update what a
    Gaussian mechanism with z times the sensitivity shows, z = `noise_multiplier`
    (`offset_noise`). What rounding and finite words change is less than the calibration's margin of
    1e-9 in the variance gives back (`smoothing_error`, `list_gaussian_masses`).

    Raises
    ------
    ParameterError
        If the grid is too coarse, or there are too many clients for the pair noise.
    """
    bound = parameters.update.sensitivity_in_round(server_round)
    sensitivity = rounding_sensitivity(bound, grid.step, num_parameters)
    if not parameters.update.adds_noise:
        return NoisePlan(sensitivity, 0.0, None, grid, 0)
    base = parameters.base_noise_multiplier
    noise = calibrate(parameters, circle, base * sensitivity.value)
    plan = NoisePlan(sensitivity, base, noise, grid, noise.pair_multiple(grid.step))
    check_smoothing(noise, grid.step, max_ready=parameters.max_ready)
    return plan


def plan_round(
    parameters: NissParameters, server_round: int, num_parameters: int
) -> dict[int, NoisePlan]:
    """Return the noise of a round for each circle, by its index; errors as in `plan_noise`."""
    grid = choose_grid(parameters, server_round)
    return {
        circle.index: plan_noise(parameters, circle, server_round, num_parameters, grid)
        for circle in circles_of(parameters)
    }


def accept_grid(given: FixedPoint, own: FixedPoint) -> None:
    """Refuse a server's grid that is not the client's own.

    Both compute it from the same numbers, on machines that may round differently: one power of two
    is let pass. On a much finer grid updates and noise would not fit their words.

    Raises
    ------
    ParameterError
        If the grids differ by more.
    """
    if abs(given.exponent - own.exponent) > 1:
        raise ParameterError("step", given.step, f"{own.step!r}")


def accept_scale(plan: NoisePlan, pair_scale: int, *, max_ready: int) -> NoisePlan:
    """Return a plan with the server's c in place of the client's own.

    Both compute it from the same numbers, on machines that may round differently.

    Raises
    ------
    ParameterError
        If it is less than the client's, more than rounding can explain, or so large that own noise
        does not smooth it.
    """
    if not plan.pair_scale <= pair_scale <= plan.pair_scale + (plan.pair_scale > 0):
        raise ParameterError("pair_scale", pair_scale, f"{plan.pair_scale} steps")
    accepted = replace(plan, pair_scale=pair_scale)
    if plan.noise is not None and pair_scale > plan.pair_scale:
        larger = replace(plan.noise, pair_variance=accepted.pair_std**2)
        check_smoothing(larger, plan.grid.step, max_ready=max_ready)
    return accepted


@lru_cache(maxsize=64)
def calibrate(parameters: NissParameters, circle: Circle, std: float) -> OffsetNoise:
    """Return the noise whose effective standard deviation is `std` against a circle's colluders.

    Raises
    ------
    ParameterError
        If it cannot be met; of a coalition, what is its own is named as such.
    """
    try:
        return calibrate_offset_noise(
            std,
            min_ready=circle.min_ready,
            max_ready=circle.max_ready,
            colluding_fraction=circle.colluding_fraction,
            expected_dropouts=parameters.expected_dropouts,
            pair_noise=parameters.pair_noise,
            sparse=parameters.graph == "sparse",
        )
    except ParameterError as error:
        if not circle.index:
            raise
        if error.key == "colluding_fraction":
            name = f"coalitions[{circle.index - 1}].colluding_fraction"
            raise ParameterError(name, error.value, error.allowed) from None
        allowed = f"{error.allowed} (coalitions[{circle.index - 1}])"
        raise ParameterError(error.key, error.value, allowed) from None


def edge_share(parameters: NissParameters, circle: Circle) -> float:
    """Return the probability that two clients of a circle share noise; 1 in a complete graph."""
    if parameters.graph != "sparse":
        return 1.0
    share = edge_probability(
        parameters.max_ready,
        calibrate(parameters, circle, 1.0).num_honest,
        parameters.num_clients,
        SPARSE_FAILURE,
    )
    # Both ends must compare with the same number, on machines that may round differently.
    return min(1.0, math.ceil(share * _SHARE_UNITS) / _SHARE_UNITS)


def circles_of(parameters: NissParameters) -> list[Circle]:
    """Return the circles of a run that have clients."""
    inside = sum(len(each.clients) for each in parameters.coalitions)
    circles = parameters.circles()
    return circles if inside < parameters.num_clients else circles[:-1]


def std_of_sum(
    groups: Mapping[tuple[int, bytes], Collection[int]],
    plans: Mapping[int, NoisePlan],
    needed: Mapping[int, float],
) -> float:
    """Return the standard deviation of the noise that is left in the sum of some uploads.

    Parameters
    ----------
    groups : mapping
        By circle and trust list, the ready clients, who masked towards each other.
    plans : mapping of int to NoisePlan
        By circle.
    needed : mapping of int to float
        z of each client whose upload is in the sum.

    Returns
    -------
    float
        Each upload's own noise, and its pair noise with each client of its group that vanished.
    """
    variance = 0.0
    for (circle, _), members in groups.items():
        plan = plans[circle]
        left = [client for client in members if client in needed]
        lost = len(members) - len(left)
        variance += sum(plan.own_std(needed[client]) ** 2 for client in left)
        variance += len(left) * lost * plan.pair_std**2
    return math.sqrt(variance)


@lru_cache(maxsize=4096)
# Alg. 2, noise of the client: from its own budget and sensitivity.
def own_noise_multiplier(
    parameters: NissParameters,
    client: int,
    num_records: int,
    device_epsilon: float | None = None,
) -> float:
    """Return z that a client needs for its own target, or its device's, whichever is more private.

    Parameters
    ----------
    parameters : NissParameters
    client : int
        Its number.
    num_records : int
        n_k.
    device_epsilon : float or None
        The largest total epsilon that the device's owner allows.
    """
    targets = [each for each in (parameters.epsilon_of(client), device_epsilon) if each is not None]
    update = replace(parameters.update, target_delta=parameters.gaussian_delta)
    if not targets:
        return client_noise_multiplier(update, num_records)
    given = 0.0 if update.noise_multiplier is None else update.noise_multiplier
    aimed = replace(update, target_epsilon=min(targets), noise_multiplier=None)
    return max(given, client_noise_multiplier(aimed, num_records))


def needed_of(
    parameters: NissParameters, num_records: Mapping[int, int] | None, client: int
) -> float:
    """Return z that a client adds noise for; where its size is unknown, the most it may need."""
    if not parameters.update.adds_noise:
        return 0.0
    if num_records is None:
        return most_noise(parameters)
    return own_noise_multiplier(
        parameters, client, max(num_records[client], parameters.update.min_records)
    )


def most_noise(parameters: NissParameters) -> float:
    """Return the largest z that a client of the run may need for the run's own targets."""
    least = parameters.update.min_records
    numbers = [-1, *(client for client, _ in parameters.client_epsilons)]
    return max(own_noise_multiplier(parameters, number, least) for number in numbers)
