"""What a client trains on, and how: its partition, its model, its local steps."""

from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Message

from fl_app.data import FederatedDataset, Records, load_dataset, load_own_dataset
from fl_app.device_budget import NO_LIMITS, RunLimits
from fl_app.errors import ConfigError
from fl_app.local_training import StepSettings, train_steps
from fl_app.model_arrays import check_shapes
from fl_app.models import build_model
from fl_app.per_example_gradients import check_per_example
from fl_app.per_example_training import clipped_steps, num_trainable
from fl_app.settings import RunSettings
from strategies.device_state import DeviceState
from strategies.dp_fedpaq.client import LocalWork, Trained
from strategies.niss.key_memory import NOBODY_KNOWN, DeviceTrust


class LocalTask:
    """The local side of one client.

    Parameters
    ----------
    settings : RunSettings
    partition_id : int
        Number of the client's partition.
    num_partitions : int
        Number of partitions in the run.
    state : DeviceState or None
        What the client remembers of the run; None: the method's choice.
    trust : DeviceTrust
        Who the device is to others, and whom it trusts.
    limits : RunLimits
        What the device's policy leaves for the run.
    own : RunSettings or None
        The settings with the device's own data in place of what they name; None: the same.
    owns_data : bool
        Whether all of those data are the client's own; otherwise a partition of them is.
    """

    def __init__(
        self,
        settings: RunSettings,
        partition_id: int,
        num_partitions: int,
        state: DeviceState | None = None,
        trust: DeviceTrust = NOBODY_KNOWN,
        limits: RunLimits = NO_LIMITS,
        own: RunSettings | None = None,
        owns_data: bool = False,
    ) -> None:
        self.settings = settings
        self.state = state
        self.trust = trust
        self.limits = limits
        self.own = settings if own is None else own
        self.partition_id = partition_id
        self.owns_data = owns_data
        self._num_partitions = num_partitions
        self._records: Records | None = None

    def dataset(self) -> FederatedDataset:
        """Read the data that the client's records are in."""
        if self.owns_data:
            return load_own_dataset(self.own.data)
        return load_dataset(self.own.data, self._num_partitions, self.settings.seed)

    def records(self) -> Records:
        """Read the client's records."""
        if self._records is None:
            place = 0 if self.owns_data else self.partition_id
            self._records = self.dataset().partition(place)
        return self._records

    def num_records(self) -> int:
        """Return n_k; reads the data."""
        return len(self.records())

    def num_records_for(self, request: Message) -> int:
        """Return n_k for a request whose model, if it has one, can be trained here.

        A request with another's is public, and refused before it is charged; later it would be a
        failure that may depend on data, and an upload of noise.

        Raises
        ------
        ValueError
            If the names or the shapes of its arrays are not the model's.
        """
        arrays = request.content.get("arrays")
        if isinstance(arrays, ArrayRecord):
            shapes = {name: tuple(array.shape) for name, array in arrays.items()}
            check_shapes(shared_model(self.settings, self.dataset()), shapes)
        return self.num_records()

    def local_update(self, work: LocalWork) -> Trained:
        """Run the local steps of a round."""
        chosen = self.settings.training
        steps = StepSettings(
            learning_rate=work.learning_rate,
            weight_decay=chosen.weight_decay,
            proximal=chosen.proximal,
            feature_norm=chosen.feature_norm,
            float64=work.float64,
        )
        model = shared_model(self.settings, self.dataset())
        if work.max_grad_norm is None:
            return train_steps(
                model,
                work.arrays,
                self.records(),
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
            self.records(),
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
