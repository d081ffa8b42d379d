"""The tally: counts, and its way through a checkpoint."""

import json
from typing import Any

import pytest

from strategies.dp_fts_de.tally import ReleaseTally
from strategies.mechanisms.parameter_checks import ParameterError


def test_it_counts_and_comes_back_from_json() -> None:
    tally = (
        ReleaseTally().plan(2.0, 0.5).begin_round().release().receive(100).begin_round().release()
    )
    assert tally == ReleaseTally(2, 2, 100, 2.0, 0.5)
    assert ReleaseTally.restore(json.loads(json.dumps(tally.export()))) == tally
    assert ReleaseTally.restore(ReleaseTally().export()) == ReleaseTally()


def test_releases_with_other_noise_or_sampling_are_not_counted_together() -> None:
    with pytest.raises(ParameterError, match="sample_rate"):
        ReleaseTally().plan(2.0, 1.0).plan(2.0, 0.5)
    with pytest.raises(ParameterError, match="noise_multiplier"):
        ReleaseTally().plan(2.0, 0.5).plan(1.0, 0.5)
    assert ReleaseTally().plan(2.0, 0.5).plan(2.0, 0.5).noise_multiplier == 2.0
    with pytest.raises(RuntimeError, match="planned"):
        ReleaseTally().release()


@pytest.mark.parametrize(
    "changes",
    [
        {"num_rounds": -1},
        {"num_releases": True},
        {"num_releases": 1.0},
        {"uplink_bytes": None},
        {"num_releases": 1, "noise_multiplier": None},
        {"noise_multiplier": float("nan")},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": 1},
        {"num_releases": 0, "noise_multiplier": None},
        {"num_releases": 0, "sample_rate": None},
        {"sample_rate": 0.0},
        {"sample_rate": 1.5},
        {"sample_rate": 1},
        {"sample_rate": float("nan")},
        {"more": 1},
    ],
)
def test_another_state_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="export_state"):
        ReleaseTally.restore({**ReleaseTally(1, 1, 0, 1.0, 1.0).export(), **changes})
    for other in (None, [], {}, {"num_rounds": 1}):
        with pytest.raises(ValueError, match="export_state"):
            ReleaseTally.restore(other)
