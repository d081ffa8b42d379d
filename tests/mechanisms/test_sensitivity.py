import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.mechanisms.convex_conditions import broken_conditions, loss_constants
from strategies.mechanisms.sensitivity import (
    MAX_MODEL_ENTRY,
    LocalTraining,
    Sensitivity,
    SensitivityError,
    allow_for_rounding,
    check_model,
    convex_sensitivity,
    tighter,
    whole_update_sensitivity,
)
from tests.softmax_training import SOFTMAX

RECORD = {"unit": "record", "neighboring_relation": "replace_one"}


def training(**changes):
    return dataclasses.replace(SOFTMAX, **changes)


class TestWholeUpdate:
    @pytest.mark.parametrize(
        ("unit", "relation", "factor"),
        [
            ("record", "replace_one", 2.0),
            ("record", "add_or_remove_one", 2.0),
            ("client", "replace_one", 2.0),
            ("client", "zero_out", 1.0),
        ],
    )
    def test_value(self, unit, relation, factor):
        sensitivity = whole_update_sensitivity(0.75, unit=unit, neighboring_relation=relation)
        assert sensitivity.value == factor * 0.75
        assert (sensitivity.kind, sensitivity.unit) == ("whole_update", unit)
        assert sensitivity.neighboring_relation == relation
        assert any("0.75" in condition for condition in sensitivity.conditions)

    def test_a_zeroed_out_client_must_still_upload_noise(self):
        sensitivity = whole_update_sensitivity(1.0, unit="client", neighboring_relation="zero_out")
        assert any("the noise stays" in condition for condition in sensitivity.conditions)

    @pytest.mark.parametrize(
        ("unit", "relation"),
        [
            ("record", "zero_out"),
            ("client", "add_or_remove_one"),
            ("user", "replace_one"),
            ("record", "replace"),
            ("record", None),
            (["record"], "replace_one"),
        ],
    )
    def test_unknown_combinations_are_refused(self, unit, relation):
        with pytest.raises(SensitivityError, match="neighboring_relation"):
            whole_update_sensitivity(1.0, unit=unit, neighboring_relation=relation)

    @pytest.mark.parametrize(
        "clipping_norm", [None, 0.0, -1.0, math.inf, math.nan, True, "1", 1.7e308]
    )
    def test_bad_clipping_norm_is_refused(self, clipping_norm):
        with pytest.raises(SensitivityError, match="finite and > 0"):
            whole_update_sensitivity(clipping_norm, **RECORD)


class TestConvexValue:
    @pytest.mark.parametrize(
        ("changes", "value"),
        [
            ({}, 2 * math.sqrt(2) * math.sqrt(2) * 1.0 / 16),
            ({"has_bias": False}, 2 * math.sqrt(2) * 1.0 / 16),
            ({"feature_norm": 3.0, "learning_rates": (0.1,)}, 2 * math.sqrt(20) * 0.1 / 16),
            ({"loss": "binary_logistic"}, 2 * math.sqrt(2) / 16),
            (
                {"loss": "huber_regression", "huber_threshold": 0.3},
                2 * 0.3 * math.sqrt(2) / 16,
            ),
            ({"learning_rates": (0.1, 0.5, 0.2)}, 2 * 2 * 0.5 / 16),
            ({"learning_rates": (2.0,)}, 2 * 2 * 2.0 / 16),  # eta L = 2 exactly
            ({"batch_size": 1}, 4.0),
            ({"sampling": "none"}, 2 * 2 / 16),
            ({"weight_decay": 0.5, "proximal": 0.5}, 2 * 2 / 16),  # eta (L + ...) = 2 exactly
        ],
    )
    def test_two_g_eta_over_b(self, changes, value):
        sensitivity = convex_sensitivity(training(**changes), **RECORD)
        assert sensitivity.value == pytest.approx(value, rel=1e-14)
        assert sensitivity.kind == "convex"
        assert len(sensitivity.conditions) >= 5

    @pytest.mark.parametrize(
        ("changes", "gradient_bound", "smoothness"),
        [
            ({}, 2.0, 1.0),
            ({"has_bias": False}, math.sqrt(2), 0.5),
            ({"loss": "binary_logistic"}, math.sqrt(2), 0.5),
            ({"loss": "huber_regression", "huber_threshold": 3.0}, 3 * math.sqrt(2), 2.0),
        ],
    )
    def test_loss_constants(self, changes, gradient_bound, smoothness):
        constants = loss_constants(training(**changes))
        assert constants.gradient_bound == pytest.approx(gradient_bound, rel=1e-15)
        assert constants.smoothness == pytest.approx(smoothness, rel=1e-15)

    def test_no_constants_where_there_is_no_bound(self):
        assert loss_constants(training(loss="squared")) is None
        assert loss_constants(training(feature_norm=None)) is None
        assert loss_constants(training(loss="huber_regression")) is None

    @given(
        st.floats(1e-3, 1.0),
        st.integers(1, 200),
        st.integers(1, 1000),
        st.floats(1e-3, 1.0),
        st.booleans(),
    )
    def test_independent_of_the_number_of_steps(self, rate, steps, batch, norm, has_bias):
        changes = {"batch_size": batch, "feature_norm": norm, "has_bias": has_bias}
        one = convex_sensitivity(training(learning_rates=(rate,), **changes), **RECORD)
        many = convex_sensitivity(training(learning_rates=(rate,) * steps, **changes), **RECORD)
        decaying = tuple(rate / (step + 1) for step in range(steps))
        decayed = convex_sensitivity(training(learning_rates=decaying, **changes), **RECORD)
        assert one.value == many.value == decayed.value


