"""Whole runs on a SuperLink with TLS and five authenticated SuperNodes, all of them processes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tests.deployment.federation import Federation

pytestmark = [pytest.mark.slow, pytest.mark.deployment]

SIZES = ("num_clients=5", "num_rounds=5")
SEARCH = (
    "strategy=dp_fts_de",
    "objective=synthetic",
    "objective.num_agents=5",
    "randomness=secret",
)
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
        # Devices do not say how well they learn, or how much they hold, which epsilon depends on.
        own = dict.fromkeys(("seconds", "train_loss", "epsilon", "control_bytes"))
        for row, other in zip(outcome.rows, alone.rows, strict=True):
            assert {**row, **own} == {**other, **own}
            assert row["train_loss"] is None
            assert row["epsilon"] >= other["epsilon"]
    else:
        assert outcome.summary["randomness"] == "secret"


def test_the_uplink_at_the_socket_is_what_the_run_reports(
    federation: Federation, tmp_path: Path
) -> None:
    """Payloads of 10 kB and of 1 MB: the slope is nearly one, what each message adds is bounded."""
    points = []
    for hidden in (33, 3333):
        before = federation.proxy.sent
        outcome = federation.run(
            *("model=mlp", f"model.hidden={hidden}", "strategy.quantizer=none"),
            *("num_clients=5", "num_rounds=2"),
            folder=tmp_path / str(hidden),
        )
        points.append((outcome.summary["uplink_bytes_total"], federation.proxy.sent - before))
    (small, small_sent), (large, large_sent) = points
    messages = 2 * 5 + 5  # two rounds, and the question which client a device is
    assert 9_000 < small / 10 < 11_000
    assert 0.9e6 < large / 10 < 1.1e6
    slope = (large_sent - small_sent) / (large - small)
    intercept = (small_sent - slope * small) / messages
    print(f"slope {slope:.4f}, intercept {intercept:.0f} bytes a message, points {points}")
    assert 0.95 <= slope <= 1.05
    assert 0.0 < intercept <= 64_000
