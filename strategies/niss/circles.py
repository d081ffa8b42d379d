"""Among whom the noise of a client cancels, and how many of them may collude."""

from dataclasses import dataclass

from strategies.mechanisms.offset_noise import count_colluders
from strategies.mechanisms.parameter_checks import ParameterError, check_integer, check_number


@dataclass(frozen=True)
class Coalition:
    """Clients that offset their noise among themselves only.

    Attributes
    ----------
    clients : tuple of int
        Client numbers; none is in two coalitions.
    colluding_fraction : float
        Share of them, in [0, 1), that may help the server.
    min_ready : int
        Clients of it, >= 2, below which none of them uploads.
    """

    clients: tuple[int, ...]
    colluding_fraction: float
    min_ready: int

    def __post_init__(self) -> None:
        check_number(
            "coalitions.colluding_fraction", self.colluding_fraction, positive=False, below=1.0
        )
        check_integer("coalitions.min_ready", self.min_ready, 2)
        for client in self.clients:
            check_integer("coalitions.clients", client, 0)
        if len(self.clients) < self.min_ready or len(set(self.clients)) != len(self.clients):
            raise ParameterError(
                "coalitions.clients",
                list(self.clients),
                f"different numbers, at least min_ready = {self.min_ready}",
            )


@dataclass(frozen=True)
class Circle:
    """Those among whom a client's noise cancels: its coalition, or everybody outside of any.

    Attributes
    ----------
    index : int
        Its place among the coalitions, from 1; 0: those outside of all.
    colluding_fraction, min_ready
        As in `Coalition`.
    max_ready : int
        Clients of it in a round at most.
    """

    index: int
    colluding_fraction: float
    min_ready: int
    max_ready: int

    @property
    def num_colluders(self) -> int:
        """The largest number of colluding clients; the server may put all into one ready set."""
        return count_colluders(self.colluding_fraction, self.max_ready)

    @property
    def num_honest(self) -> int:
        """The least number of honest clients in a ready set that a client accepts."""
        return self.min_ready - self.num_colluders
