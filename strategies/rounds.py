"""The loop over rounds that the methods' server sides share.

Flower's own loop gives no result when no round aggregated and cannot be stopped between rounds;
this one keeps its interface (`flwr.serverapp.strategy.Strategy`) and adds what a run must record.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

# Of a method with several exchanges a round, each request names its own in the configuration.
PHASE_KEY, UPLOAD_PHASE = "phase", "upload"

# Figures of a round that show how many clients were drawn, or answered.
COHORT_FIGURES = frozenset(
    {
        *("num_sampled", "num_replies", "num_failures", "num_ineligible", "num_uploaded"),
        *("uplink_bytes", "downlink_bytes", "control_bytes", "seconds"),
    }
)

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundResult:
    """What one round did; byte counts are those of the payloads really in the messages.

    Attributes
    ----------
    server_round : int
        Counted from 1.
    arrays : ArrayRecord
        The global model after the round.
    seconds : float
        Wall time of the round without evaluation.
    num_sampled : int
        Clients asked.
    num_replies : int
        Valid uploads that were aggregated.
    num_failures : int
        Clients that were asked and gave neither an upload nor word that they sit out.
    num_ineligible : int
        Clients that sat out.
    num_errors : int
        Clients that answered with an error; among `num_failures`.
    num_local_failures : int
        Clients whose local training failed, where they may say so (seeded runs).
    num_states_lost : int
        Clients that could not keep what they must remember; among `num_errors`.
    train_loss : float or None
        Mean loss over the clients that may report it (seeded runs); None if there is none.
    uplink_bytes, downlink_bytes : int
        Bytes of the arrays in the replies and in the requests.
    update_bytes : int
        Those of `uplink_bytes` that were aggregated.
    control_bytes : int
        Bytes of everything else in both.
    dropped : mapping of str to int
        Replies that were dropped, by reason.
    own : mapping of str to number or None
        The method's own figures.
    left_out : mapping of int to str
        Clients that were to be asked and whose uploads are not there, and why.
    """

    server_round: int
    arrays: ArrayRecord
    seconds: float
    num_sampled: int
    num_replies: int
    num_failures: int
    num_ineligible: int
    num_errors: int
    num_local_failures: int
    num_states_lost: int
    train_loss: float | None
    uplink_bytes: int
    downlink_bytes: int
    update_bytes: int
    control_bytes: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    own: Mapping[str, float | int | None] = field(default_factory=dict)
    left_out: Mapping[int, str] = field(default_factory=dict)


OnRound = Callable[[RoundResult, MetricRecord | None], bool | None]


def payload_bytes(message: Message) -> tuple[int, int]:
    """Return the bytes of a message's arrays, and of its other records."""
    if not message.has_content():
        return 0, 0
    arrays = control = 0
    for record in message.content.values():
        if isinstance(record, ArrayRecord):
            arrays += sum(len(array.data) for array in record.values())
        else:
            control += _count_bytes(record)
    return arrays, control


def _count_bytes(record: MetricRecord | ConfigRecord) -> int:
    try:
        return record.count_bytes()
    except (ValueError, IndexError):
        # Flower cannot count empty text and lists, which any client may send.
        return len(record.deflate())


def number_nodes(grid: Grid, client_ids: Mapping[int, int] | None) -> dict[int, int]:
    """Return client number -> node id of the connected nodes.

    Parameters
    ----------
    grid : Grid
    client_ids : mapping of int to int, or None
        Node id to client number. None: the node ids themselves.

    Raises
    ------
    RuntimeError
        If no node is connected.
    """
    nodes = list(grid.get_node_ids())
    if not nodes:
        raise RuntimeError("no node is connected")
    if client_ids is None:
        return {node: node for node in nodes}
    return {client_ids[node]: node for node in nodes if node in client_ids}


class EndOfRun(Exception):  # noqa: N818
    """Raised by a round before anybody is asked: the run ends with the round before; says why."""


