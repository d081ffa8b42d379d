"""Parameters: what is refused, what contradicts, and what survives the wire."""

import dataclasses
import json

import pytest

from strategies.dp_fedpaq import DpFedPaqParameters, ParameterError
from strategies.mechanisms.sensitivity import LocalTraining
from tests.softmax_training import SOFTMAX

BASE: dict[str, object] = {
    "num_participations": 20,
    "target_epsilon": 8.0,
    "local_steps": 8,
    "clipping_norm": 4.0,
    "learning_rate": 1.0,
}


POISSON = {
    "sampling": "poisson",
    "sample_rate": 0.1,
    "neighboring_relation": "add_or_remove_one",
}
ONE_STEP = {
    "sensitivity": "one_step",
    "local_steps": 1,
    "max_grad_norm": 0.5,
    "training": SOFTMAX,
    "clipping_norm": None,
}
DP_SGD = {**POISSON, "mechanism": "dp_sgd", "max_grad_norm": 0.5, "clipping_norm": None}
PAPER = {"mode": "paper", "max_grad_norm": 0.5, "clipping_norm": None}


def build(**changes: object) -> DpFedPaqParameters:
    return DpFedPaqParameters(**{**BASE, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_participations", 0),
        ("num_participations", 2.5),
        ("num_participations", True),
        ("unit", "person"),
        ("neighboring_relation", "swap"),
        ("mode", "fast"),
        ("sensitivity", "two_steps"),
        ("mechanism", "laplace"),
        ("noise_at", "both"),
        ("max_grad_norm", 0.0),
        ("max_grad_norm", float("nan")),
        ("sampling", "shuffle"),
        ("sample_rate", 0.0),
        ("sample_rate", 1.5),
        ("sample_rate", True),
        ("clipping_norm", 0.0),
        ("clipping_norm", -1.0),
        ("clipping_norm", float("nan")),
        ("clipping_norm", float("inf")),
        ("clipping_norm", "1"),
        ("target_epsilon", 0.0),
        ("target_epsilon", float("inf")),
        ("target_delta", 0.0),
        ("target_delta", 1.0),
        ("target_delta", "1e-05"),
        ("accountant", "gdp"),
        ("local_steps", 0),
        ("batch_size", 0),
        ("batch_size", 1.5),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("lr_schedule", "cosine"),
        ("lr_decay", 0.0),
        ("lr_decay", 1.5),
        ("lr_decay_rounds", 0),
        ("lr_decay_rounds", 2.0),
        ("quantizer", "sign"),
        ("num_levels", 0),
        ("num_levels", 65_536),
        ("randomness", "fast"),
        ("seed", -1),
    ],
)
def test_a_bad_value_names_key_value_and_what_is_allowed(key: str, value: object) -> None:
    with pytest.raises(ParameterError) as caught:
        build(**{key: value})
    assert caught.value.key == key
    assert repr(value) in str(caught.value)
    assert caught.value.allowed


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_bad_noise_multiplier_is_refused(value: float) -> None:
    with pytest.raises(ParameterError, match="noise_multiplier"):
        build(target_epsilon=None, noise_multiplier=value)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"noise_multiplier": 1.0}, "target_epsilon"),
        ({"target_epsilon": None}, "target_epsilon"),
        ({"local_epochs": 1}, "local_steps"),
        ({"local_steps": None}, "local_steps"),
        ({"clipping_norm": None}, "clipping_norm"),
        ({"unit": "client", "accountant": "pld"}, "accountant"),
        ({"local_steps": None, "local_epochs": 1, "accountant": "pld"}, "accountant"),
        ({"neighboring_relation": "add_or_remove_one"}, "neighboring_relation"),
        ({"neighboring_relation": "zero_out"}, "neighboring_relation"),
        ({"unit": "client", "neighboring_relation": "add_or_remove_one"}, "neighboring_relation"),
        ({"sensitivity": "convex"}, "sensitivity"),
        ({"sensitivity": "convex", "training": SOFTMAX, "unit": "client"}, "sensitivity"),
        ({"sample_rate": 0.1}, "sample_rate"),
        ({"sampling": "poisson"}, "sample_rate"),
        ({**POISSON, "neighboring_relation": "replace_one"}, "neighboring_relation"),
        ({**POISSON, "local_steps": None, "local_epochs": 1}, "sampling"),
        ({**POISSON, "sensitivity": "convex", "training": SOFTMAX}, "sensitivity"),
        ({"max_grad_norm": 1.0}, "max_grad_norm"),
        ({"sensitivity": "one_step", "training": SOFTMAX}, "max_grad_norm"),
        ({**ONE_STEP, "local_steps": 2}, "sensitivity"),
        ({**ONE_STEP, "local_steps": None, "local_epochs": 1}, "sensitivity"),
        ({**ONE_STEP, "training": None}, "sensitivity"),
        ({**ONE_STEP, "unit": "client"}, "sensitivity"),
        ({**DP_SGD, "max_grad_norm": None}, "max_grad_norm"),
        ({**DP_SGD, "unit": "client"}, "unit"),
        ({**DP_SGD, "sampling": "fixed", "sample_rate": None}, "neighboring_relation"),
        ({**DP_SGD, "neighboring_relation": "replace_one"}, "neighboring_relation"),
        ({**DP_SGD, "noise_at": "server"}, "noise_at"),
        ({**DP_SGD, "sensitivity": "one_step", "training": SOFTMAX}, "sensitivity"),
        ({**PAPER, "max_grad_norm": None}, "max_grad_norm"),
        ({**PAPER, "unit": "client"}, "unit"),
        ({**PAPER, "noise_at": "server"}, "noise_at"),
        ({**PAPER, "target_epsilon": None, "noise_multiplier": 1.0}, "target_epsilon"),
        ({"noise_at": "server", "clipping_norm": None}, "clipping_norm"),
        ({"noise_at": "server", "sensitivity": "convex", "training": SOFTMAX}, "quantizer"),
        ({**ONE_STEP, "noise_at": "server", "clipping_norm": 1.0}, "quantizer"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, object], key: str) -> None:
    with pytest.raises(ParameterError) as caught:
        build(**changes)
    assert caught.value.key == key