BROKEN = [
    ({"loss": "squared"}, "loss = 'squared'"),
    ({"loss": "hinge"}, "loss = 'hinge'"),
    ({"loss": "huber_regression"}, "huber_threshold = None"),
    ({"optimizer": "adam"}, "optimizer = 'adam'"),
    ({"momentum": 0.9}, "momentum = 0.9"),
    ({"learning_rates": (2.01,)}, "learning_rates[0] = 2.01"),
    ({"learning_rates": (1.0, 2.1, 1.0)}, "learning_rates[1] = 2.1"),
    ({"learning_rates": (2.0,), "weight_decay": 0.05}, "learning_rates[0] = 2.0"),
    ({"learning_rates": (2.0,), "proximal": 0.05}, "learning_rates[0] = 2.0"),
    ({"feature_norm": 1.01, "learning_rates": (1.99,)}, "learning_rates[0] = 1.99"),
    ({"loss": "binary_logistic", "learning_rates": (4.1,)}, "learning_rates[0] = 4.1"),
    (
        {"loss": "huber_regression", "huber_threshold": 1.0, "learning_rates": (1.1,)},
        "learning_rates[0] = 1.1",
    ),
    ({"feature_norm": None}, "feature_norm = None"),
    ({"per_example_clipping": True}, "per_example_clipping = True"),
    ({"class_weights": True}, "class_weights = True"),
    ({"input_dropout": True}, "input_dropout = True"),
    ({"trainable_lower_layers": True}, "trainable_lower_layers = True"),
    ({"keeps_state_between_rounds": True}, "keeps_state_between_rounds = True"),
    ({"float64": False}, "float64 = False"),
    ({"data_dependent_preprocessing": True}, "data_dependent_preprocessing = True"),
    ({"defined_for_all_records": False}, "defined_for_all_records = False"),
    ({"sampling": "poisson"}, "sampling = 'poisson'"),
    ({"disjoint_batches": False}, "disjoint_batches = False"),
    ({"full_batches": False}, "full_batches = False"),
]


class TestConvexRefusals:
    @pytest.mark.parametrize(("changes", "named"), BROKEN)
    def test_each_broken_condition_is_refused_by_name(self, changes, named):
        with pytest.raises(SensitivityError) as refusal:
            convex_sensitivity(training(**changes), **RECORD)
        assert len(refusal.value.broken) == 1
        assert refusal.value.broken[0].startswith(named + "; allowed: ")
        assert refusal.value.broken[0] in str(refusal.value)

    @pytest.mark.parametrize(
        ("unit", "relation", "named"),
        [
            ("client", "replace_one", "unit = 'client'"),
            ("record", "add_or_remove_one", "neighboring_relation = 'add_or_remove_one'"),
            ("record", "zero_out", "neighboring_relation = 'zero_out'"),
        ],
    )
    def test_other_relations_are_refused(self, unit, relation, named):
        with pytest.raises(SensitivityError) as refusal:
            convex_sensitivity(SOFTMAX, unit=unit, neighboring_relation=relation)
        assert [sentence.split(";")[0] for sentence in refusal.value.broken] == [named]

    def test_all_broken_conditions_are_named_at_once(self):
        broken = training(momentum=0.9, float64=False, sampling="poisson", learning_rates=(5.0,))
        with pytest.raises(SensitivityError) as refusal:
            convex_sensitivity(broken, unit="client", neighboring_relation="zero_out")
        assert len(refusal.value.broken) == 6
        message = str(refusal.value)
        for name in ("momentum", "float64", "sampling", "learning_rates", "unit", "neighboring"):
            assert name in message

    def test_every_field_that_can_break_the_bound_has_a_case(self):
        # batch_size and has_bias have no wrong value: they enter G, L and the bound itself.
        fields = {field.name for field in dataclasses.fields(LocalTraining)}
        covered = {name for changes, _ in BROKEN for name in changes}
        assert fields - covered == {"batch_size", "has_bias"}

    @pytest.mark.parametrize("feature_norm", [0.1, 1.0, 3.7, 28.0])
    @pytest.mark.parametrize("weight_decay", [0.0, 1e-3, 0.05])
    def test_the_printed_learning_rate_limit_is_accepted(self, feature_norm, weight_decay):
        changes = {"feature_norm": feature_norm, "weight_decay": weight_decay}
        (sentence,) = broken_conditions(training(learning_rates=(1e9,), **changes), **RECORD)
        limit = float(sentence.split("proximal) = ")[1].split(" with L")[0])
        assert not broken_conditions(training(learning_rates=(limit,), **changes), **RECORD)
        above = limit * (1 + 1e-12)
        assert broken_conditions(training(learning_rates=(above,), **changes), **RECORD)

    @pytest.mark.parametrize("feature_norm", [1e200, 1e-200])
    def test_a_feature_norm_whose_square_is_out_of_range_is_refused(self, feature_norm):
        with pytest.raises(SensitivityError):
            convex_sensitivity(training(feature_norm=feature_norm, has_bias=False), **RECORD)