class RoundStrategy(Strategy):
    """A strategy whose rounds are recorded and can be stopped in between.

    Parameters
    ----------
    on_round : callable or None
        Called after each round with its `RoundResult` and the server's evaluation (or None). The
        run stops after the round if it returns False.

    Attributes
    ----------
    own_metrics : tuple of str
        Names of the figures in `RoundResult.own`.
    """

    own_metrics: tuple[str, ...] = ()

    def __init__(self, on_round: OnRound | None = None) -> None:
        self.on_round = on_round
        self._repeated: dict[int, tuple[Mapping[int, int], int]] = {}

    def repeat_round(self, server_round: int, uploads: Mapping[int, int], attempt: int = 1) -> None:
        """Ask these clients in a round, instead of drawing anew, before `start`.

        Parameters
        ----------
        server_round : int
        uploads : mapping of int to int
            How many different uploads of the round each client may have been asked for.
        attempt : int
            The last one that may have been sent, of a method that tries a round several times.

        Notes
        -----
        For a round that may have been sent before the server was killed. Where cohorts are drawn
        in secret, other clients would be asked in its place: what the first ones uploaded would be
        charged to nobody.
        """
        self._repeated[server_round] = uploads, attempt

    @property
    def secret_figures(self) -> frozenset[str]:
        """Those of `COHORT_FIGURES` that the run's guarantee needs to stay with the server."""
        return frozenset()

    def log_dropped(self, server_round: int, dropped: Mapping[str, int]) -> None:
        """Log what was dropped of a round, unless that says who was asked in it."""
        if dropped and not self.secret_figures:
            _log.warning("round %d: dropped %s", server_round, dict(dropped))

    @abstractmethod
    def prepare_run(self, grid: Grid, arrays: ArrayRecord, num_rounds: int) -> None:
        """Plan the run, before the first round."""

    @abstractmethod
    def run_round(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        timeout: float,
    ) -> RoundResult:
        """Run one round: ask, collect, aggregate."""

    @abstractmethod
    def export_state(self) -> dict[str, Any]:
        """Return what the rounds so far have left in the strategy, the model apart.

        Returns
        -------
        dict
            JSON values. A strategy of the same parameters goes on from them as this one would:
            in a seeded run, to the same models and figures.
        """

    @abstractmethod
    def import_state(self, state: dict[str, Any]) -> None:
        """Take over what `export_state` returned, before `start`.

        Raises
        ------
        ValueError
            If it is not what `export_state` returns.
        """

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody: a loss on a client's data is a release that nothing accounts for."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return None; see `configure_evaluate`."""
        return None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        first_round: int = 1,
    ) -> Result:
        """Run the method; see `flwr.serverapp.strategy.Strategy.start`.

        Parameters
        ----------
        grid : Grid
            Connection to the nodes.
        initial_arrays : ArrayRecord
            The model that the first round starts from.
        num_rounds : int
            Rounds of the run at most, >= 1; its last one has this number.
        timeout : float
            Seconds that a round waits for replies.
        train_config : ConfigRecord or None
            The application's own entries for each request.
        evaluate_config : ConfigRecord or None
            Not used: clients do not evaluate.
        evaluate_fn : callable or None
            Evaluation by the server on data of its own, before the first and after each round.
        first_round : int
            The round to begin with, >= 1. Above 1 a run goes on (see `import_state`), of which
            `initial_arrays` is the model after the round before; nothing is evaluated before it.

        Returns
        -------
        Result
            `arrays` is always the latest global model.
        """
        if isinstance(num_rounds, bool) or not isinstance(num_rounds, int) or num_rounds < 1:
            raise ValueError(f"num_rounds: {num_rounds!r}; allowed: an integer >= 1")
        if isinstance(first_round, bool) or not isinstance(first_round, int) or first_round < 1:
            raise ValueError(f"first_round: {first_round!r}; allowed: an integer >= 1")
        config = ConfigRecord() if train_config is None else train_config
        result = Result()
        result.arrays = arrays = initial_arrays
        self.prepare_run(grid, initial_arrays, num_rounds)
        self.summary()
        if first_round == 1 and evaluate_fn and (evaluation := evaluate_fn(0, arrays)) is not None:
            result.evaluate_metrics_serverapp[0] = evaluation
        for server_round in range(first_round, num_rounds + 1):
            try:
                outcome = self.run_round(server_round, arrays, config, grid, timeout)
            except EndOfRun as end:
                _log.warning("stopped before round %d of %d: %s", server_round, num_rounds, end)
                break
            result.arrays = arrays = outcome.arrays
            result.train_metrics_clientapp[server_round] = _as_metrics(outcome)
            evaluation = evaluate_fn(server_round, arrays) if evaluate_fn else None
            if evaluation is not None:
                result.evaluate_metrics_serverapp[server_round] = evaluation
            if self.on_round is not None and self.on_round(outcome, evaluation) is False:
                _log.info("stopped after round %d of %d", server_round, num_rounds)
                break
        return result


def _as_metrics(outcome: RoundResult) -> MetricRecord:
    counts: dict[str, int | float | list[int] | list[float]] = {
        "num-sampled": outcome.num_sampled,
        "num-replies": outcome.num_replies,
        "num-failures": outcome.num_failures,
        "num-ineligible": outcome.num_ineligible,
        "uplink-bytes": outcome.uplink_bytes,
        "downlink-bytes": outcome.downlink_bytes,
        "control-bytes": outcome.control_bytes,
    }
    if outcome.train_loss is not None:
        counts["train-loss"] = outcome.train_loss
    return MetricRecord(counts)
