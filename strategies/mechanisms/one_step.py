"""The sensitivity of one step of SGD whose per-example gradients are clipped, for any model.

With one local step the update is -eta times the step's direction, and the direction is a constant
plus a sum of clipped vectors, one for each record (Abadi et al. 2016, "Deep learning with
differential privacy", arXiv 1607.00133, Algorithm 1, seen as one release per round).
"""

from collections.abc import Iterator
from dataclasses import replace

from strategies.mechanisms.convex_conditions import LocalTraining, broken_sentence
from strategies.mechanisms.sensitivity import (
    MAX_MODEL_ENTRY,
    MAX_MODEL_NORM,
    Sensitivity,
    SensitivityError,
    is_positive_number,
)

MAX_BATCH_RECORDS = 65_536
"""Largest batch, in records, for which `allow_for_step_rounding` covers the rounding of the sum."""

# neighboring_relation -> (Delta_f b / (eta C), what is compared)
_FACTORS = {
    "replace_one": (2.0, "one record's clipped gradient in place of another's"),
    "add_or_remove_one": (1.0, "one record's clipped gradient more or less"),
}

# The value each flag must have, and why.
_REQUIRED_FLAGS: dict[str, tuple[bool, str]] = {
    "per_example_clipping": (True, "nothing else bounds a record's gradient"),
    "keeps_state_between_rounds": (False, "state depends on records of earlier rounds"),
    "float64": (True, "rounding in float32 is not covered"),
    "defined_for_all_records": (True, "a failure uploads zero, which can be far from the update"),
    "data_dependent_preprocessing": (False, "statistics of client data change every record"),
}


def one_step_sensitivity(
    training: LocalTraining,
    *,
    max_grad_norm: float | None,
    num_batches: int,
    mixes_records: bool,
    unit: str,
    neighboring_relation: str,
) -> Sensitivity:
    """Give the sensitivity of one clipped step: 2 eta C / b replaced, eta C / b added or removed.

    C clips each record's gradient, all trainable parameters together; b is the constant that the
    sum of the clipped gradients is divided by; eta is the step size.

    Parameters
    ----------
    training : LocalTraining
        What the local training does; ``batch_size`` is b. Loss, smoothness, class weights and
        dropout are free: clipping holds whatever the gradients are.
    max_grad_norm : float or None
        C > 0. None: gradients are not clipped, which is refused.
    num_batches : int
        E, the batches of a round: the configured local steps, or those that the local epochs have.
    mixes_records : bool
        Whether a layer computes something of several records together, such as batch normalisation.
    unit, neighboring_relation : str
        ``record`` with ``replace_one``, or with ``add_or_remove_one`` where the number of records
        of a batch is not fixed (sampling ``poisson`` or ``none``).

    Returns
    -------
    Sensitivity
        Of kind ``one_step``.

    Raises
    ------
    SensitivityError
        If any condition is broken; the message and ``broken`` name all of them.

    Notes
    -----
    *Formal guarantee.* For every received model, every two neighbouring data sets and every draw of
    the batch that treats their common records alike: ``||update - update'||_2 <= value`` in exact
    arithmetic; `allow_for_step_rounding` adds what float64 may.

    *Proof.* The update is -eta (weight_decay x + (1/b) sum_i clip(g_i(x))). With E = 1 both runs
    take their only step from the received x. The weight decay's term is a function of x and of
    public constants alone, hence the same in both, whatever its coefficient is; the proximal term
    is 0 at x. b is a constant and g_i a function of x and of record i, so all terms of common
    records are equal. What is left is eta / b times one clipped vector, or the difference of two.
    (From a second step on the two runs are at different models, and nothing here bounds how the
    gradients of all other records differ.)

    Dropout: given its mask, a record's gradient is such a function. Where a record more shifts the
    others' places, masks that are secret and drawn alike for all places give both runs the same law
    of the common records' masks; a guarantee that holds for each of them holds for their mixture.

    The bound is reached by two records with opposite gradients of norm at least C.
    """
    broken = tuple(
        _find_broken(
            training, max_grad_norm, num_batches, mixes_records, unit, neighboring_relation
        )
    )
    if broken:
        raise SensitivityError(
            "the one-step sensitivity does not hold; broken conditions:\n- " + "\n- ".join(broken),
            broken,
        )
    assert max_grad_norm is not None  # a broken condition
    rate, divisor = training.learning_rates[0], training.batch_size
    factor, compared = _FACTORS[neighboring_relation]
    conditions: tuple[str, ...] = (
        f"each record's gradient, all trainable parameters together, is clipped to L2 norm "
        f"{max_grad_norm!r}; a gradient with a non-finite entry becomes zero",
        f"the round is one step of plain SGD from the received model; the sum of its batch's "
        f"clipped gradients is divided by the constant {divisor}, however many records it has; "
        "nothing is kept between rounds",
        f"the sensitivity is {factor:g} times learning rate {rate:g} times clipping norm, divided "
        f"by that constant: {compared}",
        "a record's gradient depends on no other record: no layer mixes records, preprocessing "
        "constants are public",
        f"the step is computed in float64, from a model whose entries are finite and at most "
        f"{MAX_MODEL_ENTRY:g} in absolute value, its norm at most {MAX_MODEL_NORM:g} (other models "
        f"are refused before data is read), on at most {MAX_BATCH_RECORDS} records",
        "the training gives a finite update whatever a record holds",
    )
    if neighboring_relation == "replace_one":
        conditions += ("the number of records of a client is public",)
    else:
        conditions += (
            "dropout masks, if there are any, are independent for each record and stay secret",
            "rounding does not depend on how many records are computed together (floating-point "
            "kernels keep that to about 1e-15 of a gradient)",
        )
    value = factor * rate * float(max_grad_norm) / divisor
    return Sensitivity(value, "one_step", unit, neighboring_relation, conditions)


