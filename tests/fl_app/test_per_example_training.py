"""Clipped steps against plain ones, and against single records."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fl_app import per_example_training
from fl_app.local_training import StepSettings, sum_losses, train_steps
from fl_app.model_arrays import to_arrays
from fl_app.per_example_gradients import per_example_hooks, record_gradients, trainable_parameters
from fl_app.per_example_training import clipped_steps
from tests.fl_app.per_example_cases import MODELS, NO_CLIPPING, distance, make_case


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("float64", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.3, "proximal": 0.5, "feature_norm": 0.7}]
)
def test_without_clipping_and_noise_steps_are_the_plain_ones(name, float64, options):
    model, arrays, records, batches = make_case(name)
    step = StepSettings(0.2, float64=float64, **options)
    ours, loss = clipped_steps(
        model, arrays, records, batches, step, max_grad_norm=NO_CLIPPING, batch_divisor=16.5
    )
    plain, plain_loss = train_steps(model, arrays, records, batches, step, batch_divisor=16.5)
    tolerance = 1e-12 if float64 else 1e-6
    assert list(ours) == list(plain)
    assert all(ours[n].dtype == a.dtype for n, a in plain.items())
    start_norm = distance(plain, dict.fromkeys(plain, 0))
    assert distance(ours, plain) <= tolerance * start_norm
    assert distance(ours, arrays) > 1e-3 * start_norm
    assert loss == pytest.approx(plain_loss, rel=tolerance)


def gradient_alone(model, records, index):
    loss = sum_losses(
        model,
        torch.from_numpy(records.features[[index]]),
        torch.from_numpy(records.labels[[index]]),
    )
    parameters = trainable_parameters(model)
    return torch.autograd.grad(loss, list(parameters.values()))


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_single_records(name):
    model, _, records, _ = make_case(name)
    alone = [gradient_alone(model, records, index) for index in range(9)]
    with per_example_hooks(model):
        rows, loss = record_gradients(
            model,
            trainable_parameters(model),
            torch.from_numpy(records.features[:9]),
            torch.from_numpy(records.labels[:9]),
        )
    assert loss.shape == ()
    for index, gradients in enumerate(alone):
        for row, gradient in zip(rows, gradients, strict=True):
            scale = float(gradient.norm())
            assert float((row[index] - gradient.flatten()).norm()) <= 1e-5 * scale + 1e-7


def test_clipping_is_of_the_whole_vector_and_the_divisor_is_constant():
    model, arrays, records, _ = make_case("mlp")
    indices = np.arange(7)
    vectors = [
        np.concatenate([g.numpy().ravel() for g in gradient_alone(model, records, index)])
        for index in indices
    ]
    norms = [float(np.linalg.norm(v)) for v in vectors]
    bound = float(np.median(norms))  # some are clipped and some are not
    expected = sum(v * min(1.0, bound / n) for v, n in zip(vectors, norms, strict=True))
    step = StepSettings(0.5, float64=True)
    trained, _ = clipped_steps(
        model, arrays, records, [indices], step, max_grad_norm=bound, batch_divisor=32
    )
    moved = np.concatenate([(trained[n] - arrays[n]).ravel() for n in arrays])
    assert np.abs(moved + 0.5 * expected / 32).max() < 1e-7
    assert min(norms) < bound < max(norms)


@pytest.mark.parametrize("key", ["max_grad_norm", "batch_divisor"])
@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, True, None])
def test_bad_numbers_are_refused(key, value):
    model, arrays, records, batches = make_case()
    options = {"max_grad_norm": 1.0, "batch_divisor": 2, key: value}
    with pytest.raises(ValueError, match=f"{key}: .*a positive, finite number"):
        clipped_steps(model, arrays, records, batches, StepSettings(0.1), **options)


@pytest.mark.parametrize("name", MODELS)
def test_results_are_the_same_bit_for_bit_and_the_generator_is_restored(name):
    model, arrays, records, batches = make_case(name)
    results = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        trained, loss = clipped_steps(
            model, arrays, records, batches, StepSettings(0.3), max_grad_norm=0.5, batch_divisor=16
        )
        assert torch.equal(before, torch.get_rng_state())
        results.append((trained, loss))
        model.eval()
    assert all(np.array_equal(results[0][0][n], results[1][0][n]) for n in arrays)
    assert results[0][1] == results[1][1]


def test_dropout_is_seeded():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 10))
    _, _, records, batches = make_case()
    arrays = to_arrays(model)
    first, again, other = (
        clipped_steps(
            model,
            arrays,
            records,
            batches,
            StepSettings(0.3),
            max_grad_norm=0.5,
            batch_divisor=16,
            torch_seed=seed,
        )[0]
        for seed in (1, 1, 2)
    )
    assert all(np.array_equal(first[n], again[n]) for n in first)
    assert distance(first, other) > 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_how_many_records_are_taken_together_does_not_matter(name, monkeypatch):
    model, arrays, records, batches = make_case(name)
    step = StepSettings(0.3, float64=True)
    options = {"max_grad_norm": 0.5, "batch_divisor": 16}
    whole, loss = clipped_steps(model, arrays, records, batches, step, **options)
    for key, value in (("_MOST_RECORDS", 3), ("_MOST_ENTRIES", 1)):
        with monkeypatch.context() as patched:
            patched.setattr(per_example_training, key, value)
            parts, other_loss = clipped_steps(model, arrays, records, batches, step, **options)
        assert distance(whole, parts) < 1e-12
        assert loss == pytest.approx(other_loss, rel=1e-12)
