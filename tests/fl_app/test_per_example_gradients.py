"""Which models have a gradient for each record, and what is said about those that do not."""

import numpy as np
import pytest
import torch
from torch import nn

from fl_app.data import Records
from fl_app.local_training import StepSettings
from fl_app.model_arrays import to_arrays
from fl_app.model_settings import ModelSettings
from fl_app.models import build_model
from fl_app.per_example_gradients import check_per_example, trainable_parameters
from fl_app.per_example_training import clipped_steps

SHAPE = (3, 4)


class Function(nn.Module):
    """A layer without parameters, of the function that it is given."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.function(inputs)


class OwnBatchNorm(nn.BatchNorm1d):
    """Derived: Opacus looks for the class itself only."""


class WithBuffer(nn.Linear):
    """Trains a weight and keeps a buffer beside it."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("offset", torch.zeros(sizes[1]))


class Counting(nn.Module):
    """Keeps the mean of what it has seen in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.seen.copy_(inputs.mean(0))
        return inputs


class Bypass(nn.Module):
    """Uses a layer's weight without calling the layer."""

    def __init__(self, also_calls: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.also_calls = also_calls

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        called = self.inner(inputs) if self.also_calls else inputs
        return called + nn.functional.linear(inputs, self.inner.weight)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Pair()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs, inputs.tanh())


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first * self.weight + second


def model_with(layer: nn.Module) -> nn.Module:
    stem = nn.Sequential(nn.Flatten(), nn.Linear(12, 8))
    return nn.Sequential(stem, nn.Sequential(nn.Tanh(), layer), nn.Linear(8, 5))


REFUSED_BY_TYPE = {
    "batch normalisation": (nn.BatchNorm1d(8), r"layer '1.1' \(BatchNorm1d\)"),
    "without parameters": (nn.BatchNorm1d(8, affine=False), r"layer '1.1' \(BatchNorm1d\)"),
    "frozen": (nn.BatchNorm1d(8).requires_grad_(False), r"layer '1.1' \(BatchNorm1d\)"),
    "derived": (OwnBatchNorm(8, affine=False), r"layer '1.1' \(OwnBatchNorm\)"),
    "nested": (nn.Sequential(nn.BatchNorm1d(8)), r"layer '1.1.0' \(BatchNorm1d\)"),
    "synchronised": (nn.SyncBatchNorm(8), r"layer '1.1' \(SyncBatchNorm\)"),
    "statistics": (nn.InstanceNorm1d(8, track_running_stats=True), r"layer '1.1' \(InstanceNorm1d"),
    "recurrent": (nn.LSTM(8, 8), r"layer '1.1' \(LSTM\)"),
    "buffers": (WithBuffer(8, 8), r"layer '1.1' \(WithBuffer\) has buffers beside"),
    "attention": (nn.MultiheadAttention(8, 2), r"layer '1.1' \(MultiheadAttention\)"),
}

REFUSED_BY_TRIAL = {
    "mean": (Function(lambda x: x - x.mean(0)), r"records are mixed by layer '1.1' \(Function\)"),
    "next": (Function(lambda x: x + x.roll(1, 0)), r"records are mixed by layer '1.1' \(Function"),
    "norm": (Function(lambda x: x / x.norm()), r"records are mixed by layer '1.1' \(Function\)"),
    "gradient": (
        Function(lambda x: x * (1 + x.sum() - x.sum().detach())),
        "records are mixed in the loss: the gradient of '0.1.weight'",
    ),
    "buffer": (Counting(), "'1.1.seen' changes in a pass"),
    "bypass": (Bypass(also_calls=False), "parameter '1.1.inner.weight' gets no per-example"),
    "half bypass": (Bypass(also_calls=True), "'1.1.inner.weight' do not add up to its gradient"),
    "two inputs": (TwoInputs(), r"layer '1.1.inner' \(Pair\) gives no per-example gradients"),
    "rows": (
        nn.Sequential(
            Function(lambda x: x.reshape(-1, 4)),
            nn.Linear(4, 4),
            Function(lambda x: x.reshape(-1, 8)),
        ),
        "parameter '1.1.1.weight' gets no per-example gradients",
    ),
    "rows of three": (  # as many as there are records in the trial
        nn.Sequential(
            Function(lambda x: torch.stack([x, 2 * x, 3 * x])),
            nn.Linear(8, 8),
            Function(lambda x: x.sum(0)),
        ),
        "records are mixed|gets no per-example gradients",
    ),
}


