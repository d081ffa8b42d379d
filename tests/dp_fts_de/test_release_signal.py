"""The signal in a release: what it is, what it can be at most, and who is told beforehand."""

import math
import re
from typing import Any

import numpy as np
import pytest

from strategies.dp_fts_de.algorithm import release_sums, weigh_agents
from strategies.dp_fts_de.release_signal import (
    MOST_NOISE,
    bound_noise_share,
    signal_to_noise,
    warn_of_noise,
)
from strategies.mechanisms.rng import SeededStream
from tests.dp_fts_de.agents import make_parameters


def test_the_signal_is_found_without_the_vectors_whatever_the_noise() -> None:
    rng = np.random.default_rng(0)
    for mode, rate, z in (("sound", 1.0, 1e-3), ("paper", 0.5, 2.0), ("sound", 0.35, 1e6)):
        parameters = make_parameters(
            mode=mode, num_subregions=4, sample_rate=rate, noise_multiplier=z, clipping_norm=3.0
        )
        vectors = rng.normal(size=(3, 20))
        for agents, some in (([0, 2, 4], vectors), ([], vectors[:0])):
            stream = SeededStream(b"noise")
            released = release_sums(parameters, 30, agents, list(some), stream)
            # By hand: clipped to 3 / sqrt(4), weighed, over q, in units of the largest weight.
            weights = weigh_agents(parameters, 30)
            clipped = [v * min(1.0, 1.5 / float(np.linalg.norm(v))) for v in some]
            sums = weights.ratios[agents].T @ np.array(clipped).reshape(-1, 20) / rate
            factor = weights.sensitivity_factor if mode == "sound" else 1.0
            expected = np.linalg.norm(sums) / (z * factor * 3.0 / rate * math.sqrt(4 * 20))
            found = signal_to_noise(parameters, 30, released, SeededStream(b"noise"))
            assert found == pytest.approx(expected, rel=1e-8, abs=1e-15)


def test_the_signal_is_for_seeded_runs_with_noise() -> None:
    released, stream = np.ones((1, 20)), SeededStream(b"noise")
    for changes in ({"randomness": "secret"}, {"noise_multiplier": 0.0}):
        assert signal_to_noise(make_parameters(**changes), 1, released, stream) is None


@pytest.mark.parametrize("mode", ["sound", "paper"])
@pytest.mark.parametrize("num_subregions", [1, 4])
@pytest.mark.parametrize("server_round", [1, 30, 41])
def test_no_agents_have_a_larger_signal_than_the_bound(
    mode: str, num_subregions: int, server_round: int
) -> None:
    """All of them, sending one vector that is too long, attain it."""
    parameters = make_parameters(
        mode=mode, num_subregions=num_subregions, noise_multiplier=2.0, clipping_norm=3.0
    )
    bound = bound_noise_share(parameters, server_round)
    assert bound is not None
    rng = np.random.default_rng(0)
    same, different = [np.full(20, 9.0)] * 5, list(9.0 * rng.normal(size=(5, 20)))
    for vectors, attains in ((same, True), (different, False), (same[:4], False)):
        agents = list(range(len(vectors)))
        released = release_sums(parameters, server_round, agents, vectors, SeededStream(b"n"))
        ratio = signal_to_noise(parameters, server_round, released, SeededStream(b"n"))
        assert ratio is not None
        if attains:
            assert 1.0 / ratio == pytest.approx(bound, rel=1e-9)
        else:
            assert 1.0 / ratio > 1.05 * bound


def test_the_bound_counts_who_is_in_the_sum_as_often_as_expected() -> None:
    """z sqrt(M) / (N q) with one sub-region."""
    parameters = make_parameters(sample_rate=0.4, noise_multiplier=3.0, clipping_norm=7.0)
    assert bound_noise_share(parameters, 1) == pytest.approx(3.0 * math.sqrt(20) / (5 * 0.4))
    secret = make_parameters(sample_rate=0.4, noise_multiplier=3.0, randomness="secret")
    assert bound_noise_share(secret, 1) == pytest.approx(3.0 * math.sqrt(20) / (5 * 0.4))
    assert bound_noise_share(make_parameters(noise_multiplier=0.0), 1) is None


def find_numbers(text: str) -> tuple[int, float, int]:
    found = re.search(r"(\d+) clients or more; or .* at most (\S+) .*; or at most (\d+) feat", text)
    assert found is not None, text
    return int(found[1]), float(found[2]), int(found[3])


def test_a_run_whose_releases_are_mostly_noise_is_told_what_would_help() -> None:
    few: dict[str, Any] = {"num_agents": 5, "noise_multiplier": 1.994, "num_random_features": 19}
    few["release_rounds"] = (1,)
    text = warn_of_noise(make_parameters(**few), 31)
    assert text is not None
    # 1.994 sqrt(19) / 5.
    assert "1.7 times" in text
    agents, noise, features = find_numbers(text)
    assert (agents, noise, features) == (9, 1.15, 6)
    # Each does it by itself, just so.
    for key, enough, short in (
        ("num_agents", agents, agents - 1),
        ("noise_multiplier", noise - 0.01, noise + 0.01),
        ("num_random_features", features, features + 1),
    ):
        assert warn_of_noise(make_parameters(**{**few, key: enough}), 31) is None
        assert warn_of_noise(make_parameters(**{**few, key: short}), 31) is not None
    assert MOST_NOISE == 1.0


def test_where_fewer_features_cannot_help_they_are_not_named() -> None:
    for agents, named in ((1, False), (4, False), (5, True)):
        text = warn_of_noise(make_parameters(num_agents=agents, noise_multiplier=2.2), 31)
        assert text is not None
        # (N / z)^2: 0, 3 and 5.
        assert ("features instead" in text) == named


def test_what_shares_nothing_is_not_warned_of_noise() -> None:
    bad: dict[str, Any] = {"num_agents": 2, "noise_multiplier": 5.0}
    assert warn_of_noise(make_parameters(**bad), 31) is not None
    assert warn_of_noise(make_parameters(**bad), 1) is None
    assert warn_of_noise(make_parameters(**bad, release_rounds=(40,)), 31) is None
    for control in ("no_sharing", "random"):
        assert warn_of_noise(make_parameters(**bad, control=control), 31) is None
    assert warn_of_noise(make_parameters(num_agents=2, noise_multiplier=0.0), 31) is None


def test_of_many_releases_the_clearest_counts() -> None:
    """With equal weights, at the end: z sqrt(P M) / (N q); four sub-regions have more at first."""
    many: dict[str, Any] = {"num_subregions": 4, "noise_multiplier": 2.0, "num_agents": 25}
    parameters = make_parameters(**many)
    first, last = (bound_noise_share(parameters, t) for t in (1, 60))
    assert last == pytest.approx(2.0 * math.sqrt(80) / 25)
    assert first is not None
    assert first > MOST_NOISE > last
    assert warn_of_noise(parameters, 61) is None
    assert warn_of_noise(parameters, 11) is not None
