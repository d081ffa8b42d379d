"""The model that clients train: one in a process, checked, and its local steps."""

from functools import lru_cache

import torch

from fl_app.data import FederatedDataset, Records
from fl_app.errors import ConfigError
from fl_app.local_training import StepSettings, train_steps
from fl_app.models import build_model
from fl_app.per_example_gradients import check_per_example
from fl_app.per_example_training import clipped_steps, num_trainable
from fl_app.settings import RunSettings
from strategies.dp_fedpaq.client import LocalWork, Trained


def run_steps(
    settings: RunSettings, dataset: FederatedDataset, records: Records, work: LocalWork
) -> Trained:
    """Run the local steps of a round on a client's records."""
    chosen = settings.training
    steps = StepSettings(
        learning_rate=work.learning_rate,
        weight_decay=chosen.weight_decay,
        proximal=chosen.proximal,
        feature_norm=chosen.feature_norm,
        float64=work.float64,
    )
    model = shared_model(settings, dataset)
    if work.max_grad_norm is None:
        return train_steps(
            model,
            work.arrays,
            records,
            work.batches,
            steps,
            batch_divisor=work.batch_size,
            torch_seed=work.seed,
        )
    noise = work.step_noise
    size = num_trainable(model)
    return clipped_steps(
        model,
        work.arrays,
        records,
        work.batches,
        steps,
        max_grad_norm=work.max_grad_norm,
        batch_divisor=work.batch_size,
        torch_seed=work.seed,
        step_noise=None if noise is None else lambda step: noise(step, size),
    )


def check_model(settings: RunSettings, dataset: FederatedDataset) -> None:
    """Raise ConfigError if the model cannot be trained as the settings ask, whatever the data."""
    chosen, path = settings.training, settings.model.path
    model = shared_model(settings, dataset)
    buffers = _floating_buffers(model)
    # The multiplier is null beside target_epsilon.
    if chosen.mechanism == "update_noise" and chosen.noise_multiplier != 0.0 and buffers:
        raise ConfigError(
            "model.path",
            path,
            "beside noise on updates, a model without floating-point buffers in its state, which "
            f"get noise as well: {buffers[0]} (GroupNorm instead of BatchNorm, whose variance may "
            "end below 0; persistent=False for a constant)",
        )
    if chosen.max_grad_norm is None:
        return
    try:
        check_per_example(model, dataset.feature_shape)
    except ValueError as error:
        raise ConfigError(
            "strategy.max_grad_norm", chosen.max_grad_norm, f"null with this model ({error})"
        ) from None
    except Exception as error:
        if path is None:
            raise
        raise ConfigError(
            "model.path",
            path,
            "with strategy.max_grad_norm, a model that can be trained on any features (on random "
            f"ones it raised {type(error).__name__}: {' '.join(str(error).split())})",
        ) from error


def _floating_buffers(model: torch.nn.Module) -> list[str]:
    """Name what is sent beside the parameters, and would get noise like them."""
    return [
        name
        for name, value in model.state_dict(keep_vars=True).items()
        if not isinstance(value, torch.nn.Parameter) and value.is_floating_point()
    ]


def shared_model(settings: RunSettings, dataset: FederatedDataset) -> torch.nn.Module:
    """Return this process's one instance of the run's model; its values are anybody's."""
    return _build_shared(settings, dataset.feature_shape, dataset.num_classes)


@lru_cache(maxsize=2)
def _build_shared(
    settings: RunSettings, feature_shape: tuple[int, ...], num_classes: int
) -> torch.nn.Module:
    model = build_model(settings.model, feature_shape, num_classes, settings.seed)
    return model.cuda() if torch.cuda.is_available() else model
