"""The grid of devices: every reply is noticed, nothing is waited for in vain."""

import pytest
from flwr.app import Message, RecordDict

from fl_app.client_app import app as client_app
from fl_app.engines import prompt_grid
from fl_app.engines.in_process import InProcessGrid
from fl_app.engines.prompt_grid import PromptGrid
from fl_app.engines.relay import GridRelay
from fl_app.server_app import QUERY_TYPE


class SlowGrid(GridRelay):
    """Replies come one at each look; some messages are not accepted, some never answered."""

    def __init__(self, refused: int = 0, lost: int = 0) -> None:
        super().__init__(InProcessGrid(client_app, 4, {}))
        self._refused, self._lost = refused, lost
        self.looks = 0

    def push_messages(self, messages):
        names = list(super().push_messages(messages))
        return [None] * self._refused + names[self._refused :]

    def pull_messages(self, message_ids):
        assert None not in message_ids
        self.looks += 1
        names = sorted(message_ids, key=int)[: max(0, len(list(message_ids)) - self._lost)]
        return super().pull_messages(names[:1])


def ask(grid: PromptGrid, timeout: float | None) -> list[Message]:
    nodes = list(grid.get_node_ids())
    requests = [Message(RecordDict(), dst_node_id=n, message_type=QUERY_TYPE) for n in nodes]
    return list(grid.send_and_receive(iter(requests), timeout=timeout))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_grid, "POLL_SECONDS", 0.01)


def test_replies_are_collected_until_all_are_there() -> None:
    slow = SlowGrid()
    replies = ask(PromptGrid(slow), None)
    assert {reply.metadata.src_node_id for reply in replies} == set(slow.get_node_ids())
    assert slow.looks == 4


def test_a_message_that_was_not_accepted_is_not_waited_for() -> None:
    assert len(ask(PromptGrid(SlowGrid(refused=1)), None)) == 3
    assert ask(PromptGrid(SlowGrid(refused=4)), None) == []


def test_what_has_come_is_returned_when_the_time_is_over() -> None:
    assert len(ask(PromptGrid(SlowGrid(lost=1)), 0.3)) == 3
    # Even if there is no time at all, what is there already counts.
    assert len(ask(PromptGrid(SlowGrid(lost=1)), 0.0)) == 1
