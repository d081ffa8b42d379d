"""A declared training and arguments for which the one-step sensitivity holds."""

import dataclasses
from typing import Any

from tests.softmax_training import SOFTMAX

ONE_STEP = dataclasses.replace(
    SOFTMAX,
    loss="any",
    feature_norm=None,
    per_example_clipping=True,
    trainable_lower_layers=True,
    input_dropout=True,
    class_weights=True,
    full_batches=False,
    sampling="poisson",
    learning_rates=(0.5,),
)

ARGUMENTS: dict[str, Any] = {
    "max_grad_norm": 2.0,
    "num_batches": 1,
    "mixes_records": False,
    "unit": "record",
    "neighboring_relation": "replace_one",
}
