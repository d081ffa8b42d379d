"""A simulation on a Ray cluster that is there already, of two nodes on this machine."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fl_app.engines.superlink import find_free_port
from tests.conftest import REPOSITORY, Outcome, read_outcome
from tests.integration.launcher import FL_APP

pytestmark = [pytest.mark.slow, pytest.mark.deployment]

PATIENCE = 300.0
COUNT = """
import json, sys
import ray
ray.init(address=sys.argv[1], logging_level="error")
print(json.dumps([node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]))
"""


class Cluster:
    """Two Ray nodes with a CPU each, in the foreground of processes of ours."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="t", dir="/tmp")
        self.address = f"127.0.0.1:{find_free_port()}"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "no_proxy": "127.0.0.1,localhost",
        }
        host, _, port = self.address.partition(":")
        common = [f"--node-ip-address={host}", "--num-cpus=1", "--block", "--disable-usage-stats"]
        # Ports of workers as they are free: Ray refuses a head whose own port is in their range.
        common += ["--min-worker-port=0", "--max-worker-port=0"]
        head = ["--head", f"--port={port}", f"--temp-dir={self.folder}"]
        head += [f"--ray-client-server-port={find_free_port()}"]
        self.processes = [self._start(*head, "--include-dashboard=false", *common)]
        try:
            self._wait_for(1)
            self.processes.append(self._start(f"--address={self.address}", *common))
            self._wait_for(2)
        except BaseException:
            self.close()
            raise

    def _start(self, *words: str) -> "subprocess.Popen[bytes]":
        with (Path(self.folder) / "said").open("ab") as said:
            return subprocess.Popen(
                ["ray", "start", *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def cpus(self) -> list[float]:
        words = [sys.executable, "-c", COUNT, self.address]
        try:
            done = subprocess.run(
                words, env=self.environment, capture_output=True, text=True, timeout=60
            )
        except subprocess.TimeoutExpired:
            return []
        return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else []

    def _wait_for(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            # Of a node that has ended, asking would only wait.
            if any(process.poll() is not None for process in self.processes):
                # Its port was taken meanwhile, for instance.
                raise ChildProcessError((Path(self.folder) / "said").read_text(errors="replace"))
            if len(self.cpus()) == count:
                return
            assert time.monotonic() < deadline, f"no cluster of {count} nodes"
            time.sleep(0.5)

    def close(self) -> None:
        # The second node first: each ends its own children when it is asked to.
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
        subprocess.run(["rm", "-rf", self.folder], check=True)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    for attempts_left in (2, 1, 0):
        try:
            cluster = Cluster()
            break
        except ChildProcessError:
            if not attempts_left:
                raise
    yield cluster
    cluster.close()


def test_a_cluster_is_joined_and_left_as_it_was(
    cluster: Cluster, run: Callable[..., Outcome], tmp_path: Path
) -> None:
    words = ("num_clients=6", "num_rounds=2")
    engine = ("engine=simulation", f"engine.ray_address={cluster.address}")
    done = subprocess.run(
        [*FL_APP, "run", *engine, *words, f"hydra.run.dir={tmp_path / 'run'}"],
        env=cluster.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 2,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = read_outcome(tmp_path / "run")
    assert outcome.sha256 == run(*words).sha256
    logs = [file for file in Path(cluster.folder).glob("session_*/logs/*") if file.is_file()]
    assert any("ClientAppActor" in log.read_text(errors="replace") for log in logs)
    # Both nodes are there afterwards: the launcher ends what it has started, and no more.
    assert cluster.cpus() == [1.0, 1.0]
    assert all(process.poll() is None for process in cluster.processes)
