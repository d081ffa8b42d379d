"""The README's numbered steps, pasted."""

import re
import subprocess
import textwrap

import pytest

from fl_app.engines.superlink import find_free_port
from tests.conftest import REPOSITORY, read_outcome
from tests.deployment.federation import PATIENCE, Federation

pytestmark = [pytest.mark.slow, pytest.mark.deployment]

BLOCK = r"^ *<!-- {} -->\n *```bash\n(.*?)^ *```$"


def read_steps(marker: str) -> list[str]:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    found = re.findall(BLOCK.format(marker), text, re.S | re.M)
    return [textwrap.dedent(block) for block in found]


@pytest.mark.parametrize("with_own_data", [False, True])
def test_the_steps_set_up_devices_and_run(with_own_data: bool) -> None:
    steps = read_steps("devices")
    assert len(steps) == 8
    if with_own_data:
        before, instead = read_steps("own data on devices")
        steps = [*steps[:2], before, *steps[2:5], instead, steps[7]]
    port, first = find_free_port(), find_free_port()
    script = "\n".join(steps).replace("9093", str(port)).replace("9094", str(first))
    # The script's own default is the port in the text.
    script = script.replace("fl/tls fl/link ", f"fl/tls fl/link 127.0.0.1 {port} ")
    assert script.count(str(port)) == 4
    federation = Federation()
    try:
        (federation.folder / "deploy").symlink_to(REPOSITORY / "deploy")
        done = subprocess.run(
            ["bash", "-euc", script],
            env=federation.environment,
            cwd=federation.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        here = federation.folder / "fl"
        logs = "".join(log.read_text(errors="replace")[-2000:] for log in here.glob("*.log"))
        assert done.returncode == 0, done.stdout + done.stderr + logs
        outcome = read_outcome(here / "run")
        assert all(row["num_replies"] == 3 for row in outcome.rows[1:])
        assert outcome.summary["num_clients"] == 3
        guarantee = outcome.guarantees[0]
        assert guarantee["valid"] is True
        assert 0.0 < guarantee["epsilon"] <= 10.0
        # The last step's table: what the run has taken, and the limit.
        limits = [line.split() for line in done.stdout.splitlines() if "allowed" in line]
        assert any("10" in words for words in limits), done.stdout
        if with_own_data:
            assert outcome.summary["test_accuracy"] > 0.6
        assert not any(
            "could not" in log.read_text(errors="replace") for log in here.glob("d*.log")
        )
    finally:
        federation.close()
