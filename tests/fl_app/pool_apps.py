"""Client apps for worker processes, which import them by name."""

import logging
import os
import signal
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

_log = logging.getLogger("fl_app.pool_apps")

counting = ClientApp()
obedient = ClientApp()


@counting.train()
def count(message: Message, context: Context) -> Message:
    """Say who answers, how often this node was asked, and what came."""
    kept = context.state.get("calls")
    calls = 1 + (int(kept["count"]) if isinstance(kept, ConfigRecord) else 0)  # type: ignore[arg-type]
    context.state["calls"] = ConfigRecord({"count": calls, "raw": bytes([calls])})
    partition = int(context.node_config["partition-id"])
    if partition == 3 and calls == 2:
        raise ValueError("record 17 says: my secret")
    weights = np.asarray(message.content["arrays"]["w"].numpy()) * (partition + 0.1)
    answer = {
        "arrays": ArrayRecord({"w": Array(weights), "none": Array(np.zeros((0, 2)))}),
        "metrics": MetricRecord({"calls": calls, "odd": [0.1 + partition, float("inf")]}),
        "config": ConfigRecord({"key": context.run_config["key"], "bytes": [b"", b"\0a"]}),
    }
    return Message(RecordDict(answer), reply_to=message)


@obedient.train()
def obey(message: Message, context: Context) -> Message:
    """Do what the request asks for, which tells this process's number."""
    asked = message.content["config"]
    kept = context.state.get("calls")
    calls = 1 + (int(kept["count"]) if isinstance(kept, ConfigRecord) else 0)  # type: ignore[arg-type]
    context.state["calls"] = ConfigRecord({"count": calls})
    if asked.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if asked.get("exit"):
        os._exit(7)
    if asked.get("log"):
        try:
            raise ValueError("my secret")
        except ValueError:
            _log.exception("said by %s", context.node_config["partition-id"])
    if file := str(asked.get("wait") or ""):
        Path(f"{file}.{os.getpid()}").touch()
        while not Path(file).exists():
            time.sleep(0.01)
    told = ConfigRecord({"process": os.getpid(), "calls": calls})
    return Message(RecordDict({"config": told}), reply_to=message)
