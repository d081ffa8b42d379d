"""How much privacy a run spends: a number, from how many releases there were.

A release tells nothing of who was in its sample, so each counts with the probability q of being
drawn, for every agent alike. What was asked of an agent, and what arrived, does not matter.
"""

from dataclasses import replace

from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.mechanisms.accounting import (
    EpsilonBound,
    bound_epsilon,
    calibrate_noise_multiplier,
)


def plan_noise(parameters: DpFtsDeParameters, num_rounds: int) -> DpFtsDeParameters:
    """Return the parameters with a noise multiplier, planned for the target if none is given.

    Raises
    ------
    AccountingError
        If the target cannot be met, or the accountant does not cover the releases.
    """
    releases = parameters.describe_releases(max(1, parameters.num_planned(num_rounds)), 1.0)
    if parameters.noise_multiplier is not None:
        return parameters
    assert parameters.target_epsilon is not None
    planned = calibrate_noise_multiplier(
        float(parameters.target_epsilon),
        float(parameters.target_delta),
        num_releases=releases.num_releases,
        unit=releases.unit,
        neighboring_relation=releases.neighboring_relation,
        sampling=releases.sampling,
        sample_rate=releases.sample_rate,
        accountant=parameters.accountant,
    )
    return replace(parameters, noise_multiplier=planned)


def spend(parameters: DpFtsDeParameters, num_releases: int) -> EpsilonBound | None:
    """Return what the other agents together have learnt of one, from all releases.

    Parameters
    ----------
    parameters : DpFtsDeParameters
        Planned, or with a target and no release yet.
    num_releases : int
        T, sums that were released, whether or not they arrived anywhere.

    Returns
    -------
    EpsilonBound or None
        At the run's delta. None without noise, unless nobody shares anything.
    """
    if not parameters.adds_noise and parameters.control != "no_sharing":
        return None
    z = parameters.noise_multiplier
    if z is None and num_releases > 0:
        raise RuntimeError("spending needs parameters whose noise has been planned")
    releases = parameters.describe_releases(num_releases, 0.0 if z is None else float(z))
    return bound_epsilon(releases, float(parameters.target_delta), parameters.accountant)


def spend_without_sampling(parameters: DpFtsDeParameters, num_releases: int) -> EpsilonBound | None:
    """Return what `spend` would be for somebody who sees who is in each sample."""
    exposed = replace(parameters, sample_rate=1.0, accountant="auto")
    return spend(exposed, num_releases)


def affords_release(parameters: DpFtsDeParameters, num_releases: int) -> bool:
    """Return whether one more release keeps epsilon within the target, if there is one."""
    if parameters.target_epsilon is None:
        return True
    spent = spend(parameters, num_releases + 1)
    return spent is None or spent.epsilon <= parameters.target_epsilon
