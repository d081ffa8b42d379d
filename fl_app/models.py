"""The models that come with the application, and those of the user's own."""

import math
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from fl_app.import_path import import_function
from fl_app.model_settings import KEY, ModelSettings, require_int
from fl_app.user_model import build_user_model, require_equal_models


def build_model(
    settings: ModelSettings, feature_shape: Sequence[int], num_classes: int, seed: int
) -> nn.Module:
    """Build a model on the CPU; the bundled ones have torch's default initialisation.

    The same arguments give the same parameters bit for bit, and torch's global generator is left
    as it was. Parameters are drawn in float32 whatever `settings.dtype` is. A model of the user's
    own is built twice, and refused if the two differ.

    Parameters
    ----------
    settings : ModelSettings
        Which model.
    feature_shape : sequence of int
        Shape of one record's features; (channels, height, width) for the CNNs.
    num_classes : int
        Number of outputs (logits), at least 2.
    seed : int
        Of the initialisation, in [0, 2**63).

    Returns
    -------
    torch.nn.Module
        Maps features (n, *feature_shape) to logits (n, num_classes).

    Raises
    ------
    ValueError
        If an argument is not allowed, or the model cannot take features of that shape.
    """
    shape = tuple(feature_shape)
    for size in shape:
        require_int("feature_shape", size, 1)
    require_int("num_classes", num_classes, 2)
    require_int("seed", seed, 0)
    if seed >= 2**63:
        raise ValueError(f"seed: {seed!r}; an int below 2**63 is needed")
    if not shape:
        raise ValueError("feature_shape: (); at least one dimension is needed")
    # devices=[] and the CPU's own generator: torch.manual_seed would seed the GPUs too.
    with torch.random.fork_rng(devices=[]):
        if settings.path is not None:
            # Before the seed: a module may draw numbers while it is imported for the first time.
            import_function(KEY, settings.path)
        torch.default_generator.manual_seed(seed)
        model = _build(settings, shape, num_classes)
        if settings.path is not None:
            torch.default_generator.manual_seed(seed)
            require_equal_models(settings.path, model, _build(settings, shape, num_classes))
    return model.to(getattr(torch, settings.dtype))


def input_placement(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Return the device and the floating-point type that the model's inputs need.

    Both are those of its first floating-point parameter; CPU and float32 if it has none.
    """
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.device, parameter.dtype
    return torch.device("cpu"), torch.float32


def _build(settings: ModelSettings, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    if settings.path is not None:
        return build_user_model(settings.path, shape, num_classes)
    try:
        return _build_bundled(settings, shape, num_classes)
    except (RuntimeError, TypeError, MemoryError) as error:
        raise _refuse_size(settings, shape, num_classes) from error


def _build_bundled(settings: ModelSettings, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    if settings.name == "softmax_regression":
        return _softmax_regression(shape, num_classes)
    if settings.name == "mlp":
        return _mlp(shape, settings.hidden, num_classes)
    if settings.name == "cnn":
        return _cnn(shape, num_classes)
    return _cnn_small(shape, num_classes)


def _refuse_size(settings: ModelSettings, shape: tuple[int, ...], num_classes: int) -> ValueError:
    """Name what makes a model too large: its own width, or the data's number of classes."""
    features = math.prod(shape)
    hidden = {"softmax_regression": 0, "mlp": settings.hidden, "cnn": 128, "cnn_small": 50}
    width = hidden[settings.name]
    size = 4 * ((features + 1) * width + ((width or features) + 1) * num_classes)
    key, value, what = "num_classes", num_classes, "classes in the data"
    if settings.name == "mlp" and width >= num_classes:
        key, value, what = "model.hidden", width, "hidden units"
    return ValueError(
        f"{key}: {value}; a model that fits in memory is needed: {settings.name} with that many "
        f"{what} asks for about {size / 2**30:.3g} GiB"
    )


def _softmax_regression(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    linear = nn.Linear(math.prod(shape), num_classes)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), linear=linear))


def _mlp(shape: tuple[int, ...], hidden: int, num_classes: int) -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            hidden=nn.Linear(math.prod(shape), hidden),
            relu=nn.ReLU(),
            output=nn.Linear(hidden, num_classes),
        )
    )


def _cnn(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    _require_image("cnn", shape, 4)
    channels, height, width = shape
    # Group and not batch normalisation: batch statistics would mix records, which no bound on one
    # record's influence survives. 207,018 parameters on MNIST.
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 16, kernel_size=3, padding=1),
            norm1=nn.GroupNorm(4, 16),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(16, 32, kernel_size=3, padding=1),
            norm2=nn.GroupNorm(4, 32),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            hidden=nn.Linear(32 * (height // 4) * (width // 4), 128),
            relu3=nn.ReLU(),
            output=nn.Linear(128, num_classes),
        )
    )


def _cnn_small(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    # The usual small network for MNIST, with dropout of whole channels; 21,840 parameters there.
    _require_image("cnn_small", shape, 16)
    channels, height, width = shape
    # Each 5x5 convolution takes 4 rows and columns, each pooling halves what is left.
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 10, kernel_size=5),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(10, 20, kernel_size=5),
            dropout=nn.Dropout2d(),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            hidden=nn.Linear(20 * rows * columns, 50),
            relu3=nn.ReLU(),
            output=nn.Linear(50, num_classes),
        )
    )


def _require_image(name: str, shape: tuple[int, ...], least: int) -> None:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ValueError(
            f"model.name: {name!r} cannot take features of shape {shape}; (channels, height, "
            f"width) with height and width of at least {least} is needed"
        )
