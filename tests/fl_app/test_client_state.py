"""A simulated client accepts the folder of its memory once."""

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fl_app.client_app import STATE_KEY, tell_partition
from fl_app.engines.flower_internals import deliver, identify_process
from strategies.device_state import ContextState, LedgerEntry


def ask(context: Context, folder: str) -> str | None:
    identify_process(1)
    content = RecordDict({"config": ConfigRecord({STATE_KEY: folder})})
    tell_partition(deliver(Message(content, 7, "query.partition")), context)
    kept = context.state.get(STATE_KEY)
    return str(kept[STATE_KEY]) if isinstance(kept, ConfigRecord) else None


def node() -> Context:
    return Context(
        1, 7, {"partition-id": 0, "num-partitions": 2, "simulated": True}, RecordDict(), {}
    )


def test_the_first_folder_is_kept() -> None:
    context = node()
    assert ask(context, "/first") == "/first"
    assert ask(context, "/second") == "/first"


def test_no_folder_replaces_what_is_remembered_already() -> None:
    context = node()
    ContextState(context).write_entry(LedgerEntry("dp_fedpaq", 1, 1))
    assert ask(context, "/empty") is None
    assert ContextState(context).read_entry("dp_fedpaq").participations == 1