@pytest.mark.parametrize(
    "broken",
    [
        {"momentum": 0.9},
        {"optimizer": "adam"},
        {"weight_decay": 1.5},
        {"feature_norm": None},
        {"per_example_clipping": True},
        {"class_weights": True},
        {"input_dropout": True},
        {"trainable_lower_layers": True},
        {"keeps_state_between_rounds": True},
        {"float64": False},
        {"data_dependent_preprocessing": True},
        {"defined_for_all_records": False},
        {"loss": "squared"},
    ],
)
def test_each_broken_condition_of_the_convex_bound_is_refused(broken: dict[str, object]) -> None:
    training = dataclasses.replace(SOFTMAX, **broken)  # type: ignore[arg-type]
    with pytest.raises(ParameterError) as caught:
        build(sensitivity="convex", training=training)
    assert caught.value.key == "sensitivity"


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": 2.01},
        {"local_steps": None, "local_epochs": 1},
    ],
)
def test_conditions_that_the_parameters_themselves_break(changes: dict[str, object]) -> None:
    with pytest.raises(ParameterError, match="sensitivity"):
        build(sensitivity="convex", training=SOFTMAX, **changes)


def test_the_convex_sensitivity_follows_the_learning_rate_and_not_the_steps() -> None:
    # 2 G eta / b with R^2 = 1 + 1, G = sqrt(2) R = 2: 4 / 16 at eta = 1.
    chosen = build(sensitivity="convex", training=SOFTMAX)
    assert chosen.sensitivity_in_round(1).value == pytest.approx(0.25, rel=1e-4)
    assert chosen.sensitivity_in_round(1).value > 0.25  # the allowance for rounding
    longer = build(sensitivity="convex", training=SOFTMAX, local_steps=80)
    assert longer.sensitivity_in_round(1).value == pytest.approx(0.25, rel=1e-3)
    falling = build(sensitivity="convex", training=SOFTMAX, lr_schedule="exponential", lr_decay=0.5)
    assert falling.sensitivity_in_round(3).value == pytest.approx(0.25 / 4, rel=1e-4)
    # Where the step is smaller than the last bits of the model, rounding decides.
    assert falling.sensitivity_in_round(90).value >= 8e-9
    clipped = build(sensitivity="convex", training=SOFTMAX, clipping_norm=0.1)
    assert clipped.sensitivity_in_round(1).value == pytest.approx(0.2)


