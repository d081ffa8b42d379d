"""What is wrong with the guarantee of the published rounds, in words and figures of the run."""

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from strategies.mechanisms.accounting import bound_epsilon
from strategies.mechanisms.linear_attack import share_covariance
from strategies.mechanisms.offset_noise import count_colluders
from strategies.mechanisms.rng import SeededStream
from strategies.niss.parameters import NissParameters
from strategies.niss.published import (
    draw_neighbours,
    plan_shares,
    published_noise_multiplier,
    published_noise_std,
    resolve_tau,
)

if TYPE_CHECKING:
    from strategies.dp_fedpaq.spending import Participation

_LARGEST_GRAPH = 500  # clients of the graph that a figure is computed for
_ANY_CLIENT = -1


def published_epsilon(parameters: NissParameters, run: "Participation") -> float | None:
    """Return the epsilon that the noise of the most exposed client gives by the accountant.

    None with shares, which give none. For the published DP-FedAvg, whose noise is Gaussian and
    nobody's but the client's, in exact arithmetic: mode `paper` may train in float32, which no
    bound covers, so this is no guarantee either.

    Parameters
    ----------
    parameters : NissParameters
        In mode `paper`.
    run : Participation
        Who took part so far.
    """
    if parameters.pair_noise != "none":
        return None
    least = parameters.update.min_records
    spent = [0.0]
    for client, count in run.uploads.items():
        records = least if run.num_records is None else max(run.num_records[client], least)
        noise_multiplier = published_noise_multiplier(parameters, client)
        if count:
            spent.append(_count_epsilon(parameters, noise_multiplier, records, count))
    return max(spent)


@lru_cache(maxsize=1024)
def _count_epsilon(
    parameters: NissParameters, noise_multiplier: float, num_records: int, count: int
) -> float:
    update = parameters.update
    releases = update.releases(noise_multiplier, num_records, count)
    return bound_epsilon(releases, parameters.target_delta, update.accountant).epsilon


def list_flaws(parameters: NissParameters, run: "Participation", adversary: str) -> list[str]:
    """Say in words why the published rounds of a run guarantee nothing to an adversary.

    Parameters
    ----------
    parameters : NissParameters
        Of a planned run, in mode `paper`.
    run : Participation
        Who took part so far.
    adversary : {"server_and_colluders", "server", "model_user"}
    """
    if parameters.pair_noise == "none":
        return [*_noise_flaws(parameters), *_own_noise_flaws(parameters, run)]
    if adversary == "model_user":
        flaws = _release_flaws(parameters)
    else:
        flaws = _upload_flaws(parameters, adversary)
    return [*flaws, *_tau_flaws(parameters), *_noise_flaws(parameters)]


def effective_share(num_ready: int, num_shares: int, tau: float, num_colluders: int = 0) -> float:
    """Return what really hides the most exposed client, over the published sigma_k^2.

    By the covariance of the uploads' noises, sigma^2 (Laplacian of the share graph + tau^2
    diag(in-degree)): 1 / (Sigma^-1)_kk of the honest clients, the noise that they share with
    colluders known. It is zero if tau is: then the sum of the uploads is exact.

    Parameters
    ----------
    num_ready, num_shares : int
        Ready clients, each with v shares; the graph is drawn with a fixed seed.
    tau : float
    num_colluders : int
        How many tell the server all they know; at least two are honest.
    """
    if tau == 0.0:
        return 0.0
    stream = SeededStream(b"niss: a share graph")
    neighbours = draw_neighbours(dict.fromkeys(range(num_ready), num_shares), stream)
    honest = range(num_colluders, num_ready)
    inside = {i: [j for j in neighbours[i] if j >= num_colluders] for i in honest}
    _, covariance = share_covariance(inside, 1.0 / num_shares, tau)
    for colluder in range(num_colluders):
        for receiver in neighbours[colluder]:
            if receiver >= num_colluders:
                # The share is known, the factor is not.
                at = receiver - num_colluders
                covariance[at, at] += tau * tau / num_shares
    if np.any(np.diag(covariance) == 0.0):
        return 0.0
    return float(1.0 / np.max(np.diag(np.linalg.inv(covariance))))


