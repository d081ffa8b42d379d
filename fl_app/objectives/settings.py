"""What is configured about an objective (conf/objective); the files there explain each key."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from fl_app.errors import ConfigError
from fl_app.import_path import check_import_path
from fl_app.plain_mapping import PlainMapping
from fl_app.search_space import Axis, RealAxis, SearchSpace
from strategies.mechanisms.parameter_checks import MAX_MAGNITUDE

ObjectiveName = Literal["landmine", "synthetic", "local_training", "training_run", "user"]


@dataclass(frozen=True)
class ObjectiveSettings:
    """Which objective; the subclasses hold the keys of each.

    Raises
    ------
    ConfigError
        If a value is not allowed: the key, its value and what is allowed.
    """

    name: ObjectiveName

    @staticmethod
    def choose(values: Mapping[str, Any]) -> "type[ObjectiveSettings]":
        """Return the dataclass that holds an objective's keys."""
        name = values.get("name")
        return _CLASSES.get(name, ObjectiveSettings) if isinstance(name, str) else ObjectiveSettings

    def space(self) -> SearchSpace:
        """Return the axes that are searched; reads no data."""
        raise NotImplementedError

    @property
    def uses_data(self) -> bool:
        """Whether it reads the data and trains the model that are configured beside it."""
        return False

    @property
    def needs_torch(self) -> bool:
        """Whether torch may be used in an evaluation; a function of the user's own may use it."""
        return True

    def with_absolute_paths(self) -> Self:
        """Return the same settings independently of the current folder."""
        root = getattr(self, "root", None)
        if root is None:
            return self
        return dataclasses.replace(self, root=str(Path(root).expanduser().absolute()))  # type: ignore[call-arg]


@dataclass(frozen=True)
class LandmineSettings(ObjectiveSettings):
    """Landmine detection: a support vector machine for each of 29 fields.

    Attributes
    ----------
    root : str or None
        Folder with LandmineData.mat.
    axes : str
        ``linear`` (as published) or ``log`` axes of C and gamma.
    scores : str
        What the area under the curve ranks by: the machine's own ``decision`` values, or
        probabilities by ``platt`` scaling, as published (see `fl_app.objectives.landmine`).
    """

    name: Literal["landmine"]
    root: str | None = None
    axes: Literal["linear", "log"] = "linear"
    scores: Literal["decision", "platt"] = "decision"

    @property
    def needs_torch(self) -> bool:  # noqa: D102
        return False

    def space(self) -> SearchSpace:  # noqa: D102
        kind: Literal["float", "log_float"] = "log_float" if self.axes == "log" else "float"
        return SearchSpace((RealAxis("C", kind, 1e-4, 10.0), RealAxis("gamma", kind, 1e-2, 10.0)))


@dataclass(frozen=True)
class SyntheticSettings(ObjectiveSettings):
    """Functions drawn from a Gaussian process: a common part and each agent's own deviation.

    Attributes
    ----------
    num_agents : int
        ``N``, 1 to 100,000.
    dimension : int
        ``D``, 1 or 2.
    family : str
        Covariance: ``squared_exponential``, ``matern`` (5/2) or ``non_stationary``.
    lengthscale : float
        In [0.01, 10], of a domain of width 1.
    deviation : float
        Standard deviation of an agent's own part, in [0, 100]; the common part has 1.
    noise_std : float
        Standard deviation of the noise of an observation, in [0, 100].
    """

    name: Literal["synthetic"]
    num_agents: int = 30
    dimension: int = 1
    family: Literal["squared_exponential", "matern", "non_stationary"] = "squared_exponential"
    lengthscale: float = 0.2
    deviation: float = 0.3
    noise_std: float = 0.01

    def __post_init__(self) -> None:
        _require_agents(self.num_agents)
        _require_between("dimension", self.dimension, 1, 2)
        _require_between("lengthscale", self.lengthscale, 0.01, 10.0)
        _require_between("deviation", self.deviation, 0.0, 100.0)
        _require_between("noise_std", self.noise_std, 0.0, 100.0)

    @property
    def needs_torch(self) -> bool:  # noqa: D102
        return False

    def space(self) -> SearchSpace:  # noqa: D102
        names = (f"x{i + 1}" for i in range(self.dimension))
        return SearchSpace(tuple(RealAxis(name, "float", 0.0, 1.0) for name in names))


