"""A grid whose nodes say by themselves who they are, as on Flower's own engines."""

from collections.abc import Iterable
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fl_app.client_app import app as client_app
from fl_app.engines.in_process import InProcessGrid


class FlowerLikeGrid(Grid):
    """A grid that says nothing about partitions, and whose nodes connect one by one."""

    def __init__(self, num_clients: int, *, at_first: int | None = None) -> None:
        self._inner = InProcessGrid(client_app, num_clients, {})
        self.found = num_clients if at_first is None else at_first
        self.asked: list[int] = []

    set_run = create_message = push_messages = pull_messages = None  # type: ignore[assignment]

    @property
    def run(self) -> Any:
        return self._inner.run

    def get_node_ids(self) -> Iterable[int]:
        nodes = list(self._inner.get_node_ids())[: self.found]
        self.found += 1
        return nodes[::-1]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        requests = list(messages)
        self.asked.append(len(requests))
        return self.change(list(self._inner.send_and_receive(requests, timeout=timeout)))

    def change(self, replies: list[Message]) -> list[Message]:
        return replies[::-1]
