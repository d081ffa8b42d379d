"""Devices with a policy, whole runs on them, and the requests that such a run sends."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict

from fl_app.allow_list import REFUSED_BY_POLICY
from fl_app.client_app import app as client_app
from fl_app.config import compose_settings
from fl_app.device_ledger import Release, list_releases
from fl_app.device_spending import RunSpending, spend_by_run
from fl_app.device_state import STATE_FILE
from fl_app.engines.flower_internals import (
    build_message,
    copy_records,
    deliver,
    describe_metadata,
)
from fl_app.engines.in_process import run_in_process
from fl_app.run_name import RUN_KEY
from fl_app.server_app import app as server_app
from tests.conftest import Outcome, read_outcome

CLIENTS, ROUNDS = 4, 2
FEDPAQ = ("strategy=dp_fedpaq", "strategy.target_epsilon=4")
NISS = ("strategy=niss", "strategy.min_ready=3", "strategy.target_epsilon=4")
SEARCH = (
    *("strategy=dp_fts_de", "objective=synthetic", "strategy.target_epsilon=4"),
    f"objective.num_agents={CLIENTS}",
    *("strategy.num_random_features=8", "strategy.num_initial=1", "strategy.release_rounds=[1]"),
)
METHODS = {"dp_fedpaq": FEDPAQ, "niss": NISS, "dp_fts_de": SEARCH}
ALL = "dp_fedpaq,niss,dp_fts_de"


class Device:
    """One device: a node configuration, a folder, and what it answers.

    Parameters
    ----------
    folder : Path
        Of its state; created.
    number : int
    policy : mapping
        Keys of the node configuration.
    """

    def __init__(self, folder: Path, number: int = 0, **policy: object) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self.node_config: dict[str, Any] = {
            "partition-id": number,
            "num-partitions": CLIENTS,
            "state-dir": str(folder),
            **{key.replace("_", "-"): value for key, value in policy.items()},
        }
        self.replies: list[Message] = []

    def ask(
        self, message: Message, run: int = 1, run_config: Mapping[str, Any] | None = None
    ) -> Message:
        """Answer a message in a process that remembers nothing but its folder."""
        context = Context(run, 7, dict(self.node_config), RecordDict(), dict(run_config or {}))
        reply = client_app(copied(message), context)
        # What matters is in the folder.
        assert not context.state
        self.replies.append(reply)
        return reply

    @property
    def releases(self) -> list[Release]:
        return list_releases(self.folder) if (self.folder / STATE_FILE).exists() else []

    @property
    def spent(self) -> list[RunSpending]:
        return spend_by_run(self.releases)


def copied(message: Message) -> Message:
    """Return a message with records of its own."""
    if not message.metadata.message_id:
        return deliver(message)
    content = message.error if message.has_error() else copy_records(message.content)
    return build_message(describe_metadata(message), content)


def policy_refused(reply: Message) -> bool:
    return (
        reply.has_error()
        and reply.error.code == REFUSED_BY_POLICY
        and reply.error.reason == "refused by the device's policy"
    )


def run_on_devices(
    folder: Path,
    devices: list[Device],
    *overrides: str,
    run: int = 1,
    resume: bool = False,
    watch: Callable[[int, Message, Message], None] | None = None,
) -> Outcome:
    """Run a server on devices; `watch` is shown each request and its reply.

    A run that is to be resumed needs the deployment engine's settings.
    """

    def answer(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        reply = devices[number].ask(message, run, context.run_config)
        if watch is not None:
            watch(number, message, reply)
        return reply

    settings = compose_settings(
        [f"num_clients={len(devices)}", f"num_rounds={ROUNDS}", "randomness=secret", *overrides]
    )
    run_config: dict[str, Any] = {"settings": settings.to_json(), "output-dir": str(folder)}
    if resume:
        run_config["resume"] = True
    run_in_process(server_app, answer, len(devices), run_config)  # type: ignore[arg-type]
    return read_outcome(folder)


def record_requests(folder: Path, *overrides: str) -> list[Message]:
    """Return all requests that a whole run sends to client 0, in their order, without its name.

    A device knows them by Flower's number of the run then, which a test chooses.
    """
    devices = [
        Device(folder / f"{number}", number, allowed_strategies=ALL, allow_seeded=True)
        for number in range(CLIENTS)
    ]
    found: list[Message] = []

    def keep(number: int, message: Message, reply: Message) -> None:
        if number == 0:
            found.append(copied(message))
            found[-1].content["config"].pop(RUN_KEY, None)

    run_on_devices(folder / "run", devices, *overrides, watch=keep)
    return found
