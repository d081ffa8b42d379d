"""Clipped steps of models of all kinds, and what they leave behind."""

import ast
import gc
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fl_app import per_example_gradients, per_example_training
from fl_app.data import Records
from fl_app.local_training import StepSettings, train_steps
from fl_app.model_arrays import load_arrays, to_arrays
from fl_app.model_settings import ModelSettings
from fl_app.models import build_model
from fl_app.per_example_gradients import per_example_hooks, record_gradients, trainable_parameters
from fl_app.per_example_training import clipped_steps
from tests.fl_app.per_example_cases import MODELS, NO_CLIPPING, SHAPE, distance, make_case


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def leftovers(model):
    """Everything that hangs on the model, its layers and its parameters."""
    return [
        {
            key: len(value) if hasattr(value, "__len__") else None
            for key, value in vars(each).items()
        }
        for each in (*model.modules(), *model.parameters())
    ]


def count_tensors():
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_nothing_is_left_on_a_model_that_serves_many_clients(name):
    model, arrays, records, batches = make_case(name)
    options = {"max_grad_norm": 0.5, "batch_divisor": 16}
    clipped_steps(model, arrays, records, batches, StepSettings(0.3), **options)
    before, tensors = leftovers(build_model(ModelSettings(name, hidden=12), SHAPE, 10, 1)), None
    for _ in range(10):
        clipped_steps(model, arrays, records, batches[:2], StepSettings(0.3), **options)
        tensors = tensors or count_tensors()
    assert leftovers(model) == before
    assert count_tensors() == tensors
    labels = records.labels.copy()
    labels[batches[0][3]] = 10  # a class that the model does not have
    with pytest.raises(IndexError):
        clipped_steps(
            model, arrays, Records(records.features, labels), batches, StepSettings(0.3), **options
        )
    assert leftovers(model) == before
    assert all(p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_half_precision(name, dtype):
    model, arrays, records, batches = make_case(name, dtype)
    options = {"max_grad_norm": 0.5, "batch_divisor": 16}
    half, _ = clipped_steps(model, arrays, records, batches, StepSettings(0.3), **options)
    wide, _ = clipped_steps(
        model, arrays, records, batches, StepSettings(0.3, float64=True), **options
    )
    assert all(a.dtype == np.float32 for a in half.values())
    assert all(a.dtype == np.float64 for a in wide.values())
    moved = distance(wide, arrays)
    assert distance(half, wide) < (0.5 if dtype == "bfloat16" else 0.15) * moved
    assert all(p.dtype == getattr(torch, dtype) for p in model.parameters())
    # In float64 the bound holds for such a model too.
    one, _ = clipped_steps(
        model, arrays, records, [np.arange(1)], StepSettings(0.3, float64=True), **options
    )
    assert distance(one, arrays) <= 0.3 * 0.5 / 16 * (1 + 1e-6) + 1e-9


def test_without_batches_the_values_come_back():
    model, arrays, records, _ = make_case(dtype="bfloat16")
    arrays = {n: a + np.float32(1e-4) for n, a in arrays.items()}
    trained, loss = clipped_steps(
        model, arrays, records, [], StepSettings(0.1), max_grad_norm=1.0, batch_divisor=2
    )
    assert loss is None
    assert all(np.array_equal(trained[n], arrays[n]) for n in arrays)


def test_a_model_that_is_not_finite_gets_noise_alone():
    model, arrays, records, batches = make_case()
    broken = {n: np.full_like(a, np.nan) if n == "hidden.bias" else a for n, a in arrays.items()}
    trained, loss = clipped_steps(
        model, broken, records, batches, StepSettings(0.1), max_grad_norm=1.0, batch_divisor=2
    )
    assert math.isnan(loss)
    others = [n for n in arrays if n != "hidden.bias"]
    assert all(np.array_equal(trained[n], arrays[n]) for n in others)


class Extended(nn.Module):
    """A frozen layer, a buffer, an unused head, and parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, 16).requires_grad_(False)
        self.shared = nn.Linear(16, 16)
        self.twin = nn.Linear(16, 16)
        self.twin.weight = self.shared.weight
        self.scale = Scale()
        self.unused = nn.Linear(16, 2)
        self.side = nn.Linear(16, 2)  # called, but its output goes nowhere
        self.output = nn.Linear(16, 10)
        self.centre = nn.BatchNorm1d  # a class, not a layer
        self.offsets = Offsets()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.twin(self.shared(self.frozen(inputs.flatten(1))).tanh())
        self.side(hidden)
        return self.output(self.offsets(self.scale(hidden)))


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.ones(16))
        self.zero = nn.Parameter(torch.tensor(0.5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.factors + self.zero


class Offsets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("values", torch.linspace(0, 1, 16))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.values


def test_a_user_s_model_with_ties_frozen_layers_buffers_and_unused_heads():
    torch.manual_seed(0)
    model = Extended()
    _, _, records, batches = make_case()
    arrays = to_arrays(model)
    arrays["offsets.values"] = arrays["offsets.values"].astype(np.float64) + 1e-9
    step = StepSettings(0.2, weight_decay=0.1, float64=True)
    ours, _ = clipped_steps(
        model, arrays, records, batches, step, max_grad_norm=NO_CLIPPING, batch_divisor=16
    )
    plain, _ = train_steps(model, arrays, records, batches, step, batch_divisor=16)
    assert list(ours) == list(plain)
    assert "twin.weight" not in ours
    assert all(np.abs(ours[n] - plain[n]).max() < 1e-12 for n in plain)
    for name in ("frozen.weight", "frozen.bias", "offsets.values"):
        assert np.array_equal(ours[name], arrays[name])
    assert np.allclose(ours["side.weight"], arrays["side.weight"] * 0.98**4, rtol=0, atol=1e-7)
    load_arrays(model, arrays)
    with per_example_hooks(model):  # nothing of the first batch is in the second
        for batch in (batches[0], batches[3][:5]):
            rows, _ = record_gradients(
                model,
                trainable_parameters(model),
                torch.from_numpy(records.features[batch]),
                torch.from_numpy(records.labels[batch]),
            )
            assert {len(row) for row in rows} == {len(batch)}


class Remembering(nn.Module):
    """Keeps data in a buffer, but only of batches larger than those it is tried with."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.kept = Offsets()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if len(inputs) > 4:
            self.kept.values.copy_(inputs[0, 0, :2].detach().flatten())
        return self.linear(inputs.flatten(1))


@pytest.mark.parametrize("float64", [False, True])
def test_what_is_not_trained_comes_back_as_it_was_given(float64):
    model = Remembering()
    _, _, records, batches = make_case()
    arrays = to_arrays(model)
    trained, _ = clipped_steps(
        model,
        arrays,
        records,
        batches,
        StepSettings(0.1, float64=float64),
        max_grad_norm=1.0,
        batch_divisor=16,
    )
    assert np.array_equal(trained["kept.values"], arrays["kept.values"])
    assert not np.array_equal(to_arrays(model)["kept.values"], arrays["kept.values"])
    assert not np.array_equal(trained["linear.bias"], arrays["linear.bias"])


def test_opacus_is_imported_only_when_a_step_is_taken():
    for module in (per_example_training, per_example_gradients):
        for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body:
            assert "opacus" not in ast.unparse(node) or not isinstance(
                node, ast.Import | ast.ImportFrom
            )
