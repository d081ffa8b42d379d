"""The search of a run: its server side from the settings, and an agent's answer to a request."""

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Context, Message
from numpy.typing import NDArray

from fl_app.errors import ConfigError
from fl_app.evaluation_log import EvaluationLog
from fl_app.local_task import LocalTask
from fl_app.objectives import Objective, UserObjectiveSettings, load_objective, observe
from fl_app.search_space import SearchSpace
from fl_app.settings import RunSettings
from fl_app.strategy_settings import SearchSettings
from strategies.device_state import ContextState
from strategies.dp_fts_de import DpFtsDe, DpFtsDeParameters
from strategies.dp_fts_de import client as dp_fts_de_client
from strategies.dp_fts_de.algorithm import build_features
from strategies.dp_fts_de.run_plan import AUTO, check_release_rounds, plan_run
from strategies.mechanisms.accounting import AccountingError
from strategies.mechanisms.guarantee import Guarantee
from strategies.rounds import OnRound

# The keys of a search that are no field of its parameters.
_APART = ("name", "label", "release_rounds")


def build_search(
    settings: RunSettings,
    client_ids: Mapping[int, int] | None = None,
    on_round: OnRound | None = None,
) -> DpFtsDe:
    """Build the server side of a search.

    Raises
    ------
    ParameterError
        If the method does not allow the settings.
    ConfigError
        If a run of the settings cannot meet its target.
    """
    chosen, objective = settings.strategy, settings.objective
    assert isinstance(chosen, SearchSettings)
    assert objective is not None
    space = objective.space()
    fields: dict[str, Any] = {
        field.name: getattr(chosen, field.name)
        for field in dataclasses.fields(chosen)
        if field.name not in _APART
    }
    strategy = DpFtsDe(
        num_agents=settings.num_clients,
        release_rounds=chosen.release_rounds,
        client_ids=client_ids,
        on_round=on_round,
        dimension=space.dimension,
        splittable=space.is_splittable,
        randomness=settings.randomness,
        seed=settings.seed,
        **fields,
    )
    check_release_rounds(strategy.parameters, settings.rounds)
    build_features(strategy.parameters)
    return strategy


@lru_cache(maxsize=4)
def planned_parameters(settings: RunSettings) -> DpFtsDeParameters:
    """Return the parameters that a run of the settings agrees to, with its noise.

    Raises
    ------
    ConfigError
        If the target cannot be met.
    """
    chosen = settings.strategy
    assert isinstance(chosen, SearchSettings)
    assert settings.num_clients is not None
    try:
        return plan_run(
            build_search(settings).parameters,
            settings.num_clients,
            settings.rounds,
            auto_rounds=chosen.release_rounds == AUTO,
        )
    except AccountingError as error:
        raise ConfigError(
            "strategy.target_epsilon", chosen.target_epsilon, f"one that can be met ({error})"
        ) from None


def load_run_objective(settings: RunSettings) -> Objective:
    """Load the objective of a run, which must have as many agents as the run has clients.

    Raises
    ------
    ConfigError
        If it has not, or the settings cannot be met.
    DataError
        If data is missing or damaged.
    """
    assert settings.objective is not None
    objective = load_objective(
        settings.objective, settings.seed, settings.data, settings.model, settings.randomness
    )
    found, wanted = settings.num_clients, objective.num_agents
    if found not in (None, wanted):
        rule = f"the agents of objective={settings.objective.name}, {wanted}, or null"
        if settings.engine.name == "simulation":
            rule += f"; with flwr run: --federation-config num-supernodes={wanted}"
        raise ConfigError("num_clients", found, rule)
    return objective


def read_search_space(settings: RunSettings) -> SearchSpace:
    """Return what the server needs of a run's objective: the axes, which are public.

    Of a simulation the objective is loaded, so that what is missing is said before anything starts.
    Devices evaluate their own, from data or with code that the server's machine has not.

    Raises
    ------
    ConfigError, DataError
        As `load_run_objective`, and for devices if there are not as many as agents.
    """
    if settings.engine.name != "deployment":
        return load_run_objective(settings).space
    assert settings.objective is not None
    agents = getattr(settings.objective, "num_agents", None)
    if None not in (agents, settings.num_clients) and agents != settings.num_clients:
        rule = f"objective.num_agents = {agents}, or another objective.num_agents"
        raise ConfigError("num_clients", settings.num_clients, rule)
    return settings.objective.space()


def nested_guarantees(settings: RunSettings) -> list[Guarantee]:
    """Return what holds for the releases of the planned evaluations themselves, all together.

    Only `training_run` releases anything, and no device runs it.
    """
    assert settings.objective is not None
    assert settings.search is not None
    if settings.objective.name != "training_run":
        return []
    planned = settings.search.num_initial + settings.rounds - 1
    return load_run_objective(settings).guarantees(planned)


def _load_own_objective(task: LocalTask) -> tuple[Objective, int]:
    """Load the objective of a client; return it, and the client's number in it."""
    settings = task.own
    chosen = settings.objective
    assert chosen is not None
    if not task.owns_data:
        return load_run_objective(settings), task.partition_id
    uses_data = chosen.uses_data
    data, model = (settings.data, settings.model) if uses_data else (None, None)
    objective = load_objective(chosen, settings.seed, data, model, is_own=uses_data)
    # A file with one field is the device's own; of one with more, it has the field of its number.
    alone = uses_data or (chosen.name == "landmine" and objective.num_agents == 1)
    return objective, 0 if alone else task.partition_id


def answer(message: Message, context: Context, task: LocalTask) -> Message:
    """Answer a request: the parameters must be those that the settings stand for."""
    settings = task.settings
    task.limits.check_search(planned_parameters(settings), settings.rounds)
    objective, agent = _load_own_objective(task)
    space = objective.space
    state = ContextState(context) if task.state is None else task.state
    log = EvaluationLog(context, task.partition_id, settings.randomness)

    def evaluate(unit: NDArray[np.float64]) -> float:
        # Another number for each, so that what is noisy is drawn anew.
        trial = state.count_observations()
        found = observe(objective, agent, space.decode(unit), trial)
        if found.failed:
            log.tell_failure(trial + 1, found)
            return float("nan")
        # The range of what is the application's own is set by nobody.
        if found.outside is None or not isinstance(settings.objective, UserObjectiveSettings):
            return found.value
        log.tell_outside(trial + 1, found.outside, objective.value_range)
        return found.outside

    optimum = objective.optimum(agent) if settings.randomness == "seeded" else None
    return dp_fts_de_client.train(
        message,
        context,
        evaluate=evaluate,
        accepts=lambda given: given == planned_parameters(settings),
        terms=settings.to_json(),
        state=state,
        snap=space.snap,
        failed_value=objective.value_range[0],
        value_range=objective.value_range,
        optimum=optimum,
        exact=lambda points: objective.values(agent, points),
    )
