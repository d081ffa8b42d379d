"""Local training against NumPy and against torch's own optimiser."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fl_app import local_training
from fl_app.data import DataError, DataSettings, Records, load_dataset
from fl_app.local_training import StepSettings, project_records, train_steps
from fl_app.memory_format import channels_last
from fl_app.model_arrays import load_arrays, to_arrays
from fl_app.model_settings import ModelSettings
from fl_app.models import build_model


def make_case(num_records: int = 40, dtype: str = "float32"):
    rng = np.random.default_rng(5)
    features = rng.standard_normal((num_records, 2, 3)).astype(np.float32)
    records = Records(features, rng.integers(0, 4, num_records))
    model = build_model(ModelSettings(dtype=dtype), (2, 3), 4, 0)
    arrays = {name: rng.standard_normal(a.shape) for name, a in to_arrays(model).items()}
    # The last two batches are shorter than the divisor, one of them empty.
    order = rng.permutation(num_records)
    batches = [order[:8], order[8:16], order[16:24], order[24:27], order[:0]]
    return model, arrays, records, batches


def train_in_numpy(arrays, records, batches, step, divisor):
    """Softmax regression by hand: gradient (p - y) x^T, in float64."""
    start_w, start_b = arrays["linear.weight"], arrays["linear.bias"]
    w, b = start_w.copy(), start_b.copy()
    losses = []
    for batch in batches:
        x = project_records(records.features[batch], step.feature_norm)
        x = x.reshape(len(batch), 6).astype(np.float64)
        y = records.labels[batch]
        logits = x @ w.T + b
        p = np.exp(logits - logits.max(axis=1, keepdims=True)) if len(batch) else logits
        p = p / p.sum(axis=1, keepdims=True)
        losses += list(-np.log(p[np.arange(len(y)), y]))
        p[np.arange(len(y)), y] -= 1
        grad_w, grad_b = p.T @ x / divisor, p.sum(axis=0) / divisor
        decay, prox = step.weight_decay, step.proximal
        w, b = (
            w - step.learning_rate * (grad_w + decay * w + prox * (w - start_w)),
            b - step.learning_rate * (grad_b + decay * b + prox * (b - start_b)),
        )
    return {"linear.weight": w, "linear.bias": b}, np.mean(losses)


@pytest.mark.parametrize("feature_norm", [None, 0.7])
@pytest.mark.parametrize("proximal", [0.0, 0.4])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_float64_steps_equal_numpy(weight_decay, proximal, feature_norm):
    model, arrays, records, batches = make_case()
    step = StepSettings(0.5, weight_decay, proximal, feature_norm, float64=True)
    trained, loss = train_steps(model, arrays, records, batches, step, batch_divisor=8)
    expected, expected_loss = train_in_numpy(arrays, records, batches, step, 8)
    for name, array in expected.items():
        assert trained[name].dtype == np.float64
        assert np.abs(trained[name] - array).max() < 1e-12
        assert np.abs(array - arrays[name]).max() > 1e-2  # it has moved
    assert loss == pytest.approx(expected_loss, abs=1e-12)


def test_the_divisor_is_constant_and_need_not_be_an_integer():
    model, arrays, records, batches = make_case()
    step = StepSettings(0.5, float64=True)
    trained, _ = train_steps(model, arrays, records, batches[3:], step, batch_divisor=6.5)
    expected, _ = train_in_numpy(arrays, records, batches[3:], step, 6.5)
    assert all(np.abs(trained[name] - expected[name]).max() < 1e-12 for name in expected)


@pytest.mark.parametrize("name", ["softmax_regression", "mlp", "cnn"])
def test_full_batches_equal_torchs_sgd_bit_for_bit(name):
    records = load_dataset(DataSettings(), 10, 0).partition(0)
    model = build_model(ModelSettings(name), records.feature_shape, 10, 1)
    arrays = to_arrays(model)
    batches = list(np.random.default_rng(0).permutation(128).reshape(8, 16))
    trained, _ = train_steps(model, arrays, records, batches, StepSettings(0.25), batch_divisor=16)
    load_arrays(model, arrays)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.25)
    with channels_last(model):
        for batch in batches:
            optimiser.zero_grad()
            logits = model(torch.from_numpy(records.features[batch]))
            nn.functional.cross_entropy(logits, torch.from_numpy(records.labels[batch])).backward()
            optimiser.step()
    assert all(np.array_equal(trained[n], a) for n, a in to_arrays(model).items())
    assert any(not np.array_equal(trained[n], a) for n, a in arrays.items())


def test_weight_decay_and_proximal_term_agree_with_torchs_sgd():
    # SGD on the cross entropy plus both penalties, differentiated by autograd.
    model, _, records, batches = make_case()
    arrays = to_arrays(model)
    step = StepSettings(0.1, weight_decay=0.2, proximal=0.5)
    trained, _ = train_steps(model, arrays, records, batches[:3], step, batch_divisor=8)
    load_arrays(model, arrays)
    start = [p.detach().clone() for p in model.parameters()]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.2)
    for batch in batches[:3]:
        optimiser.zero_grad()
        logits = model(torch.from_numpy(records.features[batch]))
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(records.labels[batch]))
        for parameter, begin in zip(model.parameters(), start, strict=True):
            loss = loss + 0.25 * (parameter - begin).square().sum()
        loss.backward()
        optimiser.step()
    for name, array in to_arrays(model).items():
        assert np.allclose(trained[name], array, rtol=0, atol=1e-6)


def test_the_given_arrays_and_the_models_own_type_stay():
    for dtype, exported in (("float32", np.float32), ("bfloat16", np.float32)):
        model, arrays, records, batches = make_case(dtype=dtype)
        before = {name: array.copy() for name, array in arrays.items()}
        for wide in (False, True):
            step = StepSettings(0.1, float64=wide)
            trained, _ = train_steps(model, arrays, records, batches, step, batch_divisor=8)
            assert all(a.dtype == (np.float64 if wide else exported) for a in trained.values())
            assert all(p.dtype == getattr(torch, dtype) for p in model.parameters())
        assert all(np.array_equal(array, arrays[name]) for name, array in before.items())


def test_nothing_is_kept_between_calls():
    model = nn.Sequential(
        nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4)
    )
    _, _, records, batches = make_case()
    arrays = to_arrays(model)
    step, wide = StepSettings(0.1), StepSettings(0.1, float64=True)

    def train(settings: StepSettings, seed: int):
        return train_steps(
            model, arrays, records, batches, settings, batch_divisor=8, torch_seed=seed
        )[0]

    first, other = train(step, 3), train(step, 4)
    train(wide, 5)
    model.eval()
    again = train(step, 3)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not all(np.array_equal(first[name], other[name]) for name in first)
    assert first["1.num_batches_tracked"] == 4  # the empty batch is not seen by the model
    assert first["1.num_batches_tracked"].dtype == np.int64
    assert not np.array_equal(first["1.running_mean"], arrays["1.running_mean"])


def test_torchs_global_generator_is_neither_used_nor_changed():
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Dropout(0.5))
    _, _, records, batches = make_case()
    arrays, step = to_arrays(model), StepSettings(0.1)
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        trained, _ = train_steps(
            model, arrays, records, batches, step, batch_divisor=8, torch_seed=7
        )
        assert torch.equal(before, torch.get_rng_state())
        results.append(trained)
    assert all(np.array_equal(results[0][name], results[1][name]) for name in results[0])


class Tangled(nn.Module):
    """Tied, frozen and unused parameters, and two that share one gradient tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.one = nn.Parameter(torch.zeros(6))
        self.two = nn.Parameter(torch.ones(6))
        self.frozen = nn.Parameter(torch.ones(6), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.second(self.first(inputs.flatten(1)).tanh())
        return hidden + (self.one + self.two) + self.frozen


def test_tied_frozen_unused_and_gradient_sharing_parameters():
    torch.manual_seed(0)
    model = Tangled()
    _, _, records, batches = make_case()
    arrays = to_arrays(model)
    step = StepSettings(0.1, weight_decay=0.5, float64=True)
    trained, _ = train_steps(model, arrays, records, batches[:2], step, batch_divisor=8)
    assert np.array_equal(trained["frozen"], arrays["frozen"])
    # Decay alone, twice.
    assert np.allclose(trained["unused"], 0.95**2, rtol=0, atol=1e-12)
    # Both have the same gradient; they differ by the decayed start only.
    assert np.allclose(trained["two"] - trained["one"], 0.95**2, rtol=0, atol=1e-12)
    model.double()
    load_arrays(model, arrays)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trainable, lr=0.1, weight_decay=0.5)
    for batch in batches[:2]:
        optimiser.zero_grad()
        logits = model(torch.from_numpy(records.features[batch]).double())
        nn.functional.cross_entropy(logits, torch.from_numpy(records.labels[batch])).backward()
        optimiser.step()
    for name, array in to_arrays(model).items():
        if name != "unused":  # torch's optimiser does not decay parameters without a gradient
            assert np.allclose(trained[name], array, rtol=0, atol=1e-12)


