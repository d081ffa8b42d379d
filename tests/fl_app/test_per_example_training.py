"""Clipped steps against plain ones, against single records, and against records that attack."""

import ast
import dataclasses
import gc
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fl_app import per_example_gradients, per_example_training
from fl_app.data import DataError, DataSettings, Records, load_dataset
from fl_app.local_training import StepSettings, sum_losses, train_steps
from fl_app.model_arrays import load_arrays, to_arrays
from fl_app.models import ModelSettings, build_model
from fl_app.per_example_gradients import per_example_hooks, record_gradients, trainable_parameters
from fl_app.per_example_training import clipped_steps, num_trainable
from strategies.mechanisms.one_step import allow_for_step_rounding, one_step_sensitivity
from tests.one_step_training import ARGUMENTS, ONE_STEP

MODELS = ("softmax_regression", "mlp", "cnn")
SHAPE = (1, 8, 8)
NO_CLIPPING = 1e9


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def make_case(name="mlp", dtype="float32"):
    records = load_dataset(DataSettings(), 10, 0).partition(0)
    model = build_model(ModelSettings(name, hidden=12, dtype=dtype), SHAPE, 10, 1)
    order = np.random.default_rng(0).permutation(len(records))
    # Of several sizes, one of them empty; records of the last were used before.
    batches = [order[:16], order[16:17], order[:0], order[10:60]]
    return model, to_arrays(model), records, batches


def distance(first, second):
    return math.sqrt(sum(float(np.sum((first[n] - second[n]) ** 2)) for n in first))


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


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8),
    st.floats(-30, 30),
    st.floats(1e-3, 1e3),
)
def test_a_clipped_gradient_is_inside_the_ball_in_exact_arithmetic(entries, exponent, bound):
    row = torch.tensor([entries], dtype=torch.float64) * 10**exponent
    clipped = per_example_training._sum_clipped([row[:, :1], row[:, 1:]], bound)
    squares = sum(Fraction(float(entry)) ** 2 for entry in clipped)
    assert squares <= Fraction(bound) ** 2
    norm = float(row.norm())
    assert norm < 1e-100 or math.sqrt(float(squares)) >= min(norm, bound) * (1 - 1e-12)


def adversaries():
    """Records that differ from a plain one as much as records can."""
    rng = np.random.default_rng(4)
    plain = rng.standard_normal(SHAPE)
    odd = plain.copy()
    odd[0, 3, 3] = np.nan
    infinite = plain.copy()
    infinite[0, 0, 0] = np.inf
    constant = {"huge": 1e30, "largest": 3e38, "tiny": 1e-30, "zero": 0.0}
    features = {
        "plain": plain,
        "again": plain,
        "opposite": -plain,
        "nan": odd,
        "infinite": infinite,
        **{key: value * np.sign(plain) for key, value in constant.items()},
    }
    return [
        (key, value.astype(np.float32), label)
        for key, value in features.items()
        for label in (0, 1)
    ]


@pytest.mark.parametrize("name", MODELS)
def test_one_record_moves_the_update_by_the_sensitivity_and_never_more(name):
    model, _, _, _ = make_case(name)
    rng = np.random.default_rng(2)
    arrays = {n: a.astype(np.float64) for n, a in to_arrays(model).items()}
    weight, bias = list(arrays)[-2:]
    # The model wavers between classes 0 and 1: their gradients are opposite.
    arrays[weight][1] = arrays[weight][0]
    arrays[bias][:2] = 30.0
    rate, bound, divisor = 0.7, 0.03, 5
    step = StepSettings(rate, weight_decay=0.4, proximal=0.2, float64=True)
    others = rng.standard_normal((6, *SHAPE)).astype(np.float32)
    updates = {}
    for key, features, label in [*adversaries(), ("absent", None, None)]:
        # The record's place is the middle, so that others have records on both sides.
        middle = [] if features is None else [features]
        records = Records(
            np.stack([*others[:3], *middle, *others[3:]]),
            np.array([0, 1, 2, *([] if label is None else [label]), 3, 4, 1]),
        )
        trained, _ = clipped_steps(
            model,
            arrays,
            records,
            [np.arange(len(records))],
            step,
            max_grad_norm=bound,
            batch_divisor=divisor,
        )
        assert all(np.isfinite(a).all() for a in trained.values())
        updates[key, label] = {n: a - arrays[n] for n, a in trained.items()}
    exact, allowed = {}, {}
    declared = dataclasses.replace(ONE_STEP, learning_rates=(rate,), batch_size=divisor)
    for relation in ("replace_one", "add_or_remove_one"):
        exact[relation] = one_step_sensitivity(
            declared,
            **{**ARGUMENTS, "neighboring_relation": relation, "max_grad_norm": bound},
        )
        allowed[relation] = allow_for_step_rounding(exact[relation]).value
    absent = updates.pop(("absent", None))
    replaced = max(distance(a, b) for a in updates.values() for b in updates.values())
    added = max(distance(a, absent) for a in updates.values())
    assert 0.99 * exact["replace_one"].value < replaced <= allowed["replace_one"]
    assert 0.99 * exact["add_or_remove_one"].value < added <= allowed["add_or_remove_one"]
    # A record without a usable gradient is as good as absent.
    assert distance(updates["nan", 0], absent) <= 1e-9


