"""Flower's entry point on the server."""

import dataclasses
import logging
import os
import shlex
import time
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from fl_app.client_app import PARTITION_KEY
from fl_app.data import load_dataset
from fl_app.engines.in_process import InProcessGrid
from fl_app.errors import ConfigError, RunError
from fl_app.federated_run import FederatedRun, default_folder
from fl_app.run_store import LOG_FILE, RunStore
from fl_app.settings import RunSettings

NODE_TIMEOUT = 120.0
QUERY_TYPE = f"{MessageType.QUERY}.{PARTITION_KEY.replace('-', '_')}"

app = ServerApp()
_log = logging.getLogger(__name__)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configured method on the connected nodes."""
    torch.set_num_threads(1)
    settings, given = read_settings(dict(context.run_config))
    folder = str(context.run_config.get("output-dir") or "")
    if not folder:
        home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
        folder = str(default_folder(home / "fl-app"))
    store = RunStore(Path(folder))
    handler = logging.FileHandler(store.folder / LOG_FILE)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    try:
        client_ids = read_client_ids(grid, settings.num_clients if given else None)
        settings = dataclasses.replace(settings, num_clients=len(client_ids))
        from fl_app.config import to_yaml

        store.write_config(to_yaml(settings))
        dataset = load_dataset(settings.data, len(client_ids), settings.seed)
        summary = FederatedRun(settings, dataset, client_ids, store).execute(grid)
    except Exception:
        _log.exception("the run failed")
        raise
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
    accuracy, epsilon = summary["test_accuracy"], summary["epsilon"]
    print(f"test accuracy {accuracy:.4f}, epsilon {epsilon}; the run's folder: {store.folder}")


def read_settings(run_config: dict[str, object]) -> tuple[RunSettings, bool]:
    """Return the run's settings, and whether the launcher gave them.

    The launcher passes checked settings as JSON; with Flower's own command they are composed from
    the run configuration's ``overrides``, and the number of clients is the nodes found.
    """
    text, overrides = str(run_config.get("settings") or ""), str(run_config.get("overrides") or "")
    if text and overrides:
        raise ConfigError("overrides", overrides, "empty beside settings")
    if text:
        return RunSettings.from_json(text), True
    from fl_app.config import compose_settings

    words = shlex.split(overrides)
    return compose_settings(words), any(word.startswith("num_clients=") for word in words)


def read_client_ids(grid: Grid, expected: int | None) -> dict[int, int]:
    """Return node id -> partition number of all nodes.

    Parameters
    ----------
    grid : Grid
    expected : int or None
        How many nodes there must be; None: however many are found.

    Raises
    ------
    RunError
        If too few nodes connect in time, or two hold the same partition.
    ConfigError
        If more nodes are connected than the configuration names.
    """
    if isinstance(grid, InProcessGrid):
        return grid.partition_ids
    deadline = time.monotonic() + NODE_TIMEOUT
    nodes = sorted(grid.get_node_ids())
    while len(nodes) < (expected or 1):
        if time.monotonic() > deadline:
            raise RunError(f"{len(nodes)} nodes after {NODE_TIMEOUT:g} s; {expected or 1} needed")
        time.sleep(0.2)
        nodes = sorted(grid.get_node_ids())
    if expected is not None and len(nodes) != expected:
        raise ConfigError("num_clients", expected, f"the number of connected nodes, {len(nodes)}")
    requests = [
        Message(RecordDict({"config": ConfigRecord({})}), dst_node_id=node, message_type=QUERY_TYPE)
        for node in nodes
    ]
    found: dict[int, int] = {}
    for reply in grid.send_and_receive(requests, timeout=NODE_TIMEOUT):
        if reply.has_content():
            found[reply.metadata.src_node_id] = int(reply.content["config"][PARTITION_KEY])  # type: ignore[arg-type]
    if sorted(found.values()) != list(range(len(nodes))):
        raise RunError(f"{len(nodes)} nodes hold the partitions {sorted(found.values())}")
    return found
