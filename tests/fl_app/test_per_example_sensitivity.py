"""Clipped steps against records that attack, and what their noise is added to."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_app import per_example_training
from fl_app.data import DataError, Records
from fl_app.local_training import StepSettings
from fl_app.model_arrays import to_arrays
from fl_app.per_example_training import clipped_steps, num_trainable
from strategies.mechanisms.one_step import allow_for_step_rounding, one_step_sensitivity
from tests.fl_app.per_example_cases import MODELS, SHAPE, distance, make_case
from tests.one_step_training import ARGUMENTS, ONE_STEP


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8),
    st.floats(-30, 30),
    st.floats(1e-3, 1e3),
)
def test_a_clipped_gradient_is_inside_the_ball_in_exact_arithmetic(entries, exponent, bound):
    row = torch.tensor([entries], dtype=torch.float64) * 10**exponent
    clipped = per_example_training._sum_clipped([row[:, :1], row[:, 1:]], bound)
    squares = sum(Fraction(float(entry)) ** 2 for entry in clipped)
    assert squares <= Fraction(bound) ** 2
    norm = float(row.norm())
    assert norm < 1e-100 or math.sqrt(float(squares)) >= min(norm, bound) * (1 - 1e-12)


def adversaries():
    """Records that differ from a plain one as much as records can."""
    rng = np.random.default_rng(4)
    plain = rng.standard_normal(SHAPE)
    odd = plain.copy()
    odd[0, 3, 3] = np.nan
    infinite = plain.copy()
    infinite[0, 0, 0] = np.inf
    constant = {"huge": 1e30, "largest": 3e38, "tiny": 1e-30, "zero": 0.0}
    features = {
        "plain": plain,
        "again": plain,
        "opposite": -plain,
        "nan": odd,
        "infinite": infinite,
        **{key: value * np.sign(plain) for key, value in constant.items()},
    }
    return [
        (key, value.astype(np.float32), label)
        for key, value in features.items()
        for label in (0, 1)
    ]


@pytest.mark.parametrize("name", MODELS)
def test_one_record_moves_the_update_by_the_sensitivity_and_never_more(name):
    model, _, _, _ = make_case(name)
    rng = np.random.default_rng(2)
    arrays = {n: a.astype(np.float64) for n, a in to_arrays(model).items()}
    weight, bias = list(arrays)[-2:]
    # The model wavers between classes 0 and 1: their gradients are opposite.
    arrays[weight][1] = arrays[weight][0]
    arrays[bias][:2] = 30.0
    rate, bound, divisor = 0.7, 0.03, 5
    step = StepSettings(rate, weight_decay=0.4, proximal=0.2, float64=True)
    others = rng.standard_normal((6, *SHAPE)).astype(np.float32)
    updates = {}
    for key, features, label in [*adversaries(), ("absent", None, None)]:
        # The record's place is the middle, so that others have records on both sides.
        middle = [] if features is None else [features]
        records = Records(
            np.stack([*others[:3], *middle, *others[3:]]),
            np.array([0, 1, 2, *([] if label is None else [label]), 3, 4, 1]),
        )
        trained, _ = clipped_steps(
            model,
            arrays,
            records,
            [np.arange(len(records))],
            step,
            max_grad_norm=bound,
            batch_divisor=divisor,
        )
        assert all(np.isfinite(a).all() for a in trained.values())
        updates[key, label] = {n: a - arrays[n] for n, a in trained.items()}
    exact, allowed = {}, {}
    declared = dataclasses.replace(ONE_STEP, learning_rates=(rate,), batch_size=divisor)
    for relation in ("replace_one", "add_or_remove_one"):
        exact[relation] = one_step_sensitivity(
            declared,
            **{**ARGUMENTS, "neighboring_relation": relation, "max_grad_norm": bound},
        )
        allowed[relation] = allow_for_step_rounding(exact[relation]).value
    absent = updates.pop(("absent", None))
    replaced = max(distance(a, b) for a in updates.values() for b in updates.values())
    added = max(distance(a, absent) for a in updates.values())
    assert 0.99 * exact["replace_one"].value < replaced <= allowed["replace_one"]
    assert 0.99 * exact["add_or_remove_one"].value < added <= allowed["add_or_remove_one"]
    # A record without a usable gradient is as good as absent.
    assert distance(updates["nan", 0], absent) <= 1e-9


def test_repeated_records_count_once_each():
    model, arrays, records, _ = make_case("softmax_regression")
    step = StepSettings(1.0, float64=True)
    same = Records(np.repeat(records.features[:1], 8, axis=0), np.repeat(records.labels[:1], 8))
    options = {"max_grad_norm": 0.1, "batch_divisor": 4}
    moved = [
        distance(clipped_steps(model, arrays, same, [np.arange(n)], step, **options)[0], arrays)
        for n in (1, 8)
    ]
    assert moved == pytest.approx([0.1 / 4, 8 * 0.1 / 4], rel=1e-6)


def test_a_record_cannot_be_in_a_batch_twice():
    model, arrays, records, _ = make_case()
    with pytest.raises(DataError, match=r"batches\[1\]: a record twice"):
        clipped_steps(
            model,
            arrays,
            records,
            [np.arange(3), np.array([4, 2, 4])],
            StepSettings(0.1),
            max_grad_norm=1.0,
            batch_divisor=2,
        )


def test_noise_is_added_to_the_sum_once_a_step_and_to_empty_batches_too():
    model, arrays, records, batches = make_case("softmax_regression")
    size = num_trainable(model)
    assert size == sum(a.size for a in arrays.values()) == 650
    noise = np.random.default_rng(1).standard_normal((4, size))
    asked = []

    def draw(step):
        asked.append(step)
        return noise[step]

    step = StepSettings(0.5, float64=True)
    options = {"max_grad_norm": 0.2, "batch_divisor": 8}
    for chosen in ([0], [2], [0, 1, 2, 3]):
        asked.clear()
        used = [batches[i] for i in chosen]
        trained, loss = clipped_steps(
            model, arrays, records, used, step, **options, step_noise=draw
        )
        assert asked == list(range(len(chosen)))
        assert (loss is None) == (chosen == [2])
    for chosen, clipped_sum in (([0], True), ([2], False)):
        used = [batches[i] for i in chosen]
        noisy, _ = clipped_steps(model, arrays, records, used, step, **options, step_noise=draw)
        quiet = arrays
        if clipped_sum:
            quiet, _ = clipped_steps(model, arrays, records, used, step, **options)
        # The vector is in the order of the model's parameters: weight, then bias.
        moved = np.concatenate([(noisy[n] - quiet[n]).ravel() for n in arrays])
        assert np.abs(moved + 0.5 * noise[0] / 8).max() < 1e-12
    # All four steps: noise moves the model, so later gradients differ too; decay acts on it.
    assert np.isfinite(distance(trained, arrays))


@pytest.mark.parametrize(
    "noise",
    [
        np.zeros(649),
        np.zeros((1, 650)),
        np.zeros(650, dtype=np.float32),
        np.full(650, np.nan),
        [0.0] * 650,
        None,
    ],
)
def test_bad_noise_is_refused(noise):
    model, arrays, records, batches = make_case("softmax_regression")
    with pytest.raises(ValueError, match=r"step_noise: step 0; finite float64 of shape \(650,\)"):
        clipped_steps(
            model,
            arrays,
            records,
            batches,
            StepSettings(0.1),
            max_grad_norm=1.0,
            batch_divisor=2,
            step_noise=lambda step: noise,
        )
