"""From a run's parameters to the noise of one round: what cancels, what stays, on which grid."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from strategies.mechanisms.fixed_point import FixedPoint, choose_step, rounding_sensitivity
from strategies.mechanisms.offset_noise import OffsetNoise, extra_own_variance
from strategies.mechanisms.pairwise_noise import GAUSSIAN_STD
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.sensitivity import Sensitivity
from strategies.mechanisms.smoothing import check_smoothing
from strategies.niss.calibration import calibrate, circles_of, most_noise
from strategies.niss.circles import Circle
from strategies.niss.parameters import NissParameters

_ROOM = 1.1
# Of a variance: above the rounding of the formulas.
_MARGIN = 1.0 + 1e-9
# Beside the noise of the others, which takes a twelfth of the range at most.
_MOST_OWN_STEPS = 2.0**31 / 16
# Keys of the mechanisms that no user gives.
_OF_THE_GRID = (
    *("max_ready", "target_std", "own_variance", "pair_variance", "largest_own_variance", "step"),
)


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

    def own_std(self, noise_multiplier: float, lone: float = 0.0) -> float:
        """Return the standard deviation of the noise that a client adds by itself.

        Parameters
        ----------
        noise_multiplier : float
            z that the client needs; one above the plan's is met by more noise of its own.
        lone : float
            The least z of its own noise alone.

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
        own = max(own, (lone * self.sensitivity.value) ** 2 * _MARGIN)
        std = math.sqrt(own)
        if std > _MOST_OWN_STEPS * self.grid.step:
            raise ParameterError(
                "noise_multiplier",
                max(noise_multiplier, lone),
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
    # The rounding of updates makes them, and so all noise, a little larger than counted here.
    grids = []
    for circle in circles_of(parameters):
        try:
            noise = calibrate(parameters, circle, base)
            grid = choose_step(
                noise,
                largest_entry=update.clipping_norm,
                max_ready=ready,
                largest_own_variance=_ROOM * (noise.own_variance + max(0.0, beyond)),
            )
        except (ParameterError, ArithmeticError) as error:
            raise _blame(parameters, bound, error) from None
        grids.append(grid)
    return max(grids, key=lambda grid: grid.step)


def _blame(parameters: NissParameters, bound: float, error: Exception) -> Exception:
    """Return the error that names what is to be changed if noise and updates need other grids."""
    if isinstance(error, ParameterError) and error.key not in _OF_THE_GRID:
        return error
    update, z = parameters.update, parameters.base_noise_multiplier
    assert update.clipping_norm is not None
    std = f"noise of std {z * bound:.3g}"
    # Whichever is farther from where it usually is.
    clip = max(abs(math.log(update.clipping_norm / bound)), abs(math.log(update.clipping_norm)))
    if z > 0.0 and clip > abs(math.log(z)):
        allowed = f"a norm that 32-bit words hold beside {std}"
        return ParameterError("clipping_norm", update.clipping_norm, allowed)
    key = "target_epsilon" if update.noise_multiplier is None else "noise_multiplier"
    allowed = f"what 32-bit words hold beside clipping_norm = {update.clipping_norm:g}, not {std}"
    return ParameterError(key, getattr(update, key), allowed)


def has_room(
    parameters: NissParameters,
    circle: Circle,
    server_round: int,
    noise_multiplier: float,
    lone: float = 0.0,
) -> bool:
    """Return whether own noise of a client that needs z fits beside that of the others.

    Of its own noise alone it needs `lone`.

    A client asks before it says that it is ready: whoever vanishes later costs the others a round.
    """
    grid = choose_grid(parameters, server_round)
    bound = parameters.update.sensitivity_in_round(server_round).value
    base = parameters.base_noise_multiplier
    own = calibrate(parameters, circle, base * bound).own_variance
    own += max(0.0, noise_multiplier**2 - base**2) * bound**2
    own = max(own, (lone * bound) ** 2)
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
