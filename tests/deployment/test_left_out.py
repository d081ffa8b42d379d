"""What a launcher shows of devices that do not take part, and of the rounds, in files."""

from pathlib import Path

import pytest

from tests.conftest import read_outcome
from tests.deployment.federation import Federation, start_federation
from tests.integration.launcher import FL_APP

pytestmark = [pytest.mark.slow, pytest.mark.deployment]


def test_who_is_left_out_and_why_is_said_where_the_run_was_started(tmp_path: Path) -> None:
    def prepare(federation: Federation) -> None:
        _, careful, strict = federation.devices
        key = federation.folder / "signer"
        federation.call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        line = federation.call(*FL_APP, "sign", str(key), str(federation.folder / "signed"))
        (careful.folder / "trusted.yaml").write_text(line)
        strict.config.append("max-epsilon=0.01")

    settings = ("num_clients=2", "num_rounds=3", "randomness=secret")
    with start_federation(3, prepare=prepare) as federation:
        launcher = federation.start_run(*settings, folder=tmp_path / "run")
        code, output, errors = federation.finish(launcher)
        assert code == 0, output + errors + federation.describe()
        # The device says why, and to nobody else.
        why = "refused by the device's policy: max-epsilon: 0.01 is left"
        assert federation.devices[2].log.count(why) == 3
    refused = "client 2: left out of 3 of 3 rounds: refused by the device's policy"
    for told in (errors, (tmp_path / "run" / "run.log").read_text()):
        assert "is left out: could not verify the code (sign it, with fl-app sign, and" in told
        assert told.count(refused) == 1
    assert "max-epsilon" not in errors
    lines = output.splitlines()
    assert lines[0].endswith(" is on SuperLink dep")
    assert lines[1] == "waiting for devices: 0 of 2"
    rounds = [line.split("  ")[:2] for line in lines if line.startswith("round ")]
    assert rounds[1:] == [[f"round {number}/3", "1 of 2 replies"] for number in (1, 2, 3)]
    assert lines[-1] == f"report: {tmp_path / 'run' / 'report.html'}"
    assert [row["num_replies"] for row in read_outcome(tmp_path / "run").rows[1:]] == [1] * 3
