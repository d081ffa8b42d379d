"""Hyper-parameters of this application's own training strategies: each value is a whole run.

An agent is an organisation with clients of its own. A point of the search is a set of values for
keys of a run's configuration; the agent runs it with its clients and scores the model on records
that it has held out. Each such run is a release of its own by the agent's clients, with the
guarantee of the run's own configuration: those of all evaluations add up, and the search's own
guarantee, which hides an agent from the other agents, says nothing about them.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import ConfigRecord

from fl_app.client_app import SETTINGS_KEY
from fl_app.client_app import app as client_app
from fl_app.config import compose_settings
from fl_app.data import load_dataset
from fl_app.engines.flower_internals import own_identity
from fl_app.engines.in_process import InProcessGrid
from fl_app.errors import ConfigError
from fl_app.evaluation import evaluate
from fl_app.local_model import check_model, shared_model
from fl_app.model_arrays import to_arrays
from fl_app.models import build_model
from fl_app.objectives.evaluation_guarantee import add_up_evaluations
from fl_app.objectives.objective import Objective
from fl_app.objectives.settings import TrainingRunSettings
from fl_app.registry import TrainingStrategy, build_strategy, check_settings
from fl_app.search_space import AxisValue
from fl_app.settings import RunSettings
from fl_app.strategy_settings import TrainingSettings
from strategies.dp_fedpaq.messages import model_arrays, model_record
from strategies.dp_fts_de import DpFtsDe
from strategies.mechanisms.guarantee import Guarantee
from strategies.mechanisms.rng import RandomnessKind

# What may differ between two evaluations of a search: not whose data they are, or how many.
SEARCHED = ("num_rounds", "num_sampled_clients", "fraction_train", "strategy.", "model.")
# Which code runs is said by the run alone.
_NAMED = ("model.name", "model.path")
# Keys of a strategy that say how well its clients are hidden: they are not for sale for accuracy.
PRIVACY_KEYS = frozenset(
    {
        *("name", "mode", "unit", "neighboring_relation", "sensitivity", "mechanism", "noise_at"),
        *("target_epsilon", "target_epsilons", "noise_multiplier", "target_delta", "accountant"),
        *("max_participations", "colluding_fraction", "pair_noise", "graph", "coalitions"),
        *("expected_dropouts", "min_ready", "max_dropouts", "max_attempts", "unit_noise_std"),
        *("tau", "collusion_bound"),
    }
)


class TrainingRun(Objective):
    """Accuracy of a model that an agent's own clients have trained, on records held out by it.

    The data are divided among all agents' clients and, for each agent, one part more, which it
    scores on. The run's seed is the search's: a value is a function of the point, unless the run
    is secret.

    Parameters
    ----------
    settings : TrainingRunSettings
    seed : int
        Of the data's partition, the first model and the runs.
    randomness : {"seeded", "secret"}
        The search's: in a secret one the runs are secret, whatever they say themselves.

    Raises
    ------
    ConfigError
        If the run cannot be composed, is a search itself, does not say how many clients an agent
        has, or an axis is none of its keys or one of `PRIVACY_KEYS`.
    DataError
        If data is missing or cannot be divided so often.
    """

    def __init__(
        self, settings: TrainingRunSettings, seed: int, randomness: RandomnessKind = "seeded"
    ) -> None:
        super().__init__(settings.space(), settings.num_agents, (0.0, 1.0))
        secret = ["randomness=secret"] if randomness == "secret" else []
        composed = compose_settings([*settings.run, f"seed={seed}", *secret])
        if not isinstance(composed.strategy, TrainingSettings):
            rule = "overrides of a run that trains, without a search of its own"
            raise ConfigError("objective.run", list(settings.run), rule)
        if composed.num_clients is None:
            raise ConfigError("objective.run", list(settings.run), "overrides with num_clients")
        self._clients = composed.num_clients
        self._plain: dict[str, Any] = json.loads(composed.to_json())
        self._keys = {axis.name: settings.key_of(axis.name) for axis in self.space.axes}
        for name, key in self._keys.items():
            if not key.startswith(SEARCHED):
                allowed = ", ".join(each + ("*" if each[-1] == "." else "") for each in SEARCHED)
                raise ConfigError(f"objective.keys.{name}", key, f"one of {allowed}")
            if key in _NAMED:
                rule = "no key that names a model or its code: the run names one"
                raise ConfigError(f"objective.keys.{name}", key, rule)
            if key.startswith("strategy.") and key.split(".")[1] in PRIVACY_KEYS:
                rule = "no key of the clients' privacy: their noise is not tuned by their accuracy"
                raise ConfigError(f"objective.keys.{name}", key, rule)
        self._dataset = load_dataset(composed.data, settings.num_agents * (self._clients + 1), seed)
        # A mistake that does not depend on the point is one of the configuration.
        middle = self.configure(self.space.decode(np.full(self.space.dimension, 0.5)))
        check_settings(middle)
        check_model(middle, self._dataset)
        self._middle = middle

    def guarantees(self, num_evaluations: int) -> list[Guarantee]:
        """Return what an agent's planned evaluations guarantee its own clients together."""
        return [add_up_evaluations(self._middle, num_evaluations)]

    def configure(self, point: Mapping[str, AxisValue]) -> RunSettings:
        """Return the settings of a point's run; ConfigError if there is no such key or value."""
        values = json.loads(json.dumps(self._plain))
        for name, value in point.items():
            *groups, leaf = self._keys[name].split(".")
            group = values
            for each in groups:
                group = group[each]
            if leaf not in group:
                raise ConfigError(f"objective.keys.{name}", self._keys[name], "a key of the run")
            group[leaf] = value
        return RunSettings.from_json(json.dumps(values))

    def evaluate(self, agent: int, point: Mapping[str, AxisValue], trial: int = 0) -> float:  # noqa: D102
        settings = self.configure(point)
        first = agent * (self._clients + 1)
        sizes = self._dataset.partition_sizes()[first : first + self._clients]
        with own_identity(), _quiet():
            grid = InProcessGrid(
                client_app,
                self._clients,
                {},
                first_partition=first,
                num_partitions=self._dataset.num_partitions,
            )
            strategy = self._build(settings, grid, [int(size) for size in sizes])
            model = build_model(
                settings.model,
                self._dataset.feature_shape,
                self._dataset.num_classes,
                settings.seed,
            )
            result = strategy.start(
                grid,
                model_record(to_arrays(model)),
                num_rounds=settings.rounds,
                timeout=settings.round_timeout,
                train_config=ConfigRecord({SETTINGS_KEY: settings.to_json()}),
            )
        assert result.arrays is not None
        return evaluate(
            shared_model(settings, self._dataset),
            model_arrays(result.arrays),
            self._dataset.partition(first + self._clients),
            settings.training.feature_norm,
        ).accuracy

    def _build(
        self, settings: RunSettings, grid: InProcessGrid, sizes: list[int]
    ) -> TrainingStrategy:
        """Build the agent's server side; its clients have the numbers 0 to n - 1 to it."""
        strategy = build_strategy(
            settings,
            client_ids={node: index for index, node in enumerate(grid.get_node_ids())},
            num_records=dict(enumerate(sizes)),
        )
        assert not isinstance(strategy, DpFtsDe)
        return strategy


@contextmanager
def _quiet() -> Iterator[None]:
    """Log nothing of a run but warnings: its parameters are the agent's query."""
    logger = logging.getLogger("strategies")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)
