"""privacy.json of some runs, as files that a person has read."""

import json
from typing import Any

import pytest

from tests.golden.privacy_runs import FOLDER, RUNS, TRUSTING, list_guarantees

NISS_NEVER = ("niss_masks_alone", "niss_published")


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("name", RUNS)
def test_a_run_says_what_its_file_says(name: str) -> None:
    kept = read(name)
    assert kept["overrides"] == list(RUNS[name])
    found = list_guarantees(name)
    # Epsilon is a number that libraries compute: to 6 digits, all else word for word.
    numbers = [[row.pop("epsilon") for row in rows] for rows in (found, kept["guarantees"])]
    assert found == kept["guarantees"]
    for ours, theirs in zip(*numbers, strict=True):
        assert ours == (theirs if theirs is None else pytest.approx(theirs, rel=1e-6))


def test_there_is_a_run_for_every_file() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(RUNS)


def test_what_is_valid() -> None:
    valid = {name: [row["valid"] for row in read(name)["guarantees"]] for name in RUNS}
    never = {"default_seeded", "no_noise", "published_noise"}
    for name, rows in valid.items():
        if name == "trusted_server":
            assert rows == [False, True]
        elif name.startswith("niss"):
            # Server with colluders, server, model user.
            without_lists = [False, name not in NISS_NEVER, name not in NISS_NEVER]
            assert rows == ([True] * 3 if name in TRUSTING else without_lists), name
        else:
            assert rows == [name not in never] * 2, name
