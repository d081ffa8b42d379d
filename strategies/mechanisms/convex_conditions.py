"""The conditions under which local training on a convex loss has a known sensitivity.

`sensitivity.convex_sensitivity` gives the bound and its proof sketch; this file holds what the
proof needs of the training, and checks it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real

SUPPORTED_LOSSES = ("softmax_cross_entropy", "binary_logistic", "huber_regression")
SAMPLING_SCHEMES = ("fixed", "poisson", "none")

# The value each flag must have, and why.
_REQUIRED_FLAGS: dict[str, tuple[bool, str]] = {
    "full_batches": (True, "a short batch gives its records more weight than 1/batch_size"),
    "disjoint_batches": (True, "a record in k batches moves the update k times"),
    "per_example_clipping": (False, "a clipped gradient is not the gradient of a convex loss"),
    "class_weights": (False, "a weight multiplies a record's gradient"),
    "input_dropout": (False, "rescaled inputs exceed feature_norm"),
    "trainable_lower_layers": (False, "the loss is not convex in them"),
    "keeps_state_between_rounds": (False, "state depends on records of earlier rounds"),
    "float64": (True, "rounding in float32 is not covered"),
    "defined_for_all_records": (True, "a failure uploads zero, which can be far from the update"),
    "data_dependent_preprocessing": (False, "statistics of client data change every record"),
}


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """What one client's local training does, as declared by its author.

    Nothing but ``huber_threshold`` has a default: what is not said cannot be relied on.

    Attributes
    ----------
    loss : str
        ``softmax_cross_entropy`` (one output a class), ``binary_logistic`` (one output),
        ``huber_regression`` (the residual's L2 norm clipped to ``huber_threshold``), ``squared``,
        or another name. A step uses the mean of the batch's losses.
    optimizer : str
        ``sgd``, or another name.
    momentum : float
        In [0, 1).
    weight_decay, proximal : float
        >= 0; the step adds ``weight_decay * x + proximal * (x - x_received)`` to the gradient.
    learning_rates : tuple of float
        eta > 0: one for each local step, or a single one for all of them. Public constants.
    batch_size : int
        b >= 1: every step divides the sum of its records' gradients by this constant.
    feature_norm : float or None
        R_x > 0: each record's features are projected on this L2 norm. None: they are not.
    has_bias : bool
        Whether a constant feature 1 is appended, which makes R^2 = R_x^2 + 1.
    huber_threshold : float or None
        c > 0, in the unit of the target; for ``huber_regression`` only.
    per_example_clipping, class_weights, input_dropout, data_dependent_preprocessing : bool
        Whether the training uses them.
    trainable_lower_layers : bool
        Whether any parameter below the last linear layer is trained.
    keeps_state_between_rounds : bool
        Whether anything but the records survives a round (control variates, an optimiser's state).
    float64 : bool
        Whether the local steps are computed in float64.
    defined_for_all_records : bool
        Whether the training gives a finite update whatever a record holds: it neither raises nor
        diverges because of a feature or a label.
    sampling : str
        ``fixed`` (a fixed number of records without replacement), ``poisson``, or ``none``.
    disjoint_batches : bool
        Whether no record is in more than one batch of a round.
    full_batches : bool
        Whether every batch holds exactly ``batch_size`` records.

    Raises
    ------
    ValueError
        If a value is malformed (wrong type, non-finite, out of the range above). A well-formed
        value that breaks a condition of the bound is accepted here and named by
        `broken_conditions`.
    """

    loss: str
    optimizer: str
    momentum: float
    weight_decay: float
    proximal: float
    learning_rates: tuple[float, ...]
    batch_size: int
    feature_norm: float | None
    has_bias: bool
    huber_threshold: float | None = None
    per_example_clipping: bool
    class_weights: bool
    input_dropout: bool
    trainable_lower_layers: bool
    keeps_state_between_rounds: bool
    float64: bool
    data_dependent_preprocessing: bool
    defined_for_all_records: bool
    sampling: str
    disjoint_batches: bool
    full_batches: bool

    def __post_init__(self) -> None:
        for name in ("momentum", "weight_decay", "proximal"):
            _check_real(name, getattr(self, name), positive=False)
        if self.momentum >= 1.0:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum!r}")
        if not isinstance(self.learning_rates, tuple) or not self.learning_rates:
            raise ValueError(
                f"learning_rates must be a non-empty tuple, got {self.learning_rates!r}"
            )
        for rate in self.learning_rates:
            _check_real("learning_rates", rate, positive=True)
        if type(self.batch_size) is not int or self.batch_size < 1:
            raise ValueError(f"batch_size must be an int >= 1, got {self.batch_size!r}")
        for name in ("feature_norm", "huber_threshold"):
            if getattr(self, name) is not None:
                _check_real(name, getattr(self, name), positive=True)
        for name in (*_REQUIRED_FLAGS, "has_bias"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be a bool, got {getattr(self, name)!r}")
        if self.sampling not in SAMPLING_SCHEMES:
            raise ValueError(f"sampling must be one of {SAMPLING_SCHEMES}, got {self.sampling!r}")


@dataclass(frozen=True)
class LossConstants:
    """Two bounds over all models and all admissible records.

    Attributes
    ----------
    gradient_bound : float
        G: the L2 norm of one record's gradient.
    smoothness : float
        L: the largest eigenvalue of one record's Hessian.
    """

    gradient_bound: float
    smoothness: float


def loss_constants(training: LocalTraining) -> LossConstants | None:
    """Return G and L of the declared loss, or None if it has no such bounds.

    With a the features (and the constant 1 of a bias), ||a|| <= R, one record's gradient is the
    outer product of an error vector and a, and its Hessian that of the error's Jacobian and a a^T:

    * softmax cross-entropy: error p - e_y of norm at most sqrt(2); Jacobian diag(p) - p p^T of norm
      at most 1/2. G = sqrt(2) R, L = R^2 / 2.
    * one-output logistic: error p - y in [-1, 1], derivative p (1 - p) <= 1/4. G = R, L = R^2 / 4.
    * Huber: error min(1, c/|r|) r of norm at most c, 1-Lipschitz in r. G = c R, L = R^2.
    * squared: the error is the residual, which no constant bounds. None.

    Parameters
    ----------
    training : LocalTraining
        Its ``loss``, ``feature_norm``, ``has_bias`` and ``huber_threshold`` are read.

    Returns
    -------
    LossConstants or None
        None also if a constant the loss needs is missing.
    """
    if training.feature_norm is None:
        return None
    # R^2 first: a root squared again would put 2 / L just below the exact limit.
    square = training.feature_norm * training.feature_norm + (1.0 if training.has_bias else 0.0)
    if training.loss == "softmax_cross_entropy":
        return LossConstants(math.sqrt(2.0 * square), square / 2.0)
    if training.loss == "binary_logistic":
        return LossConstants(math.sqrt(square), square / 4.0)
    if training.loss == "huber_regression" and training.huber_threshold is not None:
        return LossConstants(training.huber_threshold * math.sqrt(square), square)
    return None


def broken_conditions(
    training: LocalTraining, *, unit: str, neighboring_relation: str
) -> tuple[str, ...]:
    """List every condition of the convex bound that the declared training breaks.

    Parameters
    ----------
    training : LocalTraining
        The declaration to check.
    unit, neighboring_relation : str
        The relation the bound is wanted for.

    Returns
    -------
    tuple of str
        One sentence for each broken condition: its name, the value found, what is allowed and why.
        Empty if the bound holds.
    """
    return tuple(_find_broken(training, unit, neighboring_relation))


def _find_broken(training: LocalTraining, unit: str, neighboring_relation: str) -> Iterator[str]:
    yield from _broken_relation(unit, neighboring_relation)
    yield from _broken_loss(training)
    if training.optimizer != "sgd":
        yield broken_sentence(
            "optimizer", training.optimizer, "'sgd'", "its steps may expand distances"
        )
    if training.momentum != 0.0:
        yield broken_sentence("momentum", training.momentum, "0", "the buffer repeats a difference")
    if training.sampling == "poisson":
        yield broken_sentence(
            "sampling",
            "poisson",
            "'fixed' or 'none'",
            "a record may be in several batches, and batches are not full",
        )
    for name, (allowed, reason) in _REQUIRED_FLAGS.items():
        if getattr(training, name) is not allowed:
            yield broken_sentence(name, not allowed, str(allowed), reason)
    yield from _broken_step_size(training)


def _broken_relation(unit: str, neighboring_relation: str) -> Iterator[str]:
    if unit != "record":
        yield broken_sentence(
            "unit", unit, "'record'", "a client's whole data set is in every batch"
        )
    if neighboring_relation != "replace_one":
        yield broken_sentence(
            "neighboring_relation",
            neighboring_relation,
            "'replace_one'",
            "with a record more or less the batches shift",
        )


def _broken_loss(training: LocalTraining) -> Iterator[str]:
    if training.loss not in SUPPORTED_LOSSES:
        yield broken_sentence(
            "loss",
            training.loss,
            f"one of {SUPPORTED_LOSSES}",
            "the gradient must be bounded over all models and the loss convex and smooth",
        )
    if training.feature_norm is None:
        yield broken_sentence(
            "feature_norm", None, "a number > 0", "nothing bounds a record's gradient"
        )
    if training.loss == "huber_regression" and training.huber_threshold is None:
        yield broken_sentence(
            "huber_threshold", None, "a number > 0", "nothing bounds the residual"
        )


def _broken_step_size(training: LocalTraining) -> Iterator[str]:
    constants = loss_constants(training)
    if constants is None:
        return
    curvature = constants.smoothness + training.weight_decay + training.proximal
    step = max(range(len(training.learning_rates)), key=training.learning_rates.__getitem__)
    rate = training.learning_rates[step]
    if rate * curvature > 2.0:
        yield broken_sentence(
            f"learning_rates[{step}]",
            rate,
            f"at most 2 / (L + weight_decay + proximal) = {2.0 / curvature!r} with L = "
            f"{constants.smoothness:g}",
            "a longer step expands distances",
        )


def broken_sentence(name: str, value: object, allowed: str, reason: str) -> str:
    """Say which condition is broken, by what value, what is allowed and why."""
    return f"{name} = {value!r}; allowed: {allowed} ({reason})"


def _check_real(name: str, value: object, *, positive: bool) -> None:
    ok = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or float(value) < 0.0 or (positive and float(value) == 0.0):  # type: ignore[arg-type]
        raise ValueError(
            f"{name} must be a finite number {'>' if positive else '>='} 0, got {value!r}"
        )
