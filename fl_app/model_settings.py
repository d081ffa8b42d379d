"""Which model a run trains: the settings, for which torch need not be there."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from fl_app.import_path import check_import_path

KEY = "model.path"
MODELS: dict[str, str] = {
    "softmax_regression": "multinomial logistic regression; convex, any feature shape (default)",
    "mlp": "one hidden layer with ReLU, any feature shape",
    "cnn": "two convolutions with group normalisation, images of at least 4x4",
    "cnn_small": "two 5x5 convolutions with dropout, 21,840 parameters on MNIST; at least 16x16",
    "user": "your own: a function package.module:name, named by model.path",
}

DataType = Literal["float32", "float16", "bfloat16", "float64"]


@dataclass(frozen=True)
class ModelSettings:
    """Which model to build.

    Attributes
    ----------
    name : str
        A key of `MODELS`.
    hidden : int
        Width of the hidden layer, at least 1 (mlp only).
    dtype : str
        Type of the parameters: "float32", "float16", "bfloat16" or "float64".
    path : str or None
        ``package.module:function`` of a function ``f(feature_shape, num_classes)`` that returns a
        new torch.nn.Module (user only).

    Raises
    ------
    ValueError
        If a value is not allowed.
    """

    name: str = "softmax_regression"
    hidden: int = 64
    dtype: DataType = "float32"
    path: str | None = None

    def __post_init__(self) -> None:
        if self.name not in MODELS:
            raise ValueError(f"model.name: {self.name!r}; choose one of {', '.join(MODELS)}")
        require_int("model.hidden", self.hidden, 1)
        if self.dtype not in get_args(DataType):
            raise ValueError(
                f"model.dtype: {self.dtype!r}; choose one of {', '.join(get_args(DataType))}"
            )
        if self.name == "user":
            check_import_path(KEY, self.path)
        elif self.path is not None:
            raise ValueError(f"{KEY}: {self.path!r}; null is needed unless model.name is user")


def loss_family(name: str) -> Literal["softmax"] | None:
    """Return "softmax" if the convex sensitivity analysis covers the model of that name.

    That analysis needs cross entropy of a linear softmax layer on the features themselves; only
    "softmax_regression" is one. Any other name, a user's own model too, gives None.
    """
    return "softmax" if name == "softmax_regression" else None


def require_int(key: str, value: Any, least: int) -> None:
    """Raise ValueError, which names the key, unless the value is an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{key}: {value!r}; an int of at least {least} is needed")
