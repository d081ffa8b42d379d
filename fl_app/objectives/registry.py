"""The objectives, by name. A new one is a file that builds it, its keys, and one row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fl_app.data import DataSettings, load_dataset, load_own_dataset
from fl_app.errors import ConfigError
from fl_app.objectives.settings import (
    LandmineSettings,
    LocalTrainingSettings,
    ObjectiveSettings,
    SyntheticSettings,
    TrainingRunSettings,
    UserObjectiveSettings,
)

if TYPE_CHECKING:
    from fl_app.model_settings import ModelSettings
    from fl_app.objectives.objective import Objective
    from strategies.mechanisms.rng import RandomnessKind


@dataclass(frozen=True)
class Kind:
    """One objective.

    Attributes
    ----------
    description : str
        What it is, in a line.
    settings : type
        The dataclass of its keys.
    build : callable
        From its settings, the seed, the data's settings, the model's, the randomness and whether
        the data are one device's own to the objective.
    """

    description: str
    settings: type[ObjectiveSettings]
    build: Callable[..., Objective]


def _build_landmine(settings: LandmineSettings, seed: int, *_: Any) -> Objective:
    from fl_app.objectives.landmine import Landmine

    return Landmine(settings, seed)


def _build_synthetic(settings: SyntheticSettings, seed: int, *_: Any) -> Objective:
    from fl_app.objectives.synthetic import Synthetic

    return Synthetic(settings, seed)


def _build_local_training(
    settings: LocalTrainingSettings,
    seed: int,
    data: DataSettings | None,
    model: ModelSettings | None,
    _randomness: RandomnessKind,
    is_own: bool,
) -> Objective:
    from fl_app.objectives.local_training import LocalTraining

    if data is None or model is None:
        raise ConfigError("objective.name", settings.name, "another one without data and model")
    dataset = load_own_dataset(data) if is_own else load_dataset(data, None, seed)
    return LocalTraining(settings, seed, dataset, model, is_own)


def _build_training_run(
    settings: TrainingRunSettings,
    seed: int,
    _data: Any,
    _model: Any,
    randomness: RandomnessKind,
    *_: Any,
) -> Objective:
    from fl_app.objectives.training_run import TrainingRun

    return TrainingRun(settings, seed, randomness)


def _build_user(settings: UserObjectiveSettings, *_: Any) -> Objective:
    from fl_app.objectives.user import UserObjective

    return UserObjective(settings)


OBJECTIVES: dict[str, Kind] = {
    "landmine": Kind(
        "C and gamma of a support vector machine for each of 29 landmine fields, from your copy",
        LandmineSettings,
        _build_landmine,
    ),
    "synthetic": Kind(
        "functions drawn from a Gaussian process: a common part, and each agent's own",
        SyntheticSettings,
        _build_synthetic,
    ),
    "local_training": Kind(
        "learning rate, weight decay and batch size of each natural client's own model",
        LocalTrainingSettings,
        _build_local_training,
    ),
    "training_run": Kind(
        "hyper-parameters of a training strategy: whole runs of each agent's own clients",
        TrainingRunSettings,
        _build_training_run,
    ),
    "user": Kind(
        "your own: a function named by objective.path",
        UserObjectiveSettings,
        _build_user,
    ),
}


def load_objective(
    settings: ObjectiveSettings,
    seed: int,
    data: DataSettings | None = None,
    model: ModelSettings | None = None,
    randomness: RandomnessKind = "seeded",
    is_own: bool = False,
) -> Objective:
    """Build an objective; the same arguments give the same values.

    The last few are kept, so that all agents of a process share what was read.

    Parameters
    ----------
    settings : ObjectiveSettings
        Of the subclass that `ObjectiveSettings.choose` names.
    seed : int
        Of everything random in it, in [0, 2**63).
    data, model : DataSettings, ModelSettings or None
        Needed by local_training only.
    randomness : {"seeded", "secret"}
        The run's; trainings that are releases of their own (training_run) inherit it.
    is_own : bool
        Whether the data are one device's own: the objective is then of one agent, number 0.

    Raises
    ------
    ConfigError
        If the settings cannot be met: a function that cannot be imported or called, an unknown
        axis.
    DataError
        If data is missing or damaged.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ConfigError("seed", seed, "an integer in [0, 2**63)")
    # Absolute, because what is kept must not depend on the folder of a later call.
    return _build(
        settings.with_absolute_paths(),
        seed,
        None if data is None else data.with_absolute_paths(),
        model,
        randomness,
        is_own,
    )


@lru_cache(maxsize=4)
def _build(
    settings: ObjectiveSettings,
    seed: int,
    data: DataSettings | None,
    model: ModelSettings | None,
    randomness: RandomnessKind,
    is_own: bool,
) -> Objective:
    return OBJECTIVES[settings.name].build(settings, seed, data, model, randomness, is_own)
