"""A run on the server's side, whatever the method: settings and a grid in, a run's folder out."""

import logging
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid

from fl_app.asked_clients import AskedJournal, read_asked
from fl_app.checkpoint import Checkpoint, digest_settings, strip_engine
from fl_app.client_app import SETTINGS_KEY
from fl_app.device_state import forget_keys, forget_replies
from fl_app.engines.faults import FaultyGrid
from fl_app.engines.stored_reply import Blobs
from fl_app.errors import ConfigError, RunError
from fl_app.interruption import stop_on_signals
from fl_app.left_out import LeftOut
from fl_app.registry import FederatedStrategy, name_parameter
from fl_app.run_files import LOG_FILE, METRICS_FILE, QUERIES_FILE
from fl_app.run_log import find_client_log
from fl_app.run_name import RUN_KEY, name_run
from fl_app.run_store import RunStore, list_versions
from fl_app.settings import RunSettings
from strategies.dp_fedpaq import ParameterError
from strategies.dp_fedpaq.messages import model_arrays, model_record
from strategies.mechanisms.guarantee import Guarantee
from strategies.rounds import RoundResult

# Why figures are null in metrics.jsonl and summary.json.
WHY_LEFT_OUT = (
    "replies, failures, bytes and times stay with the server (checkpoint/): they show how many "
    "clients were drawn in a round, which the guarantee needs secret"
)
_log = logging.getLogger(__name__)


