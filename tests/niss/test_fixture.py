"""NISS in a user's own ServerApp and ClientApp: no application, no configuration, no Hydra."""

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.conftest import REPOSITORY

# What a user writes.
FIXTURE = """
    from strategies import Niss
    from strategies.niss.client import train
    from flwr.app import Array, ArrayRecord, Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    import numpy as np

    client_app, server_app, RESULTS = ClientApp(), ServerApp(), {}

    def move(work):
        target = np.linspace(-0.1, 0.1, 30)
        return {"w": work.arrays["w"] + 0.5 * (target - work.arrays["w"])}, None

    @client_app.train()
    def answer(message: Message, context: Context) -> Message:
        return train(message, context, num_records=64, local_update=move)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        niss = Niss(unit="client", noise_multiplier=0.02, clipping_norm=1.0, local_steps=1,
                    batch_size=64, num_sampled_clients=5, randomness="secret")
        start = ArrayRecord({"w": Array(np.zeros(30))})
        RESULTS["w"] = niss.start(grid, start, num_rounds=8).arrays["w"].numpy()
        RESULTS["valid"] = [each.valid for each in niss.guarantees()]
"""
# A grid takes the place of Flower's, and nothing of the application but it is ever loaded.
RUN = """
    from fl_app.engines.in_process import run_in_process

    run_in_process(server_app, client_app, 8)
    target = np.linspace(-0.1, 0.1, 30)
    assert np.abs(RESULTS["w"] - target).max() < 0.08, RESULTS["w"]
    assert np.linalg.norm(RESULTS["w"]) > 0.2
    assert RESULTS["valid"] == [False, False, False]  # so little noise hides nothing
    import sys
    loaded = set(sys.modules)
    assert not loaded & {"hydra", "omegaconf", "torch"}, loaded & {"hydra", "omegaconf", "torch"}
    ours = {name for name in loaded if name.split(".")[0] == "fl_app"}
    assert all(name.startswith(("fl_app.engines", "fl_app.errors")) or name == "fl_app"
               for name in ours), ours
"""


def test_niss_in_twenty_five_lines(tmp_path: Path) -> None:
    written = textwrap.dedent(FIXTURE)
    assert len([line for line in written.splitlines() if line.strip()]) <= 25
    assert "fl_app" not in written
    file = tmp_path / "fixture.py"
    file.write_text(written + textwrap.dedent(RUN), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
