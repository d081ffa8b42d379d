"""Tuning real local models: each agent is a natural client with records of its own."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fl_app.data import DataError, FederatedDataset, Records
from fl_app.errors import ConfigError
from fl_app.evaluation import evaluate
from fl_app.local_training import StepSettings, train_steps
from fl_app.model_arrays import to_arrays
from fl_app.model_settings import ModelSettings
from fl_app.models import build_model
from fl_app.objectives.objective import Objective
from fl_app.objectives.settings import LocalTrainingSettings
from fl_app.search_space import AxisValue, IntegerAxis, SearchSpace
from strategies.mechanisms.rng import Randomness, Stream

AXES = ("learning_rate", "weight_decay", "batch_size")
Indices = NDArray[np.int64]


class LocalTraining(Objective):
    """Accuracy on an agent's held-out records after training on its other records alone.

    The model begins at the same values for everybody, drawn from the seed. A model that diverges
    has no accuracy: nan.

    Parameters
    ----------
    settings : LocalTrainingSettings
    seed : int
        Of the first model, the records held out and the batches.
    dataset : FederatedDataset
        Each partition is a client.
    model : ModelSettings
    is_own : bool
        Whether the data are one device's own. Which records are held out does not follow from a
        server's seed then, and too few of them are a failed evaluation: an error would tell how
        many there are.

    Raises
    ------
    ConfigError
        If the axes are not the three above, or there are fewer clients.
    DataError
        If a client has too few records.
    """

    def __init__(
        self,
        settings: LocalTrainingSettings,
        seed: int,
        dataset: FederatedDataset,
        model: ModelSettings,
        is_own: bool = False,
    ) -> None:
        space = settings.space()
        _check_axes(space)
        clients = dataset.num_partitions
        num_agents = clients if is_own or settings.num_agents is None else settings.num_agents
        if num_agents > clients:
            raise ConfigError("objective.num_agents", num_agents, f"at most {clients}, or null")
        super().__init__(space, num_agents, (0.0, 1.0))
        self._randomness = Randomness("seeded", seed)
        self._epochs = settings.local_epochs
        self._dataset = dataset
        split = Randomness("seeded", 0) if is_own else self._randomness
        self._held_out = [
            choose_held_out(int(size), settings, split.stream("held-out records", agent), is_own)
            for agent, size in enumerate(dataset.partition_sizes()[:num_agents])
        ]
        self._model = build_model(model, dataset.feature_shape, dataset.num_classes, seed)
        self._start = to_arrays(self._model)

    def records(self, agent: int) -> tuple[Records, Records]:
        """Return copies of the records that an agent trains on, and of those it scores on."""
        records, chosen = self._dataset.partition(agent), self._held_out[agent]
        kept = np.setdiff1d(np.arange(len(records)), chosen)
        return records.take(kept), records.take(chosen)

    def evaluate(self, agent: int, point: Mapping[str, AxisValue], trial: int = 0) -> float:  # noqa: D102
        records, held_out = self.records(agent)
        if not len(records):
            return float("nan")
        stream = self._randomness.stream("batches", agent, trial)
        num_batches = -(-len(records) // int(point["batch_size"]))
        batches = [
            batch
            for _ in range(self._epochs)
            for batch in np.array_split(
                stream.sample_without_replacement(len(records), len(records)), num_batches
            )
        ]
        steps = StepSettings(float(point["learning_rate"]), float(point["weight_decay"]))
        trained, _ = train_steps(
            self._model,
            self._start,
            records,
            batches,
            steps,
            batch_divisor=len(records) / num_batches,
            torch_seed=int(stream.half_words(1)[0]),
        )
        if not all(np.isfinite(values).all() for values in trained.values()):
            return float("nan")
        return evaluate(self._model, trained, held_out).accuracy


def choose_held_out(
    num_records: int, settings: LocalTrainingSettings, stream: Stream, is_own: bool = False
) -> Indices:
    """Choose the records that a client's models are scored on.

    Of a device's own records at most all but one; of a single one, that one.

    Returns
    -------
    ndarray of int64
        In increasing order: validation_fraction of the records, rounded, and at least one.

    Raises
    ------
    DataError
        If none is left to train on.
    """
    size = max(1, round(settings.validation_fraction * num_records))
    if is_own:
        size = min(size, max(num_records - 1, min(num_records, 1)))
    elif size >= num_records:
        raise DataError(
            f"objective.validation_fraction: {settings.validation_fraction}; a client has too few "
            "records to train and to score on; choose a smaller one, or clients with more records"
        )
    if settings.holdout == "last":
        return np.arange(num_records - size, num_records)
    return np.sort(stream.sample_without_replacement(num_records, size))


def _check_axes(space: SearchSpace) -> None:
    if sorted(space.names) != sorted(AXES):
        raise ConfigError(
            "objective.search_space", list(space.names), f"the axes {', '.join(AXES)}"
        )
    for index, axis in enumerate(space.axes):
        key = f"objective.search_space[{index}]"
        is_integer = isinstance(axis, IntegerAxis)
        if not axis.is_splittable or is_integer != (axis.name == "batch_size"):
            wanted = "integer or log_integer" if axis.name == "batch_size" else "float or log_float"
            raise ConfigError(f"{key}.kind", axis.kind, wanted)
        low = float(axis.low)  # type: ignore[attr-defined]
        least = 0.0 if axis.name == "weight_decay" else 1.0 if is_integer else 5e-324
        if low < least:
            words = {"weight_decay": ">= 0", "batch_size": ">= 1", "learning_rate": "> 0"}
            raise ConfigError(f"{key}.low", low, f"a number {words[axis.name]}")
