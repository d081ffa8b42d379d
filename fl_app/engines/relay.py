"""A grid in front of another: the part that all such grids share."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

if TYPE_CHECKING:
    from fl_app.engines.flower_internals import Run


class GridRelay(Grid):
    """A grid that passes everything on to another grid.

    Parameters
    ----------
    grid : Grid
        The grid that does the work.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def set_run(self, run: "Run") -> None:
        """Set the run of the grid behind."""
        self._grid.set_run(run)

    @property
    def run(self) -> "Run":
        """The run of the grid behind."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message; see `flwr.serverapp.Grid.create_message`."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids of the grid behind."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return their ids."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for their replies."""
        return self._grid.send_and_receive(messages, timeout=timeout)
