"""A model of the user's own, by import path: built, and checked before it is trusted."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fl_app.import_path import call_function
from fl_app.model_settings import KEY

_NUM_RECORDS = 3  # of the batch that a model is tried on


def build_user_model(path: str, feature_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Call ``path(feature_shape, num_classes)`` and check what it returns.

    Draws come from torch's global generator, which the caller seeds and restores.

    Parameters
    ----------
    path : str
        ``package.module:function``.
    feature_shape : sequence of int
        Shape of one record's features.
    num_classes : int
        Number of outputs (logits).

    Returns
    -------
    torch.nn.Module
        On the CPU, with trainable parameters; maps zeros (n, *feature_shape) to (n, num_classes),
        in training mode with a loss that can be differentiated. Both trials leave it as it was.

    Raises
    ------
    ValueError
        If the function cannot be imported, raises, or returns something else; names `KEY`.
    """
    shape = tuple(feature_shape)
    model = call_function(KEY, path, shape, num_classes)
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise _refuse(path, f"a torch.nn.Module is needed (this returned a value of type {kind})")
    devices = {str(tensor.device) for tensor in (*model.parameters(), *model.buffers())}
    if devices - {"cpu"}:
        raise _refuse(path, f"a model on the CPU is needed, not on {', '.join(sorted(devices))}")
    training = model.training
    _try_out(path, model, shape, num_classes, training=False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise _refuse(path, "a model with trainable parameters is needed")
    values = {name: buffer.clone() for name, buffer in model.named_buffers()}
    _try_out(path, model, shape, num_classes, training=True)
    for name, buffer in model.named_buffers():
        buffer.data = values.get(name, buffer)
    model.train(training)
    return model


def _try_out(
    path: str, model: nn.Module, shape: tuple[int, ...], num_classes: int, *, training: bool
) -> None:
    """Call the model on zeros, and in training mode differentiate its loss."""
    how = "on zeros in training mode" if training else "on zeros"
    try:
        model.train(training)
        model.float()
        with torch.set_grad_enabled(training):
            logits: Any = model(torch.zeros(_NUM_RECORDS, *shape))
        if training:
            loss = functional.cross_entropy(logits, torch.zeros(_NUM_RECORDS, dtype=torch.int64))
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            torch.autograd.grad(loss, trained, allow_unused=True)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise _refuse(
            path,
            f"a model for features of shape {shape} is needed; {how} it raised "
            f"{type(error).__name__}: {reason}",
        ) from error
    found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if found != (_NUM_RECORDS, num_classes):
        raise _refuse(
            path,
            f"logits of shape (n, num_classes) are needed: {(_NUM_RECORDS, num_classes)} for "
            f"{_NUM_RECORDS} records, not {found} ({how})",
        )


def require_equal_models(path: str, first: nn.Module, second: nn.Module) -> None:
    """Raise ValueError unless two calls with the same seed gave two models of the same values."""
    if first is second:
        raise _refuse(path, "a new module is needed each time, not the same one")
    values, others = first.state_dict(), second.state_dict()
    # One that is not a number differs from itself.
    odd = [n for n, v in values.items() if v.is_floating_point() and not v.isfinite().all()]
    if odd:
        raise _refuse(path, f"finite initial values are needed; {odd[0]} has others")
    same = values.keys() == others.keys() and all(
        torch.equal(values[name], others[name]) for name in values
    )
    if not same:
        raise _refuse(
            path,
            "the same initial values are needed for the same seed: draw them from torch's "
            "global generator, which is seeded for the call",
        )


def _refuse(path: str, reason: str) -> ValueError:
    return ValueError(f"{KEY}: {path!r}; {reason}")