def test_learning_rate_schedules() -> None:
    # arXiv 2101.12240's experiments: eta, eta, then eta / ((i - 1) E + 1), i counted from 0.
    chosen = build(lr_schedule="inverse_rounds", learning_rate=0.1)
    rates = [chosen.learning_rate_in_round(t) for t in (1, 2, 3, 4)]
    assert rates == pytest.approx([0.1, 0.1, 0.1 / 9, 0.1 / 17])
    chosen = build(lr_schedule="exponential", learning_rate=0.1, lr_decay=0.9)
    assert [chosen.learning_rate_in_round(t) for t in (1, 3)] == pytest.approx([0.1, 0.081])
    chosen = build(lr_schedule="exponential", learning_rate=0.1, lr_decay=0.9, lr_decay_rounds=3)
    rates = [chosen.learning_rate_in_round(t) for t in (1, 3, 4, 6, 7)]
    assert rates == pytest.approx([0.1, 0.1, 0.09, 0.09, 0.081])
    assert build().learning_rate_in_round(99) == 1.0


@pytest.mark.parametrize("training", [None, SOFTMAX])
def test_the_wire_keeps_everything(training: LocalTraining | None) -> None:
    chosen = build(training=training)
    assert DpFedPaqParameters.from_json(chosen.to_json()) == chosen


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"training": null}', '{"training": 3, "num_participations": 1}'],
)
def test_malformed_parameters_are_refused(text: str) -> None:
    with pytest.raises(ParameterError):
        DpFedPaqParameters.from_json(text)


def test_unknown_keys_on_the_wire_are_refused() -> None:
    values = json.loads(build().to_json())
    with pytest.raises(ParameterError):
        DpFedPaqParameters.from_json(json.dumps({**values, "less_noise": True}))


def test_sample_rates() -> None:
    chosen = build()
    assert chosen.min_records == 128
    assert chosen.inclusion_probability(143) == 128 / 143
    assert chosen.inclusion_probability(128) == 1.0
    assert build(unit="client").inclusion_probability(1000) == 1.0
    for changes in (POISSON, DP_SGD):
        assert build(**changes).inclusion_probability(10**6) == 0.1
        assert build(**changes).min_records == 1
        assert not build(**changes).is_size_public


def test_releases_of_a_participation() -> None:
    assert build().releases(1.0, 143, 3).num_releases == 3
    assert build(**POISSON).releases(1.0, 143, 3).num_releases == 3
    # DP-SGD releases every local step.
    assert build(**DP_SGD).releases(1.0, 143, 3).num_releases == 3 * 8


@pytest.mark.parametrize(
    ("changes", "kind", "value"),
    [
        ({}, "whole_update", 8.0),
        (POISSON, "whole_update", 8.0),
        (DP_SGD, "dp_sgd", 0.5),
        # 2 eta C / b and eta C / b, with eta = 1, C = .5, b = 16.
        (ONE_STEP, "one_step", 1 / 16),
        ({**ONE_STEP, **POISSON}, "one_step", 0.5 / 16),
        ({**ONE_STEP, "clipping_norm": 0.01}, "whole_update", 0.02),
        (
            {**ONE_STEP, "noise_at": "server", "quantizer": "none", "clipping_norm": 4.0},
            "one_step",
            1 / 16,
        ),
    ],
)
def test_sensitivities(changes: dict[str, object], kind: str, value: float) -> None:
    found = build(**changes).sensitivity_in_round(1)
    assert found.kind == kind
    assert found.value == pytest.approx(value, rel=1e-5)
    assert found.value >= value
    # A bound on what steps do, and not a norm that is enforced, leaves room for rounding.
    assert (found.value > value * (1 + 5e-7)) == (kind == "one_step")


def test_rounding_before_the_server_s_noise_is_allowed_for() -> None:
    values = {**ONE_STEP, "quantizer": "none", "clipping_norm": 4.0}
    here, there = (
        build(**values, noise_at=place).sensitivity_in_round(1).value
        for place in ("client", "server")
    )
    # Each of two updates of norm 4 is rounded to float32, whose unit is 2^-24.
    assert there - here == pytest.approx(2 * 4.0 * 2.0**-24, rel=1e-6)


@pytest.mark.parametrize("changes", [POISSON, ONE_STEP, DP_SGD, PAPER])
def test_the_wire_keeps_every_mechanism(changes: dict[str, object]) -> None:
    chosen = build(**changes)
    assert DpFedPaqParameters.from_json(chosen.to_json()) == chosen


def test_who_adds_noise() -> None:
    assert build().client_adds_noise
    assert build(**PAPER).client_adds_noise
    # In the steps, or at the server: not to the finished update.
    for changes in (DP_SGD, {"noise_at": "server"}):
        assert build(**changes).adds_noise
        assert not build(**changes).client_adds_noise