@dataclass(frozen=True)
class LocalTrainingSettings(ObjectiveSettings):
    """A local model for each natural client of the data (conf/data), trained on its own records.

    Attributes
    ----------
    num_agents : int or None
        The first clients in the order of their ids; None: everybody.
    local_epochs : int
        Passes over the training part, 1 to 1000.
    validation_fraction : float
        Share of a client's records that is held out to score the model, in (0, 1).
    holdout : str
        Which records: ``random`` ones, or the ``last`` ones as stored (for records that overlap
        in time).
    search_space : tuple of Axis
        The axes learning_rate, weight_decay and batch_size, in any order.
    """

    name: Literal["local_training"]
    num_agents: int | None = None
    local_epochs: int = 5
    validation_fraction: float = 0.3
    holdout: Literal["random", "last"] = "random"
    search_space: tuple[Axis, ...] = ()

    def __post_init__(self) -> None:
        if self.num_agents is not None:
            _require_agents(self.num_agents)
        _require_between("local_epochs", self.local_epochs, 1, 1000)
        if not 0.0 < self.validation_fraction < 1.0:
            raise ConfigError(
                "objective.validation_fraction", self.validation_fraction, "a number in (0, 1)"
            )
        self.space()

    def space(self) -> SearchSpace:  # noqa: D102
        return SearchSpace(self.search_space)

    @property
    def uses_data(self) -> bool:  # noqa: D102
        return True


@dataclass(frozen=True)
class TrainingRunSettings(ObjectiveSettings):
    """Whole runs of one of this application's training strategies, by each agent's own clients.

    Attributes
    ----------
    num_agents : int
        ``N``, 1 to 100,000.
    run : tuple of str
        The run's configuration as overrides, ``num_clients`` (those of one agent) among them.
    keys : PlainMapping or None
        From an axis to the key of the run's configuration that it stands for; one that is not in
        it stands for the strategy's key of its name.
    search_space : tuple of Axis
    """

    name: Literal["training_run"]
    num_agents: int = 5
    run: tuple[str, ...] = ()
    keys: PlainMapping | None = None
    search_space: tuple[Axis, ...] = ()

    def __post_init__(self) -> None:
        _require_agents(self.num_agents)
        names = self.space().names
        for name, key in (self.keys or {}).items():
            if name not in names:
                raise ConfigError("objective.keys", name, f"axes: {', '.join(names)}")
            if not isinstance(key, str) or not all(key.split(".")):
                raise ConfigError(f"objective.keys.{name}", key, "a key, as strategy.learning_rate")

    def space(self) -> SearchSpace:  # noqa: D102
        return SearchSpace(self.search_space)

    def key_of(self, axis: str) -> str:
        """Return the key of the run's configuration that an axis stands for."""
        given = dict(self.keys or {})
        return str(given.get(axis, f"strategy.{axis}"))


@dataclass(frozen=True)
class UserObjectiveSettings(ObjectiveSettings):
    """A function of the user's own.

    Attributes
    ----------
    path : str or None
        ``package.module:name`` of a function of (point, agent) that returns a number.
    num_agents : int
        ``N``, 1 to 100,000.
    low, high : float
        The public range of its values; what lies outside counts as the nearer end, a failure as
        `low`.
    search_space : tuple of Axis
    """

    name: Literal["user"]
    path: str | None = None
    num_agents: int = 10
    low: float = 0.0
    high: float = 1.0
    search_space: tuple[Axis, ...] = ()

    def __post_init__(self) -> None:
        check_import_path("objective.path", self.path)
        _require_agents(self.num_agents)
        for key in ("low", "high"):
            if not abs(value := getattr(self, key)) <= MAX_MAGNITUDE:
                allowed = f"a number from -{MAX_MAGNITUDE:g} to {MAX_MAGNITUDE:g}"
                raise ConfigError(f"objective.{key}", value, allowed)
        if not self.low < self.high:
            raise ConfigError("objective.high", self.high, f"a number > objective.low = {self.low}")
        self.space()

    def space(self) -> SearchSpace:  # noqa: D102
        return SearchSpace(self.search_space)


_CLASSES: dict[str, type[ObjectiveSettings]] = {
    "landmine": LandmineSettings,
    "synthetic": SyntheticSettings,
    "local_training": LocalTrainingSettings,
    "training_run": TrainingRunSettings,
    "user": UserObjectiveSettings,
}


def _require_agents(value: int) -> None:
    _require_between("num_agents", value, 1, 100_000)


def _require_between(key: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"objective.{key}", value, f"{low:g} to {high:g}")
