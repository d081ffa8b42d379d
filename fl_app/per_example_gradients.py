"""One gradient per record, through Opacus's hooks, and the check that a model can give them.

Clipping bounds what a record does to a sum of gradients only if its gradient depends on no other
record, and if nothing but gradients carries data out of a step. Opacus is imported when these
functions run: it takes a second.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, product
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from fl_app.local_training import seed_torch, sum_losses
from fl_app.models import input_placement

# Models whose gradients were tried, and on which feature shapes.
_TRIED: WeakKeyDictionary[nn.Module, set[tuple[int, ...]]] = WeakKeyDictionary()

# What Opacus leaves on a model; some of it holds a batch's activations and gradients.
_ON_PARAMETERS = ("grad_sample", "_current_grad_sample", "_forward_counter")
_ON_MODULES = ("activations", "max_batch_len")


def check_per_example(model: nn.Module, feature_shape: Sequence[int] | None = None) -> None:
    """Raise unless each record of a batch has a gradient of its own in this model.

    Layers are checked by their type. With `feature_shape` the model is also tried on random
    records, once for each model and shape, which finds what a user's own `forward` does: a record's
    gradient must not change with the other records, the per-example gradients must add up to
    autograd's, and a pass must change neither parameters nor buffers. No data is read; the model's
    values, modes and torch's generators are left as they were.

    Parameters
    ----------
    model : torch.nn.Module
        Maps features (n, *feature_shape) to logits (n, num_classes).
    feature_shape : sequence of int, optional
        Shape of one record's features.

    Raises
    ------
    ValueError
        If a layer mixes records (batch normalisation), keeps statistics of them, or gives no
        per-example gradients; the message names the layer.
    """
    for name, module in model.named_modules():
        reason = _find_obstacle(module)
        if reason is not None:
            raise ValueError(f"model: {_describe(name, module)} {reason}")
    trainable_parameters(model)
    if feature_shape is not None:
        tried = _TRIED.setdefault(model, set())
        if tuple(feature_shape) not in tried:
            _try_out(model, tuple(feature_shape))
            tried.add(tuple(feature_shape))


def trainable_parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the trained parameters by name, in the model's order; a tied one once.

    Raises
    ------
    ValueError
        If there is none.
    """
    found: dict[str, torch.Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ValueError("model: no trainable parameters; at least one is needed")
    return found


@contextmanager
def per_example_hooks(model: nn.Module) -> Iterator[None]:
    """Attach Opacus's hooks, so that `record_gradients` works, and take all of it off afterwards.

    Raises
    ------
    ValueError
        Then or in `record_gradients`, if a layer gives no per-example gradients.
    """
    from opacus.grad_sample import GradSampleModule

    names = {module: name for name, module in model.named_modules()}

    class NamingGradSampleModule(GradSampleModule):  # type: ignore[misc]
        def capture_backprops_hook(self, module: nn.Module, *args: Any, **options: Any) -> None:
            try:
                super().capture_backprops_hook(module, *args, **options)
            except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
                layer = _describe(names[module], module)
                raise ValueError(
                    f"model: {layer} gives no per-example gradients: {error}"
                ) from error

    try:
        try:
            NamingGradSampleModule(model, loss_reduction="sum")
        except NotImplementedError as error:
            raise ValueError(f"model: a layer gives no per-example gradients: {error}") from error
        with warnings.catch_warnings():
            # True of the first layer of every model, and meant for users of other hooks.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            yield
    finally:
        for handle in vars(model).pop("autograd_grad_sample_hooks", ()):
            handle.remove()
        for owner, name in (
            *product(model.parameters(), _ON_PARAMETERS),
            *product(model.modules(), (*_ON_MODULES, "ft_compute_sample_grad")),
        ):
            vars(owner).pop(name, None)


def record_gradients(
    model: nn.Module,
    parameters: Mapping[str, torch.Tensor],
    inputs: torch.Tensor,
    labels: torch.Tensor,
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the gradient of each record's cross entropy, inside of `per_example_hooks`.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode.
    parameters : mapping of str to torch.Tensor
        As `trainable_parameters(model)` gives them.
    inputs, labels : torch.Tensor
        n >= 1 records.

    Returns
    -------
    gradients : list of torch.Tensor
        For each parameter one of shape (n, number of its entries), in the parameter's type.
    loss : torch.Tensor
        Sum of the records' cross entropies, 0-d.

    Raises
    ------
    ValueError
        If a parameter is used outside of its layer's call, or a layer's inputs are not one row for
        each record; the message names the parameter.
    """
    gradients, _, loss = _differentiate(model, parameters, inputs, labels)
    return gradients, loss


def _differentiate(
    model: nn.Module,
    parameters: Mapping[str, torch.Tensor],
    inputs: torch.Tensor,
    labels: torch.Tensor,
) -> tuple[list[torch.Tensor], tuple[torch.Tensor | None, ...], torch.Tensor]:
    """Return the per-example gradients, autograd's own gradient of the sum, and the sum."""
    _forget_batch(model)
    loss = sum_losses(model, inputs, labels)
    summed: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
        loss, list(parameters.values()), allow_unused=True
    )
    gradients = []
    for (name, parameter), total in zip(parameters.items(), summed, strict=True):
        rows: Any = parameter.grad_sample  # type: ignore[attr-defined]
        if rows is None and total is None:  # unused
            rows = parameter.new_zeros(len(labels), *parameter.shape)
        if not isinstance(rows, torch.Tensor) or len(rows) != len(labels):
            raise ValueError(
                f"model: parameter {name!r} gets no per-example gradients; each layer must be "
                "called as a module, on one row for each record"
            )
        gradients.append(rows.detach().reshape(len(labels), parameter.numel()))
    return gradients, summed, loss.detach()


def _find_obstacle(module: nn.Module) -> str | None:
    """Say why a layer of this type cannot be used, or None."""
    # For all layers, frozen ones too, and for what is derived from them: Opacus checks neither.
    from opacus.validators import ModuleValidator

    for kind in type(module).__mro__:
        for error in ModuleValidator.VALIDATORS.get(kind, lambda _: ())(module):
            return f"cannot be used: {str(error).partition('. ')[0]}"
    own = module.parameters(recurse=False)
    if any(p.requires_grad for p in own) and next(module.buffers(), None) is not None:
        return "has buffers beside trainable parameters; per-example gradients need layers without"
    return None


def _try_out(model: nn.Module, feature_shape: tuple[int, ...]) -> None:
    """Check gradients, parameters and buffers on random records (see `check_per_example`)."""
    rng = np.random.default_rng(0)
    parameters = trainable_parameters(model)
    device, dtype = input_placement(model)
    inputs = torch.from_numpy(rng.standard_normal((3, *feature_shape))).to(device, dtype)
    replaced = inputs.clone()
    replaced[1] = -3 * inputs[1].flip(0)
    labels = torch.tensor([0, 1, 0], device=device)
    # Products of the same shape are rounded alike; sums are not, and GPUs may multiply coarsely.
    tight = float(torch.finfo(dtype).eps) ** 0.5
    loose = max(tight, 0.02)
    with _at_random_values(model, rng) as state, per_example_hooks(model):
        before = [tensor.detach().clone() for tensor in state.values()]
        rows, summed, outputs = _trace(model, parameters, inputs, labels)
        other_rows, _, other_outputs = _trace(model, parameters, replaced, labels)
        for name, row, other, total in zip(parameters, rows, other_rows, summed, strict=True):
            if _differ(row[[0, 2]], other[[0, 2]], tight):
                layers = zip(outputs, other_outputs, strict=False)
                changed = [n for (n, a), (_, b) in layers if _differ(a[[0, 2]], b[[0, 2]], tight)]
                place = f"by {changed[0]} or right before it" if changed else "in the loss"
                raise ValueError(
                    f"model: records are mixed {place}: the gradient of {name!r} for one record "
                    "changes with another record"
                )
            if total is not None and _differ(row.double().sum(0), total.flatten(), loose):
                raise ValueError(
                    f"model: the per-example gradients of {name!r} do not add up to its gradient; "
                    "each layer must be called as a module"
                )
        for (name, tensor), value in zip(state.items(), before, strict=True):
            if not torch.equal(tensor, value):
                raise ValueError(f"model: {name!r} changes in a pass; only SGD may change a model")


def _trace(
    model: nn.Module,
    parameters: Mapping[str, torch.Tensor],
    inputs: torch.Tensor,
    labels: torch.Tensor,
) -> tuple[list[torch.Tensor], tuple[torch.Tensor | None, ...], list[tuple[str, torch.Tensor]]]:
    """Return the gradients, and the output of each layer in the order in which they end."""
    outputs: list[tuple[str, torch.Tensor]] = []

    def note(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.shape[:1] == labels.shape:
            outputs.append((names[module], output.detach().clone()))

    names = {module: _describe(name, module) for name, module in model.named_modules()}
    handles = [module.register_forward_hook(note) for module in names]
    try:
        with seed_torch(inputs.device, 0):
            rows, summed, _ = _differentiate(model, parameters, inputs, labels)
    finally:
        for handle in handles:
            handle.remove()
    return [row.clone() for row in rows], summed, outputs


@contextmanager
def _at_random_values(
    model: nn.Module, rng: np.random.Generator
) -> Iterator[dict[str, torch.Tensor]]:
    """Give the model random parameters in training mode, and its own values and modes back."""
    state = dict(chain(model.named_parameters(), model.named_buffers()))
    values = [tensor.detach().clone() for tensor in state.values()]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.train()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.is_floating_point():
                    width = parameter[0].numel() if parameter.ndim > 1 and len(parameter) else 1
                    drawn = rng.standard_normal(tuple(parameter.shape)) / max(width, 1) ** 0.5
                    parameter.copy_(torch.from_numpy(np.asarray(drawn)))
        yield state
    finally:
        with torch.no_grad():
            for tensor, value in zip(state.values(), values, strict=True):
                tensor.copy_(value)
        for module, mode in modes:
            module.training = mode


def _forget_batch(model: nn.Module) -> None:
    """Drop what Opacus holds of an earlier batch: a layer whose output went unused keeps it."""
    for module in model.modules():
        for name in _ON_MODULES:
            vars(module).pop(name, None)
    for parameter in model.parameters():
        vars(parameter).pop("_current_grad_sample", None)
        if parameter.requires_grad:
            parameter.grad_sample = None  # type: ignore[attr-defined]
            parameter._forward_counter = 0  # type: ignore[attr-defined]


def _differ(first: torch.Tensor, second: torch.Tensor, tolerance: float) -> bool:
    one, other = (torch.nan_to_num(tensor.double()) for tensor in (first, second))
    return bool((one - other).norm() > tolerance * torch.maximum(one.norm(), other.norm()))


def _describe(name: str, module: nn.Module) -> str:
    return f"layer {name!r} ({type(module).__name__})" if name else type(module).__name__