@pytest.mark.parametrize("case", REFUSED_BY_TYPE)
def test_a_layer_that_mixes_records_is_named(case):
    layer, words = REFUSED_BY_TYPE[case]
    with pytest.raises(ValueError, match="model: " + words):
        check_per_example(model_with(layer))


@pytest.mark.parametrize("case", REFUSED_BY_TRIAL)
def test_what_a_forward_does_is_found_on_random_records(case):
    layer, words = REFUSED_BY_TRIAL[case]
    model = model_with(layer)
    check_per_example(model)
    for _ in range(2):  # a refused model is not taken for a tried one
        with pytest.raises(ValueError, match="model: .*" + words):
            check_per_example(model, SHAPE)


class Unread(Records):
    """Records whose features must not be looked at."""

    def __getattribute__(self, name):
        if name in ("features", "labels", "take", "__len__"):
            raise AssertionError("data was read")
        return super().__getattribute__(name)

    @property
    def feature_shape(self):
        return SHAPE


@pytest.mark.parametrize("case", [*REFUSED_BY_TYPE, *REFUSED_BY_TRIAL])
def test_no_data_is_read_and_nothing_is_left_on_a_refused_model(case):
    layer, _ = {**REFUSED_BY_TYPE, **REFUSED_BY_TRIAL}[case]
    model = model_with(layer)
    before = [set(vars(each)) for each in (*model.modules(), *model.parameters())]
    with pytest.raises(ValueError, match="model: "):
        clipped_steps(
            model,
            {},
            object.__new__(Unread),
            [np.arange(2)],
            StepSettings(0.1),
            max_grad_norm=1.0,
            batch_divisor=1,
        )
    assert [set(vars(each)) for each in (*model.modules(), *model.parameters())] == before
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())


ACCEPTED = {
    "group norm": nn.GroupNorm(2, 8),
    "layer norm": nn.LayerNorm(8),
    "dropout": nn.Dropout(0.5),
    "functional dropout": Function(lambda x: nn.functional.dropout(x, 0.5)),
    "frozen": nn.Linear(8, 8).requires_grad_(False),
    "twice": nn.Sequential(*[nn.Linear(8, 8)] * 2),
    "constant": Function(lambda x: x + x.shape[1]),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("case", ACCEPTED)
def test_other_layers_are_accepted(case, dtype):
    model = model_with(ACCEPTED[case]).to(getattr(torch, dtype))
    check_per_example(model, SHAPE)


@pytest.mark.parametrize("name", ["softmax_regression", "mlp", "cnn"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_application_s_models_are_accepted_and_left_as_they_were(name, dtype):
    model = build_model(ModelSettings(name, dtype=dtype), (2, 8, 8), 4, 0)
    model.eval()
    next(model.children()).train()
    arrays, modes = to_arrays(model), [m.training for m in model.modules()]
    torch.manual_seed(11)
    generator = torch.get_rng_state()
    check_per_example(model, (2, 8, 8))
    assert torch.equal(generator, torch.get_rng_state())
    assert [m.training for m in model.modules()] == modes
    assert all(np.array_equal(a, arrays[n]) for n, a in to_arrays(model).items())


def test_a_model_is_tried_once_for_each_shape():
    passes = []
    model = nn.Sequential(nn.Flatten(), Function(lambda x: passes.append(1) or x), nn.Linear(12, 3))
    check_per_example(model, SHAPE)
    once = len(passes)
    check_per_example(model, SHAPE)
    assert 0 < once == len(passes)
    check_per_example(model, (12,))
    assert len(passes) == 2 * once


def test_values_that_are_not_finite_do_not_hide_what_a_model_does():
    for layer, refused in ((nn.Tanh(), False), (Function(lambda x: x - x.mean(0)), True)):
        model = model_with(layer)
        with torch.no_grad():
            model[2].weight.fill_(np.nan)
            model[0][1].weight.zero_()
        if refused:
            with pytest.raises(ValueError, match="records are mixed"):
                check_per_example(model, SHAPE)
        else:
            check_per_example(model, SHAPE)
        assert bool(model[2].weight.isnan().all())


def test_a_model_without_trainable_parameters_is_refused():
    model = model_with(nn.Tanh()).requires_grad_(False)
    for call in (check_per_example, trainable_parameters):
        with pytest.raises(ValueError, match="no trainable parameters"):
            call(model)