def test_repeated_records_count_once_each():
    model, arrays, records, _ = make_case("softmax_regression")
    step = StepSettings(1.0, float64=True)
    same = Records(np.repeat(records.features[:1], 8, axis=0), np.repeat(records.labels[:1], 8))
    options = {"max_grad_norm": 0.1, "batch_divisor": 4}
    moved = [
        distance(clipped_steps(model, arrays, same, [np.arange(n)], step, **options)[0], arrays)
        for n in (1, 8)
    ]
    assert moved == pytest.approx([0.1 / 4, 8 * 0.1 / 4], rel=1e-6)


def test_a_record_cannot_be_in_a_batch_twice():
    model, arrays, records, _ = make_case()
    with pytest.raises(DataError, match=r"batches\[1\]: a record twice"):
        clipped_steps(
            model,
            arrays,
            records,
            [np.arange(3), np.array([4, 2, 4])],
            StepSettings(0.1),
            max_grad_norm=1.0,
            batch_divisor=2,
        )


def test_noise_is_added_to_the_sum_once_a_step_and_to_empty_batches_too():
    model, arrays, records, batches = make_case("softmax_regression")
    size = num_trainable(model)
    assert size == sum(a.size for a in arrays.values()) == 650
    noise = np.random.default_rng(1).standard_normal((4, size))
    asked = []

    def draw(step):
        asked.append(step)
        return noise[step]

    step = StepSettings(0.5, float64=True)
    options = {"max_grad_norm": 0.2, "batch_divisor": 8}
    for chosen in ([0], [2], [0, 1, 2, 3]):
        asked.clear()
        used = [batches[i] for i in chosen]
        trained, loss = clipped_steps(
            model, arrays, records, used, step, **options, step_noise=draw
        )
        assert asked == list(range(len(chosen)))
        assert (loss is None) == (chosen == [2])
    for chosen, clipped_sum in (([0], True), ([2], False)):
        used = [batches[i] for i in chosen]
        noisy, _ = clipped_steps(model, arrays, records, used, step, **options, step_noise=draw)
        quiet = arrays
        if clipped_sum:
            quiet, _ = clipped_steps(model, arrays, records, used, step, **options)
        # The vector is in the order of the model's parameters: weight, then bias.
        moved = np.concatenate([(noisy[n] - quiet[n]).ravel() for n in arrays])
        assert np.abs(moved + 0.5 * noise[0] / 8).max() < 1e-12
    # All four steps: noise moves the model, so later gradients differ too; decay acts on it.
    assert np.isfinite(distance(trained, arrays))


@pytest.mark.parametrize(
    "noise",
    [
        np.zeros(649),
        np.zeros((1, 650)),
        np.zeros(650, dtype=np.float32),
        np.full(650, np.nan),
        [0.0] * 650,
        None,
    ],
)
def test_bad_noise_is_refused(noise):
    model, arrays, records, batches = make_case("softmax_regression")
    with pytest.raises(ValueError, match=r"step_noise: step 0; finite float64 of shape \(650,\)"):
        clipped_steps(
            model,
            arrays,
            records,
            batches,
            StepSettings(0.1),
            max_grad_norm=1.0,
            batch_divisor=2,
            step_noise=lambda step: noise,
        )


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