class TestMalformedDeclarations:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("momentum", math.nan),
            ("momentum", -0.1),
            ("momentum", 1.0),
            ("momentum", False),
            ("weight_decay", -1e-3),
            ("weight_decay", math.inf),
            ("proximal", "0"),
            ("proximal", -1.0),
            ("learning_rates", ()),
            ("learning_rates", [0.1]),
            ("learning_rates", 0.1),
            ("learning_rates", (0.1, math.nan)),
            ("learning_rates", (0.0,)),
            ("batch_size", 0),
            ("batch_size", 1.0),
            ("batch_size", True),
            ("feature_norm", 0.0),
            ("feature_norm", math.inf),
            ("huber_threshold", -1.0),
            ("has_bias", 1),
            ("full_batches", None),
            ("float64", "yes"),
            ("sampling", "shuffle"),
        ],
    )
    def test_value_is_refused_by_name(self, name, value):
        with pytest.raises(ValueError, match=name):
            training(**{name: value})

    def test_nothing_is_assumed_that_was_not_declared(self):
        declared = {
            field.name: getattr(SOFTMAX, field.name)
            for field in dataclasses.fields(LocalTraining)
            if field.name != "huber_threshold"
        }
        assert LocalTraining(**declared) == SOFTMAX
        for name in declared:
            rest = {key: value for key, value in declared.items() if key != name}
            with pytest.raises(TypeError, match=name):
                LocalTraining(**rest)


class TestSensitivity:
    @pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, True, "1"])
    def test_bad_value_is_refused(self, value):
        with pytest.raises(SensitivityError, match="value"):
            Sensitivity(value, "convex", "record", "replace_one", ())

    def test_unknown_names_are_refused(self):
        with pytest.raises(SensitivityError, match="kind"):
            Sensitivity(1.0, "smooth", "record", "replace_one", ())
        with pytest.raises(SensitivityError, match="unit"):
            Sensitivity(1.0, "convex", "record", "zero_out", ())


class TestTighter:
    def test_min_of_clipping_and_convexity(self):
        convex = convex_sensitivity(SOFTMAX, **RECORD)  # 0.25
        loose, tight = (whole_update_sensitivity(s, **RECORD) for s in (0.2, 0.1))
        assert tighter(loose, convex) is tighter(convex, loose) is convex
        assert tighter(tight, convex) is tighter(convex, tight) is tight

    def test_of_equal_values_the_one_with_fewer_conditions(self):
        convex = convex_sensitivity(SOFTMAX, **RECORD)
        clipped = whole_update_sensitivity(convex.value / 2, **RECORD)
        assert tighter(clipped, convex) is tighter(convex, clipped) is clipped

    def test_different_relations_are_refused(self):
        convex = convex_sensitivity(SOFTMAX, **RECORD)
        for unit, relation in (("client", "replace_one"), ("record", "add_or_remove_one")):
            other = whole_update_sensitivity(1.0, unit=unit, neighboring_relation=relation)
            with pytest.raises(SensitivityError, match="different relations"):
                tighter(convex, other)


class TestAllowanceForRounding:
    def test_it_is_negligible_at_usual_settings_and_decides_at_tiny_ones(self):
        for rate in (0.1, 1e-9):
            exact = convex_sensitivity(training(learning_rates=(rate,)), **RECORD)
            allowed = allow_for_rounding(
                exact, local_steps=10, batch_size=SOFTMAX.batch_size, feature_norm=1.0
            )
            assert allowed.value >= exact.value + 1e-8
            assert (allowed.value < 1.001 * exact.value) == (rate == 0.1)

    def test_other_sensitivities_need_none(self):
        whole = whole_update_sensitivity(1.0, unit="record", neighboring_relation="replace_one")
        with pytest.raises(SensitivityError, match="whole_update"):
            allow_for_rounding(whole, local_steps=1, batch_size=1, feature_norm=1.0)


class TestCheckModel:
    @pytest.mark.parametrize(
        "x", [np.zeros(3), [MAX_MODEL_ENTRY, -MAX_MODEL_ENTRY], [], np.array(5), np.float32([1.0])]
    )
    def test_accepted(self, x):
        check_model(x)

    @pytest.mark.parametrize(
        ("x", "named"),
        [
            ([0.0, math.nan], "finite"),
            ([math.inf], "finite"),
            (np.array(-math.inf), "finite"),
            ([0.0, np.nextafter(1e4, 2e4)], "10000"),
            ([-10001.0], "10001"),
            ([True], "real"),
            (["1"], "real"),
            (np.array([-(2**63)]), "10000"),
            (np.full(101, 1e4), "norm of at most 100000"),
        ],
    )
    def test_refused(self, x, named):
        with pytest.raises(SensitivityError, match=named):
            check_model(x)
