"""Whether a model's output for one record depends on the other records of a batch.

Where it does, one record changes the gradients of all others, and no bound on a single record's
gradient (the sensitivity `one_step`, DP-SGD) holds. A bound on the whole update is not concerned.
"""

import copy
from collections.abc import Sequence

import torch
from torch import nn

from fl_app.models import input_placement

_NUM_RECORDS = 4


def mixes_records(model: nn.Module, feature_shape: Sequence[int] | None = None) -> str | None:
    """Name a layer whose output for one record depends on others in training mode.

    Batch normalisation is found by its type (every BatchNorm, SyncBatchNorm too). Whatever else
    mixes, code of the model's own too, is found by trying it if `feature_shape` is given: one
    record of a random batch is changed, and the outputs of the others must stay. That finds what
    shows on such a batch; it is no proof that nothing mixes.

    Parameters
    ----------
    model : torch.nn.Module
        Maps features (n, *feature_shape) to logits; left as it was, the global generator too.
    feature_shape : sequence of int or None
        Shape of one record's features; None: types only.

    Returns
    -------
    str or None
        Name and type of the layer, for example "features.1 (BatchNorm2d)"; the model's own type if
        it shows only by trying; None if nothing was found.
    """
    for name, module in model.named_modules():
        # The one base class of all of them in torch.
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            return f"{name or 'the model'} ({type(module).__name__})"
    if feature_shape is None or not _outputs_depend_on_others(model, tuple(feature_shape)):
        return None
    return f"the model ({type(model).__name__})"


def _outputs_depend_on_others(model: nn.Module, shape: tuple[int, ...]) -> bool:
    tried = copy.deepcopy(model).cpu().train()
    _, dtype = input_placement(tried)
    draws = torch.Generator().manual_seed(0)
    features = torch.randn(_NUM_RECORDS, *shape, generator=draws).to(dtype)
    changed = features.clone()
    changed[0] = 7.0 * torch.randn(shape, generator=draws).to(dtype) + 3.0
    outputs = []
    for batch in (features, changed):
        # Both calls start from the same state of the generator: the same dropout.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            outputs.append(copy.deepcopy(tried)(batch)[1:])
    # To the bit: the values of one record change no rounding in the others.
    return not torch.allclose(outputs[0], outputs[1], rtol=0.0, atol=0.0, equal_nan=True)
