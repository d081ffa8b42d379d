"""How often a round is tried, over a run that was killed too, and what each try is charged."""

from typing import Any

import pytest

from strategies.mechanisms.parameter_checks import ParameterError
from strategies.niss.attempts import AttemptLimits
from strategies.niss.messages import READY, UPLOAD
from tests.niss.small_runs import MASKS_ALONE, RecordingGrid, build, record


@pytest.mark.parametrize(
    ("limits", "changes", "expected"),
    [
        ({}, {}, None),
        ({"max_dropouts": 2}, {"expected_dropouts": 2}, 2),
        ({}, {"expected_dropouts": 2}, None),
        ({}, MASKS_ALONE, 0),
        ({"max_dropouts": 0}, MASKS_ALONE, 0),
    ],
)
def test_limits_fit_the_parameters(
    limits: dict[str, Any], changes: dict[str, Any], expected: int | None
) -> None:
    parameters = build(9, **changes).parameters
    made = AttemptLimits(**limits).fit(parameters)
    assert made.max_dropouts == expected
    assert made.bear(0)
    assert made.bear(3) == (expected is None)
    if expected is not None:
        assert made.bear(expected)
        assert not made.bear(expected + 1)


@pytest.mark.parametrize(
    ("limits", "changes", "key"),
    [
        ({"max_dropouts": 1}, MASKS_ALONE, "max_dropouts"),
        ({"max_dropouts": 1}, {"expected_dropouts": 2}, "expected_dropouts"),
        ({"max_dropouts": 0}, {"expected_dropouts": 1}, "expected_dropouts"),
    ],
)
def test_limits_that_contradict_the_parameters_are_refused(
    limits: dict[str, Any], changes: dict[str, Any], key: str
) -> None:
    parameters = build(9, **changes).parameters
    with pytest.raises(ParameterError) as refused:
        AttemptLimits(**limits).fit(parameters)
    assert refused.value.key == key


@pytest.mark.parametrize(
    ("made_before", "max_attempts", "expected"),
    [
        # replies, tries of the round in all, uploads charged to each client for it
        (1, 3, (4, 2, 2)),
        (2, 3, (4, 3, 3)),
        (3, 3, (0, 3, 3)),
        (4, 3, (0, 4, 4)),
        (1, 1, (0, 1, 1)),
        (2, 9, (4, 3, 3)),
    ],
)
def test_tries_before_the_server_was_killed_are_among_them(
    made_before: int, max_attempts: int, expected: tuple[int, int, int]
) -> None:
    """Whatever it was killed for, no round costs a client more uploads than it may have tries."""
    rows: list[Any] = []
    changes = {"max_participations": 20, "max_attempts": max_attempts, "randomness": "secret"}
    first = build(4, **changes)
    first.on_round = lambda row, _: False
    grid = RecordingGrid(4)
    before = first.start(grid, record(), num_rounds=3).arrays
    assert before is not None
    resumed = build(4, rows, **changes)
    resumed.import_state(first.export_state())
    resumed.repeat_round(2, dict.fromkeys(range(4), made_before), made_before)
    grid.requests.clear()
    after = resumed.start(grid, before, num_rounds=3, first_round=2).arrays
    row = rows[0]
    charged = resumed.tally.uploads[0] - 2  # of rounds 1 and 3
    assert (row.num_replies, row.own["num_attempts"], charged) == expected
    assert set(resumed.tally.uploads.values()) == {charged + 2}
    # Given up, a round asks nobody anything and leaves the model; the next goes on.
    tried = expected[1] - made_before
    assert len(grid.sent(UPLOAD)) == len(grid.sent(READY)) == 4 * (tried + 1)
    assert (rows[1].num_replies, rows[1].own["num_attempts"]) == (4, 1)
    assert row.num_failures == 4 - row.num_replies
    assert (row.arrays is before) == (expected[0] == 0)
    assert after is not before
    assert resumed.run.complete == (expected[0] == 4)