class RecordedRun(ABC):
    """A run of the configured method on a grid, which leaves a folder and can go on from it.

    Parameters
    ----------
    settings : RunSettings
        With `num_clients` set.
    client_ids : dict of int to int
        Node id to partition number.
    store : RunStore
    checkpoint : Checkpoint or None
        Where the run goes on; None: at its beginning.
    is_stopped : callable
        Whether the run must end after the round, asked after each.
    """

    def __init__(
        self,
        settings: RunSettings,
        client_ids: dict[int, int],
        store: RunStore,
        checkpoint: Checkpoint | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._client_ids = client_ids
        self._store = store
        self._checkpoint = checkpoint
        self._is_stopped = is_stopped
        self._faults: FaultyGrid | None = None
        self._interrupted = threading.Event()
        self._totals = {"updates": 0, "update_bytes": 0, "uplink_bytes": 0, "rounds": 0}
        self._last: dict[str, Any] = {}
        # Devices are not believed to end a run, whatever they say, but by all of them.
        self._on_devices = settings.engine.name == "deployment"
        self._errors_in_a_row = 0
        self._left_out = LeftOut()
        randomness = "seeded" if self._on_devices else settings.randomness
        self._client_log = str(find_client_log(Path(), randomness))

    @property
    @abstractmethod
    def _strategy(self) -> FederatedStrategy:
        """The method's server side."""

    @abstractmethod
    def _begin_with(self) -> ArrayRecord:
        """Return the arrays that a new run starts from; ConfigError if it cannot be run."""

    @abstractmethod
    def _assess(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Return what the server finds by itself about a round's arrays."""

    @abstractmethod
    def _check_round(self, outcome: RoundResult) -> None:
        """Raise RunError if the run is pointless after a round."""

    @abstractmethod
    def _write_results(self, arrays: ArrayRecord) -> dict[str, Any]:
        """Write the method's own files; return its part of the summary."""

    def execute(self, grid: Grid) -> dict[str, Any]:
        """Run all rounds and write the folder; return the summary.

        Raises
        ------
        RunError
            If no round could aggregate anything, or the clients' work fails everywhere.
        ConfigError
            If the checkpoint is not one of such a run.
        """
        self._begin = time.perf_counter()
        settings = self._settings
        initial, first_round = self._begin_with(), 1
        faults = settings.faults
        if faults.is_faulty:
            grid = self._faults = FaultyGrid(grid, faults)
        if self._checkpoint is not None:
            self._restore(self._checkpoint)
            initial = model_record(self._checkpoint.arrays)
            first_round = self._checkpoint.server_round + 1
            _log.info("going on with round %d of %d", first_round, settings.rounds)
        # The same on every engine: clients hold a run to them.
        terms = ConfigRecord(
            {
                SETTINGS_KEY: strip_engine(settings).to_json(),
                RUN_KEY: name_run(self._store.checkpoints),
            }
        )
        if settings.randomness == "secret":
            folder = self._store.checkpoints
            asked = read_asked(folder)
            if asked is not None and asked.server_round == first_round:
                self._strategy.repeat_round(*asked)
            grid = AskedJournal(grid, folder, self._client_ids, self._write_privacy)
        try:
            with stop_on_signals(
                self._interrupted.is_set, self._interrupted.set, signal.SIGINT, signal.SIGTERM
            ):
                result = self._strategy.start(
                    grid,
                    initial,
                    num_rounds=settings.rounds,
                    timeout=settings.round_timeout,
                    train_config=terms,
                    evaluate_fn=self._evaluate,
                    first_round=first_round,
                )
        except ParameterError as error:
            raise name_parameter(error, settings) from None
        finally:
            for line in self._left_out.describe():
                _log.warning(line)
        assert result.arrays is not None
        return self._finish(result.arrays)

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Take over where the run stands."""
        # Another part of a run's sums may be older than this program: unknown ones are refused.
        if checkpoint.totals.keys() != self._totals.keys():
            raise ConfigError("resume", sorted(checkpoint.totals), "a checkpoint of this program")
        self._totals = dict(checkpoint.totals)
        self._last = checkpoint.row
        self._begin -= checkpoint.seconds
        try:
            self._strategy.import_state(checkpoint.strategy)
            if self._faults is not None:
                self._faults.import_state(
                    checkpoint.faults or {}, checkpoint.blobs, self._client_ids
                )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError("resume", str(error), "a checkpoint of such a run") from None

    def _save(self, arrays: ArrayRecord) -> None:
        """Write the checkpoint of a round that is complete."""
        faults, blobs = None, Blobs()
        if self._faults is not None:
            faults, blobs = self._faults.export_state(self._client_ids)
        self._store.write_checkpoint(
            Checkpoint(
                server_round=self._totals["rounds"],
                arrays=model_arrays(arrays),
                totals=self._totals,
                row=self._last,
                metrics_bytes=self._store.measure(METRICS_FILE),
                queries_bytes=self._store.measure(QUERIES_FILE),
                strategy=self._strategy.export_state(),
                faults=faults,
                settings=digest_settings(self._settings),
                seconds=time.perf_counter() - self._begin,
                blobs=blobs,
            )
        )
        if self._settings.randomness == "secret":
            # No earlier round is asked for again from here on.
            forget_replies(self._store.checkpoints, self._totals["rounds"])

    def _evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        metrics = self._assess(server_round, arrays)
        if server_round == 0 and self._checkpoint is None:
            self._write_row(_empty_row(self._strategy.own_metrics), metrics)
            if self._settings.randomness == "secret":
                # What clients are told of the run from the start, it could not draw again.
                self._save(arrays)
        return metrics

    def _on_round(self, outcome: RoundResult, evaluation: MetricRecord | None) -> bool:
        self._totals["updates"] += outcome.num_replies
        self._totals["update_bytes"] += outcome.update_bytes
        self._totals["uplink_bytes"] += outcome.uplink_bytes
        self._totals["rounds"] = outcome.server_round
        self._write_row(_row(outcome), evaluation)
        if self._on_devices and not self._strategy.secret_figures:
            self._left_out.add(outcome.left_out)
        if outcome.num_states_lost and not self._on_devices:
            # The checkpoint before this round stays: a resumed run asks these clients again.
            lost = "" if self._strategy.secret_figures else f"{outcome.num_states_lost} "
            raise RunError(
                f"{lost}clients could not write to {self._store.checkpoints}; "
                f"is the disk full? See {self._client_log}"
            )
        self._check_round(outcome)
        all_failed = 0 < outcome.num_sampled == outcome.num_errors
        self._errors_in_a_row = self._errors_in_a_row + outcome.num_sampled if all_failed else 0
        enough = len(self._client_ids) if self._on_devices else 1
        if self._errors_in_a_row >= enough:
            told = "" if self._strategy.secret_figures else describe_dropped(outcome.dropped)
            raise RunError(
                f"every client of round {outcome.server_round} answered with an error"
                f"{f' ({told})' if told else ''}; see {self._client_log}"
            )
        self._save(outcome.arrays)
        if self._is_stopped():
            self._interrupted.set()
        return not self._interrupted.is_set()

    def _write_row(self, row: dict[str, Any], evaluation: MetricRecord | None) -> None:
        row.update(dict.fromkeys(self._strategy.secret_figures & row.keys()))
        epsilon = self._strategy.epsilon()
        if evaluation is not None:
            row["test_loss"] = evaluation["test-loss"]
            row["test_accuracy"] = evaluation["test-accuracy"]
            row["global_train_loss"] = evaluation.get("global-train-loss")
        row["epsilon"] = epsilon
        row["delta"] = None if epsilon is None else self._strategy.parameters.target_delta
        self._store.append_metrics(row)
        # After each round, so that a run that fails later has said what was given away.
        self._write_privacy()
        self._last = row

    def _write_privacy(self) -> None:
        rows = [*self._strategy.guarantees(), *self._further_guarantees()]
        self._store.write_privacy([each.as_dict() for each in rows])

    def _further_guarantees(self) -> list[Guarantee]:
        """Return what else of the run shows something, and how little."""
        return []

    def _finish(self, arrays: ArrayRecord) -> dict[str, Any]:
        settings, totals = self._settings, self._totals
        secret = bool(self._strategy.secret_figures)
        if totals["updates"] == 0:
            rounds = "1 round" if totals["rounds"] == 1 else f"{totals['rounds']} rounds"
            raise RunError(f"no valid upload in {rounds}: nothing was learnt; see {LOG_FILE}")
        summary: dict[str, Any] = {
            "strategy": settings.strategy.label or settings.strategy.name,
            "mode": settings.strategy.mode,
            "seed": settings.seed,
            "randomness": settings.randomness,
            "engine": settings.engine.name,
            "num_rounds": totals["rounds"],
            "num_clients": settings.num_clients,
            **self._write_results(arrays),
            "uplink_bytes_total": None if secret else totals["uplink_bytes"],
            "left_out": WHY_LEFT_OUT if secret else None,
            **self._strategy.describe_noise(),
            "epsilon": self._last["epsilon"],
            "delta": self._last["delta"],
            "wall_seconds": None if secret else time.perf_counter() - self._begin,
            "versions": list_versions(),
            "interrupted": self._interrupted.is_set(),
        }
        self._store.write_summary(summary)
        ended = totals["rounds"] == settings.rounds or not self._interrupted.is_set()
        if ended and not forget_keys(self._store.checkpoints):
            _log.warning("deleted keys are still in the log of %s", self._store.checkpoints)
        return summary


def default_folder(root: Path) -> Path:
    """Return a new folder's name under `root`, by date and time."""
    return root / time.strftime("%Y-%m-%d") / time.strftime("%H-%M-%S")


def _row(outcome: RoundResult) -> dict[str, Any]:
    return {
        "round": outcome.server_round,
        "seconds": outcome.seconds,
        "num_sampled": outcome.num_sampled,
        "num_replies": outcome.num_replies,
        "num_failures": outcome.num_failures,
        "num_ineligible": outcome.num_ineligible,
        "train_loss": outcome.train_loss,
        "global_train_loss": None,
        "test_loss": None,
        "test_accuracy": None,
        "uplink_bytes": outcome.uplink_bytes,
        "downlink_bytes": outcome.downlink_bytes,
        "control_bytes": outcome.control_bytes,
        **outcome.own,
    }


def _empty_row(own: tuple[str, ...]) -> dict[str, Any]:
    """Return the row of the evaluation before the first round."""
    counts = dict.fromkeys(("num_sampled", "num_replies", "num_failures", "num_ineligible"), 0)
    sizes = dict.fromkeys(("uplink_bytes", "downlink_bytes", "control_bytes"), 0)
    losses = dict.fromkeys(("train_loss", "global_train_loss", "test_loss", "test_accuracy"))
    return {"round": 0, "seconds": 0.0, **counts, **losses, **sizes, **dict.fromkeys(own)}


def describe_dropped(dropped: Mapping[str, int]) -> str:
    """Return the reasons for which replies were dropped, the most frequent first."""
    ordered = sorted(dropped.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{reason}: {count}" for reason, count in ordered)
