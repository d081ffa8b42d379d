"""The plan of a run, before its first round: participations, ready clients, common noise."""

import math
from collections.abc import Sequence
from dataclasses import replace

from strategies.dp_fedpaq.cohort import CohortPlan
from strategies.dp_fedpaq.spending import Participation
from strategies.mechanisms.fixed_point import MOST_READY
from strategies.mechanisms.offset_noise import count_colluders
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.niss.calibration import calibrate, circles_of, own_noise_multiplier
from strategies.niss.parameters import NissParameters

SPARE_PARTICIPATIONS = 1
"""Uploads of a client beyond the planned rounds, in a secret run, for one that is interrupted."""

READY_SHARE = 0.9
"""Share of a round's clients that must be ready, where the user does not say how many."""


def plan_run(
    parameters: NissParameters,
    cohorts: CohortPlan,
    plan: Participation,
    min_ready: int | None,
) -> tuple[NissParameters, Participation]:
    """Plan the participations of a client, who must be ready, and the noise that all allow for.

    Parameters
    ----------
    parameters : NissParameters
    cohorts : CohortPlan
    plan : Participation
        With the planned rounds, the number of clients and, where they may be known, their sizes.
    min_ready : int or None
        None: nine of ten of a round's clients, rounded up.

    Returns
    -------
    parameters : NissParameters
        With `num_participations`, `num_clients`, `min_ready`, `max_ready` and
        `base_noise_multiplier`.
    plan : Participation
        With `num_sampled`.

    Raises
    ------
    ParameterError
        If too few clients take part in a round.
    """
    num_clients = plan.num_clients
    members = sum(len(each.clients) for each in parameters.coalitions)
    least, sampled, _ = plan_ready(cohorts, num_clients, min_ready, members)
    _check_dropouts(parameters, sampled, cohorts.min_replies)
    if min_ready is not None and members < num_clients:
        _check_min_ready(parameters, min_ready, sampled)
    # A round that is interrupted is tried again with fresh keys, and charged again.
    secret = parameters.update.randomness == "secret"
    spare = SPARE_PARTICIPATIONS if secret and cohorts.max_participations is None else 0
    parameters = replace(
        parameters,
        update=replace(
            parameters.update,
            num_participations=cohorts.participations(plan.num_rounds, num_clients) + spare,
        ),
        num_clients=num_clients,
        min_ready=least,
        max_ready=sampled,
    )
    for index, each in enumerate(parameters.coalitions):
        if each.min_ready > sampled:
            raise ParameterError(
                f"coalitions[{index}].min_ready",
                each.min_ready,
                f"at most the clients of a round, {sampled}",
            )
    if parameters.graph == "sparse":
        # Without noise, too, a mask hides nobody among too few.
        for circle in circles_of(parameters):
            calibrate(parameters, circle, 1.0)
    plan = replace(plan, num_sampled=sampled)
    _check_sizes(parameters, plan)
    if parameters.mode == "paper" or not parameters.update.adds_noise:
        return parameters, plan
    base = choose_base(parameters, needed_noise(parameters, plan), sampled / num_clients)
    return replace(parameters, base_noise_multiplier=base), plan


