"""Which parameters of NISS go together; every other combination is refused by name.

A parameter that would have no effect is refused, too: who gives it expects one.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from strategies.mechanisms.parameter_checks import ParameterError

if TYPE_CHECKING:
    from strategies.niss.parameters import NissParameters

LEAST_CLIPPING_NORM = 1e-100
# Of an update: the noise of NISS stands beside it, at the client, on a grid of its own.
_UPDATE = {"mechanism": "update_noise", "noise_at": "client", "quantizer": "none"}
_DEFAULT_BOUND = "conservative"


def check_update_fields(fields: Mapping[str, Any]) -> None:
    """Refuse what no update of NISS may be, before other rules ask for more of the same kind.

    Parameters
    ----------
    fields : mapping
        Of `DpFedPaqParameters`, as far as they are given.

    Raises
    ------
    ParameterError
        If one is not allowed.
    """
    for key, wanted in _UPDATE.items():
        if fields.get(key, wanted) != wanted:
            raise ParameterError(key, fields[key], f"{wanted} with niss")
    norm = fields.get("max_grad_norm")
    if norm is not None and fields.get("sensitivity") != "one_step":
        raise ParameterError("max_grad_norm", norm, "null with niss, but for sensitivity=one_step")


def check_rules(parameters: "NissParameters") -> None:
    """Raise ParameterError for the first combination that is not allowed.

    Parameters
    ----------
    parameters : NissParameters
        With each value allowed by itself.
    """
    _check_update(parameters)
    if parameters.mode == "paper":
        _check_paper(parameters)
    else:
        _check_sound(parameters)
    if parameters.pair_noise == "gaussian" and not parameters.update.adds_noise:
        raise ParameterError(
            "noise_multiplier",
            parameters.update.noise_multiplier,
            "a number > 0 with pair_noise=gaussian (uniform: secure aggregation alone)",
        )
    if parameters.client_epsilons and parameters.update.target_epsilon is None:
        raise ParameterError(
            "target_epsilons", dict(parameters.client_epsilons), "none without target_epsilon"
        )
    members = [client for each in parameters.coalitions for client in each.clients]
    if len(set(members)) != len(members):
        raise ParameterError("coalitions", members, "no client in two of them")


def _check_update(parameters: "NissParameters") -> None:
    update = parameters.update
    check_update_fields(vars(update))
    if update.mode != "sound":
        raise ParameterError("mode", update.mode, "sound with niss")
    if update.clipping_norm is None:
        raise ParameterError(
            "clipping_norm", None, "a number > 0 with niss (fixed-point numbers have a range)"
        )
    if update.clipping_norm < LEAST_CLIPPING_NORM:
        raise ParameterError(
            "clipping_norm",
            update.clipping_norm,
            f"at least {LEAST_CLIPPING_NORM:g} with niss (a fixed-point step is no finer)",
        )


def _check_paper(parameters: "NissParameters") -> None:
    if parameters.graph == "sparse":
        raise ParameterError("graph", parameters.graph, "complete with mode=paper")
    if parameters.pair_noise == "uniform":
        raise ParameterError("pair_noise", "uniform", "gaussian, none with mode=paper")
    if parameters.coalitions:
        raise ParameterError("coalitions", parameters.coalitions, "none with mode=paper")
    if parameters.expected_dropouts:
        raise ParameterError("expected_dropouts", parameters.expected_dropouts, "0 with mode=paper")
    if parameters.update.target_epsilon is None:
        raise ParameterError("target_epsilon", None, "a number > 0 with mode=paper")
    if parameters.pair_noise == "none":
        _refuse_tuning(parameters, "pair_noise=none, which shares nothing")
    elif parameters.tau is not None and parameters.collusion_bound != _DEFAULT_BOUND:
        raise ParameterError(
            "collusion_bound",
            parameters.collusion_bound,
            f"{_DEFAULT_BOUND} beside tau, which is then not computed",
        )


def _check_sound(parameters: "NissParameters") -> None:
    uniform = parameters.pair_noise == "uniform"
    if parameters.graph == "sparse" and not uniform:
        raise ParameterError("graph", parameters.graph, "complete unless pair_noise=uniform")
    if parameters.pair_noise == "none":
        raise ParameterError(
            "pair_noise",
            parameters.pair_noise,
            "gaussian, uniform with mode=sound (none: strategy=dp_fedpaq, quantizer=none)",
        )
    if parameters.weighting != "uniform":
        raise ParameterError(
            "weighting",
            parameters.weighting,
            "uniform (how many records a client has is private)",
        )
    _refuse_tuning(parameters, "mode=sound")
    if uniform and parameters.expected_dropouts:
        raise ParameterError(
            "expected_dropouts",
            parameters.expected_dropouts,
            "0 with pair_noise=uniform: one client that vanishes ruins the sum",
        )
    outside = parameters.circles()[-1]
    hides = parameters.update.adds_noise or parameters.graph == "sparse"
    if hides and outside.num_honest < 2:
        raise ParameterError(
            "colluding_fraction",
            parameters.colluding_fraction,
            f"two honest clients at least: of {parameters.max_ready} clients of a round "
            f"{outside.num_colluders} may collude, and min_ready = {parameters.min_ready}",
        )


def _refuse_tuning(parameters: "NissParameters", reason: str) -> None:
    """Refuse what describes the published shares, where there are none."""
    for key, default in (
        ("tau", None),
        ("unit_noise_std", None),
        ("collusion_bound", _DEFAULT_BOUND),
    ):
        if getattr(parameters, key) != default:
            allowed = f"{default or 'null'} with {reason}"
            raise ParameterError(key, getattr(parameters, key), allowed)
