"""The methods: from a name to the server's strategy and the client's answer."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flwr.app import Context, Message

from fl_app.errors import ConfigError
from fl_app.local_task import LocalTask
from fl_app.niss_keys import check_niss_keys, read_coalitions, read_epsilons
from fl_app.search_task import answer, build_search
from fl_app.settings import RunSettings
from fl_app.strategy_settings import NissSettings
from fl_app.update_settings import resolve_sensitivity, update_fields
from strategies.dp_fedpaq import DpFedPaq, DpFedPaqParameters, ParameterError
from strategies.dp_fedpaq import client as dp_fedpaq_client
from strategies.dp_fedpaq.cohort import CohortPlan
from strategies.dp_fedpaq.messages import ROUND_KEY
from strategies.dp_fts_de import DpFtsDe
from strategies.niss import Niss, NissParameters
from strategies.niss import client as niss_client
from strategies.niss.parameters import fill_plan
from strategies.niss.run_plan import plan_ready
from strategies.rounds import OnRound

TrainingStrategy = DpFedPaq | Niss
FederatedStrategy = TrainingStrategy | DpFtsDe


@dataclass(frozen=True)
class Method:
    """One method: how its server side is built and how its client side answers."""

    description: str
    build: Callable[..., FederatedStrategy]
    train: Callable[[Message, Context, LocalTask], Message]


def build_strategy(
    settings: RunSettings,
    *,
    client_ids: Mapping[int, int] | None = None,
    num_records: Mapping[int, int] | None = None,
    on_round: OnRound | None = None,
) -> FederatedStrategy:
    """Build the strategy of a run.

    Parameters
    ----------
    settings : RunSettings
    client_ids : mapping of int to int, or None
        Node id to partition number.
    num_records : mapping of int to int, or None
        Partition number to number of records, where it may be known (simulation).
    on_round : callable or None
        Called after each round; False stops the run.

    Raises
    ------
    ConfigError
        If the method does not allow the settings.
    """
    method = METHODS[settings.strategy.name]
    try:
        return method.build(settings, client_ids, num_records, on_round)
    except ParameterError as error:
        raise name_parameter(error, settings) from None


def update_of(strategy: TrainingStrategy) -> DpFedPaqParameters:
    """Return the parameters of a strategy's updates."""
    return strategy.parameters.update if isinstance(strategy, Niss) else strategy.parameters


def check_settings(settings: RunSettings) -> None:
    """Raise ConfigError unless the method allows the settings."""
    build_strategy(settings)


def check_budget(settings: RunSettings, num_parameters: int) -> None:
    """Raise ConfigError if a run of the settings would exceed its uplink budget."""
    assert settings.num_clients is not None
    strategy = build_strategy(settings)
    assert not isinstance(strategy, DpFtsDe)
    try:
        strategy.check_budget(settings.rounds, settings.num_clients, num_parameters)
    except ParameterError as error:
        raise name_parameter(error, settings) from None


_TOP_KEYS = (
    "num_clients",
    "num_sampled_clients",
    "fraction_train",
    "participation",
    "min_replies",
    "randomness",
    "seed",
)

# Of a search's mathematics, which has names of its own.
_RENAMED = {"num_agents": "num_clients", "num_features": "strategy.num_random_features"}


def name_parameter(error: ParameterError, settings: RunSettings) -> ConfigError:
    """Return the error that names a method's parameter as the configuration does."""
    if error.key == "uplink_budget_bits":
        in_bits = settings.budget.uplink_bits is not None
        name = "budget.uplink_bits" if in_bits else "budget.capacity * budget.seconds"
        return ConfigError(name, error.value, f"{error.allowed} bits")
    key = error.key if error.key in _TOP_KEYS else f"strategy.{error.key}"
    key = _RENAMED.get(error.key, key)
    return ConfigError(key, error.value, error.allowed)


def _build_dp_fedpaq(
    settings: RunSettings,
    client_ids: Mapping[int, int] | None,
    num_records: Mapping[int, int] | None,
    on_round: OnRound | None,
) -> DpFedPaq:
    def build(sensitivity: str) -> DpFedPaq:
        return DpFedPaq(
            **_cohort_fields(settings),
            colluding_fraction=settings.training.colluding_fraction,
            client_ids=client_ids,
            num_records=num_records,
            on_round=on_round,
            **update_fields(settings, sensitivity),
        )

    return resolve_sensitivity(settings, build, update_of)