def _upload_flaws(parameters: NissParameters, adversary: str) -> list[str]:
    tau, ready = resolve_tau(parameters), min(parameters.max_ready, _LARGEST_GRAPH)
    known = (
        "the server sees all uploads, and an adversary of differential privacy knows the data of "
        "all others"
    )
    if tau == 0.0:
        return [
            f"{known}: with tau = 0 the sum of the uploads is exact, so it learns the update of a "
            "client to the last bit; what hides a client is not the variance in its own upload but "
            "1 / (Sigma^-1)_kk of all uploads' noises, here 0",
            *_fragile(),
        ]
    std = published_noise_std(parameters, _ANY_CLIENT, 1)
    shares, _ = plan_shares(std, parameters.unit_noise_std, ready - 1)
    colluders = 0
    if adversary == "server_and_colluders":
        colluders = min(count_colluders(parameters.colluding_fraction, ready), ready - 2)
    share = effective_share(ready, shares, tau, colluders)
    return [
        f"{known}: the uploads' noises are correlated, Sigma = sigma^2 (Laplacian + tau^2 "
        f"diag(in-degree)), and what hides a client is 1 / (Sigma^-1)_kk; with {ready} clients of "
        f"{shares} shares, {colluders} of them colluding, that is {share:.3g} of the published "
        "sigma_k^2 for the most exposed one",
        "a factor times a share is no Gaussian number, and vanishes where the share does: the "
        "formula for sigma_k does not apply to it",
        *_fragile(),
    ]


def _fragile() -> list[str]:
    return [
        "a colluder may share the noise zero, and the tracker may name colluders as neighbours",
        "the noise of a client that vanishes stays in the sum, that of its neighbours too",
    ]


def _release_flaws(parameters: NissParameters) -> list[str]:
    tau, ready = resolve_tau(parameters), parameters.max_ready
    if tau == 0.0:
        return [
            "noise that cancels protects nobody from the released models: with tau = 0 none is left"
        ]
    return [
        "noise that cancels protects nobody from the released models: in the sum of a round of "
        f"{ready} clients tau^2 {ready} = {tau * tau * ready:.3g} sigma_k^2 is left, of products "
        "of Gaussian numbers, which are none themselves and which colluders know in part"
    ]


def _tau_flaws(parameters: NissParameters) -> list[str]:
    if parameters.tau is not None:
        return []
    rho = parameters.colluding_fraction
    reading = "rho" if parameters.collusion_bound == "conservative" else "max(0, 2 rho - 1)"
    return [
        f"tau = {resolve_tau(parameters):.3g} is reconstructed: the formula of Theorem 3 is "
        f"missing from the text, tau^2 = {reading} with rho = {rho:g} is one reading of it, and "
        "one number of tau stands for all clients"
    ]


def _noise_flaws(parameters: NissParameters) -> list[str]:
    parts, update = parameters.update.num_participations, parameters.update
    assert update.target_epsilon is not None
    one = update.target_epsilon / parts
    flaws = [
        f"the target is split evenly over {parts} participations, epsilon' = {one:.3g} and delta' "
        f"= {parameters.target_delta / parts:.3g} each"
        + (", for which the textbook formula of sigma_k is not proven" if one >= 1.0 else ""),
        "local training may be computed in float32, whose rounding no sensitivity covers",
    ]
    if parameters.weighting == "examples":
        flaws.append("weights by numbers of records tell the server how many records a client has")
    return flaws


def _own_noise_flaws(parameters: NissParameters, run: "Participation") -> list[str]:
    spent = published_epsilon(parameters, run)
    if not spent or not math.isfinite(spent):
        return []
    return [
        f"by the accountant the noise of the most exposed client gives epsilon {spent:.3g} so far, "
        "if arithmetic were exact"
    ]
