"""Evaluation against NumPy."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from fl_app.data import DataError, DataSettings, FederatedDataset, Records, load_dataset
from fl_app.evaluation import evaluate, global_train_loss
from fl_app.local_training import project_records
from fl_app.model_arrays import to_arrays
from fl_app.model_settings import ModelSettings
from fl_app.models import build_model


def make_case(num_records: int = 50, seed: int = 0):
    rng = np.random.default_rng(seed)
    features = (3 * rng.standard_normal((num_records, 2, 3))).astype(np.float32)
    records = Records(features, rng.integers(0, 4, num_records))
    arrays = {
        "linear.weight": rng.standard_normal((4, 6)),
        "linear.bias": rng.standard_normal(4),
    }
    model = build_model(ModelSettings(dtype="float64"), (2, 3), 4, 0)
    return model, arrays, records


def score(arrays, features, labels):
    logits = features.reshape(len(features), -1).astype(np.float64) @ arrays["linear.weight"].T
    logits += arrays["linear.bias"]
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_total = np.log(np.exp(shifted).sum(axis=1))
    losses = log_total - shifted[np.arange(len(labels)), labels]
    return losses.mean(), (logits.argmax(axis=1) == labels).mean()


@pytest.mark.parametrize("feature_norm", [None, 1.0])
@pytest.mark.parametrize("batch_size", [1, 7, 50, 1024])
def test_loss_and_accuracy_equal_numpy(feature_norm, batch_size):
    model, arrays, records = make_case()
    found = evaluate(model, arrays, records, feature_norm, batch_size)
    features = project_records(records.features, feature_norm)
    loss, accuracy = score(arrays, features, records.labels)
    assert found.loss == pytest.approx(loss, rel=1e-12)
    assert found.accuracy == accuracy
    assert found.num_records == 50


@pytest.fixture
def every_warning_is_an_error():
    torch.set_warn_always(True)  # torch gives most of its warnings once in a process
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    torch.set_warn_always(False)


@pytest.mark.usefixtures("every_warning_is_an_error")
def test_read_only_records_and_every_type_are_evaluated_without_a_warning():
    dataset = load_dataset(DataSettings(), 10, 0)
    losses = []
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        model = build_model(ModelSettings("cnn", dtype=dtype), dataset.feature_shape, 10, 0)
        losses.append(evaluate(model, to_arrays(model), dataset.test).loss)
    # The initial model is near log(10); the types differ by their rounding only.
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-2)


def test_evaluation_mode_is_used_and_changes_nothing():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(6), nn.Dropout(0.9), nn.Linear(6, 4))
    arrays = to_arrays(model.train())
    records = make_case()[2]
    torch.manual_seed(0)
    first = evaluate(model, arrays, records)
    assert evaluate(model.train(), arrays, records) == first
    assert all(np.array_equal(a, arrays[n]) for n, a in to_arrays(model).items())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_diverged_model_has_loss_nan_and_nothing_right(value):
    model, arrays, records = make_case()
    arrays["linear.bias"] = np.full(4, value)
    found = evaluate(model, arrays, records)
    assert math.isnan(found.loss)
    assert found.accuracy == 0


def test_records_with_a_non_finite_logit_count_as_wrong():
    model, arrays, records = make_case(8)
    records.features[3] = np.nan
    loss, accuracy = score(arrays, np.delete(records.features, 3, 0), np.delete(records.labels, 3))
    found = evaluate(model, arrays, records)
    assert math.isnan(found.loss)
    assert not math.isnan(loss)
    assert found.accuracy == pytest.approx(accuracy * 7 / 8)


def test_no_records_and_bad_batch_sizes_are_refused():
    model, arrays, records = make_case()
    with pytest.raises(DataError, match="records: 0"):
        evaluate(model, arrays, records.take(np.empty(0, np.int64)))
    for batch_size in (0, True, 2.0):
        with pytest.raises(ValueError, match="batch_size"):
            evaluate(model, arrays, records, batch_size=batch_size)


@pytest.mark.parametrize("used", [range(50), range(10, 45)], ids=["all", "some"])
def test_the_loss_of_all_clients_is_that_of_their_records(used):
    model, arrays, records = make_case()
    parts = tuple(np.array(list(used)[k::3][::-1], dtype=np.int64) for k in range(3))
    dataset = FederatedDataset("case", records, records, 4, parts)
    found = global_train_loss(model, arrays, dataset, 1.0)
    features = project_records(records.features[list(used)], 1.0)
    expected, _ = score(arrays, features, records.labels[list(used)])
    assert found == pytest.approx(expected, rel=1e-12)
