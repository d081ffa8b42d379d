"""One client's local training: plain SGD on batches that are given to it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from fl_app.data.records import DataError, Records
from fl_app.memory_format import channels_last
from fl_app.model_arrays import load_arrays, to_arrays
from fl_app.model_files import Arrays
from fl_app.models import input_placement

Gradient = Callable[
    [int, Sequence[torch.Tensor], torch.Tensor, torch.Tensor],
    tuple[Sequence[torch.Tensor], torch.Tensor | None],
]
"""What g is in a step (see `take_steps`)."""


@dataclass(frozen=True)
class StepSettings:
    """What one step of SGD does.

    Attributes
    ----------
    learning_rate : float
        eta, positive.
    weight_decay : float
        Coefficient of the L2 penalty weight_decay/2 ||x||^2, at least 0.
    proximal : float
        Coefficient of FedProx's proximal/2 ||x - x_global||^2, at least 0.
    feature_norm : float or None
        R_x, positive: each record is projected to that norm first. None: no projection.
    float64 : bool
        Compute the steps in float64 and return float64, whatever the model's own type is.

    Raises
    ------
    ValueError
        If a value is not allowed.
    """

    learning_rate: float
    weight_decay: float = 0.0
    proximal: float = 0.0
    feature_norm: float | None = None
    float64: bool = False

    def __post_init__(self) -> None:
        require_number("learning_rate", self.learning_rate, positive=True)
        require_number("weight_decay", self.weight_decay, positive=False)
        require_number("proximal", self.proximal, positive=False)
        if self.feature_norm is not None:
            require_number("feature_norm", self.feature_norm, positive=True)
        if not isinstance(self.float64, bool):
            raise ValueError(f"float64: {self.float64!r}; true or false is needed")


def project_records(features: NDArray[Any], feature_norm: float | None) -> NDArray[Any]:
    """Project each record on its own to an L2 norm of at most `feature_norm`.

    Non-finite entries become 0 first; then x min(1, R_x / ||x||), in float64.

    Formal guarantees: each returned record is a function of that record and R_x alone; it is
    finite; its norm, computed in float64 from the returned values, is at most R_x.

    Parameters
    ----------
    features : numpy.ndarray
        Floating point, shape (n, *feature_shape).
    feature_norm : float or None
        R_x, positive and finite. None returns `features` as they are.

    Returns
    -------
    numpy.ndarray
        Of the same shape and type; a new array unless `feature_norm` is None.

    Raises
    ------
    ValueError
        If an argument is not allowed.
    """
    if feature_norm is None:
        return features
    require_number("feature_norm", feature_norm, positive=True)
    if features.dtype.kind != "f" or features.ndim < 2:
        raise ValueError(
            f"features: {features.dtype} of shape {features.shape}; floating point of shape "
            "(n, *feature_shape) is needed"
        )
    num_features = math.prod(features.shape[1:])
    rows = features.reshape(len(features), num_features)
    projected = np.where(np.isfinite(rows), rows, np.zeros((), features.dtype))
    left, target = np.arange(len(rows)), float(feature_norm)
    for _ in range(3):
        too_long, shortened = _shorten(projected[left], feature_norm, target)
        if not too_long.any():
            break
        left = left[too_long]
        projected[left] = shortened
        # Rounding to the stored type may lengthen a record: those are checked and aimed lower.
        target *= 1 - 4 * float(np.finfo(features.dtype).eps)
    else:
        # Only where R_x is so small that the type cannot represent such records.
        projected[left] = 0
    return projected.reshape(features.shape)


def train_steps(
    model: nn.Module,
    arrays: Mapping[str, NDArray[Any]],
    records: Records,
    batches: Sequence[NDArray[np.int64]],
    settings: StepSettings,
    *,
    batch_divisor: float,
    torch_seed: int = 0,
) -> tuple[Arrays, float | None]:
    """Take one step of SGD per batch, starting from the global model.

    A step is x <- x - eta (g + weight_decay x + proximal (x - x_global)), where g is the SUM of
    the cross-entropy gradients of the batch's records divided by the constant `batch_divisor`:
    dividing by the batch's real size would let one record change the weight of all others. Decay
    and proximal term act on every trainable parameter. There is no momentum and nothing is kept
    between calls, apart from state that a model hides from its state dict. An empty batch takes a
    step with g = 0.

    The result is the same bit for bit on the CPU with one thread. torch's global generator is
    seeded with `torch_seed` for the steps (dropout) and restored afterwards. A model may be used
    again in a later call, but not by two threads at once.

    Parameters
    ----------
    model : torch.nn.Module
        Maps features (n, *feature_shape) to logits (n, num_classes). Its values are overwritten.
    arrays : mapping of str to numpy.ndarray
        x_global, as `to_arrays(model)` gives it; left unchanged.
    records : Records
        The client's records.
    batches : sequence of numpy.ndarray
        One int64 array of indices into `records` for each step.
    settings : StepSettings
        The step.
    batch_divisor : float
        Positive; the configured batch size (its expectation under Poisson sampling).
    torch_seed : int
        Seed of the model's own randomness, in [0, 2**63).

    Returns
    -------
    arrays : dict of str to numpy.ndarray
        Parameters and buffers after the last step, in the state dict's order: float64 with
        `settings.float64`, otherwise the types of `to_arrays`. Without batches, the given values.
        Divergence shows as non-finite entries; it is for the caller to deal with.
    loss : float or None
        Mean cross entropy over the records used, each measured before its step; nan if it is not
        finite; None if no record was used. It reveals client data: never for upload.

    Raises
    ------
    ValueError
        If an argument is not allowed or the arrays do not fit the model.
    """
    require_number("batch_divisor", batch_divisor, positive=True)
    # What autograd multiplies the gradient of the sum of losses by.
    weight = torch.tensor(1 / float(batch_divisor), dtype=torch.float64)

    def mean_gradient(
        step: int, parameters: Sequence[torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor
    ) -> tuple[Sequence[torch.Tensor], torch.Tensor | None]:
        if not len(labels):
            return (), None
        loss = sum_losses(model, inputs, labels)
        # A factor and not a grad_output: that would import sympy, a second on the first step.
        scaled = loss * weight.to(loss.dtype)
        gradients = torch.autograd.grad(
            scaled, parameters, allow_unused=True, materialize_grads=True
        )
        return gradients, loss

    with channels_last(model):
        return take_steps(
            model, arrays, records, batches, settings, mean_gradient, torch_seed=torch_seed
        )


def take_steps(
    model: nn.Module,
    arrays: Mapping[str, NDArray[Any]],
    records: Records,
    batches: Sequence[NDArray[np.int64]],
    settings: StepSettings,
    gradient: Gradient,
    *,
    torch_seed: int,
) -> tuple[Arrays, float | None]:
    """Take one step per batch, as `train_steps` does with its own gradient.

    Parameters
    ----------
    gradient : callable
        Called once a step, for empty batches too, with the step's number from 0, the trainable
        parameters, the batch's inputs and its labels. It returns g as one tensor for each parameter
        (or nothing at all: zero), and the sum of the records' losses (None without records).
    """
    if isinstance(torch_seed, bool) or not 0 <= torch_seed < 2**63:
        raise ValueError(f"torch_seed: {torch_seed!r}; an int in [0, 2**63) is needed")
    used, indices = _index_batches(batches, len(records))
    with _in_float64(model) if settings.float64 else nullcontext():
        load_arrays(model, arrays)
        if not batches:
            trained = to_arrays(model)
            # A model of lower precision has rounded them: hand back the values themselves.
            return {n: np.array(arrays[n], dtype=a.dtype) for n, a in trained.items()}, None
        device, dtype = input_placement(model)
        features = project_records(records.features[used], settings.feature_norm)
        inputs = torch.from_numpy(features).to(device, dtype)
        labels = torch.from_numpy(records.labels[used]).to(device)
        with seed_torch(device, torch_seed):
            steps = [batch.to(device) for batch in indices]
            loss_sum = _run_steps(model, inputs, labels, steps, settings, gradient)
        num_used = sum(len(batch) for batch in batches)
        loss = loss_sum / num_used if num_used else None
        return to_arrays(model), loss if loss is None or math.isfinite(loss) else math.nan


@contextmanager
def seed_torch(device: torch.device, torch_seed: int) -> Iterator[None]:
    """Seed torch's global generators, the device's too, and restore them afterwards."""
    on_gpu = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=on_gpu):
        torch.default_generator.manual_seed(torch_seed)
        if on_gpu:
            torch.cuda.default_generators[device.index].manual_seed(torch_seed)
        yield


def sum_losses(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the sum of the records' cross entropies, of at least single precision."""
    logits = model(inputs)
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    return functional.cross_entropy(logits, labels, reduction="sum")


