"""How well a model does on a set of records."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from fl_app.data.records import DataError, FederatedDataset, Records
from fl_app.local_training import project_records
from fl_app.model_arrays import load_arrays
from fl_app.models import input_placement


@dataclass(frozen=True)
class Evaluation:
    """A model's score.

    Attributes
    ----------
    loss : float
        Mean cross entropy in nats; nan if it is not finite.
    accuracy : float
        Share of records whose largest logit is the label's, in [0, 1]. A record with a logit that
        is not finite counts as wrong.
    num_records : int
        Number of records behind both.
    """

    loss: float
    accuracy: float
    num_records: int


def evaluate(
    model: nn.Module,
    arrays: Mapping[str, NDArray[Any]],
    records: Records,
    feature_norm: float | None = None,
    batch_size: int = 128,
) -> Evaluation:
    """Evaluate a model, in evaluation mode and without gradients.

    Parameters
    ----------
    model : torch.nn.Module
        Maps features (n, *feature_shape) to logits (n, num_classes). Its values are overwritten.
    arrays : mapping of str to numpy.ndarray
        Its state, as `to_arrays(model)` gives it.
    records : Records
        At least one.
    feature_norm : float or None
        Norm that records are projected to, the same as in training.
    batch_size : int
        Records computed at once, at least 1; bounds memory, and fits a cache.

    Raises
    ------
    DataError
        If there are no records.
    ValueError
        If `batch_size` is not allowed or the arrays do not fit the model.
    """
    if not len(records):
        raise DataError("records: 0; at least one is needed to evaluate a model")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size: {batch_size!r}; an int of at least 1 is needed")
    load_arrays(model, arrays)
    model.eval()
    device, dtype = input_placement(model)
    loss_sum, num_right = 0.0, 0
    with torch.inference_mode():
        for start in range(0, len(records), batch_size):
            part = slice(start, start + batch_size)
            features = project_records(records.features[part], feature_norm)
            # Shared records are read-only, which torch does not know: those are copied.
            inputs = torch.from_numpy(np.require(features, requirements="W")).to(device, dtype)
            targets = np.require(records.labels[part], requirements="W")
            labels = torch.from_numpy(targets).to(device)
            logits = model(inputs)
            logits = logits.float() if logits.dtype.itemsize < 4 else logits
            loss_sum += functional.cross_entropy(logits, labels, reduction="sum").item()
            right = (logits.argmax(dim=1) == labels) & logits.isfinite().all(dim=1)
            num_right += int(right.sum())
    loss = loss_sum / len(records)
    return Evaluation(
        loss if math.isfinite(loss) else math.nan, num_right / len(records), len(records)
    )


def global_train_loss(
    model: nn.Module,
    arrays: Mapping[str, NDArray[Any]],
    dataset: FederatedDataset,
    feature_norm: float | None = None,
) -> float:
    """Return the mean cross entropy, without penalties, over the training records of all clients.

    Only for experiments: it is computed from data that no server has, and nothing accounts for
    what it gives away. See `evaluate` for the arguments and errors.
    """
    used = np.concatenate(dataset.partitions)
    whole = len(used) == len(dataset.train)
    records = dataset.train if whole else dataset.train.take(np.sort(used))
    return evaluate(model, arrays, records, feature_norm).loss
