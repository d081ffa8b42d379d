"""A device that is taken out of its federation for good, in the middle of a run."""

from pathlib import Path

import pytest

from fl_app.device_ledger import list_releases
from tests.conftest import read_outcome
from tests.deployment.federation import CONNECTION, start_federation

pytestmark = [pytest.mark.slow, pytest.mark.deployment]


def test_a_device_that_is_unregistered_in_a_run(tmp_path: Path) -> None:
    """The others go on, also with the next run; it is not let in again, and keeps its ledger."""
    with start_federation(3) as federation:
        device, pause = federation.devices[2], tmp_path / "pause"
        pause.mkdir()
        federation.kill_device(device)
        federation.bring_back(
            device, lambda: federation.start_pausing_device(device, pause, "sent")
        )
        launcher = federation.start_run("num_clients=3", "num_rounds=3", folder=tmp_path / "run")
        federation.wait_until((pause / "reached").exists, "its first upload has left")
        node = device.log.split("SuperNode ID:")[-1].split()[0]
        federation.call("flwr", "supernode", "unregister", node, CONNECTION)
        (pause / "go on").touch()
        code, output, errors = federation.finish(launcher)
        assert code == 0, output + errors + federation.describe()
        rows = read_outcome(tmp_path / "run").rows[1:]
        assert [row["num_replies"] for row in rows] == [3, 2, 2]
        assert device.process is not None
        federation.kill_device(device)
        federation.start_device(device)
        process = device.process
        federation.wait_until(lambda: process.poll() is not None, "it is not let in again")
        assert len(list_releases(device.folder / "state")) == 1
        outcome = federation.run("num_clients=2", "num_rounds=2", folder=tmp_path / "next")
        assert outcome.summary["num_clients"] == 2
