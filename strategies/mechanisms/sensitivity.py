"""How far one record or one client can move an update: the number the noise is scaled to.

A `Sensitivity` carries the conditions it holds under, so that a privacy report can list them as
assumptions. The convex bound uses that a gradient step on a smooth convex loss is non-expansive
(Hardt, Recht and Singer 2016, "Train faster, generalize better", arXiv 1509.01240, Section 3).
"""

import math
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
import numpy.typing as npt

from strategies.mechanisms.clipping import l2_norm
from strategies.mechanisms.convex_conditions import (
    LocalTraining,
    broken_conditions,
    loss_constants,
)

__all__ = [
    "MAX_MODEL_ENTRY",
    "MAX_MODEL_NORM",
    "LocalTraining",
    "Sensitivity",
    "SensitivityError",
    "allow_for_rounding",
    "check_model",
    "convex_sensitivity",
    "list_relations",
    "tighter",
    "whole_update_sensitivity",
]

MAX_MODEL_ENTRY = 1e4
"""Largest absolute entry of a model that a client trains on: keeps float64 rounding negligible."""

MAX_MODEL_NORM = 1e5
"""Largest L2 norm of a model that a client trains on; the allowance for rounding is based on it."""

_KINDS = ("whole_update", "convex", "one_step", "dp_sgd", "published")

# (unit, neighboring_relation) -> (Delta_f / S, what is compared)
_WHOLE_UPDATE = {
    ("record", "replace_one"): (2.0, "two updates in the ball, one record replaced"),
    ("record", "add_or_remove_one"): (2.0, "two updates in the ball, one record added or removed"),
    ("client", "replace_one"): (2.0, "two updates in the ball, from any two clients' data"),
    ("client", "zero_out"): (1.0, "an update in the ball and the zero update, noised alike"),
}


