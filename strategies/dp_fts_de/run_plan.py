"""The plan of a run, before its first round: who there is, which rounds release, what noise."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.dp_fts_de.release_signal import warn_of_noise
from strategies.dp_fts_de.spending import affords_release, plan_noise
from strategies.mechanisms.eigenfunctions import count_eigenfunctions
from strategies.mechanisms.parameter_checks import ParameterError

AUTO = "auto"
NUM_FOURIER = 100
"""M of random Fourier features where none is named, as published; eigenfunctions are no more."""

_ORACLE: dict[str, Any] = {
    "noise_multiplier": 0.0,
    "target_epsilon": None,
    "clipping_norm": None,
    "sample_rate": 1.0,
    "upload_kind": "mean",
    "accountant": "auto",
}


def unplanned_parameters(
    num_agents: int | None, release_rounds: str | Sequence[int], fields: dict[str, Any]
) -> DpFtsDeParameters:
    """Return the parameters of a run that is not planned yet.

    The control `oracle` is the plain average of all agents' posterior means, whatever noise,
    clipping and sampling are named beside it.

    A field `num_random_features` that is missing or None is chosen by `choose_num_features`.

    Raises
    ------
    ParameterError
        If a field is not allowed.
    """
    chosen = {**fields, **(_ORACLE if fields.get("control") == "oracle" else {})}
    if chosen.get("num_random_features") is None:
        checked = DpFtsDeParameters(
            **{**chosen, "num_agents": 1, "num_random_features": NUM_FOURIER}
        )
        chosen["num_random_features"] = choose_num_features(checked)
    if isinstance(release_rounds, str) and release_rounds != AUTO:
        raise ParameterError("release_rounds", release_rounds, f"{AUTO}, or a list of rounds")
    rounds = () if isinstance(release_rounds, str) else tuple(release_rounds)
    agents = 1 if num_agents is None else num_agents
    return DpFtsDeParameters(num_agents=agents, release_rounds=rounds, **chosen)


def choose_num_features(parameters: DpFtsDeParameters) -> int:
    """Return M for a run's features: a function of public constants.

    As many of the leading eigenfunctions as hold 99% of the kernel's variance, at most
    `NUM_FOURIER`; or that many random Fourier features.
    """
    if parameters.features != "eigen":
        return NUM_FOURIER
    return count_eigenfunctions(
        parameters.dimension, float(parameters.lengthscale), most=NUM_FOURIER
    )


def check_release_rounds(parameters: DpFtsDeParameters, num_rounds: int) -> None:
    """Refuse named rounds that are not there, or are the last, whose release nobody could query.

    Raises
    ------
    ParameterError
        Unless nobody shares anything anyway.
    """
    rounds = parameters.release_rounds
    if parameters.control == "no_sharing" or not rounds or rounds[-1] < num_rounds:
        return
    allowed = f"rounds from 1 to num_rounds - 1 = {num_rounds - 1}"
    if num_rounds == 1:
        allowed = f"{AUTO} with num_rounds=1"
    raise ParameterError(
        "release_rounds", list(rounds), f"{allowed} (the last round's release nobody could query)"
    )


def warn_of_releases(parameters: DpFtsDeParameters, num_rounds: int) -> str | None:
    """Say what makes a planned run's releases none, or mostly noise; None where nothing does."""
    if num_rounds == 1 and parameters.control != "no_sharing":
        return (
            "nothing will be released: the first of num_rounds evaluates the initial points, the "
            "last releases nothing, and num_rounds=1 is both"
        )
    return warn_of_noise(parameters, num_rounds)


def plan_run(
    parameters: DpFtsDeParameters,
    num_agents: int,
    num_rounds: int,
    *,
    auto_rounds: bool,
    planned_noise: float | None = None,
) -> DpFtsDeParameters:
    """Return the parameters with the agents, the release rounds and the noise of the run.

    Parameters
    ----------
    parameters : DpFtsDeParameters
    num_agents : int
        N.
    num_rounds : int
        T + 1.
    auto_rounds : bool
        Whether release rounds are chosen here: every one in mode `paper`, else the first alone.
    planned_noise : float or None
        z of a run that goes on.

    Raises
    ------
    AccountingError
        If the target cannot be met.
    ParameterError
        If a named round is none that can release (`check_release_rounds`), or the noise that is
        named is so little that even one release exceeds the target.
    """
    if not auto_rounds:
        check_release_rounds(parameters, num_rounds)
    parameters = replace(parameters, num_agents=num_agents)
    if auto_rounds and parameters.mode == "sound":
        parameters = replace(parameters, release_rounds=(1,))
    if parameters.noise_multiplier is None and planned_noise is not None:
        return replace(parameters, noise_multiplier=planned_noise)
    planned = plan_noise(parameters, num_rounds)
    if planned.num_planned(num_rounds) > 0 and not affords_release(planned, 0):
        once = plan_noise(replace(planned, noise_multiplier=None, release_rounds=(1,)), 2)
        raise ParameterError(
            "noise_multiplier",
            planned.noise_multiplier,
            f"at least {float(once.noise_multiplier or 0.0):.4g}, so that one release keeps within "
            f"target_epsilon={planned.target_epsilon:g} at target_delta={planned.target_delta:g}",
        )
    return planned
