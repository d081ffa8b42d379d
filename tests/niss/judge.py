"""The best linear attacker as a judge of what clients really uploaded, whatever the server did."""

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from strategies.mechanisms.fixed_point import unwrap
from strategies.mechanisms.linear_attack import AttackResult, attack
from strategies.mechanisms.pairwise_noise import (
    GAUSSIAN_STD,
    gaussian_pair_noise,
    sum_uniform_masks,
)
from strategies.niss.noise_plan import plan_noise
from strategies.niss.parameters import NissParameters
from tests.niss.hostile_server import Colluder, HostileServer, Masked, Wiretap, known_keys


def promised(upload: Masked, parameters: NissParameters, server_round: int = 1) -> float:
    """Return sigma_eff that the parameters promise the client of an upload, on its grid."""
    circle = parameters.circle_of(0)
    grid, size = upload.scale["grid"], upload.words.size
    plan = plan_noise(parameters, circle, server_round, size, grid)
    return plan.noise_multiplier * plan.sensitivity.value


def judge(
    wiretap: Wiretap,
    server: HostileServer,
    target: int = 0,
    colluders: Collection[int | Colluder] = (),
    parameters: NissParameters | None = None,
    leaked: tuple[bytes, ...] = (),
) -> AttackResult | None:
    """Attack the last upload of a client."""
    chosen = server.parameters if parameters is None else parameters
    identity = server.cards[target].identity
    upload = [each for each in wiretap.uploads if each.identity == identity][-1]
    lost = {each.identity for each in colluders if isinstance(each, Colluder)}
    lost |= {server.cards[each].identity for each in colluders if isinstance(each, int)}
    args = (wiretap.uploads, upload, promised(upload, chosen), server.exchange_keys(colluders))
    if chosen.pair_noise == "uniform":
        return judge_uniform(*args, colluders=lost, leaked=leaked)[0]
    return judge_gaussian(*args, colluders=lost, leaked=leaked)


def assert_hidden(result: AttackResult | None, size: int = 20_000) -> None:
    """Exact chi-square bounds, at 1e-6 each: the attacker is no closer than was promised."""
    assert result is not None
    assert result.num_coordinates == size
    assert result.agrees()
    assert not result.breaks_promise
    assert not result.beats_promise()


def judge_gaussian(
    uploads: Sequence[Masked],
    target: Masked,
    sigma_eff: float,
    exchange_keys: Mapping[bytes, bytes],
    *,
    colluders: Collection[bytes] = (),
    leaked: Collection[bytes] = (),
) -> AttackResult:
    """Attack an upload, knowing all other updates, the colluders' keys, and keys that leaked.

    The covariance is that of the keys and sizes with which the clients masked: a key in two uploads
    makes them correlated, whoever it was meant for.
    """
    rows = [each for each in uploads if each.identity not in colluders]
    size = min(each.words.size for each in rows)
    known = [known_keys(each, exchange_keys) | set(leaked) for each in rows]
    units = [each.scale["grid"].step * each.scale["pair_scale"] for each in rows]
    covariance = np.zeros((len(rows), len(rows)))
    residuals = np.zeros((len(rows), size))
    for i, row in enumerate(rows):
        residuals[i] = unwrap(row.words[:size]) * row.scale["grid"].step
        for key in row.keys.keys() & known[i]:
            residuals[i] -= row.keys[key] * units[i] * gaussian_pair_noise(key, size)
        if row is not target:
            residuals[i] -= row.update[:size]
        covariance[i, i] = row.scale["own_std"] ** 2
        for j, other in enumerate(rows):
            both = (row.keys.keys() & other.keys.keys()) - known[i]
            signs = sum(row.keys[key] * other.keys[key] for key in both)
            covariance[i, j] += signs * units[i] * units[j] * GAUSSIAN_STD**2
    return attack(
        residuals,
        covariance,
        next(i for i, row in enumerate(rows) if row is target),
        update=target.update[:size],
        sigma_eff=sigma_eff,
    )


def judge_uniform(
    uploads: Sequence[Masked],
    target: Masked,
    sigma_eff: float,
    exchange_keys: Mapping[bytes, bytes],
    *,
    colluders: Collection[bytes] = (),
    leaked: Collection[bytes] = (),
) -> tuple[AttackResult | None, int]:
    """Attack the sum of the uploads that masks connect to the target; and how many these are.

    None if a mask in it is in no other upload: the sum is uniform then, whatever the updates.
    """
    rows = [each for each in uploads if each.identity not in colluders]
    known = {id(each): known_keys(each, exchange_keys) | set(leaked) for each in rows}
    holders: dict[bytes, list[Masked]] = {}
    for row in rows:
        for key in row.keys.keys() - known[id(row)]:
            holders.setdefault(key, []).append(row)
    summed, waiting = [target], [target]
    while waiting:
        row = waiting.pop()
        for key in row.keys.keys() - known[id(row)]:
            if len(holders[key]) == 1:
                return None, len(summed)
            new = [each for each in holders[key] if each not in summed]
            summed += new
            waiting += new
    size, step = target.words.size, target.scale["grid"].step
    total = np.zeros(size, np.uint32)
    others, variance = np.zeros(size), 0.0
    for row in summed:
        added = [key for key in row.edges.added if key in known[id(row)]]
        subtracted = [key for key in row.edges.subtracted if key in known[id(row)]]
        total += row.words - sum_uniform_masks(added, subtracted, size)
        if row is not target:
            others += row.update / row.scale["grid"].step
        variance += (row.scale["own_std"] / row.scale["grid"].step) ** 2
    error = (unwrap(total) - others) * step - target.update
    root = math.sqrt(float(np.mean(error**2)))
    return AttackResult(root, math.sqrt(variance) * step, sigma_eff, size), len(summed)
