"""The parameters: what is refused, and what their rules compute."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.mechanisms.parameter_checks import ParameterError

GOOD: dict[str, Any] = {
    "num_agents": 5,
    "dimension": 2,
    "noise_multiplier": 1.0,
    "features": "rff",
    "num_random_features": 100,
}


def make(**changes: Any) -> DpFtsDeParameters:
    return DpFtsDeParameters(**{**GOOD, **changes})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("num_agents", value) for value in (0, True, 2.0, None)),
        *(("dimension", value) for value in (0, 65, "2")),
        ("splittable", (True,)),
        ("mode", "fast"),
        ("features", "fourier"),
        *(("num_random_features", value) for value in (0, 10_001)),
        *(("lengthscale", value) for value in (0.0, -1.0, float("nan"), float("inf"), None)),
        *(("regularizer", value) for value in (0.0, float("nan"), 1e-9)),
        ("outputscale", 0.0),
        ("standardize", 1),
        ("prior_mean", None),
        *(("num_subregions", value) for value in (0, 3, 1.0)),
        ("num_initial", 0),
        ("initial", "box"),
        *(("sample_rate", value) for value in (0.0, 1.1, True, float("nan"))),
        *(("clipping_norm", value) for value in (0.0, -1.0, None, float("inf"))),
        *(("noise_multiplier", value) for value in (-1.0, None, float("nan"))),
        *(("target_epsilon", value) for value in (0.0, float("inf"))),
        *(("target_delta", value) for value in (0.0, 1.0)),
        ("accountant", "gdp"),
        *(("release_rounds", value) for value in ((2, 1), (1, 1), (0,), (1.0,), [1, 2], "auto")),
        ("upload", "none"),
        ("upload_kind", "draw"),
        ("use_broadcast", True),
        *(("prob_own", value) for value in ("auto", -0.1, 1.5, True, None, float("nan"))),
        *(("emphasis_start", value) for value in (0.5, 501.0)),
        *(("emphasis_rounds", value) for value in (-1, 1.5)),
        ("emphasis_fall_rounds", -1),
        ("fit_every", 0),
        ("control", "placebo"),
        ("randomness", "os"),
        ("seed", -1),
    ],
)
def test_a_value_that_is_not_allowed_is_named(key: str, value: object) -> None:
    with pytest.raises(ParameterError) as refused:
        make(**{key: value})
    assert refused.value.key == key
    assert refused.value.allowed


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("noise_multiplier", {"noise_multiplier": None}),
        ("clipping_norm", {"clipping_norm": None}),
        ("clipping_norm", {"clipping_norm": None, "noise_multiplier": None, "target_epsilon": 1.0}),
        ("target_epsilon", {"noise_multiplier": 0.0, "target_epsilon": 1.0}),
        ("accountant", {"accountant": "closed_form", "sample_rate": 0.5}),
        ("control", {"control": "oracle"}),
        ("control", {"control": "oracle", "noise_multiplier": 0.0}),
        (
            "randomness",
            {
                "control": "oracle",
                "noise_multiplier": 0.0,
                "clipping_norm": None,
                "randomness": "secret",
            },
        ),
        ("lengthscale", {"features": "eigen", "lengthscale": 0.005}),
        ("regularizer", {"outputscale": 1e14}),
        ("clipping_norm / sample_rate", {"clipping_norm": 1e10, "sample_rate": 1e-6}),
        ("num_subregions", {"num_subregions": 2, "splittable": (False, False)}),
    ],
)
def test_what_contradicts_is_refused(key: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ParameterError) as refused:
        make(**changes)
    assert refused.value.key == key


def test_json_gives_the_same_parameters_back() -> None:
    full = make(
        splittable=(True, False),
        num_subregions=4,
        release_rounds=(1, 4),
        prob_own="one_minus_inverse",
        target_epsilon=3.0,
        randomness="secret",
    )
    for each in (make(), full):
        assert DpFtsDeParameters.from_json(each.to_json()) == each
        assert each.to_json() == dataclasses.replace(each).to_json()


def test_equal_parameters_are_equal_text_whoever_wrote_it_first() -> None:
    ints = {"sample_rate": 1, "prob_own": 0, "lengthscale": 1, "noise_multiplier": 2}
    whole = make(**ints, seed=77)
    assert '"prob_own": 0.0' in whole.to_json()
    assert '"sample_rate": 1.0' in whole.to_json()
    assert whole.to_json() == make(**{k: float(v) for k, v in ints.items()}, seed=77).to_json()


@given(st.sampled_from([f.name for f in dataclasses.fields(DpFtsDeParameters)]))
def test_json_without_a_key_is_refused(name: str) -> None:
    values = json.loads(make().to_json())
    del values[name]
    with pytest.raises(ParameterError, match="parameters"):
        DpFtsDeParameters.from_json(json.dumps(values))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "1", '{"num_agents": 3}', "[" * 100_000])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="parameters"):
        DpFtsDeParameters.from_json(text)
    more = {**json.loads(make().to_json()), "noise": 1}
    with pytest.raises(ParameterError, match="noise"):
        DpFtsDeParameters.from_json(json.dumps(more))


def test_releases_are_in_their_rounds_and_not_in_the_last() -> None:
    every, some = make(), make(release_rounds=(1, 2, 4, 8))
    assert [every.num_planned(n) for n in (1, 2, 61)] == [0, 1, 60]
    assert [some.num_planned(n) for n in (1, 2, 4, 5, 8, 9, 100)] == [0, 1, 2, 3, 3, 4, 4]
    assert make(control="no_sharing").num_planned(61) == 0
    assert [some.releases_in(t) for t in range(1, 6)] == [True, True, False, True, False]


def test_p_t_is_that_of_the_iteration() -> None:
    ts = (1, 2, 10)
    inverse, square = (make(prob_own=f"one_minus_inverse{end}") for end in ("", "_square"))
    assert [inverse.prob_own_in(t) for t in ts] == pytest.approx([0.0, 0.5, 0.9])
    assert [square.prob_own_in(t) for t in ts] == pytest.approx([0.0, 0.75, 0.99])
    assert [make(prob_own=0.3).prob_own_in(t) for t in ts] == [0.3] * 3


def test_a_vector_s_radius_is_the_share_of_one_sub_region() -> None:
    assert make(clipping_norm=22.0, num_subregions=4).radius == 11.0
    assert make(clipping_norm=None, noise_multiplier=0.0).radius is None


def test_axes_of_choices_are_not_cut() -> None:
    assert make(dimension=3, splittable=(False, True, True), num_subregions=4).boxes.cells == (
        *(1, 2, 2),
    )


def test_the_accountant_is_told_of_clients_in_poisson_samples() -> None:
    sampled = make(sample_rate=0.35).describe_releases(60, 1.0)
    assert (sampled.unit, sampled.neighboring_relation) == ("client", "zero_out")
    assert (sampled.sampling, sampled.sample_rate, sampled.num_releases) == ("poisson", 0.35, 60)
    assert make().describe_releases(4, 1.0).sampling == "none"
    assert make(accountant="pld").describe_releases(4, 1.0).sampling == "poisson"
