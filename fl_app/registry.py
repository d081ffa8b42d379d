"""The methods: from a name to the server's strategy and the client's answer."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from flwr.app import Context, Message

from fl_app.errors import ConfigError
from fl_app.local_task import LocalTask
from fl_app.models import loss_family
from fl_app.settings import RunSettings, StrategySettings
from strategies.dp_fedpaq import DpFedPaq, DpFedPaqParameters, ParameterError
from strategies.dp_fedpaq import client as dp_fedpaq_client
from strategies.mechanisms.convex_conditions import broken_conditions
from strategies.mechanisms.sensitivity import LocalTraining
from strategies.rounds import OnRound

DEFAULT_NUM_LEVELS = 100
_UPDATE_NOISE = ("sound", "update_noise")


@dataclass(frozen=True)
class Method:
    """One method: how its server side is built and how its client side answers."""

    description: str
    build: Callable[..., DpFedPaq]
    train: Callable[[Message, Context, LocalTask], Message]


def build_strategy(
    settings: RunSettings,
    *,
    client_ids: Mapping[int, int] | None = None,
    num_records: Mapping[int, int] | None = None,
    on_round: OnRound | None = None,
) -> DpFedPaq:
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


def check_settings(settings: RunSettings) -> None:
    """Raise ConfigError unless the method allows the settings."""
    build_strategy(settings)


def check_budget(settings: RunSettings, num_parameters: int) -> None:
    """Raise ConfigError if a run of the settings would exceed its uplink budget."""
    assert settings.num_clients is not None
    try:
        build_strategy(settings).check_budget(settings.rounds, settings.num_clients, num_parameters)
    except ParameterError as error:
        raise name_parameter(error, settings) from None


_TOP_KEYS = (
    "num_sampled_clients",
    "fraction_train",
    "participation",
    "min_replies",
    "randomness",
    "seed",
)


def name_parameter(error: ParameterError, settings: RunSettings) -> ConfigError:
    """Return the error that names a method's parameter as the configuration does."""
    if error.key == "uplink_budget_bits":
        in_bits = settings.budget.uplink_bits is not None
        name = "budget.uplink_bits" if in_bits else "budget.capacity * budget.seconds"
        return ConfigError(name, error.value, f"{error.allowed} bits")
    key = error.key if error.key in _TOP_KEYS else f"strategy.{error.key}"
    return ConfigError(key, error.value, error.allowed)


def _build_dp_fedpaq(
    settings: RunSettings,
    client_ids: Mapping[int, int] | None,
    num_records: Mapping[int, int] | None,
    on_round: OnRound | None,
) -> DpFedPaq:
    chosen = settings.strategy

    def build(sensitivity: str) -> DpFedPaq:
        return DpFedPaq(
            num_sampled_clients=settings.num_sampled_clients,
            fraction_train=settings.fraction_train,
            participation=settings.participation,
            max_participations=chosen.max_participations,
            colluding_fraction=chosen.colluding_fraction,
            uplink_budget_bits=settings.budget.bits,
            min_replies=settings.min_replies,
            client_ids=client_ids,
            num_records=num_records,
            on_round=on_round,
            mode=chosen.mode,
            unit=chosen.unit,
            neighboring_relation=chosen.neighboring_relation,
            sensitivity=sensitivity,
            mechanism=chosen.mechanism,
            noise_at=chosen.noise_at,
            clipping_norm=chosen.clipping_norm,
            max_grad_norm=chosen.max_grad_norm,
            target_epsilon=chosen.target_epsilon,
            noise_multiplier=chosen.noise_multiplier,
            target_delta=chosen.target_delta,
            accountant=chosen.accountant,
            training=None if sensitivity == "whole_update" else _declare_training(settings),
            local_steps=chosen.local_steps,
            local_epochs=chosen.local_epochs,
            sampling=chosen.sampling,
            sample_rate=chosen.sample_rate,
            batch_size=chosen.batch_size,
            learning_rate=chosen.learning_rate,
            lr_schedule=chosen.lr_schedule,
            lr_decay=chosen.lr_decay,
            quantizer=chosen.quantizer,
            num_levels=_num_levels(chosen),
            randomness=settings.randomness,
            seed=settings.seed,
        )

    if chosen.sensitivity != "auto":
        return build(chosen.sensitivity)
    if chosen.max_grad_norm is not None and (chosen.mode, chosen.mechanism) == _UPDATE_NOISE:
        return build("one_step")
    strategy = build("whole_update")
    if not strategy.parameters.client_adds_noise or loss_family(settings.model.name) is None:
        return strategy
    if chosen.mode == "paper":
        return strategy
    try:
        return build("convex")
    except ParameterError as error:
        if error.key != "sensitivity":
            raise
        return strategy


