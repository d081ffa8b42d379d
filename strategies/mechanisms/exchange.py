"""What releases show if somebody's data are exchanged for others: one relation for all runs.

Epsilons of different neighbouring relations do not add up. Every relation of this package leads to
this one: a record is replaced (unit `record`), or all of a client's data are (unit `client`, which
covers each of its records). Where the declared relation is another, an exchange is two of its
steps: data without the record, or with a contribution of nothing, lie between.
"""

import math
from dataclasses import replace
from functools import lru_cache

from strategies.mechanisms.accounting import (
    GaussianReleases,
    bound_epsilon,
    calibrate_noise_multiplier,
)
from strategies.mechanisms.closed_form import analytic_gaussian_std, gaussian_epsilon

_STEPS = 200
# Of delta: what the search for epsilon may leave unused.
_AIM = 0.9
_BISECTIONS = 8


def count_rare_draws(releases: GaussianReleases, delta: float) -> GaussianReleases:
    """Return the releases with a sample rate that counts: at least 2 delta in all of them.

    By the letter of the definition, whoever is drawn in the whole run with probability below delta
    needs no noise. It is counted as drawn twice as often.

    Formal guarantees: what is counted for the result holds for the releases themselves. A release
    at a lower rate is a mixture of one at a higher rate and one without the record, so no
    divergence between neighbours is larger (joint convexity), however many releases are composed.

    Parameters
    ----------
    releases : GaussianReleases
    delta : float
        In (0, 1).
    """
    if releases.sampling == "none" or releases.num_releases == 0:
        return releases
    never = 1.0 - min(1.0, 2.0 * delta)
    least = 1.0 - never ** (1.0 / releases.num_releases)
    return replace(releases, sample_rate=max(releases.sample_rate, least))


@lru_cache(maxsize=4096)
def exchange_epsilon(releases: GaussianReleases, delta: float, accountant: str = "auto") -> float:
    """Compute the epsilon that releases spend together if a record or a client is exchanged.

    Formal guarantees: an upper bound, the smallest of those that hold. Under `replace_one` it is
    that of `bound_epsilon`. Otherwise the noise is z / 2 of the distance between the exchanged,
    whatever is drawn (the same draw for both); and if each of the two steps is (e, d)-private, then
    both are (2 e, (1 + exp(e)) d)-private (group privacy; C. Dwork and A. Roth, "The algorithmic
    foundations of differential privacy", 2014, Theorem 2.2 and its proof), for every d.

    Parameters
    ----------
    releases : GaussianReleases
        Under the relation that they were declared for; rare draws count as in `count_rare_draws`.
    delta : float
        In (0, 1).
    accountant : str
        Of the declared relation, as in `bound_epsilon`.

    Returns
    -------
    float
        At least 0; infinite without noise.

    Raises
    ------
    AccountingError
        As in `bound_epsilon`.
    """
    counted = count_rare_draws(releases, delta)
    declared = bound_epsilon(counted, delta, accountant).epsilon
    if releases.neighboring_relation == "replace_one" or not math.isfinite(declared):
        return declared
    whole = gaussian_epsilon(releases.noise_multiplier / 2.0, releases.num_releases, delta)
    if releases.sampling == "none":
        return whole
    return min(whole, _two_steps(counted, delta, accountant))


def _two_steps(releases: GaussianReleases, delta: float, accountant: str) -> float:
    """Return 2 e for an e whose d leaves (1 + exp(e)) d <= delta; infinite if none is found."""
    each = delta / 2.0
    for _ in range(_STEPS):
        epsilon = bound_epsilon(releases, each, accountant).epsilon
        # Any such pair will do; a smaller d, which is tried next, has a larger e.
        if epsilon > 600.0:
            break
        if each * (1.0 + math.exp(epsilon)) <= delta:
            return 2.0 * epsilon
        each = _AIM * delta / (1.0 + math.exp(epsilon))
    return math.inf


def exchange_noise_multiplier(
    target_epsilon: float, delta: float, planned: GaussianReleases, accountant: str = "auto"
) -> float:
    """Return z with which planned releases keep to an epsilon if somebody is exchanged.

    Parameters
    ----------
    target_epsilon : float
        Positive, of all releases, as `exchange_epsilon` counts it.
    delta : float
        In (0, 1).
    planned : GaussianReleases
        At least one; its noise multiplier does not matter.
    accountant : str

    Raises
    ------
    AccountingError
        As in `calibrate_noise_multiplier`.
    """
    counted = count_rare_draws(planned, delta)
    if planned.neighboring_relation == "replace_one":
        return calibrate_noise_multiplier(
            target_epsilon,
            delta,
            num_releases=counted.num_releases,
            unit=counted.unit,
            neighboring_relation=counted.neighboring_relation,
            sampling=counted.sampling,
            sample_rate=counted.sample_rate,
            accountant=accountant,
        )

    def keeps(z: float) -> bool:
        found = exchange_epsilon(replace(planned, noise_multiplier=z), delta, accountant)
        return found <= target_epsilon

    enough = 2.0 * math.sqrt(planned.num_releases)
    enough *= analytic_gaussian_std(target_epsilon, delta, 1.0)
    growth = 1e-12
    while not keeps(enough):
        enough *= 1.0 + growth
        growth *= 2.0
    if planned.sampling == "none":
        return enough
    little = enough
    while keeps(little) and little > 1e-9 * enough:
        enough, little = little, 0.5 * little
    for _ in range(_BISECTIONS):
        middle = math.sqrt(little * enough)
        little, enough = (little, middle) if keeps(middle) else (middle, enough)
    return enough