def _build_niss(
    settings: RunSettings,
    client_ids: Mapping[int, int] | None,
    num_records: Mapping[int, int] | None,
    on_round: OnRound | None,
) -> TrainingStrategy:
    chosen = settings.strategy
    assert isinstance(chosen, NissSettings)
    check_niss_keys(settings)
    if chosen.noise_at == "server":
        # The central comparison: nothing needs to cancel where the server is trusted.
        return _build_dp_fedpaq(settings, client_ids, num_records, on_round)
    own = {
        key: getattr(chosen, key)
        for key in (
            *("mode", "pair_noise", "graph", "colluding_fraction", "expected_dropouts"),
            *("min_ready", "max_dropouts", "max_attempts", "weighting", "unit_noise_std", "tau"),
            "collusion_bound",
        )
    }
    own["client_epsilons"] = read_epsilons(chosen)
    own["coalitions"] = read_coalitions(chosen)

    def build(sensitivity: str) -> Niss:
        return Niss(
            **_cohort_fields(settings),
            client_ids=client_ids,
            num_records=num_records,
            on_round=on_round,
            **{**update_fields(settings, sensitivity), **own},
        )

    return resolve_sensitivity(settings, build, update_of)


def _cohort_fields(settings: RunSettings) -> dict[str, Any]:
    """Return how a round's clients are drawn, as the strategies take it."""
    return {
        "num_sampled_clients": settings.num_sampled_clients,
        "fraction_train": settings.fraction_train,
        "participation": settings.participation,
        "max_participations": settings.training.max_participations,
        "min_replies": settings.min_replies,
        "uplink_budget_bits": settings.budget.bits,
    }


def _train_dp_fedpaq(message: Message, context: Context, task: LocalTask) -> Message:
    """Answer a request; the parameters must be those that the settings stand for."""
    expected, terms = _expected_parameters(task.settings)
    assert isinstance(expected, DpFedPaqParameters)

    def accepts(given: DpFedPaqParameters) -> bool:
        if given != dataclasses.replace(expected, num_participations=given.num_participations):
            return False
        task.limits.check_update(given, task.num_records, _is_charged(message, task))
        return True

    return dp_fedpaq_client.train(
        message,
        context,
        num_records=lambda: task.num_records_for(message),
        local_update=task.local_update,
        accepts=accepts,
        terms=terms,
        state=task.state,
    )


def _is_charged(message: Message, task: LocalTask) -> bool:
    """Return whether a request is for the round that was charged last: it takes nothing more."""
    if task.state is None:
        return False
    entry = task.state.read_entry(dp_fedpaq_client.METHOD)
    asked = message.content["config"].get(ROUND_KEY)
    return entry.request != "" and entry.last_round == asked


def _train_niss(message: Message, context: Context, task: LocalTask) -> Message:
    """Answer a request; the parameters must be those that the settings stand for."""
    expected, terms = _expected_parameters(task.settings)
    if isinstance(expected, DpFedPaqParameters):
        return _train_dp_fedpaq(message, context, task)
    max_epsilon = task.limits.own_epsilon()

    def accepts(given: NissParameters) -> bool:
        if given != fill_plan(expected, given, _planned_ready(task.settings)):
            return False
        task.limits.check_niss(given, task.partition_id, task.num_records, max_epsilon, task.trust)
        return True

    return niss_client.train(
        message,
        context,
        num_records=lambda: task.num_records_for(message),
        local_update=task.local_update,
        accepts=accepts,
        terms=terms,
        state=task.state,
        trust=task.trust,
        max_epsilon=max_epsilon,
    )


@lru_cache(maxsize=4)
def _planned_ready(settings: RunSettings) -> tuple[int, int, int]:
    """Return what the settings lead to: who must be ready, who may be, and the clients of all."""
    chosen = settings.strategy
    assert isinstance(chosen, NissSettings)
    cohorts = CohortPlan(
        settings.num_sampled_clients, settings.fraction_train, settings.participation
    )
    if settings.num_clients is None:
        raise ConfigError("num_clients", None, "a number: it decides how many may collude")
    members = sum(len(each.clients) for each in chosen.coalitions)
    return plan_ready(cohorts, settings.num_clients, chosen.min_ready, members)


@lru_cache(maxsize=4)
def _expected_parameters(
    settings: RunSettings,
) -> tuple[DpFedPaqParameters | NissParameters, str]:
    strategy = build_strategy(settings)
    assert not isinstance(strategy, DpFtsDe)
    return strategy.parameters, settings.to_json()


METHODS: dict[str, Method] = {
    "dp_fedpaq": Method(
        "clipped, noised and quantised updates, averaged (FedAvg and FedPaq are settings of it)",
        _build_dp_fedpaq,
        _train_dp_fedpaq,
    ),
    "niss": Method(
        "noise that cancels in the sum: accuracy near a trusted server's, hidden from the server",
        _build_niss,
        _train_niss,
    ),
    "dp_fts_de": Method(
        "Bayesian optimisation of each client's own objective, helped by noisy sums of the others'",
        lambda settings, client_ids, _, on_round: build_search(settings, client_ids, on_round),
        answer,
    ),
}

__all__ = ["METHODS", "Method", "build_strategy", "check_settings"]