def explain_sensitivity(settings: RunSettings) -> str | None:
    """Return why `auto` chose whole_update, with its larger noise; None if it did not."""
    chosen = settings.strategy
    if chosen.sensitivity != "auto":
        return None
    parameters = build_strategy(settings).parameters
    if not parameters.client_adds_noise or parameters.sensitivity == "convex":
        return None
    if parameters.mode == "paper":
        return None
    if loss_family(settings.model.name) is None:
        return f"model {settings.model.name} is not convex"
    broken = broken_conditions(
        dataclasses.replace(_declare_training(settings), sampling=parameters.record_sampling),
        unit=chosen.unit,
        neighboring_relation=chosen.neighboring_relation,
    )
    return "; ".join(broken)


def _declare_training(settings: RunSettings) -> LocalTraining:
    """Say what `fl_app.local_training` does under these settings, for the convex bound."""
    chosen = settings.strategy
    family = loss_family(settings.model.name)
    return LocalTraining(
        loss="softmax_cross_entropy" if family == "softmax" else settings.model.name,
        optimizer="sgd",
        momentum=0.0,
        weight_decay=chosen.weight_decay,
        proximal=chosen.proximal,
        learning_rates=(chosen.learning_rate,),
        batch_size=chosen.batch_size,
        feature_norm=chosen.feature_norm,
        has_bias=True,
        per_example_clipping=chosen.max_grad_norm is not None,
        class_weights=False,
        input_dropout=False,
        trainable_lower_layers=family is None,
        keeps_state_between_rounds=False,
        float64=True,
        data_dependent_preprocessing=False,
        defined_for_all_records=True,
        sampling="fixed",
        disjoint_batches=chosen.local_steps is not None,
        full_batches=chosen.local_steps is not None,
    )


def _num_levels(chosen: StrategySettings) -> int:
    if chosen.target_bits is not None:
        # A sign and the largest s whose levels 0..s fit in the remaining bits.
        return int(2 ** (chosen.target_bits - 1) - 1)
    return DEFAULT_NUM_LEVELS if chosen.num_levels is None else chosen.num_levels


def _train_dp_fedpaq(message: Message, context: Context, task: LocalTask) -> Message:
    """Answer a request; the parameters must be those that the settings stand for."""
    expected, terms = _expected_parameters(task.settings)
    return dp_fedpaq_client.train(
        message,
        context,
        num_records=task.num_records,
        local_update=task.local_update,
        accepts=lambda given: (
            given == dataclasses.replace(expected, num_participations=given.num_participations)
        ),
        terms=terms,
        state=task.state,
    )


@lru_cache(maxsize=4)
def _expected_parameters(settings: RunSettings) -> tuple[DpFedPaqParameters, str]:
    return build_strategy(settings).parameters, settings.to_json()


METHODS: dict[str, Method] = {
    "dp_fedpaq": Method(
        "clipped, noised and quantised updates, averaged (FedAvg and FedPaq are settings of it)",
        _build_dp_fedpaq,
        _train_dp_fedpaq,
    ),
}

__all__ = ["METHODS", "Method", "build_strategy", "check_settings"]
