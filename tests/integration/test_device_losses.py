"""A device that is withdrawn, loses its folder or has a full disk: what it says and charges."""

import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flwr.app import Error, Message

from fl_app.allow_list import UNANSWERED
from fl_app.device_ledger import list_releases
from fl_app.device_state import STATE_FILE
from fl_app.engines.client_node import NODE_UNAVAILABLE
from fl_app.engines.flower_internals import identify_process
from tests.fl_app.devices import ALL, CLIENTS, METHODS, Device, record_requests, run_on_devices

LOST = 3
ROUNDS = 3
# Four devices; three are enough for each method.
RUNS = {
    "dp_fedpaq": METHODS["dp_fedpaq"],
    "niss": (*METHODS["niss"], "strategy.max_dropouts=1"),
    "dp_fts_de": (*METHODS["dp_fts_de"], "strategy.release_rounds=[1,2]"),
}


def uploads(reply: Message) -> list[bytes]:
    if not reply.has_content() or "arrays" not in reply.content:
        return []
    return [bytes(reply.content["arrays"]["update"].data)]  # type: ignore[union-attr]


class Losing(Device):
    """A device to which something happens once its first upload has left."""

    def __init__(self, folder: Path, happens: Callable[["Losing"], None]) -> None:
        super().__init__(folder, LOST, allowed_strategies=ALL)
        self._happens = happens
        self.left: list[bytes] = []
        self.is_stopped = False

    def ask(self, message: Message, *given: object) -> Message:  # type: ignore[override]
        if self.is_stopped:
            return Message(Error(NODE_UNAVAILABLE, "gone"), reply_to=message)
        reply = super().ask(message, *given)  # type: ignore[arg-type]
        first = not self.left
        self.left += uploads(reply)
        if first and self.left:
            self._happens(self)
        return reply


def run_with(folder: Path, method: str, happens: Callable[[Losing], None]) -> Losing:
    """Run with three devices more; what happens to the one costs the others nothing."""
    others = [Device(folder / f"{each}", each, allowed_strategies=ALL) for each in range(LOST)]
    device = Losing(folder / "lost", happens)
    chosen = (*RUNS[method], f"num_rounds={ROUNDS}", "engine=deployment")
    outcome = run_on_devices(folder / "run", [*others, device], *chosen)
    assert [row["num_replies"] for row in outcome.rows[1:]] == [CLIENTS, CLIENTS - 1, CLIENTS - 1]
    assert [row["num_failures"] for row in outcome.rows[1:]] == [0, 1, 1]
    assert outcome.summary["num_rounds"] == ROUNDS
    assert len(device.left) == 1
    for other in others:
        assert len(other.releases) == (2 if method == "dp_fts_de" else ROUNDS)
    return device


@pytest.mark.parametrize("method", RUNS)
def test_a_device_that_is_withdrawn_in_a_run(tmp_path: Path, method: str) -> None:
    """The others go on; it was charged for what had left, and keeps its ledger."""

    def stop(device: Losing) -> None:
        device.is_stopped = True

    device = run_with(tmp_path, method, stop)
    assert len(device.releases) == 1


@pytest.mark.parametrize("method", RUNS)
def test_a_folder_that_is_lost_in_a_run(tmp_path: Path, method: str) -> None:
    """The device answers nothing from then on, and begins nothing by itself."""

    def delete(device: Losing) -> None:
        shutil.rmtree(device.folder)

    device = run_with(tmp_path, method, delete)
    assert {reply.error.code for reply in device.replies if reply.has_error()} == {UNANSWERED}
    assert not device.folder.exists()


def test_a_ledger_that_is_lost_in_a_run(tmp_path: Path) -> None:
    """The same, where its file alone is gone."""

    def delete(device: Losing) -> None:
        (device.folder / STATE_FILE).unlink()

    device = run_with(tmp_path, "niss", delete)
    assert {reply.error.code for reply in device.replies if reply.has_error()} == {UNANSWERED}
    assert not (device.folder / STATE_FILE).exists()


@pytest.mark.parametrize("method", RUNS)
def test_a_folder_that_is_lost_between_two_runs(tmp_path: Path, method: str) -> None:
    """Nothing leaves until the owner names an empty folder: a new ledger, of which he knows."""
    identify_process(1)
    requests = record_requests(tmp_path, *METHODS[method])
    device = Device(tmp_path / "target", allowed_strategies=ALL)

    def ask(run: int) -> list[bytes]:
        return [each for request in requests for each in uploads(device.ask(request, run))]

    assert ask(1)
    shutil.rmtree(device.folder)
    device.replies.clear()
    assert ask(2) == []
    answered = [reply for reply in device.replies if not reply.has_error()]
    assert [reply.metadata.message_type for reply in answered] in ([], ["query.partition"])
    assert not device.folder.exists()
    device.folder.mkdir(mode=0o700)
    assert ask(3)
    assert {each.run for each in device.releases} == {"3"}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let this process make no file larger than that, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("method", RUNS)
def test_on_a_disk_that_fills_up_nothing_leaves_uncharged(tmp_path: Path, method: str) -> None:
    """Wherever the disk ends: what left is charged, and once it has room no upload is another."""
    identify_process(1)
    requests = record_requests(tmp_path, *METHODS[method])
    wanted = len({each.metadata.group_id for each in requests})
    assert wanted >= 2
    failed = answered = 0
    for step in range(16):
        device = Device(tmp_path / f"{step}", allowed_strategies=ALL)
        if step % 2:
            device.ask(requests[1])
        size = step * 20_000
        by_round: dict[str, set[bytes]] = {}
        for full in (True, False):
            for request in requests:
                with largest_file(size if full else 2**40):
                    reply = device.ask(request)
                group = request.metadata.group_id
                by_round.setdefault(group, set()).update(left := uploads(reply))
                answered += bool(left)
                failed += reply.has_error() and reply.error.code == UNANSWERED
                seen = sum(len(each) for each in by_round.values())
                assert seen <= (len(list_releases(device.folder)) if seen else 0)
        assert all(len(each) <= 1 for each in by_round.values())
    assert failed >= 5
    assert answered >= 5