def allow_for_step_rounding(sensitivity: Sensitivity) -> Sensitivity:
    """Add to a one-step sensitivity what float64 rounding may add to the distance of two updates.

    Clipping leaves a margin for its own rounding, so each clipped gradient has norm at most C for
    the real numbers. With u = 2**-53, adding n of them one after another rounds by at most n^2 u C
    in L2 norm in either run: for n <= 65,536 together 2^32 2^-52 C = 9.6e-7 C, below 1e-6 of the
    value under both relations. The step itself rounds either model by at most 4 u ||x||, 5e-11 at
    norm 1e5: 1e-9 is allowed, which decides where eta C / b is tiny.

    Parameters
    ----------
    sensitivity : Sensitivity
        Of kind ``one_step``.

    Returns
    -------
    Sensitivity
        Larger by a share of 1e-6, and by 1e-9.
    """
    if sensitivity.kind != "one_step":
        raise SensitivityError(f"kind = {sensitivity.kind!r}; allowed: 'one_step'")
    return replace(sensitivity, value=sensitivity.value * (1.0 + 1e-6) + 1e-9)


def _find_broken(
    training: LocalTraining,
    max_grad_norm: float | None,
    num_batches: int,
    mixes_records: bool,
    unit: str,
    neighboring_relation: str,
) -> Iterator[str]:
    if unit != "record":
        yield broken_sentence("unit", unit, "'record'", "a client has many clipped gradients")
    yield from _broken_relation(training.sampling, neighboring_relation)
    if not is_positive_number(max_grad_norm):
        yield broken_sentence(
            "max_grad_norm", max_grad_norm, "a number > 0", "nothing else bounds a gradient"
        )
    if type(num_batches) is not int or num_batches != 1:
        yield broken_sentence(
            "num_batches", num_batches, "1", "the second step starts from a model that differs"
        )
    if len(training.learning_rates) != 1:
        yield broken_sentence("learning_rates", training.learning_rates, "one", "one step is taken")
    if mixes_records is not False:
        yield broken_sentence(
            "mixes_records",
            mixes_records,
            "False",
            "batch normalisation and the like change the gradients of all records",
        )
    if training.optimizer != "sgd":
        yield broken_sentence(
            "optimizer", training.optimizer, "'sgd'", "it may scale the step by the gradient"
        )
    if training.momentum != 0.0:
        yield broken_sentence("momentum", training.momentum, "0", "the buffer scales the step")
    for name, (allowed, reason) in _REQUIRED_FLAGS.items():
        if getattr(training, name) is not allowed:
            yield broken_sentence(name, not allowed, str(allowed), reason)
    shrink = training.learning_rates[0] * (training.weight_decay + training.proximal)
    if shrink > 2.0:
        yield broken_sentence(
            "learning_rates[0] * (weight_decay + proximal)",
            shrink,
            "at most 2",
            "a model that grows is rounded by more than is allowed for",
        )


def _broken_relation(sampling: str, neighboring_relation: str) -> Iterator[str]:
    if neighboring_relation not in _FACTORS:
        yield broken_sentence(
            "neighboring_relation",
            neighboring_relation,
            f"one of {tuple(_FACTORS)}",
            "it must say how records may differ",
        )
    elif neighboring_relation == "add_or_remove_one" and sampling == "fixed":
        yield broken_sentence(
            "neighboring_relation",
            neighboring_relation,
            "'replace_one' with sampling 'fixed'",
            "a record more takes the place of another in the sample",
        )
