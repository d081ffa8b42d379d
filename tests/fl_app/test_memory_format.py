"""Channels last is a matter of layout alone, and ends with the block."""

import pytest
import torch

from fl_app.memory_format import channels_last
from fl_app.model_settings import ModelSettings
from fl_app.models import build_model


@pytest.mark.parametrize("ends", ["well", "badly"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_layout_is_put_back_and_values_stay(ends, channels):
    model = build_model(ModelSettings("cnn"), (channels, 8, 8), 10, 0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    strides = {name: value.stride() for name, value in model.state_dict().items()}
    weights = model.conv1.weight, model.conv2.weight
    try:
        with channels_last(model):
            # One channel is both layouts at once, by its strides it must be the new one.
            assert [weight.stride()[1] for weight in weights] == [1, 1]
            with torch.no_grad():
                weights[1].add_(1.0)
            if ends == "badly":
                raise RuntimeError
    except RuntimeError:
        pass
    for name, value in model.state_dict().items():
        assert value.is_contiguous()
        assert value.stride() == strides[name]
        assert torch.equal(value, before[name] + (1.0 if name == "conv2.weight" else 0.0))
    assert model.conv2.weight is weights[1]


def test_a_convolution_gives_the_same_up_to_rounding():
    model = build_model(ModelSettings("cnn"), (1, 28, 28), 10, 0)
    images = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    usual = model(images)
    with channels_last(model):
        assert torch.allclose(model(images), usual, rtol=1e-5, atol=1e-6)
