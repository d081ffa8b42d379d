"""The simulation engine: the same run through Flower's own commands on a SuperLink of its own.

`flwr run` alone would leave its SuperLink running, may install all dependencies again for each run,
and exits 0 even when the run failed. Here the ServerApp says how the run ended, in a file.
"""

import contextlib
import json
import math
import signal
import subprocess
import time
from pathlib import Path

from fl_app.client_app import STATE_KEY
from fl_app.engines.bundle import write_bundle
from fl_app.engines.outcome import read_outcome
from fl_app.engines.superlink import SuperLink, own_superlink
from fl_app.errors import RunError
from fl_app.interruption import stop_on_signals
from fl_app.run_log import find_client_log
from fl_app.run_store import RunStore
from fl_app.settings import RunSettings

POLL_SECONDS = 0.1
LOG_SECONDS = 5.0
LAST_LINES = 15


def run_simulation(settings: RunSettings, folder: Path, resume: bool = False) -> None:
    """Run the settings on Flower's simulation runtime, and wait until the run has ended.

    The first Ctrl-C ends the run after the round, the second one at once.

    Parameters
    ----------
    settings : RunSettings
        With `num_clients` set; paths in it are absolute.
    folder : Path
        The run's folder, absolute.
    resume : bool
        Whether the run that was begun in the folder goes on.

    Raises
    ------
    RunError
        If the folder cannot be written, the SuperLink does not start, or the run fails: the
        message is the run's own reason, if it gave one, and what Flower logged is added to run.log
        (of a secret run to the log of its clients, whose lines are among them).
    """
    store = RunStore(folder, resume)
    # Writing is the ServerApp's part from here on.
    import torch

    store.close()
    with own_superlink(settings.engine.ray_address) as superlink:
        home, clients = superlink.home, find_client_log(store.folder, settings.randomness)
        write_bundle(home / "bundle")
        outcome, stop, log = home / "outcome.json", home / "stop", home / "flower.log"
        run_config = home / "run.toml"
        run_config.write_text(
            to_toml(
                {
                    "settings": settings.to_json(),
                    "output-dir": str(store.folder),
                    "resume": resume,
                    STATE_KEY: str(store.checkpoints),
                    "outcome-file": str(outcome),
                    "stop-file": str(stop),
                }
            ),
            encoding="utf-8",
        )
        resources = describe_resources(settings, torch.cuda.device_count())
        run = superlink.start_run(home / "bundle", run_config, resources, log)
        try:
            with stop_on_signals(stop.exists, stop.touch, signal.SIGINT):
                if not _wait_for_outcome(superlink, run, outcome):
                    raise RunError(
                        f"Flower's own process ended, and the run gave no result; see {clients}"
                    )
        except RunError:
            _keep_logs(superlink, run, log, clients)
            raise


def describe_resources(settings: RunSettings, num_gpus: int) -> str:
    """Return Flower's federation configuration: `workers` clients at a time share all GPUs.

    A client sees a GPU only if it is given a share of one, and must compute on the same kind of
    device as in the other engines.
    """
    workers = settings.engine.workers
    share = 0.0
    if num_gpus:
        # Rounded down: shares that add up to more than a GPU would leave a worker out.
        share = math.floor(1000 / math.ceil(workers / num_gpus)) / 1000
    resources = (
        f"num-supernodes={settings.num_clients} client-resources-num-cpus=1 "
        f"client-resources-num-gpus={share}"
    )
    # A cluster that is there already has the resources that it has: one client for each CPU.
    if settings.engine.ray_address is not None:
        return resources
    return f"{resources} init-args-num-cpus={workers} init-args-num-gpus={num_gpus}"


def _wait_for_outcome(superlink: SuperLink, run: subprocess.Popen[bytes], outcome: Path) -> bool:
    """Return whether the run has completed; raise RunError with the reason if it failed."""
    while True:
        over = run.poll() is not None or superlink.process.poll() is not None
        found = read_outcome(outcome)
        if found is not None:
            if found.failure is not None:
                raise RunError(found.failure)
            return True
        if over:
            return False
        time.sleep(POLL_SECONDS)


def _keep_logs(superlink: SuperLink, run: subprocess.Popen[bytes], log: Path, target: Path) -> None:
    """Add Flower's logs to the run's: what the clients logged is nowhere else."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.wait(timeout=LOG_SECONDS)
    tail = "\n".join(superlink.read_log().splitlines()[-LAST_LINES:])
    target.parent.mkdir(exist_ok=True)
    with target.open("a", encoding="utf-8") as file:
        file.write(f"\nFlower's log:\n{log.read_text(errors='replace')}")
        file.write(f"\nThe end of the SuperLink's log:\n{tail}\n")


def to_toml(values: dict[str, str | bool]) -> str:
    """Return a TOML document; JSON's strings, with characters as they are, are TOML's."""
    return "".join(f"{k} = {json.dumps(v, ensure_ascii=False)}\n" for k, v in values.items())