def plan_ready(
    cohorts: CohortPlan, num_clients: int, min_ready: int | None, num_in_coalitions: int = 0
) -> tuple[int, int, int]:
    """Return how many clients of a round must be ready, how many may be, and the clients of all.

    Parameters
    ----------
    cohorts : CohortPlan
    num_clients : int
        M.
    min_ready : int or None
        Of the clients outside of all coalitions. None: nine of ten of those that a round asks.
    num_in_coalitions : int
        Clients of all coalitions together.

    Raises
    ------
    ParameterError
        If a round has too few clients.
    """
    sampled = cohorts.num_sampled(num_clients)
    if not 2 <= sampled <= MOST_READY:
        given = {key: getattr(cohorts, key) for key in ("num_sampled_clients", "fraction_train")}
        key = next((name for name, value in given.items() if value is not None), "num_clients")
        few = "at least 2 clients a round with niss: noise cancels between clients"
        allowed = few if sampled < 2 else f"at most {MOST_READY} clients a round with niss"
        raise ParameterError(key, given.get(key, num_clients), allowed)
    outside = num_clients - num_in_coalitions
    if outside == 1:
        raise ParameterError(
            "coalitions",
            f"{num_in_coalitions} of {num_clients} clients",
            "all clients, or all but two at least: one alone has nobody to hide among",
        )
    asked = sampled * outside // num_clients
    least = min_ready or max(2, math.ceil(READY_SHARE * asked - 1e-9))
    if outside and least > min(sampled, outside):
        where = " outside of coalitions" if num_in_coalitions else ""
        raise ParameterError(
            "min_ready", least, f"at most the clients of a round{where}, {min(sampled, outside)}"
        )
    return least, sampled, num_clients


def _check_dropouts(parameters: NissParameters, sampled: int, min_replies: int) -> None:
    """Refuse to expect what makes every round fail."""
    expected, most = parameters.expected_dropouts, sampled - min_replies
    if expected > max(0, most):
        allowed = f"at most {max(0, most)}: of {sampled} clients of a round {min_replies} must "
        raise ParameterError("expected_dropouts", expected, allowed + "upload (min_replies)")


def _check_min_ready(parameters: NissParameters, min_ready: int, sampled: int) -> None:
    """Name the least ready set, where a larger one would do, before the colluding fraction is."""
    colluders = count_colluders(parameters.colluding_fraction, sampled)
    hides = parameters.update.adds_noise or parameters.graph == "sparse"
    if parameters.mode == "sound" and hides and min_ready < colluders + 2 <= sampled:
        allowed = f"at least {colluders + 2}: of {sampled} clients of a round {colluders} may "
        raise ParameterError("min_ready", min_ready, f"{allowed}collude (colluding_fraction)")


def _check_sizes(parameters: NissParameters, plan: Participation) -> None:
    """Refuse a run of which no round can begin, as too few clients ever have enough records."""
    update = parameters.update
    if plan.num_records is None or parameters.coalitions or not update.is_size_public:
        return
    able = sum(size >= update.min_records for size in plan.num_records.values())
    # Where nobody has enough, the first round says so.
    if 0 < able < parameters.min_ready:
        allowed = f"at most {able}: the other {len(plan.num_records) - able} clients have fewer "
        allowed += f"than {update.min_records} records (local_steps * batch_size)"
        raise ParameterError("min_ready", parameters.min_ready, allowed)


def needed_noise(parameters: NissParameters, plan: Participation) -> list[float]:
    """Return z of each client, as far as the sizes are known, else of one of the least size."""
    least = parameters.update.min_records
    if plan.num_records is None:
        numbers = [-1, *(client for client, _ in parameters.client_epsilons)]
        return [own_noise_multiplier(parameters, number, least) for number in numbers]
    return [
        own_noise_multiplier(parameters, client, max(size, least))
        for client, size in plan.num_records.items()
        if size >= least or not parameters.update.is_size_public
    ] or [own_noise_multiplier(parameters, -1, least)]


def choose_base(parameters: NissParameters, needed: Sequence[float], share: float) -> float:
    """Return the z that all clients' noise allows for, with which a sum has the least noise.

    A client that needs more adds noise that does not cancel; a higher base makes all add more.

    Parameters
    ----------
    parameters : NissParameters
    needed : sequence of float
        z of each client.
    share : float
        Share of the clients that a round asks.
    """
    own = calibrate(parameters, circles_of(parameters)[-1], 1.0).own_variance

    def noise_of_sum(base: float) -> float:
        beyond = sum(max(0.0, each**2 - base**2) for each in needed)
        return len(needed) * own * base**2 + beyond

    return min(sorted(set(needed)), key=noise_of_sum)
