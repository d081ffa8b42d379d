"""The sensitivity of what a round of DP-FedPaq adds its noise to."""

import dataclasses
from typing import TYPE_CHECKING

from strategies.mechanisms.one_step import allow_for_step_rounding, one_step_sensitivity
from strategies.mechanisms.sensitivity import (
    LocalTraining,
    Sensitivity,
    SensitivityError,
    allow_for_rounding,
    convex_sensitivity,
    tighter,
    whole_update_sensitivity,
)

if TYPE_CHECKING:
    from strategies.dp_fedpaq.parameters import DpFedPaqParameters


def update_sensitivity(parameters: "DpFedPaqParameters", server_round: int) -> Sensitivity:
    """Bound the L2 sensitivity that the noise of a round is scaled to.

    That is the sensitivity of the whole update, or with `dp_sgd` of one step's sum of clipped
    gradients. Clipping is a projection on a ball and moves no two points apart, so where an update
    is clipped the smaller of both bounds holds.

    Parameters
    ----------
    parameters : DpFedPaqParameters
    server_round : int
        From 1; the learning rate depends on it.

    Raises
    ------
    SensitivityError
        If a condition of the bound is broken; it names all of them.
    """
    relation = {
        "unit": parameters.unit,
        "neighboring_relation": parameters.neighboring_relation,
    }
    if parameters.mechanism == "dp_sgd":
        assert parameters.max_grad_norm is not None
        return _bound_gradient_sum(parameters.max_grad_norm, **relation)
    whole = None
    if parameters.clipping_norm is not None:
        whole = whole_update_sensitivity(parameters.clipping_norm, **relation)
    if parameters.sensitivity == "one_step":
        bound = _bound_one_step(parameters, server_round)
    elif parameters.sensitivity == "convex":
        bound = _bound_convex(parameters, server_round)
    elif whole is not None:
        return whole
    else:
        raise SensitivityError("clipping_norm: None; allowed: a number > 0 to bound an update")
    if parameters.noise_at == "server":
        # Two updates of norm at most S are rounded to float32 before the noise.
        assert parameters.clipping_norm is not None
        rounding = 2.0 * 2.0**-24 * parameters.clipping_norm + 1e-30
        bound = dataclasses.replace(bound, value=bound.value + rounding)
    return bound if whole is None else tighter(bound, whole)


def _bound_gradient_sum(
    max_grad_norm: float, *, unit: str, neighboring_relation: str
) -> Sensitivity:
    """Bound one step's sum: a record that comes or goes adds or takes away its clipped gradient."""
    return Sensitivity(
        max_grad_norm,
        "dp_sgd",
        unit,
        neighboring_relation,
        (
            f"in each local step the gradient of each record is clipped to L2 norm "
            f"{max_grad_norm!r} before the sum gets its noise; a gradient that is not finite "
            "counts as zero",
            "no layer of the model mixes records; the sum is divided by the public batch size, "
            "not by the number of records drawn",
            "the training itself does not fail because of what a record holds",
        ),
    )


def _declared_training(parameters: "DpFedPaqParameters", server_round: int) -> LocalTraining:
    if parameters.training is None:
        raise SensitivityError(
            "training: None; allowed: a LocalTraining that says what the training does"
        )
    return dataclasses.replace(
        parameters.training,
        learning_rates=(parameters.learning_rate_in_round(server_round),),
        batch_size=parameters.batch_size,
        per_example_clipping=parameters.training.per_example_clipping or parameters.clips_gradients,
        sampling=parameters.record_sampling,
        disjoint_batches=parameters.local_steps is not None,
        full_batches=parameters.local_steps is not None and parameters.sampling == "fixed",
    )


def _bound_one_step(parameters: "DpFedPaqParameters", server_round: int) -> Sensitivity:
    bound = one_step_sensitivity(
        _declared_training(parameters, server_round),
        max_grad_norm=parameters.max_grad_norm,
        num_batches=parameters.local_steps or 0,
        # A client whose model does so fails before it reads data.
        mixes_records=False,
        unit=parameters.unit,
        neighboring_relation=parameters.neighboring_relation,
    )
    return allow_for_step_rounding(bound)


def _bound_convex(parameters: "DpFedPaqParameters", server_round: int) -> Sensitivity:
    training = _declared_training(parameters, server_round)
    convex = convex_sensitivity(
        training, unit=parameters.unit, neighboring_relation=parameters.neighboring_relation
    )
    # Both are conditions of the bound, checked above.
    assert parameters.local_steps is not None
    assert training.feature_norm is not None
    return allow_for_rounding(
        convex,
        local_steps=parameters.local_steps,
        batch_size=parameters.batch_size,
        feature_norm=training.feature_norm,
    )
