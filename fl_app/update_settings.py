"""From a run's settings to the parameters of a client's update, which several methods share."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from fl_app.model_settings import loss_family
from fl_app.settings import RunSettings
from fl_app.strategy_settings import TrainingSettings
from strategies.dp_fedpaq.parameters import DpFedPaqParameters
from strategies.mechanisms.convex_conditions import broken_conditions
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.sensitivity import LocalTraining

DEFAULT_NUM_LEVELS = 100
_UPDATE_NOISE = ("sound", "update_noise")
T = TypeVar("T")


def update_fields(settings: RunSettings, sensitivity: str) -> dict[str, Any]:
    """Return the fields of `DpFedPaqParameters`, but for the participations.

    Parameters
    ----------
    settings : RunSettings
    sensitivity : str
        The bound, "auto" resolved.
    """
    chosen = settings.training
    return {
        **{
            key: getattr(chosen, key)
            for key in (
                *("mode", "unit", "neighboring_relation", "mechanism", "noise_at"),
                *("clipping_norm", "max_grad_norm", "target_epsilon", "noise_multiplier"),
                *("target_delta", "accountant", "local_steps", "local_epochs", "sampling"),
                *("sample_rate", "batch_size", "learning_rate", "lr_schedule", "lr_decay"),
                *("lr_decay_rounds", "quantizer"),
            )
        },
        "sensitivity": sensitivity,
        "training": None if sensitivity == "whole_update" else _declare_training(settings),
        "num_levels": _num_levels(chosen),
        "randomness": settings.randomness,
        "seed": settings.seed,
    }


def resolve_sensitivity(
    settings: RunSettings,
    build: Callable[[str], T],
    update_of: Callable[[T], DpFedPaqParameters],
) -> T:
    """Build a strategy with the tightest sensitivity whose conditions hold.

    Parameters
    ----------
    settings : RunSettings
    build : callable
        From the name of a sensitivity to a strategy.
    update_of : callable
        From a strategy to the parameters of its updates.

    Raises
    ------
    ParameterError
        If the settings are not allowed.
    """
    chosen = settings.training
    if chosen.sensitivity != "auto":
        return build(chosen.sensitivity)
    if chosen.max_grad_norm is not None and (chosen.mode, chosen.mechanism) == _UPDATE_NOISE:
        return build("one_step")
    strategy = build("whole_update")
    if not _may_be_convex(update_of(strategy)) or loss_family(settings.model.name) is None:
        return strategy
    if chosen.mode == "paper":
        return strategy
    try:
        return build("convex")
    except ParameterError as error:
        if error.key != "sensitivity":
            raise
        return strategy


def _may_be_convex(update: DpFedPaqParameters) -> bool:
    """Return whether the noise could follow the convex bound, if the training is convex.

    A server's noise covers updates that were rounded before only with the bound of the clip.
    """
    exact = update.noise_at == "client" or update.quantizer == "none"
    return update.adds_noise and update.mechanism == "update_noise" and exact


def explain_sensitivity(settings: RunSettings, update: DpFedPaqParameters) -> str | None:
    """Return why `auto` chose whole_update, with its larger noise; None if it did not."""
    chosen = settings.training
    if chosen.sensitivity != "auto" or chosen.mode == "paper":
        return None
    if not _may_be_convex(update) or update.sensitivity != "whole_update":
        return None
    if loss_family(settings.model.name) is None:
        return f"model {settings.model.name} is not convex"
    broken = broken_conditions(
        dataclasses.replace(_declare_training(settings), sampling=update.record_sampling),
        unit=chosen.unit,
        neighboring_relation=chosen.neighboring_relation,
    )
    return "; ".join(broken)


def _declare_training(settings: RunSettings) -> LocalTraining:
    """Say what `fl_app.local_training` does under these settings, for the convex bound."""
    chosen = settings.training
    family = loss_family(settings.model.name)
    return LocalTraining(
        loss="softmax_cross_entropy" if family == "softmax" else settings.model.name,
        optimizer="sgd",
        momentum=0.0,
        weight_decay=chosen.weight_decay,
        proximal=chosen.proximal,
        learning_rates=(chosen.learning_rate,),
        batch_size=chosen.batch_size,
        feature_norm=chosen.feature_norm,
        has_bias=True,
        per_example_clipping=chosen.max_grad_norm is not None,
        class_weights=False,
        input_dropout=False,
        trainable_lower_layers=family is None,
        keeps_state_between_rounds=False,
        float64=True,
        data_dependent_preprocessing=False,
        defined_for_all_records=True,
        sampling="fixed",
        disjoint_batches=chosen.local_steps is not None,
        full_batches=chosen.local_steps is not None,
    )


def _num_levels(chosen: TrainingSettings) -> int:
    if chosen.target_bits is not None:
        # A sign and the largest s whose levels 0..s fit in the remaining bits.
        return int(2 ** (chosen.target_bits - 1) - 1)
    return DEFAULT_NUM_LEVELS if chosen.num_levels is None else chosen.num_levels
