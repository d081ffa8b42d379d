"""Flower's entry point on the client."""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache, partial
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_app.allow_list import keep_allowed, refuse
from fl_app.device_budget import LimitedState, RunLimits, limit_run
from fl_app.device_ledger import grant, list_releases, lock_device, note_end, note_request
from fl_app.device_policy import (
    NUM_PARTITIONS_KEY,
    PARTITION_KEY,
    STATE_KEY,
    DevicePolicy,
    PolicyRefusal,
    is_simulated,
    read_policy,
)
from fl_app.device_spending import spend_by_run
from fl_app.device_state import STATE_FILE, FolderState
from fl_app.engines import SIMULATED_KEY
from fl_app.errors import RunError
from fl_app.local_task import LocalTask
from fl_app.one_thread import load_torch, use_one_thread
from fl_app.registry import METHODS
from fl_app.run_files import SIMULATED_RUN
from fl_app.run_log import log_client_to
from fl_app.run_name import parse_name
from fl_app.settings import RunSettings
from strategies.device_state import ContextState, DeviceState
from strategies.dp_fedpaq.messages import REFUSED_BY_POLICY, STATE_LOST, UNANSWERED

# This module's app, for processes that import it themselves.
CLIENT_APP = "fl_app.client_app:app"
SETTINGS_KEY = "settings"
QUERY_ACTION = "partition"

__all__ = ["NUM_PARTITIONS_KEY", "PARTITION_KEY", "STATE_KEY", "app"]

_log = logging.getLogger(__name__)


class GuardedApp(ClientApp):
    """A client app of which nothing leaves but what the allow-list holds.

    An exception would travel to the server with its text, so none leaves a call. A policy that
    cannot be read allows nothing.
    """

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        is_device = not is_simulated(context.node_config)
        try:
            reply = super().__call__(message, context)
            return keep_allowed(reply, message, is_device=is_device)
        except PolicyRefusal as refusal:
            _log.warning("refused by the device's policy: %s", refusal)
            return refuse(message, REFUSED_BY_POLICY)
        except RunError as error:
            _log.error("state not kept: %s", error)
            # A simulation ends then; one device's full disk must not end the run of the others.
            return refuse(message, UNANSWERED if is_device else STATE_LOST)
        except (Exception, SystemExit):
            _log.exception("request not answered")
            return refuse(message, UNANSWERED)


app = GuardedApp()


@app.query(QUERY_ACTION)
def tell_partition(message: Message, context: Context) -> Message:
    """Tell the server which partition this node holds, and of how many.

    The server says in which folder simulated clients keep their states; a device does not listen.
    """
    policy = _read_policy(context)
    asked = message.content.get("config")
    folder = asked.get(STATE_KEY) if isinstance(asked, ConfigRecord) else None
    # Once, and before anything else is remembered: another folder would forget what was spent.
    if isinstance(folder, str) and not context.state and not policy.is_device:
        context.state[STATE_KEY] = ConfigRecord({STATE_KEY: folder})
    told = {PARTITION_KEY: policy.partition_id, NUM_PARTITIONS_KEY: policy.num_partitions}
    return Message(RecordDict({"config": ConfigRecord({**told})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer a training request with the method's own client side, within the device's policy."""
    use_one_thread()
    policy = _read_policy(context)
    settings = _parse_settings(str(message.content["config"][SETTINGS_KEY]))
    policy.check(settings)
    if settings.needs_torch:
        load_torch()
    with _opened(policy, context, settings, message.content["config"]) as (state, limits):
        task = LocalTask(
            settings,
            policy.partition_id,
            policy.num_partitions,
            state,
            policy.trust,
            limits,
            policy.localize(settings),
            owns_data=policy.data is not None,
        )
        return METHODS[settings.strategy.name].train(message, context, task)


def _read_policy(context: Context) -> DevicePolicy:
    try:
        return read_policy(context.node_config)
    except ValueError as error:
        raise PolicyRefusal(str(error)) from None


@contextmanager
def _opened(
    policy: DevicePolicy, context: Context, settings: RunSettings, asked: Mapping[str, object]
) -> Iterator[tuple[DeviceState, RunLimits]]:
    """Open what this client remembers, and tell what its policy leaves for the run."""
    folder = policy.state_dir
    if folder is None:
        with _simulated_log(context, settings):
            yield open_simulated(context), RunLimits(policy.max_epsilon)
        return
    # A server that names a run again goes on with it, and one that names another adds to it.
    client, method = policy.partition_id, settings.strategy.name
    try:
        run = parse_name(asked, context.run_id)
    except ValueError as error:
        raise PolicyRefusal(str(error)) from None
    with lock_device(folder):
        spent = spend_by_run(list_releases(folder))
        delta = float(getattr(settings.strategy, "target_delta", 0.0))
        granted = partial(grant, folder, run, client)
        limits = limit_run(policy, spent, run, method, delta, granted)
        state = LimitedState(folder, run, client, limits)
        note_request(folder, run, client, time.time())
        yield state, limits
        if state.read_entry(method).last_round >= settings.rounds:
            note_end(folder, run, client)


def open_simulated(context: Context) -> DeviceState:
    """Open what a simulated client remembers of its run: in the run's folder, if there is one.

    The folder is that of the run configuration's ``state-dir``, or else the one that the server
    named in its query, if there are states in it: nothing is created at a server's word.
    """
    folder = _find_simulated_folder(context)
    if folder is None:
        return ContextState(context)
    return FolderState(folder, SIMULATED_RUN, int(context.node_config[PARTITION_KEY]), "OFF")


def _find_simulated_folder(context: Context) -> Path | None:
    folder = str(context.run_config.get(STATE_KEY) or "")
    if not folder:
        told = context.state.get(STATE_KEY)
        named = str(told[STATE_KEY]) if isinstance(told, ConfigRecord) else ""
        folder = named if named and Path(named, STATE_FILE).is_file() else ""
    return Path(folder) if folder else None


def _simulated_log(context: Context, settings: RunSettings) -> AbstractContextManager[None]:
    """Let a simulated client's log be the run's, unless the process that runs it sees to that."""
    folder = _find_simulated_folder(context)
    if folder is None or context.node_config.get(SIMULATED_KEY) is True:
        return nullcontext()
    return log_client_to(folder.parent, settings.randomness)


@lru_cache(maxsize=4)
def _parse_settings(text: str) -> RunSettings:
    return RunSettings.from_json(text)
