"""The noise as published: for comparison in ``mode: paper``, where it guarantees nothing.

Published are a sensitivity of C / n for local training with gradients clipped to C, and the noise
``sqrt(8 gamma^2 ln(1.25 gamma / delta)) (C / n) / epsilon`` for one round on a sample with
``gamma = E b / n`` (arXiv 2101.12240, section III).
"""

import math
from typing import TYPE_CHECKING

from strategies.mechanisms.amplification import (
    published_inclusion_probability,
    published_noise_std,
)
from strategies.mechanisms.closed_form import classic_gaussian_std
from strategies.mechanisms.gaussian import GaussianMechanism
from strategies.mechanisms.sensitivity import Sensitivity

if TYPE_CHECKING:
    from strategies.dp_fedpaq.parameters import DpFedPaqParameters


def published_mechanism(parameters: "DpFedPaqParameters", num_records: int) -> GaussianMechanism:
    """Return the published mechanism of a client in any one round.

    Parameters
    ----------
    parameters : DpFedPaqParameters
        In mode `paper`; `target_epsilon` and `target_delta` are those of one round.
    num_records : int
        n, at least 1; with `local_steps` at least E b.
    """
    epsilon, delta = parameters.target_epsilon, parameters.target_delta
    clip = parameters.max_grad_norm
    assert epsilon is not None
    assert clip is not None
    if parameters.record_sampling == "none":
        noise_multiplier = classic_gaussian_std(epsilon, delta, 1.0)
    else:
        # Beyond a rate of delta / 1.25 the formula takes the root of a negative number.
        gamma = max(parameters.inclusion_probability(num_records), delta)
        noise_multiplier = published_noise_std(epsilon, delta, gamma, 1.0)
    sensitivity = Sensitivity(
        clip / max(num_records, 1), "published", "record", "replace_one", ("none is proven",)
    )
    return GaussianMechanism(sensitivity, noise_multiplier)


def proven_sensitivity(parameters: "DpFedPaqParameters", num_records: int) -> float:
    """Return a sensitivity that holds for what mode `paper` trains, in the first round.

    Each of the steps moves two runs apart by at most 2 C eta, and clipping the update to S, where
    it is done, leaves at most 2 S.
    """
    clip = parameters.max_grad_norm
    assert clip is not None
    if parameters.local_steps is not None:
        steps = parameters.local_steps
    else:
        assert parameters.local_epochs is not None
        steps = parameters.local_epochs * math.ceil(max(num_records, 1) / parameters.batch_size)
    bound = 2.0 * clip * parameters.learning_rate * steps
    if parameters.clipping_norm is not None:
        bound = min(bound, 2.0 * parameters.clipping_norm)
    return bound


def list_flaws(parameters: "DpFedPaqParameters", num_records: int) -> list[str]:
    """Say in words what is wrong with the published guarantee at these settings.

    Parameters
    ----------
    parameters : DpFedPaqParameters
    num_records : int
        n of the client that is looked at.
    """
    mechanism = published_mechanism(parameters, num_records)
    proven = proven_sensitivity(parameters, num_records)
    claimed = mechanism.sensitivity.value
    flaws = [
        f"the published sensitivity C / n = {claimed:.3g} is not proven; proven is that one record "
        f"moves the update by at most {proven:.3g}",
        f"the target is that of one round: {parameters.num_participations} rounds add up",
    ]
    if parameters.record_sampling == "fixed":
        assert parameters.local_steps is not None
        records = max(num_records, parameters.min_records)
        published = published_inclusion_probability(
            records, parameters.batch_size, parameters.local_steps
        )
        exact = parameters.inclusion_probability(num_records)
        if published < exact * (1.0 - 1e-9):
            flaws.append(
                f"a record is drawn with probability {exact:.3g}, not the published {published:.3g}"
            )
    flaws.append(
        "the published noise is derived from a formula that is proven for epsilon < 1 only"
    )
    return flaws
