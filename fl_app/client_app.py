"""Flower's entry point on the client."""

import logging
from functools import lru_cache

import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_app.local_task import LocalTask
from fl_app.registry import METHODS
from fl_app.settings import RunSettings

SETTINGS_KEY = "settings"
PARTITION_KEY, NUM_PARTITIONS_KEY = "partition-id", "num-partitions"
QUERY_ACTION = "partition"
UNANSWERED = 1003

app = ClientApp()
_log = logging.getLogger(__name__)


@app.query(QUERY_ACTION)
def tell_partition(message: Message, context: Context) -> Message:
    """Tell the server which partition this simulated node holds, and of how many."""
    told = {key: int(context.node_config[key]) for key in (PARTITION_KEY, NUM_PARTITIONS_KEY)}
    return Message(RecordDict({"config": ConfigRecord({**told})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer a training request with the method's own client side.

    An exception would travel to the server with its text, so none leaves this function.
    """
    # One thread a client: the sums of a run must not depend on how many cores there are.
    torch.set_num_threads(1)
    try:
        settings = _parse_settings(str(message.content["config"][SETTINGS_KEY]))
        task = LocalTask(
            settings,
            int(context.node_config[PARTITION_KEY]),
            int(context.node_config[NUM_PARTITIONS_KEY]),
        )
        return METHODS[settings.strategy.name].train(message, context, task)
    except Exception:
        _log.exception("request not answered")
        return Message(Error(UNANSWERED, "the client could not answer"), reply_to=message)


@lru_cache(maxsize=4)
def _parse_settings(text: str) -> RunSettings:
    return RunSettings.from_json(text)
