"""What hides a client, by a run's parameters: its circle's noise, and what it needs itself."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from strategies.dp_fedpaq.algorithm import client_noise_multiplier
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
