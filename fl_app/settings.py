"""The configuration of a run as frozen dataclasses: one for each group of conf/.

Nothing here knows Hydra, so a client can read the settings that the server sends it without it.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Literal, get_args

from fl_app.data import DataSettings
from fl_app.engines.faults import FaultSettings
from fl_app.errors import ConfigError, show
from fl_app.model_settings import ModelSettings
from fl_app.objectives.settings import ObjectiveName, ObjectiveSettings, UserObjectiveSettings
from fl_app.published import PublishedSettings
from fl_app.strategy_settings import (
    NissSettings,
    SearchSettings,
    StrategySettings,
    TrainingSettings,
)
from fl_app.structure import build

FORMAT_VERSION = 1
# Beyond it, the squares of values are no scale that a process is fitted in.
MOST_AS_IS = 1e6


@dataclass(frozen=True)
class EngineSettings:
    """Where the run executes (conf/engine).

    Attributes
    ----------
    name : str
        ``in_process``, ``simulation`` (Flower's simulation runtime) or ``deployment`` (devices).
    workers : int
        Clients that work at the same time: 1 in the command's own process, more in as many
        processes.
    superlink : str or None
        The SuperLink's name in Flower's configuration (deployment).
    signed : bool
        Whether the signed bundle on the SuperLink is run, and not the code here (deployment).
    ray_address : str or None
        A running Ray cluster, ``HOST:PORT`` (simulation); None: one is started for the run.
    """

    name: Literal["in_process", "simulation", "deployment"] = "in_process"
    workers: int = 1
    superlink: str | None = None
    signed: bool = False
    ray_address: str | None = None


@dataclass(frozen=True)
class BudgetSettings:
    """What all uploads of a run may take together; all None: no limit.

    Attributes
    ----------
    uplink_bits : int or None
        B, bits; or both of:
    capacity, seconds : float or None
        C, bits a second of the uplink that all share, and its time: B = C * seconds.
    """

    uplink_bits: int | None = None
    capacity: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.uplink_bits is not None:
            _require("budget.uplink_bits", self.uplink_bits, self.uplink_bits >= 1, "an int >= 1")
        for key, other in (("capacity", "seconds"), ("seconds", "capacity")):
            value = getattr(self, key)
            if value is None:
                continue
            _require(f"budget.{key}", value, 0.0 < value < 1e15, "a number > 0 and < 1e15")
            if getattr(self, other) is None:
                raise ConfigError(f"budget.{other}", None, f"a number > 0 beside budget.{key}")
            if self.uplink_bits is not None:
                raise ConfigError(f"budget.{key}", value, "null beside budget.uplink_bits")

    @property
    def bits(self) -> int | None:
        """B in bits; None: no limit."""
        if self.capacity is not None and self.seconds is not None:
            return max(1, int(self.capacity * self.seconds))
        return self.uplink_bits


@dataclass(frozen=True)
class RunSettings:
    """Everything that defines a run (conf/config.yaml explains the keys at the top)."""

    strategy: StrategySettings
    objective: ObjectiveSettings | None = None
    seed: int = 0
    randomness: Literal["seeded", "secret"] = "seeded"
    num_rounds: int | None = None
    total_local_steps: int | None = None
    num_clients: int | None = None
    num_sampled_clients: int | None = None
    fraction_train: float | None = None
    participation: Literal["fixed", "poisson", "round_robin"] = "fixed"
    min_replies: int = 1
    round_timeout: float = 3600.0
    train_loss_every: int | None = None
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    faults: FaultSettings = field(default_factory=FaultSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    published: PublishedSettings = field(default_factory=PublishedSettings)

    def __post_init__(self) -> None:
        _require_seed("seed", self.seed)
        _require_one(self, "num_rounds", "total_local_steps")
        for key in (
            *("num_rounds", "total_local_steps", "num_clients", "num_sampled_clients"),
            "train_loss_every",
        ):
            value = getattr(self, key)
            _require(key, value, value is None or value >= 1, "an integer >= 1")
        _require("min_replies", self.min_replies, self.min_replies >= 1, "an integer >= 1")
        _require("round_timeout", self.round_timeout, self.round_timeout > 0, "seconds > 0")
        _check_engine(self.engine)
        for key in ("loss_rate", "late_rate", "drop_after_ready"):
            rate = getattr(self.faults, key)
            _require(f"faults.{key}", rate, 0.0 <= rate <= 1.0, "a number in [0, 1]")
        _require_seed("faults.seed", self.faults.seed)
        if self.randomness == "secret" and self.train_loss_every is not None:
            raise ConfigError(
                "train_loss_every",
                self.train_loss_every,
                "null with randomness=secret (no guarantee covers a loss on the clients' data)",
            )
        chosen = self.strategy
        says_ready = isinstance(chosen, NissSettings) and chosen.noise_at == "client"
        if self.faults.drop_after_ready and not says_ready:
            raise ConfigError(
                "faults.drop_after_ready",
                self.faults.drop_after_ready,
                "0 without strategy=niss (noise_at=client), whose clients say that they are ready",
            )
        self._check_cohort()
        if isinstance(self.strategy, TrainingSettings):
            self._check_training(self.strategy)
        else:
            self._check_search()

    def _check_training(self, strategy: TrainingSettings) -> None:
        if self.objective is not None:
            raise ConfigError(
                "objective", self.objective.name, f"null with strategy={strategy.name}"
            )
        _check_strategy(strategy)
        if self.rounds < 1:
            raise ConfigError(
                "total_local_steps",
                self.total_local_steps,
                "at least strategy.local_steps or local_epochs (K = floor(T / E) rounds)",
            )

    def _check_cohort(self) -> None:
        sampled, fraction = self.num_sampled_clients, self.fraction_train
        _require_at_most_one(self, "num_sampled_clients", "fraction_train")
        _require("fraction_train", fraction, fraction is None or 0.0 < fraction <= 1.0, "in (0, 1]")
        if sampled is not None and self.num_clients is not None and sampled > self.num_clients:
            raise ConfigError(
                "num_sampled_clients", sampled, f"at most num_clients = {self.num_clients}"
            )
        if self.num_clients is not None:
            cohort = sampled or max(1, round((fraction or 1.0) * self.num_clients))
            if self.min_replies > cohort:
                raise ConfigError(
                    "min_replies", self.min_replies, f"at most the clients of a round, {cohort}"
                )

    def _check_search(self) -> None:
        name, objective = self.strategy.name, self.objective
        if objective is None:
            words = ", ".join(get_args(ObjectiveName))
            raise ConfigError("objective", None, f"{words} (objective=NAME) with strategy={name}")
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for key in (
            *("total_local_steps", "num_sampled_clients", "fraction_train", "participation"),
            *("min_replies", "train_loss_every"),
        ):
            value = getattr(self, key)
            if value != defaults[key]:
                rule = f"{show(defaults[key])} with strategy={name}, which asks all agents"
                raise ConfigError(key, value, rule)
        if self.budget.bits is not None:
            key = "uplink_bits" if self.budget.capacity is None else "capacity"
            raise ConfigError(
                f"budget.{key}", getattr(self.budget, key), f"null with strategy={name}"
            )
        as_is = self.search is not None and not self.search.standardize
        if as_is and isinstance(objective, UserObjectiveSettings):
            for key in ("low", "high"):
                if abs(value := getattr(objective, key)) > MOST_AS_IS:
                    rule = f"from -{MOST_AS_IS:g} to {MOST_AS_IS:g} with strategy.standardize=false"
                    raise ConfigError(f"objective.{key}", value, rule)
        if not objective.uses_data:
            for group, given, usual in (
                ("data", self.data.name, DataSettings.name),
                ("model", self.model.name, ModelSettings.name),
            ):
                if given != usual:
                    rule = f"{usual} (objective={objective.name} reads no {group})"
                    raise ConfigError(f"{group}.name", given, rule)

    @property
    def training(self) -> TrainingSettings:
        """The keys of a method that trains a model."""
        assert isinstance(self.strategy, TrainingSettings)
        return self.strategy

    @property
    def search(self) -> SearchSettings | None:
        """The keys of a method that searches; None for those that train a model."""
        return self.strategy if isinstance(self.strategy, SearchSettings) else None

    @property
    def needs_torch(self) -> bool:
        """Whether clients and server may compute with torch: some searches start without."""
        return self.objective is None or self.objective.needs_torch

    @property
    def rounds(self) -> int:
        """Number of rounds: given, or K = floor(T / E) of the local steps or epochs in all."""
        if self.num_rounds is not None:
            return self.num_rounds
        assert self.total_local_steps is not None
        work = self.training.local_steps or self.training.local_epochs
        assert work is not None
        return self.total_local_steps // work

    def evaluates_train_loss(self, server_round: int) -> bool:
        """Whether the loss on all clients' records is computed after a round (0: before any)."""
        every = self.train_loss_every
        return every is not None and (server_round % every == 0 or server_round == self.rounds)

    def to_json(self) -> str:
        """Serialise, for the wire and for a run's folder."""
        values = {"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}
        return json.dumps(values, default=dict)  # a PlainMapping is written as a mapping

    @classmethod
    def from_json(cls, text: str) -> "RunSettings":
        """Parse and check what `to_json` wrote."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ConfigError("settings", text, f"JSON ({error})") from error
        if not isinstance(values, dict):
            raise ConfigError("settings", values, "what to_json writes")
        version = values.pop("format_version", None)
        if isinstance(version, bool) or version != FORMAT_VERSION:
            raise ConfigError("format_version", version, str(FORMAT_VERSION))
        return build(cls, values)


def _require(key: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise ConfigError(key, value, allowed)


def _check_engine(engine: EngineSettings) -> None:
    _require("engine.workers", engine.workers, engine.workers >= 1, "an integer >= 1")
    if engine.name == "deployment":
        rule = f"1 with engine={engine.name}"
        _require("engine.workers", engine.workers, engine.workers == 1, rule)
    rule = "true or false with engine=deployment, else false"
    _require("engine.signed", engine.signed, engine.name == "deployment" or not engine.signed, rule)
    for key, name in (("superlink", "deployment"), ("ray_address", "simulation")):
        value, rule = getattr(engine, key), f"text with engine={name}, else null"
        _require(f"engine.{key}", value, value is None or (value and engine.name == name), rule)


def _require_seed(key: str, value: int) -> None:
    _require(key, value, 0 <= value < 2**63, "an integer in [0, 2**63)")


def _require_at_most_one(group: object, first: str, second: str, prefix: str = "") -> None:
    """Refuse two keys that say the same in different ways; the first has the default."""
    given = {key: getattr(group, key) for key in (first, second)}
    if None not in given.values():
        raise ConfigError(
            prefix + second,
            given[second],
            f"null beside {prefix}{first}={given[first]} (to use it, add {prefix}{first}=null)",
        )


def _require_one(group: object, first: str, second: str, prefix: str = "") -> None:
    _require_at_most_one(group, first, second, prefix)
    if getattr(group, first) is None and getattr(group, second) is None:
        raise ConfigError(prefix + first, None, f"a value for it or for {prefix}{second}")


def _check_strategy(strategy: TrainingSettings) -> None:
    _require_one(strategy, "target_epsilon", "noise_multiplier", "strategy.")
    _require_one(strategy, "local_steps", "local_epochs", "strategy.")
    _require_at_most_one(strategy, "num_levels", "target_bits", "strategy.")
    bits = strategy.target_bits
    _require(
        "strategy.target_bits", bits, bits is None or 2 <= bits <= 17, "2 to 17 bits a parameter"
    )
    if bits is not None and strategy.quantizer == "none":
        raise ConfigError("strategy.target_bits", bits, "null with strategy.quantizer=none")
    for key in ("weight_decay", "proximal"):
        value = getattr(strategy, key)
        _require(f"strategy.{key}", value, 0.0 <= value < 1e15, "a number in [0, 1e15)")
    norm = strategy.feature_norm
    _require("strategy.feature_norm", norm, norm is None or norm > 0.0, "a number > 0 or null")
