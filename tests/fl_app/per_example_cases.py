"""Models, records and batches for clipped steps."""

import math

import numpy as np

from fl_app.data import DataSettings, load_dataset
from fl_app.model_arrays import to_arrays
from fl_app.model_settings import ModelSettings
from fl_app.models import build_model

MODELS = ("softmax_regression", "mlp", "cnn")


SHAPE = (1, 8, 8)


NO_CLIPPING = 1e9


def make_case(name="mlp", dtype="float32"):
    records = load_dataset(DataSettings(), 10, 0).partition(0)
    model = build_model(ModelSettings(name, hidden=12, dtype=dtype), SHAPE, 10, 1)
    order = np.random.default_rng(0).permutation(len(records))
    # Of several sizes, one of them empty; records of the last were used before.
    batches = [order[:16], order[16:17], order[:0], order[10:60]]
    return model, to_arrays(model), records, batches


def distance(first, second):
    return math.sqrt(sum(float(np.sum((first[n] - second[n]) ** 2)) for n in first))