def test_narrow_models_have_their_loss_in_float32():
    model, arrays, records, _ = make_case(dtype="bfloat16")
    everything = [np.arange(len(records))]
    _, loss = train_steps(model, arrays, records, everything, StepSettings(0.1), batch_divisor=40)
    load_arrays(model, arrays)
    logits = model(torch.from_numpy(records.features).bfloat16()).detach().float().numpy()
    wide = logits.astype(np.float64)
    chosen = wide[np.arange(len(records)), records.labels]
    expected = (np.log(np.exp(wide).sum(axis=1)) - chosen).mean()
    assert loss == pytest.approx(expected, rel=1e-6)


def test_no_batches_give_the_arrays_back():
    for dtype in ("float32", "bfloat16"):
        model, arrays, records, _ = make_case(dtype=dtype)
        narrow = {name: array.astype(np.float32) for name, array in arrays.items()}
        trained, loss = train_steps(model, narrow, records, [], StepSettings(0.1), batch_divisor=8)
        assert loss is None
        assert all(np.array_equal(trained[name], narrow[name]) for name in arrays)
        wide, _ = train_steps(
            model, arrays, records, [], StepSettings(0.1, float64=True), batch_divisor=8
        )
        assert all(np.array_equal(wide[name], arrays[name]) for name in arrays)
        assert not any(np.shares_memory(wide[name], arrays[name]) for name in arrays)


