"""What hides a client, by a run's parameters: its circle's noise, and what it needs itself."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from strategies.dp_fedpaq.algorithm import client_noise_multiplier
from strategies.mechanisms.exchange import exchange_noise_multiplier
from strategies.mechanisms.offset_noise import OffsetNoise, calibrate_offset_noise
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.sparse_graph import edge_probability
from strategies.niss.circles import Circle
from strategies.niss.parameters import SPARSE_FAILURE, NissParameters

_SHARE_UNITS = 2**20


def circles_of(parameters: NissParameters) -> list[Circle]:
    """Return the circles of a run that have clients."""
    inside = sum(len(each.clients) for each in parameters.coalitions)
    circles = parameters.circles()
    return circles if inside < parameters.num_clients else circles[:-1]


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
        The largest total epsilon that the device's owner allows, as in `device_noise_multiplier`.
    """
    target = parameters.epsilon_of(client)
    update = replace(parameters.update, target_delta=parameters.gaussian_delta)
    least = 0.0
    if device_epsilon is not None:
        least = device_noise_multiplier(parameters, num_records, device_epsilon)
    if target is None:
        return max(least, client_noise_multiplier(update, num_records))
    given = 0.0 if update.noise_multiplier is None else update.noise_multiplier
    aimed = replace(update, target_epsilon=target, noise_multiplier=None)
    return max(given, least, client_noise_multiplier(aimed, num_records))


@lru_cache(maxsize=4096)
def device_noise_multiplier(
    parameters: NissParameters, num_records: int, device_epsilon: float
) -> float:
    """Return z with which all uploads of a client keep to its owner's epsilon.

    Parameters
    ----------
    parameters : NissParameters
    num_records : int
        n_k.
    device_epsilon : float
        Total, of an exchange of a record or of all the client's data (`exchange_epsilon`).
    """
    update = parameters.update
    planned = update.releases(1.0, num_records, update.num_participations)
    return exchange_noise_multiplier(
        device_epsilon, parameters.gaussian_delta, planned, update.accountant
    )


@dataclass(frozen=True)
class OwnNoise:
    """What a client adds noise for, and what it can rely on.

    Attributes
    ----------
    needed : float
        z of the noise that hides it among its peers.
    lone : float
        The least z of its own noise alone; 0: as much as `needed` asks for.
    counted : float
        z that hides it, whoever its peers are. Without a trust list the server may be all of
        them, and take away what they share: then it is that of its own noise alone.
    added : float
        z of its own noise alone.
    """

    needed: float
    lone: float
    counted: float
    added: float


@lru_cache(maxsize=4096)
def plan_own_noise(
    parameters: NissParameters,
    client: int,
    num_records: int,
    device_epsilon: float | None,
    has_trust_list: bool,
) -> OwnNoise:
    """Return what a client adds noise for.

    Parameters
    ----------
    parameters, client, num_records, device_epsilon
        As in `own_noise_multiplier`.
    has_trust_list : bool
        Whether it masks towards devices only that its owner has listed.
    """
    if not parameters.update.adds_noise:
        return OwnNoise(0.0, 0.0, 0.0, 0.0)
    shared = device_epsilon if has_trust_list else None
    needed = own_noise_multiplier(parameters, client, num_records, shared)
    lone = 0.0
    if device_epsilon is not None and not has_trust_list:
        lone = device_noise_multiplier(parameters, num_records, device_epsilon)
    base = parameters.base_noise_multiplier
    own = calibrate(parameters, parameters.circle_of(client), 1.0).own_variance * base**2
    own += max(0.0, needed**2 - base**2)
    # The same in all rounds, and no more than the noise of any of them.
    added = max(lone, math.sqrt(own) * (1.0 - 1e-12))
    return OwnNoise(needed, lone, max(needed, base) if has_trust_list else added, added)


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
