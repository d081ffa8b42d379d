"""Flower's entry point on the client."""

import logging
from functools import lru_cache
from pathlib import Path

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_app.device_state import STATE_FILE, FolderState
from fl_app.device_trust import read_device_trust, read_max_epsilon
from fl_app.errors import RunError
from fl_app.local_task import LocalTask
from fl_app.one_thread import use_one_thread
from fl_app.registry import METHODS
from fl_app.settings import RunSettings
from strategies.device_state import ContextState, DeviceState
from strategies.dp_fedpaq.messages import STATE_LOST

# This module's app, for processes that import it themselves.
CLIENT_APP = "fl_app.client_app:app"
SETTINGS_KEY = "settings"
PARTITION_KEY, NUM_PARTITIONS_KEY = "partition-id", "num-partitions"
QUERY_ACTION = "partition"
STATE_KEY = "state-dir"
# A folder of simulated clients is one run's, whose number on Flower changes when it goes on.
SIMULATED_RUN = "simulated"
UNANSWERED = 1003

app = ClientApp()
_log = logging.getLogger(__name__)


@app.query(QUERY_ACTION)
def tell_partition(message: Message, context: Context) -> Message:
    """Tell the server which partition this simulated node holds, and of how many.

    The server says in which folder simulated clients keep their states.
    """
    asked = message.content.get("config")
    folder = asked.get(STATE_KEY) if isinstance(asked, ConfigRecord) else None
    # Once, and before anything else is remembered: another folder would forget what was spent.
    if isinstance(folder, str) and not context.state:
        context.state[STATE_KEY] = ConfigRecord({STATE_KEY: folder})
    told = {key: int(context.node_config[key]) for key in (PARTITION_KEY, NUM_PARTITIONS_KEY)}
    return Message(RecordDict({"config": ConfigRecord({**told})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer a training request with the method's own client side.

    An exception would travel to the server with its text, so none leaves this function.
    """
    use_one_thread()
    try:
        settings = _parse_settings(str(message.content["config"][SETTINGS_KEY]))
        task = LocalTask(
            settings,
            int(context.node_config[PARTITION_KEY]),
            int(context.node_config[NUM_PARTITIONS_KEY]),
            open_state(context),
            read_device_trust(context.node_config),
            read_max_epsilon(context.node_config),
        )
        return METHODS[settings.strategy.name].train(message, context, task)
    except RunError:
        _log.exception("state not kept")
        return Message(Error(STATE_LOST, "the client could not keep its state"), reply_to=message)
    except Exception:
        _log.exception("request not answered")
        return Message(Error(UNANSWERED, "the client could not answer"), reply_to=message)


def open_state(context: Context) -> DeviceState:
    """Open what this client remembers of the run: in the run's folder if it is simulated.

    The folder is that of the run configuration's ``state-dir``, or else the one that the server
    named in its query, if there are states in it: nothing is created at a server's word.
    """
    folder = str(context.run_config.get(STATE_KEY) or "")
    if not folder:
        told = context.state.get(STATE_KEY)
        named = str(told[STATE_KEY]) if isinstance(told, ConfigRecord) else ""
        folder = named if named and Path(named, STATE_FILE).is_file() else ""
    if not folder:
        return ContextState(context)
    return FolderState(Path(folder), SIMULATED_RUN, int(context.node_config[PARTITION_KEY]), "OFF")


@lru_cache(maxsize=4)
def _parse_settings(text: str) -> RunSettings:
    return RunSettings.from_json(text)
