"""Which parameters of DP-FedPaq go together; every other combination is refused by name."""

from typing import TYPE_CHECKING

from strategies.mechanisms.accounting import AccountingError, check_accountant
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.sensitivity import SensitivityError, list_relations

if TYPE_CHECKING:
    from strategies.dp_fedpaq.parameters import DpFedPaqParameters


def check_rules(parameters: "DpFedPaqParameters") -> None:
    """Raise ParameterError for the first combination that is not allowed.

    Parameters
    ----------
    parameters : DpFedPaqParameters
        With each value allowed by itself.
    """
    _check_choices(parameters)
    _check_sampling(parameters)
    _check_gradient_clipping(parameters)
    if parameters.mode == "paper":
        _require(
            parameters,
            "mode=paper",
            unit="record",
            neighboring_relation="replace_one",
            mechanism="update_noise",
            noise_at="client",
            sampling="fixed",
            sensitivity="whole_update",
        )
        if parameters.target_epsilon is None:
            raise ParameterError("target_epsilon", None, "a number > 0 with mode=paper")
    if parameters.mechanism == "dp_sgd":
        _require(
            parameters,
            "mechanism=dp_sgd",
            unit="record",
            neighboring_relation="add_or_remove_one",
            noise_at="client",
            sampling="poisson",
            sensitivity="whole_update",
        )
    if parameters.noise_at == "server" and parameters.adds_noise:
        _check_server_noise(parameters)
    if parameters.adds_noise and parameters.mode == "sound":
        _check_guarantee(parameters)


def _check_choices(parameters: "DpFedPaqParameters") -> None:
    if (parameters.local_steps is None) == (parameters.local_epochs is None):
        raise ParameterError(
            "local_steps",
            {"local_steps": parameters.local_steps, "local_epochs": parameters.local_epochs},
            "exactly one of the two",
        )
    if (parameters.target_epsilon is None) == (parameters.noise_multiplier is None):
        raise ParameterError(
            "target_epsilon",
            {
                "target_epsilon": parameters.target_epsilon,
                "noise_multiplier": parameters.noise_multiplier,
            },
            "exactly one of the two (noise_multiplier 0: no noise)",
        )


def _check_sampling(parameters: "DpFedPaqParameters") -> None:
    if parameters.sampling == "fixed":
        if parameters.sample_rate is not None:
            raise ParameterError(
                "sample_rate", parameters.sample_rate, "null with sampling=fixed (p = E b / n)"
            )
    elif parameters.sample_rate is None:
        raise ParameterError("sample_rate", None, "a number in (0, 1] with sampling=poisson")
    elif parameters.local_steps is None:
        raise ParameterError("sampling", "poisson", "fixed with local_epochs, which skip no record")
    relation = parameters.neighboring_relation
    if not parameters.adds_noise or parameters.record_sampling == "none":
        return
    if parameters.sampling == "fixed" and relation == "add_or_remove_one":
        raise ParameterError(
            "neighboring_relation",
            relation,
            "replace_one with a sample of fixed size (local_steps); add_or_remove_one with "
            "sampling=poisson or local_epochs",
        )
    if parameters.sampling == "poisson" and relation == "replace_one":
        raise ParameterError(
            "neighboring_relation", relation, "add_or_remove_one with sampling=poisson"
        )


def _check_gradient_clipping(parameters: "DpFedPaqParameters") -> None:
    """Refuse a clipping of gradients that is missing where it is needed, or has no use."""
    users = {
        "sensitivity=one_step": parameters.sensitivity == "one_step",
        "mechanism=dp_sgd": parameters.mechanism == "dp_sgd",
        "mode=paper": parameters.mode == "paper",
    }
    used = [words for words, holds in users.items() if holds]
    if used and parameters.max_grad_norm is None:
        raise ParameterError("max_grad_norm", None, f"a number > 0 with {used[0]}")
    if not used and parameters.max_grad_norm is not None:
        raise ParameterError(
            "max_grad_norm", parameters.max_grad_norm, f"null without {' or '.join(users)}"
        )
    if parameters.clipping_norm is None and parameters.adds_noise and not used:
        raise ParameterError(
            "clipping_norm",
            None,
            "a number > 0 when noise is added (without clipping no noise hides an update)",
        )


def _check_server_noise(parameters: "DpFedPaqParameters") -> None:
    if parameters.clipping_norm is None:
        raise ParameterError("clipping_norm", None, "a number > 0 with noise_at=server")
    if parameters.sensitivity != "whole_update" and parameters.quantizer != "none":
        raise ParameterError(
            "quantizer",
            parameters.quantizer,
            f"none with noise_at=server and sensitivity={parameters.sensitivity} (rounding "
            "before the noise moves two near updates apart)",
        )


def _check_guarantee(parameters: "DpFedPaqParameters") -> None:
    relation, relations = parameters.neighboring_relation, list_relations(parameters.unit)
    if relation not in relations:
        allowed = f"{', '.join(relations)} with unit={parameters.unit}"
        raise ParameterError("neighboring_relation", relation, allowed)
    try:
        parameters.sensitivity_in_round(1)
    except SensitivityError as error:
        raise ParameterError("sensitivity", parameters.sensitivity, str(error)) from None
    try:
        check_accountant(
            parameters.resolved_accountant, parameters.releases(1.0, parameters.min_records, 1)
        )
    except AccountingError as error:
        raise ParameterError("accountant", parameters.accountant, str(error)) from None


def _require(parameters: "DpFedPaqParameters", reason: str, **wanted: str) -> None:
    for key, value in wanted.items():
        if getattr(parameters, key) != value:
            raise ParameterError(key, getattr(parameters, key), f"{value} with {reason}")