def test_only_empty_batches_decay_and_have_no_loss():
    model, arrays, records, batches = make_case()
    step = StepSettings(0.1, weight_decay=0.5, float64=True)
    trained, loss = train_steps(model, arrays, records, batches[4:], step, batch_divisor=8)
    assert loss is None
    for name, array in arrays.items():
        assert np.allclose(trained[name], 0.95 * array, rtol=0, atol=1e-15)


def test_non_finite_features_show_as_non_finite_arrays_and_loss_nan():
    model, arrays, records, batches = make_case()
    records.features[batches[0][0], 0, 0] = np.inf
    step = StepSettings(0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained, loss = train_steps(model, arrays, records, batches, step, batch_divisor=8)
    assert math.isnan(loss)
    assert not all(np.isfinite(array).all() for array in trained.values())
    projected = StepSettings(0.1, feature_norm=1.0)
    trained, loss = train_steps(model, arrays, records, batches, projected, batch_divisor=8)
    assert math.isfinite(loss)
    assert all(np.isfinite(array).all() for array in trained.values())


def test_a_record_outside_the_batches_has_no_influence():
    model, arrays, records, batches = make_case()
    step = StepSettings(0.1, feature_norm=1.0)
    first, _ = train_steps(model, arrays, records, batches, step, batch_divisor=8)
    unused = np.setdiff1d(np.arange(len(records)), np.concatenate(batches))
    records.features[unused] = np.nan
    again, _ = train_steps(model, arrays, records, batches, step, batch_divisor=8)
    assert len(unused)
    assert all(np.array_equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize(
    "batch",
    [
        [0, 1],
        np.array([0.0]),
        np.array([[0]]),
        np.array([40]),
        np.array([-1]),
        np.array([0], dtype=np.int32),
    ],
)
def test_bad_batches_are_refused(batch):
    model, arrays, records, batches = make_case()
    with pytest.raises(DataError, match="batches"):
        train_steps(model, arrays, records, [*batches, batch], StepSettings(0.1), batch_divisor=8)


def test_bad_divisors_seeds_and_models_are_refused():
    model, arrays, records, batches = make_case()
    for divisor in (0, -1, math.nan, math.inf, True):
        with pytest.raises(ValueError, match="batch_divisor"):
            train_steps(model, arrays, records, batches, StepSettings(1), batch_divisor=divisor)
    for seed in (-1, 2**63, True):
        with pytest.raises(ValueError, match="torch_seed"):
            train_steps(
                model, arrays, records, batches, StepSettings(1), batch_divisor=8, torch_seed=seed
            )
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="trainable"):
        train_steps(model, arrays, records, batches, StepSettings(1), batch_divisor=8)
    # A failed call leaves the model's own type in place.
    with pytest.raises(ValueError, match="trainable"):
        train_steps(model, arrays, records, batches, StepSettings(1, float64=True), batch_divisor=8)
    assert all(p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("learning_rate", True),
        ("weight_decay", -0.1),
        ("weight_decay", math.inf),
        ("proximal", -1e-9),
        ("feature_norm", 0.0),
        ("feature_norm", "1"),
        ("float64", 1),
    ],
)
def test_step_settings_name_the_bad_key_and_value(key, value):
    with pytest.raises(ValueError, match=f"{key}: {value!r}"):
        StepSettings(**({"learning_rate": 0.1} | {key: value}))


@settings(max_examples=50)
@given(
    batches=st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=4),
)
def test_batches_are_indexed_as_by_numpys_unique(batches: list[list[int]]) -> None:
    arrays = [np.array(batch, dtype=np.int64) for batch in batches]
    used, positions = local_training._index_batches(arrays, 10)
    expected, inverse = np.unique(np.concatenate(arrays), return_inverse=True)
    assert np.array_equal(used, expected)
    assert [len(part) for part in positions] == [len(batch) for batch in batches]
    assert np.array_equal(torch.cat(positions).numpy(), inverse)