def _run_steps(
    model: nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    steps: Sequence[torch.Tensor],
    settings: StepSettings,
    gradient: Gradient,
) -> float:
    """Run the steps in place and return the sum of the records' losses."""
    model.train()
    parameters: list[torch.Tensor] = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("model: no trainable parameters; at least one is needed")
    rate, proximal = settings.learning_rate, settings.proximal
    shrink = 1 - rate * (settings.weight_decay + proximal)
    start = [p.detach().clone() for p in parameters] if proximal else []
    total = torch.zeros((), dtype=torch.float64, device=inputs.device)
    for step, batch in enumerate(steps):
        gradients, loss = gradient(
            step, parameters, inputs.index_select(0, batch), labels.index_select(0, batch)
        )
        with torch.no_grad():
            # Gradients are only read: autograd may hand out one tensor for two parameters.
            if shrink != 1:
                torch._foreach_mul_(parameters, shrink)
            if proximal:
                torch._foreach_add_(parameters, start, alpha=rate * proximal)
            if gradients:
                torch._foreach_add_(parameters, list(gradients), alpha=-rate)
            if loss is not None:
                total += loss.detach()
    return float(total)


def _index_batches(
    batches: Sequence[NDArray[np.int64]], num_records: int
) -> tuple[NDArray[np.int64], list[torch.Tensor]]:
    """Return the records that are used, and each batch as positions among those."""
    for step, batch in enumerate(batches):
        if not isinstance(batch, np.ndarray) or batch.dtype != np.int64 or batch.ndim != 1:
            raise DataError(f"batches[{step}]: {batch!r}; an int64 array of indices is needed")
    joined = np.concatenate([np.empty(0, dtype=np.int64), *batches])
    if joined.size and not 0 <= int(joined.min()) <= int(joined.max()) < num_records:
        raise DataError(
            f"batches: indices in [{int(joined.min())}, {int(joined.max())}]; "
            f"[0, {num_records}) is allowed"
        )
    # What np.unique(joined, return_inverse=True) gives, without sorting.
    is_used = np.zeros(num_records, dtype=bool)
    is_used[joined] = True
    used = np.flatnonzero(is_used)
    positions = (np.cumsum(is_used) - 1)[joined]
    ends = np.cumsum([len(batch) for batch in batches])[:-1]
    return used, [torch.from_numpy(part) for part in np.split(positions, ends)]


