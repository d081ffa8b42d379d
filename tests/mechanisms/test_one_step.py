import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.mechanisms.clipping import clip_by_l2_norm
from strategies.mechanisms.one_step import allow_for_step_rounding, one_step_sensitivity
from strategies.mechanisms.sensitivity import (
    SensitivityError,
    allow_for_rounding,
    tighter,
    whole_update_sensitivity,
)
from tests.one_step_training import ARGUMENTS, ONE_STEP


def bound(changes=None, **arguments):
    training = dataclasses.replace(ONE_STEP, **(changes or {}))
    return one_step_sensitivity(training, **{**ARGUMENTS, **arguments})


@pytest.mark.parametrize(
    ("relation", "sampling", "value"),
    [
        ("replace_one", "fixed", 2 * 0.5 * 2.0 / 16),
        ("replace_one", "none", 2 * 0.5 * 2.0 / 16),
        ("replace_one", "poisson", 2 * 0.5 * 2.0 / 16),
        ("add_or_remove_one", "poisson", 0.5 * 2.0 / 16),
        ("add_or_remove_one", "none", 0.5 * 2.0 / 16),
    ],
)
def test_value(relation, sampling, value):
    sensitivity = bound({"sampling": sampling}, neighboring_relation=relation)
    assert sensitivity.value == pytest.approx(value, rel=1e-15)
    assert sensitivity.kind == "one_step"
    assert (sensitivity.unit, sensitivity.neighboring_relation) == ("record", relation)
    assert any("2.0" in condition for condition in sensitivity.conditions)
    assert any("non-finite" in condition for condition in sensitivity.conditions)


@given(st.floats(1e-3, 10), st.floats(1e-3, 10), st.integers(1, 500))
def test_value_is_linear_in_rate_and_norm_and_inverse_in_the_divisor(rate, norm, divisor):
    value = bound({"learning_rates": (rate,), "batch_size": divisor}, max_grad_norm=norm).value
    assert value == pytest.approx(2 * rate * norm / divisor, rel=1e-14)


@pytest.mark.parametrize(
    ("changes", "arguments", "name"),
    [
        ({}, {"num_batches": 2}, "num_batches"),
        ({}, {"num_batches": 0}, "num_batches"),
        ({}, {"num_batches": True}, "num_batches"),
        ({}, {"num_batches": 1.0}, "num_batches"),
        ({"learning_rates": (0.5, 0.5)}, {}, "learning_rates"),
        ({}, {"unit": "client"}, "unit"),
        ({}, {"neighboring_relation": "zero_out"}, "neighboring_relation"),
        (
            {"sampling": "fixed"},
            {"neighboring_relation": "add_or_remove_one"},
            "neighboring_relation",
        ),
        ({}, {"mixes_records": True}, "mixes_records"),
        ({}, {"mixes_records": None}, "mixes_records"),
        ({}, {"max_grad_norm": None}, "max_grad_norm"),
        ({}, {"max_grad_norm": 0.0}, "max_grad_norm"),
        ({}, {"max_grad_norm": -1.0}, "max_grad_norm"),
        ({}, {"max_grad_norm": math.inf}, "max_grad_norm"),
        ({}, {"max_grad_norm": math.nan}, "max_grad_norm"),
        ({}, {"max_grad_norm": True}, "max_grad_norm"),
        ({"per_example_clipping": False}, {}, "per_example_clipping"),
        ({"optimizer": "adam"}, {}, "optimizer"),
        ({"momentum": 0.9}, {}, "momentum"),
        ({"keeps_state_between_rounds": True}, {}, "keeps_state_between_rounds"),
        ({"float64": False}, {}, "float64"),
        ({"defined_for_all_records": False}, {}, "defined_for_all_records"),
        ({"data_dependent_preprocessing": True}, {}, "data_dependent_preprocessing"),
        ({"weight_decay": 5.0}, {}, "weight_decay"),
        ({"proximal": 5.0}, {}, "proximal"),
    ],
)
def test_a_broken_condition_is_named(changes, arguments, name):
    with pytest.raises(SensitivityError, match=name) as caught:
        bound(changes, **arguments)
    assert len(caught.value.broken) == 1
    assert caught.value.broken[0].startswith((name, "learning_rates[0] * (weight_decay"))


def test_all_broken_conditions_are_named_at_once():
    with pytest.raises(SensitivityError) as caught:
        bound({"momentum": 0.5, "float64": False}, unit="client", num_batches=3)
    assert len(caught.value.broken) == 4


@pytest.mark.parametrize("decay", [0.0, 0.3, 3.9])
def test_decay_and_what_the_loss_is_change_nothing(decay):
    assert bound({"weight_decay": decay, "loss": "squared"}).value == bound().value


def test_rounding_adds_a_millionth_and_an_absolute_part():
    exact = bound()
    allowed = allow_for_step_rounding(exact)
    assert allowed.value == pytest.approx(exact.value * (1 + 1e-6) + 1e-9, rel=1e-15)
    assert allowed.conditions == exact.conditions
    whole = whole_update_sensitivity(1.0, unit="record", neighboring_relation="replace_one")
    with pytest.raises(SensitivityError, match="allowed: 'one_step'"):
        allow_for_step_rounding(whole)
    with pytest.raises(SensitivityError, match="allowed: 'convex'"):
        allow_for_rounding(exact, local_steps=1, batch_size=1, feature_norm=1.0)
    # A clipped update keeps the smaller of both bounds.
    assert tighter(whole, allowed) is allowed
    assert tighter(dataclasses.replace(whole, value=1e-3), allowed).kind == "whole_update"


def step(x, gradients, rate, divisor, decay, norm):
    clipped = sum((clip_by_l2_norm(g, norm) for g in gradients), np.zeros_like(x))
    return x - rate * (clipped / divisor + decay * x)


@pytest.mark.parametrize("decay", [0.0, 0.7])
def test_a_search_reaches_the_bound_and_never_passes_it(decay):
    rng = np.random.default_rng(1)
    rate, divisor, norm, farthest = 0.5, 16, 2.0, {"replace_one": 0.0, "add_or_remove_one": 0.0}
    for trial in range(300):
        x = 10 * rng.standard_normal(5)
        others = list(rng.standard_normal((7, 5)) * 10 ** rng.uniform(-2, 4, (7, 1)))
        first = 10 ** rng.uniform(-1, 3) * rng.standard_normal(5)
        second = -first if trial % 2 else 50 * rng.standard_normal(5)
        updates = [
            step(x, [*others, *extra], rate, divisor, decay, norm) - x
            for extra in ([first], [second], [])
        ]
        for relation, other in (("replace_one", 1), ("add_or_remove_one", 2)):
            moved = float(np.linalg.norm(updates[0] - updates[other]))
            farthest[relation] = max(farthest[relation], moved)
    for relation, moved in farthest.items():
        changes = {"weight_decay": decay, "batch_size": divisor}
        value = bound(changes, neighboring_relation=relation, max_grad_norm=norm).value
        assert 0.99 * value < moved <= value * (1 + 1e-12)