class SensitivityError(ValueError):
    """No sensitivity can be given for what was asked, or an input breaks a condition of one.

    Attributes
    ----------
    broken : tuple of str
        The broken conditions, a sentence each; empty where there is only the message.
    """

    def __init__(self, message: str, broken: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.broken = broken


@dataclass(frozen=True)
class Sensitivity:
    """L2 sensitivity of one client's update, with the conditions it holds under.

    Attributes
    ----------
    value : float
        Delta_f > 0: the largest L2 distance between the updates of two neighbouring inputs, in the
        unit of the model's parameters.
    kind : str
        ``whole_update``, ``convex``, ``one_step``, ``dp_sgd`` (of one step's sum of gradients) or
        ``published`` (bounds nothing; ``mode: paper`` only).
    unit : str
        ``record`` or ``client``: what is protected.
    neighboring_relation : str
        ``replace_one``, ``add_or_remove_one`` or ``zero_out``.
    conditions : tuple of str
        What must hold, in plain words, for a list of assumptions.

    Raises
    ------
    SensitivityError
        If ``value`` is not finite and positive, or a name is unknown.
    """

    value: float
    kind: str
    unit: str
    neighboring_relation: str
    conditions: tuple[str, ...]

    def __post_init__(self) -> None:
        if not is_positive_number(self.value):
            raise SensitivityError(f"value must be finite and > 0, got {self.value!r}")
        if self.kind not in _KINDS:
            raise SensitivityError(f"kind must be one of {_KINDS}, got {self.kind!r}")
        _check_relation(self.unit, self.neighboring_relation)


def whole_update_sensitivity(
    clipping_norm: float, *, unit: str, neighboring_relation: str
) -> Sensitivity:
    """Give the sensitivity of an update clipped to L2 norm S, whatever computed it.

    Two points of a ball of radius S are at most 2 S apart, and the data may move the update from
    any point of it to any other: 2 S for a record replaced, added or removed and for a client
    replaced. A client zeroed out is compared with the centre of the ball: S.

    Parameters
    ----------
    clipping_norm : float
        S > 0, as given to `clipping.clip_by_l2_norm`.
    unit, neighboring_relation : str
        ``record`` with ``replace_one`` or ``add_or_remove_one``; ``client`` with ``replace_one`` or
        ``zero_out``.

    Returns
    -------
    Sensitivity
        Of kind ``whole_update``.

    Raises
    ------
    SensitivityError
        If the combination is unknown or ``clipping_norm`` is not a finite positive number (an
        update that is not clipped has no bound).
    """
    _check_relation(unit, neighboring_relation)
    if not is_positive_number(clipping_norm):
        raise SensitivityError(
            f"clipping_norm must be finite and > 0 for a sensitivity, got {clipping_norm!r}"
        )
    factor, compared = _WHOLE_UPDATE[unit, neighboring_relation]
    conditions: tuple[str, ...] = (
        f"the whole update, all arrays together, is clipped to L2 norm {clipping_norm!r} before "
        "noise is added; an update with a non-finite entry becomes the zero update first",
        f"the sensitivity is {factor:g} times the clipping norm: {compared}",
    )
    if neighboring_relation == "zero_out":
        conditions += ("a client that is zeroed out still takes part, and the noise stays",)
    return Sensitivity(
        factor * float(clipping_norm), "whole_update", unit, neighboring_relation, conditions
    )


def convex_sensitivity(
    training: LocalTraining, *, unit: str, neighboring_relation: str
) -> Sensitivity:
    """Give the sensitivity of SGD on a convex loss: 2 G max(eta) / b, for any number of steps.

    G bounds the norm of one record's gradient, L its smoothness (`loss_constants`); b is the batch
    size; eta_t are the step sizes.

    Parameters
    ----------
    training : LocalTraining
        What the local training does.
    unit, neighboring_relation : str
        Only ``record`` with ``replace_one``.

    Returns
    -------
    Sensitivity
        Of kind ``convex``; its conditions are those that the code cannot see from the declaration
        alone, with the constants used.

    Raises
    ------
    SensitivityError
        If any condition is broken; the message and ``broken`` name all of them.

    Notes
    -----
    *Formal guarantee.* For every received model, every two data sets that differ in one record, and
    every fixed draw of batches by position: ``||update - update'||_2 <= value`` in exact
    arithmetic; `allow_for_rounding` adds what float64 may.

    *Proof sketch.* Let F be the batch's mean loss plus weight decay and proximal term.

    1. F is convex and (L + weight_decay + proximal)-smooth. Its gradient is then co-coercive, so a
       step x - eta grad F(x) with eta (L + weight_decay + proximal) <= 2 is non-expansive: it
       brings no two models further apart. (A negative factor down to -1 is still non-expansive.)
    2. The differing record is in at most one of the disjoint batches, say that of step t. Until
       then both runs agree: they start at the same x and keep no state.
    3. At step t both runs are at the same model. Weight decay and proximal term cancel, as do the
       other b - 1 records; what is left is eta_t / b times the difference of two gradients of norm
       at most G: at most 2 G eta_t / b.
    4. The steps after t use the same records in both runs; by 1 they do not increase it.

    The bound is reached in the limit: for softmax regression by two records of nearly the same
    features that the model classifies with certainty, and both wrong.
    """
    broken = broken_conditions(training, unit=unit, neighboring_relation=neighboring_relation)
    if broken:
        raise SensitivityError(
            "the convex sensitivity does not hold; broken conditions:\n- " + "\n- ".join(broken),
            broken,
        )
    constants = loss_constants(training)
    if constants is None:  # unreachable: such a loss is a broken condition
        raise SensitivityError(f"no gradient bound is known for loss {training.loss!r}")
    rate = max(training.learning_rates)
    conditions = (
        f"the loss is {training.loss}, convex in every trained parameter, one linear layer"
        f"{' with' if training.has_bias else ' without'} bias; a record's gradient has norm at "
        f"most G = {constants.gradient_bound:g}, its smoothness is at most "
        f"L = {constants.smoothness:g}",
        f"each record's features are projected on L2 norm {training.feature_norm:g} on their own, "
        "non-finite features become zero; scaling and centring constants are public",
        f"each local step is plain SGD from the received model on a batch of exactly "
        f"{training.batch_size} records, disjoint from the others, and divides by that constant; "
        "nothing is kept between rounds",
        f"every learning rate is public and at most {rate:g}, and times (L + weight_decay "
        f"{training.weight_decay:g} + proximal {training.proximal:g}) at most 2",
        "the number of records of a client is public",
        f"local steps are computed in float64, from a model whose entries are finite and at most "
        f"{MAX_MODEL_ENTRY:g} in absolute value, its norm at most {MAX_MODEL_NORM:g} (other models "
        "are refused before data is read)",
        "the training gives a finite update whatever a record holds",
    )
    value = 2.0 * constants.gradient_bound * rate / training.batch_size
    return Sensitivity(value, "convex", unit, neighboring_relation, conditions)


def allow_for_rounding(
    sensitivity: Sensitivity, *, local_steps: int, batch_size: int, feature_norm: float
) -> Sensitivity:
    """Add to a convex sensitivity what float64 rounding may add to the distance of two updates.

    The two runs agree bit for bit before the differing step. From then on, each step rounds either
    model by at most 4 u ||x||, u = 2**-53, which is 5e-11 at norm 1e5: 1e-9 a step is allowed. The
    gradient's own rounding is at most u k ||x|| R for k features, 1.1e-7 R at norm 1e5 and k =
    10,000, beside a difference of 2 G / b: 1e-7 R b of the value a step is allowed.

    Parameters
    ----------
    sensitivity : Sensitivity
        Of kind ``convex``.
    local_steps : int
        E >= 1.
    batch_size : int
        b >= 1.
    feature_norm : float
        R_x > 0.

    Returns
    -------
    Sensitivity
        Larger by a share of about 1e-6 at usual settings; the absolute part decides where the
        learning rate is tiny.
    """
    if sensitivity.kind != "convex":
        raise SensitivityError(f"kind = {sensitivity.kind!r}; allowed: 'convex'")
    radius = math.sqrt(feature_norm * feature_norm + 1.0)
    relative = 1e-7 * local_steps * radius * batch_size
    return replace(sensitivity, value=sensitivity.value * (1.0 + relative) + 1e-9 * local_steps)


def tighter(first: Sensitivity, second: Sensitivity) -> Sensitivity:
    """Return the smaller of two sensitivities that both hold for the same update.

    Clipping after convex training keeps the convex bound: the clip is the projection on a ball, a
    convex set, hence 1-Lipschitz, so clipped updates are no further apart than unclipped ones. With
    a clipping norm S both bounds hold and the sensitivity is min(2 S, 2 G max(eta) / b).

    Parameters
    ----------
    first, second : Sensitivity
        For the same unit and neighbouring relation.

    Returns
    -------
    Sensitivity
        One of the two; of equal values, the one with fewer conditions.

    Raises
    ------
    SensitivityError
        If unit or neighbouring relation differ.
    """
    one = (first.unit, first.neighboring_relation)
    other = (second.unit, second.neighboring_relation)
    if one != other:
        raise SensitivityError(f"sensitivities of different relations: {one} and {other}")
    return min(first, second, key=lambda s: (s.value, len(s.conditions)))


def check_model(x: npt.ArrayLike) -> None:
    """Refuse a received model that is non-finite or has an entry above ``MAX_MODEL_ENTRY``.

    To be called before any record is read: the refusal then depends on public values only.

    Parameters
    ----------
    x : array_like of real numbers, any shape
        The received parameters.

    Raises
    ------
    SensitivityError
        If an entry is NaN or infinite or larger than 1e4 in absolute value, the norm is larger than
        1e5, or ``x`` is not a real array.
    """
    array = np.asarray(x)
    if array.dtype.kind not in "fiu":
        raise SensitivityError(f"x must be an array of real numbers, got dtype {array.dtype}")
    if not np.isfinite(array).all():
        raise SensitivityError("x must be finite; the received model has a NaN or infinite entry")
    vector = array.astype(np.float64)
    largest = float(np.max(np.abs(vector), initial=0.0))
    if largest > MAX_MODEL_ENTRY:
        raise SensitivityError(
            f"x must have entries of at most {MAX_MODEL_ENTRY:g} in absolute value; the received "
            f"model has {largest!r}"
        )
    norm = l2_norm(vector)
    if norm > MAX_MODEL_NORM:
        raise SensitivityError(
            f"x must have an L2 norm of at most {MAX_MODEL_NORM:g}; the received model has {norm!r}"
        )


def list_relations(unit: str) -> list[str]:
    """Return in what neighbouring data sets of a unit may differ."""
    return [relation for each, relation in _WHOLE_UPDATE if each == unit]


def _check_relation(unit: str, neighboring_relation: str) -> None:
    if (unit, neighboring_relation) not in tuple(_WHOLE_UPDATE):
        raise SensitivityError(
            f"unit = {unit!r} with neighboring_relation = {neighboring_relation!r}; allowed: "
            + ", ".join(f"{u} with {r}" for u, r in _WHOLE_UPDATE)
        )


def is_positive_number(value: object) -> bool:
    """Return whether the value is a finite real number > 0, and not a bool."""
    is_real = isinstance(value, Real) and not isinstance(value, bool)
    return is_real and math.isfinite(value) and float(value) > 0.0  # type: ignore[arg-type]
