"""Whole runs on a SuperLink with TLS and five authenticated SuperNodes, all of them processes."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tests.deployment.federation import Federation

pytestmark = [pytest.mark.slow, pytest.mark.deployment]

SIZES = ("num_clients=5", "num_rounds=5")
SEARCH = ("strategy=dp_fts_de", "objective=synthetic", "randomness=secret")
METHODS = {
    "dp_fedpaq": ("strategy=dp_fedpaq", "randomness=seeded"),
    "niss": ("strategy=niss",),
    "dp_fts_de": SEARCH,
}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_completes_its_rounds(
    federation: Federation, run: Callable[..., Outcome], tmp_path: Path, method: str
) -> None:
    outcome = federation.run(*METHODS[method], *SIZES, folder=tmp_path / "run")
    assert [row["round"] for row in outcome.rows] == list(range(6))
    assert all(row["num_replies"] == 5 and row["num_failures"] == 0 for row in outcome.rows[1:])
    assert outcome.summary["engine"] == "deployment"
    assert (outcome.summary["num_rounds"], outcome.summary["num_clients"]) == (5, 5)
    assert outcome.guarantees[0]["epsilon"] > 0
    assert not (tmp_path / "run" / ".submitted").exists()
    if method == "dp_fedpaq":
        alone = run(*METHODS[method], *SIZES)
        assert outcome.sha256 == alone.sha256
        for row, other in zip(outcome.rows, alone.rows, strict=True):
            assert {**row, "seconds": 0} == {**other, "seconds": 0}
    else:
        assert outcome.summary["randomness"] == "secret"