def _shorten(
    rows: NDArray[Any], limit: float, target: float
) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Return which rows are longer than `limit`, and those rows scaled to the norm `target`."""
    unit, scale = rows.astype(np.float64, copy=False), np.ones((len(rows), 1))
    if rows.dtype.itemsize >= 8:
        # Divided by the largest entry, so that no square overflows or vanishes; squares of
        # narrower types do neither in float64.
        scale = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
        scale[scale == 0] = 1.0
        unit = unit / scale
    unit_norm = np.sqrt(np.einsum("ij,ij->i", unit, unit))[:, None]
    with np.errstate(over="ignore"):
        too_long = (unit_norm * scale > limit)[:, 0]
    scaled = unit[too_long] * (target / unit_norm[too_long])
    return too_long, scaled.astype(rows.dtype)


@contextmanager
def _in_float64(model: nn.Module) -> Iterator[None]:
    """Hold the model's floating-point state in float64, and put its own types back."""
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    own_types = [t.dtype for t in tensors]
    try:
        for tensor in tensors:
            tensor.data = tensor.data.double()
        yield
    finally:
        for tensor, dtype in zip(tensors, own_types, strict=True):
            tensor.data = tensor.data.to(dtype)


def require_number(key: str, value: Any, *, positive: bool) -> None:
    """Raise ValueError unless the value is a finite number >= 0, or > 0 if `positive`."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0 or (positive and value == 0):
        kind = "positive" if positive else "non-negative"
        raise ValueError(f"{key}: {value!r}; a {kind}, finite number is needed")
