"""Local training with every record's gradient clipped: DP-SGD's steps, with or without noise."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fl_app.data.records import DataError, Records
from fl_app.local_training import StepSettings, require_number, take_steps
from fl_app.model_files import Arrays
from fl_app.per_example_gradients import (
    check_per_example,
    per_example_hooks,
    record_gradients,
    trainable_parameters,
)

StepNoise = Callable[[int], NDArray[np.float64]]

# Records are taken together until their gradients have this many entries: 32 MiB in float64.
_MOST_ENTRIES = 2**22
# More records together are hardly faster, and convolutions unfold their inputs.
_MOST_RECORDS = 256


def clipped_steps(
    model: nn.Module,
    arrays: Mapping[str, NDArray[Any]],
    records: Records,
    batches: Sequence[NDArray[np.int64]],
    settings: StepSettings,
    *,
    max_grad_norm: float,
    batch_divisor: float,
    torch_seed: int = 0,
    step_noise: StepNoise | None = None,
) -> tuple[Arrays, float | None]:
    """Take one step of SGD per batch on clipped per-example gradients, from the global model.

    A step is that of `train_steps` with g = (sum of the records' gradients, each clipped to L2 norm
    C, plus noise) / `batch_divisor`. A gradient is clipped as one vector over all trainable
    parameters; one with a non-finite entry (or a norm beyond float64) becomes zero. An empty batch
    takes a step with g = noise / batch_divisor.

    Formal guarantees, for any records and any model that `check_per_example` accepts:

    1. Each record adds to the sum a vector whose L2 norm is at most C for the real numbers, C at
       least 1e-150: the norm is computed in float64 and a margin left for its rounding. It is a
       function of the record, the model and, with dropout, the mask at the record's place.
    2. The sum is computed in float64; for n records it is off by at most n^2 2**-53 C in L2 norm.
    3. Entries that are not trained, buffers among them, are returned as they were given.

    Computed in the model's own type otherwise (float64 with `settings.float64`): with noise in the
    steps, what is rounded after it is post-processing. The result is the same bit for bit on the
    CPU with one thread; torch's global generator is restored.

    Parameters
    ----------
    model, arrays, records, settings, torch_seed
        As in `train_steps`.
    batches : sequence of numpy.ndarray
        One int64 array of indices into `records` for each step, none twice in a batch.
    max_grad_norm : float
        C, positive.
    batch_divisor : float
        Positive; the configured batch size (its expectation under Poisson sampling).
    step_noise : callable, optional
        Returns the noise of a step, counted from 0, that is added to the sum: finite float64 of
        shape (d,), d = `num_trainable(model)`, in the order of the model's parameters. Its standard
        deviation is z C for a noise multiplier z. It is called once for each step.

    Returns
    -------
    arrays : dict of str to numpy.ndarray
        As in `train_steps`.
    loss : float or None
        As in `train_steps`.

    Raises
    ------
    ValueError
        If an argument is not allowed, the arrays do not fit the model, or a layer mixes records or
        gives no per-example gradients (before any record is read).
    """
    require_number("max_grad_norm", max_grad_norm, positive=True)
    require_number("batch_divisor", batch_divisor, positive=True)
    check_per_example(model, records.feature_shape)
    for step, batch in enumerate(batches):
        if np.unique(batch).size != np.size(batch):
            raise DataError(f"batches[{step}]: a record twice; each may be in a batch once")
    named = trainable_parameters(model)
    size = sum(parameter.numel() for parameter in named.values())
    together = min(_MOST_RECORDS, max(1, _MOST_ENTRIES // size))

    def clipped_gradient(
        step: int, parameters: Sequence[torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor
    ) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
        total = torch.zeros(size, dtype=torch.float64, device=inputs.device)
        losses = torch.zeros((), dtype=torch.float64, device=inputs.device)
        for part, part_labels in zip(
            torch.split(inputs, together), torch.split(labels, together), strict=True
        ):
            if len(part_labels):
                rows, loss = record_gradients(model, named, part, part_labels)
                total += _sum_clipped(rows, float(max_grad_norm))
                losses += loss
        if step_noise is not None:
            total += torch.from_numpy(_check_noise(step, step_noise(step), size)).to(total.device)
        total /= float(batch_divisor)
        parts = torch.split(total, [parameter.numel() for parameter in parameters])
        shaped = [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]
        return shaped, losses

    with per_example_hooks(model):
        trained, mean_loss = take_steps(
            model, arrays, records, batches, settings, clipped_gradient, torch_seed=torch_seed
        )
    kept = {n: a if n in named else np.array(arrays[n], a.dtype) for n, a in trained.items()}
    return kept, mean_loss


def num_trainable(model: nn.Module) -> int:
    """Return d, the number of trained parameters: the length of a step's noise."""
    return sum(parameter.numel() for parameter in trainable_parameters(model).values())


def _sum_clipped(rows: Sequence[torch.Tensor], max_grad_norm: float) -> torch.Tensor:
    """Sum the records' gradients, each clipped as one vector, in float64."""
    wide = [part.double() for part in rows]
    # The norm is off by (d + 8) 2**-53 of it at most, the product by less.
    size = sum(part.shape[1] for part in wide)
    radius = max_grad_norm * (1 - 4 * (size + 8) * 2.0**-53)
    norms = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in wide])
    norm = torch.linalg.vector_norm(norms, dim=0)
    usable = norm.isfinite()
    if not usable.all():
        wide = [part.masked_fill(~usable[:, None], 0.0) for part in wide]
    factors = torch.where(usable, (radius / norm).clamp(max=1.0), 0.0)
    return torch.cat([factors @ part for part in wide])


def _check_noise(step: int, noise: Any, size: int) -> NDArray[np.float64]:
    fits = isinstance(noise, np.ndarray) and noise.dtype == np.float64 and noise.shape == (size,)
    if not fits or not np.isfinite(noise).all():
        raise ValueError(f"step_noise: step {step}; finite float64 of shape ({size},) is needed")
    return np.require(noise, requirements=["C", "W"])
