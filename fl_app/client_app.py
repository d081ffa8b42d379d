"""Flower's entry point on the client."""

from functools import lru_cache

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_app.local_task import LocalTask
from fl_app.registry import METHODS
from fl_app.settings import RunSettings

SETTINGS_KEY = "settings"
PARTITION_KEY, NUM_PARTITIONS_KEY = "partition-id", "num-partitions"
QUERY_ACTION = "partition"

app = ClientApp()


@app.query(QUERY_ACTION)
def tell_partition(message: Message, context: Context) -> Message:
    """Tell the server which partition this simulated node holds, and of how many."""
    told = {key: int(context.node_config[key]) for key in (PARTITION_KEY, NUM_PARTITIONS_KEY)}
    return Message(RecordDict({"config": ConfigRecord({**told})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer a training request with the method's own client side."""
    # One thread a client: the sums of a run must not depend on how many cores there are.
    torch.set_num_threads(1)
    settings = _parse_settings(str(message.content["config"][SETTINGS_KEY]))
    task = LocalTask(
        settings,
        int(context.node_config[PARTITION_KEY]),
        int(context.node_config[NUM_PARTITIONS_KEY]),
    )
    return METHODS[settings.strategy.name].train(message, context, task)


@lru_cache(maxsize=4)
def _parse_settings(text: str) -> RunSettings:
    return RunSettings.from_json(text)
