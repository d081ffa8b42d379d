"""The bundled models: their sizes, their initial values, and what they refuse."""

import math

import pytest
import torch
from torch import nn

from fl_app.model_settings import MODELS, ModelSettings, loss_family
from fl_app.models import build_model, input_placement

DIGITS, MNIST = (1, 8, 8), (1, 28, 28)
BUNDLED = [name for name in MODELS if name != "user"]


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("softmax_regression", DIGITS, 650),
        ("softmax_regression", MNIST, 7850),  # d of DP-FedPaq's experiment
        ("mlp", DIGITS, 64 * 64 + 64 + 64 * 10 + 10),
        # conv 1->16, norm, conv 16->32, norm, 32 * 7 * 7 -> 128, 128 -> 10
        ("cnn", MNIST, 160 + 32 + 4640 + 64 + 1568 * 128 + 128 + 1290),
        ("cnn", DIGITS, 160 + 32 + 4640 + 64 + 128 * 128 + 128 + 1290),
        # NISS's baseline: conv 1->10, conv 10->20 (5x5), 20 * 4 * 4 -> 50, 50 -> 10
        ("cnn_small", MNIST, 21_840),
        ("cnn_small", (3, 16, 21), 760 + 5020 + (20 * 1 * 2 * 50 + 50) + 510),
    ],
)
def test_number_of_parameters(name, shape, expected):
    assert count_parameters(build_model(ModelSettings(name), shape, 10, 0)) == expected


@pytest.mark.parametrize("name", BUNDLED)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [DIGITS, MNIST, (3, 32, 20)])
def test_models_give_finite_logits_and_gradients(name, dtype, shape):
    if name == "cnn_small" and shape == DIGITS:
        pytest.skip("too small for its convolutions")
    model = build_model(ModelSettings(name, dtype=dtype), shape, 7, 1)
    placement = input_placement(model)
    assert placement == (torch.device("cpu"), getattr(torch, dtype))
    inputs = torch.rand(5, *shape, generator=torch.Generator().manual_seed(0)).to(placement[1])
    logits = model(inputs)
    assert logits.shape == (5, 7)
    logits.float().square().sum().backward()
    for parameter in model.parameters():
        assert parameter.dtype == getattr(torch, dtype)
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


@pytest.mark.parametrize("name", BUNDLED)
def test_the_seed_decides_and_the_global_generator_is_untouched(name):
    torch.manual_seed(99)
    before = torch.get_rng_state()
    first, again, other = (build_model(ModelSettings(name), MNIST, 10, seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(100)
    later = build_model(ModelSettings(name), MNIST, 10, 0)
    for key, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[key])
        assert torch.equal(value, later.state_dict()[key])
        if not key.startswith("norm"):
            assert not torch.equal(value, other.state_dict()[key])


def test_a_narrow_type_is_the_rounded_float32_model():
    wide = build_model(ModelSettings("cnn"), DIGITS, 10, 3).state_dict()
    narrow = build_model(ModelSettings("cnn", dtype="bfloat16"), DIGITS, 10, 3).state_dict()
    assert all(torch.equal(narrow[name], wide[name].bfloat16()) for name in wide)


def test_softmax_regression_is_one_linear_layer_with_the_default_initialisation():
    model = build_model(ModelSettings(), MNIST, 10, 0)
    state = model.state_dict()
    assert list(state) == ["linear.weight", "linear.bias"]
    # torch's default for Linear: uniform in +-1/sqrt(inputs), weights and bias.
    bound = 1 / math.sqrt(784)
    for value in state.values():
        assert value.abs().max() <= bound
    assert state["linear.weight"].abs().max() > 0.99 * bound
    inputs = torch.rand(3, *MNIST)
    expected = inputs.reshape(3, -1) @ state["linear.weight"].T + state["linear.bias"]
    assert torch.allclose(model(inputs), expected, atol=1e-6)


def test_no_model_mixes_the_records_of_a_batch():
    # The bound on one record's influence needs it: no batch normalisation.
    inputs = torch.rand(6, *MNIST, dtype=torch.float64)
    for name in BUNDLED:
        model = build_model(ModelSettings(name, dtype="float64"), MNIST, 10, 0).train()
        changed = inputs.clone()
        changed[0] = 50.0
        outputs = []
        for batch in (inputs, changed):
            torch.manual_seed(0)  # the same dropout
            outputs.append(model(batch)[1:])
        assert torch.allclose(*outputs, atol=1e-12)


def test_the_small_cnn_drops_whole_channels_of_its_second_convolution_in_training():
    model = build_model(ModelSettings("cnn_small"), MNIST, 10, 0)
    inputs = torch.rand(2, *MNIST)
    assert torch.equal(model.eval()(inputs), model(inputs))
    kept = []
    model.dropout.register_forward_hook(lambda _, __, output: kept.append(output))
    model.train()(inputs)
    assert kept[0].shape == (2, 20, 8, 8)
    dropped = (kept[0] == 0).flatten(2)
    assert torch.equal(dropped.all(dim=2), dropped.any(dim=2))
    assert dropped.any()


def test_only_softmax_regression_has_the_convex_analysis():
    families = {name: loss_family(name) for name in (*MODELS, "pkg.module:build")}
    assert {name for name, family in families.items() if family} == {"softmax_regression"}
    assert families["softmax_regression"] == "softmax"


def test_input_placement_without_parameters_is_float32_on_the_cpu():
    assert input_placement(nn.Flatten()) == (torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("name", "resnet"), ("hidden", 0), ("hidden", True), ("hidden", 2.0), ("dtype", "int8")],
        ("path", "package.module:build"),  # without name="user"
    ],
)
def test_settings_name_the_bad_key_and_value(key, value):
    with pytest.raises(ValueError, match=rf"model\.{key}: {value!r}"):
        ModelSettings(**{key: value})


