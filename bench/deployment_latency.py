"""How long a server waits for devices beyond what the slowest one's own process takes.

One SuperLink with TLS and node authentication, five SuperNodes, a model of 650 numbers, two arms
after one another: Flower's FedAvg on `flower-supernode`, and the same FedAvg through this project's
grid on its SuperNode (``python -m fl_app.supernode``). Each reply says how long its process had
been there when it answered, by the system's clock; a round's wait is the server's time from sending
to the last reply, less the longest of these.

`python -m bench.deployment_latency` measures and writes bench/results/deployment_latency.json;
--table prints it.
"""

import argparse
import datetime
import json
import statistics
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.deployment.federation import Federation

RESULTS = Path(__file__).parent / "results" / "deployment_latency.json"
DEVICES = 5
APP = """
import json, os, time
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()


def process_seconds():
    fields = open("/proc/self/stat").read().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


@client.train()
def train(message, context):
    import torch, scipy.stats  # what a client of the application loads
    told = MetricRecord({"num-examples": 1, "process-seconds": process_seconds()})
    return Message(
        RecordDict({"arrays": message.content["arrays"], "metrics": told}), reply_to=message
    )


class Timed:
    def __init__(self, grid, rows):
        self._grid, self._rows = grid, rows

    def __getattr__(self, name):
        return getattr(self._grid, name)

    def send_and_receive(self, messages, *, timeout=None):
        begin = time.monotonic()
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        seconds = time.monotonic() - begin
        if replies:  # nobody is asked to evaluate
            longest = max(r.content["metrics"]["process-seconds"] for r in replies)
            self._rows.append([len(replies), seconds, longest])
        return replies


@server.main()
def main(grid, context):
    if context.run_config["prompt"]:
        from fl_app.engines.prompt_grid import PromptGrid
        grid = PromptGrid(grid)
    rows = []
    arrays = ArrayRecord([np.zeros(650, np.float32)])
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=5, min_train_nodes=5)
    strategy.start(Timed(grid, rows), arrays, num_rounds=context.run_config["rounds"])
    with open(context.run_config["out"], "w") as file:
        json.dump(rows, file)
"""
PROJECT = """
[project]
name = "latency"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "bench"
[tool.flwr.app.components]
serverapp = "latency:server"
clientapp = "latency:client"
[tool.flwr.app.config]
prompt = false
rounds = 1
out = ""
"""


def measure(federation: "Federation", folder: Path, rounds: int, prompt: bool) -> dict:
    """Run one arm; the first round, in which devices unpack the app, is left out."""
    from tests.deployment.federation import CONNECTION

    out = folder / f"rows_{prompt}.json"
    config = f'prompt={str(prompt).lower()} rounds={rounds + 1} out="{out}"'
    words = ["run", str(folder), CONNECTION, "--run-config", config, "--stream"]
    log = federation.call("flwr", *words)
    if not out.exists():
        sys.exit(f"the run failed:\n{log}")
    rows = json.loads(out.read_text())[1:]
    assert all(count == DEVICES for count, *_ in rows)
    waits = [seconds - longest for _, seconds, longest in rows]
    return {
        "rounds": rows,
        "round_seconds_median": statistics.median(seconds for _, seconds, _ in rows),
        "process_seconds_median": statistics.median(longest for *_, longest in rows),
        "wait_seconds_median": statistics.median(waits),
        "wait_seconds_mean": statistics.mean(waits),
    }


def measure_arms(rounds: int) -> dict[str, Any]:
    """Return both arms' rounds and their ratios."""
    from fl_app.run_store import list_versions
    from tests.deployment.federation import Federation

    federation = Federation()
    arms: dict[str, dict[str, Any]] = {}
    try:
        federation.start_superlink()
        with tempfile.TemporaryDirectory(prefix="latency-") as name:
            folder = Path(name)
            (folder / "latency.py").write_text(textwrap.dedent(APP))
            (folder / "pyproject.toml").write_text(PROJECT)
            for number in range(DEVICES):
                own = f"partition-id={number}"
                device = federation.add_device(own, f"num-partitions={DEVICES}")
                federation.register(device)
            for arm in ("flower", "fl_app"):
                for device in federation.devices:
                    if arm == "flower":
                        federation.start_plain_device(device)
                    else:
                        federation.start_device(device)
                federation.wait_for_devices(DEVICES)
                arms[arm] = measure(federation, folder, rounds, arm == "fl_app")
                for device in federation.devices:
                    federation.kill_device(device)
                federation.wait_for_devices(0)
    finally:
        federation.close()
    ratios = {
        f"{kind}_ratio": arms["fl_app"][f"{kind}_seconds_median"]
        / arms["flower"][f"{kind}_seconds_median"]
        for kind in ("wait", "round")
    }
    return {
        "format_version": 1,
        "command": "python -m bench.deployment_latency",
        "seeds": [],
        "devices": DEVICES,
        "versions": list_versions(),
        "date": datetime.date.today().isoformat(),
        **arms,
        **ratios,
    }


def print_table(results: dict[str, Any]) -> None:
    names = ("seconds of a round", "of these beyond the slowest device's own process")
    print("| median | Flower's | this | ratio |\n|---|---|---|---|")
    for name, kind in zip(names, ("round", "wait"), strict=True):
        both = [results[arm][f"{kind}_seconds_median"] for arm in ("flower", "fl_app")]
        cells = [*(f"{seconds:.1f}" for seconds in both), f"{results[f'{kind}_ratio']:.2f}"]
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--table", action="store_true", help="print the table of the last run")
    given = parser.parse_args()
    if not given.table:
        RESULTS.write_text(json.dumps(measure_arms(given.rounds), indent=1) + "\n")
    print_table(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
