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
from tests.niss.hostile_server import Masked, known_keys


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