@pytest.mark.parametrize(
    ("shape", "num_classes", "seed", "key"),
    [
        ((), 10, 0, "feature_shape"),
        ((1, 0), 10, 0, "feature_shape"),
        (DIGITS, 1, 0, "num_classes"),
        (DIGITS, True, 0, "num_classes"),
        (DIGITS, 10, -1, "seed"),
        (DIGITS, 10, 2**63, "seed"),
        (DIGITS, 10, 0.0, "seed"),
    ],
)
def test_building_names_the_bad_argument(shape, num_classes, seed, key):
    with pytest.raises(ValueError, match=key):
        build_model(ModelSettings(), shape, num_classes, seed)


@pytest.mark.parametrize("shape", [(28, 28), (1, 15, 28), (1, 28, 15), DIGITS])
def test_small_cnn_refuses_images_that_are_too_small(shape):
    with pytest.raises(ValueError, match=r"'cnn_small' cannot take .* at least 16 is needed"):
        build_model(ModelSettings("cnn_small"), shape, 10, 0)


@pytest.mark.parametrize("shape", [(64,), (8, 8), (1, 3, 8), (1, 8, 3)])
def test_cnn_refuses_shapes_that_are_no_images(shape):
    with pytest.raises(ValueError, match="'cnn' cannot take features of shape"):
        build_model(ModelSettings("cnn"), shape, 10, 0)


@pytest.mark.parametrize(
    ("settings", "num_classes", "message"),
    [
        # 4 * ((64 + 1) * 1e17 + (1e17 + 1) * 10) bytes / 2**30
        (
            ModelSettings("mlp", hidden=10**17),
            10,
            r"model\.hidden: 10{17}; .* about 2\.79e\+10 GiB",
        ),
        (ModelSettings("mlp", hidden=10**18), 10, r"model\.hidden: 10{18}; .* mlp .* hidden units"),
        # 4 * (64 + 1) * 1e17 bytes / 2**30
        (ModelSettings(), 10**17, r"num_classes: 10{17}; .* classes .* about 2\.42e\+10 GiB"),
        (ModelSettings(), 10**19, r"num_classes: 10{19}; .* fits in memory"),
        (ModelSettings("mlp"), 10**17, r"num_classes: 10{17}; .* classes in the data"),
        (ModelSettings("cnn"), 10**17, r"num_classes: 10{17}; .* cnn with that many classes"),
    ],
)
def test_a_model_too_large_for_memory_names_what_makes_it_so(settings, num_classes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        build_model(settings, (1, 8, 8), num_classes, 0)
