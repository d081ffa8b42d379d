"""How much privacy a run of NISS has spent, against each adversary: numbers, from what happened."""

import math
from functools import lru_cache

from strategies.dp_fedpaq.spending import Participation, Spent
from strategies.mechanisms.accounting import EpsilonBound, bound_epsilon
from strategies.niss.calibration import calibrate, circles_of, own_noise_multiplier
from strategies.niss.circles import Circle
from strategies.niss.parameters import NissParameters

ADVERSARIES = ("server_and_colluders", "server", "model_user")


def spend(parameters: NissParameters, run: Participation, adversary: str) -> Spent | None:
    """Return what an adversary has learnt of the most exposed client.

    Parameters
    ----------
    parameters : NissParameters
        Mode `sound`, of a planned run.
    run : Participation
        Who took part so far. Where the sizes are unknown, a client with a target has spent the
        target.
    adversary : {"server_and_colluders", "server", "model_user"}
        The server sees all uploads; with it, the colluding fraction of every ready set tells what
        it knows. A user of the models sees averages, and may have the same colluders.

    Returns
    -------
    Spent or None
        None without noise.
    """
    if not parameters.update.adds_noise:
        return None
    own = {client: count for client, count in run.uploads.items() if count > 0}
    bounds = [
        _bound_client(parameters, run, client, count, adversary) for client, count in own.items()
    ]
    none = EpsilonBound(0.0, parameters.update.resolved_accountant)
    worst = max(bounds, key=lambda bound: bound.epsilon, default=none)
    counts: tuple[str, ...] = () if parameters.update.record_sampling == "none" else ("records",)
    colluding = 0.0 if adversary == "server" else colluding_fraction(parameters)
    return Spent(worst.epsilon, worst.accountant, colluding, counts)


def _bound_client(
    parameters: NissParameters, run: Participation, client: int, count: int, adversary: str
) -> EpsilonBound:
    target = parameters.epsilon_of(client)
    if run.num_records is None and target is not None:
        return EpsilonBound(target, parameters.update.resolved_accountant)
    least = parameters.update.min_records
    records = least if run.num_records is None else max(run.num_records[client], least)
    uploads = min(count, parameters.update.num_participations)
    fewest = run.fewest_uploads if adversary == "model_user" else 0
    # Of clients without a target of their own, all that matters is how many records they have.
    known = client if parameters.is_personal else -1
    return _bound(parameters, known, records, uploads, adversary, fewest)


@lru_cache(maxsize=4096)
def _bound(
    parameters: NissParameters,
    client: int,
    num_records: int,
    count: int,
    adversary: str,
    fewest_uploads: int,
) -> EpsilonBound:
    base = parameters.base_noise_multiplier
    needed = max(base, own_noise_multiplier(parameters, client, num_records))
    gained = hidden_share(parameters, parameters.circle_of(client), adversary, fewest_uploads)
    # What a client adds beyond the base is its own and hides it from everybody.
    noise_multiplier = math.sqrt(needed**2 + base**2 * (gained - 1.0))
    update = parameters.update
    releases = update.releases(noise_multiplier, num_records, count)
    return bound_epsilon(releases, parameters.gaussian_delta, update.accountant)


def hidden_share(
    parameters: NissParameters, circle: Circle, adversary: str, fewest_uploads: int = 0
) -> float:
    """Return the variance that hides a client from an adversary, over that against colluders.

    Parameters
    ----------
    parameters : NissParameters
    circle : Circle
        The client's.
    adversary : str
        As in `spend`.
    fewest_uploads : int
        The smallest number of uploads that a published average held.

    Returns
    -------
    float
        At least 1: whoever knows less learns no more.
    """
    noise = calibrate(parameters, circle, 1.0)
    if adversary == "server":
        return max(1.0, noise.effective_variance_against(circle.min_ready))
    if adversary == "model_user" and circles_of(parameters) == [circle]:
        # The honest uploads' own noises add up in the sum; colluders know theirs, and whoever
        # vanished may have been honest.
        return max(1.0, (fewest_uploads - circle.num_colluders) * noise.own_variance)
    return 1.0


def colluding_fraction(parameters: NissParameters) -> float:
    """Return the share of all clients that may collude without harm to any of the others.

    It is that of a circle's colluders among all its clients: the server draws who takes part, and
    may ask all of the former in one round.
    """
    return min(
        circle.num_colluders / parameters.circle_size(circle) for circle in circles_of(parameters)
    )
