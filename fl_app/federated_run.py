"""A run that trains one model on the clients' data."""

import logging
import math
from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

from fl_app.checkpoint import Checkpoint
from fl_app.data import FederatedDataset
from fl_app.errors import RunError
from fl_app.evaluation import evaluate, global_train_loss
from fl_app.local_model import check_model, shared_model
from fl_app.model_arrays import to_arrays
from fl_app.model_files import sha256_of_arrays
from fl_app.models import build_model
from fl_app.published import compare_with_published
from fl_app.recorded_run import RecordedRun
from fl_app.registry import TrainingStrategy, build_strategy, update_of
from fl_app.run_store import RunStore
from fl_app.settings import RunSettings
from fl_app.update_settings import explain_sensitivity
from strategies.dp_fedpaq.messages import model_arrays, model_record
from strategies.dp_fts_de import DpFtsDe
from strategies.niss import Niss
from strategies.niss.replies import WHY_SIT_OUT
from strategies.rounds import RoundResult

_log = logging.getLogger(__name__)


class FederatedRun(RecordedRun):
    """A run of a method that trains a model.

    Parameters
    ----------
    settings : RunSettings
        With `num_clients` set.
    dataset : FederatedDataset
        The data, as every simulated client loads them; the server uses the public test set, and
        the sizes of the partitions, which are public. Devices have others, of unknown sizes.
    client_ids, store, checkpoint, is_stopped
        As in `RecordedRun`.
    """

    def __init__(
        self,
        settings: RunSettings,
        dataset: FederatedDataset,
        client_ids: dict[int, int],
        store: RunStore,
        checkpoint: Checkpoint | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(settings, client_ids, store, checkpoint, is_stopped)
        self._dataset = dataset
        self._has_diverged = False
        self._sizes = None
        if settings.engine.name != "deployment":
            self._sizes = dict(enumerate(map(int, dataset.partition_sizes())))
        strategy = build_strategy(
            settings,
            client_ids=client_ids,
            num_records=self._sizes,
            on_round=self._on_round,
        )
        assert not isinstance(strategy, DpFtsDe)
        self._training = strategy

    @property
    def _strategy(self) -> TrainingStrategy:
        return self._training

    def _begin_with(self) -> ArrayRecord:
        settings = self._settings
        if reason := explain_sensitivity(settings, update_of(self._training)):
            _log.warning("the noise follows the clipped update (whole_update): %s", reason)
        model = build_model(
            settings.model,
            self._dataset.feature_shape,
            self._dataset.num_classes,
            settings.seed,
        )
        check_model(settings, self._dataset)
        return model_record(to_arrays(model))

    def _assess(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """Evaluate on the public test set, which the server holds, and in experiments on more."""
        settings, dataset = self._settings, self._dataset
        model, values = shared_model(settings, dataset), model_arrays(arrays)
        feature_norm = settings.training.feature_norm
        outcome = evaluate(model, values, dataset.test, feature_norm)
        if not math.isfinite(outcome.loss) and not self._has_diverged:
            self._has_diverged = True
            _log.warning("round %d: the test loss is not finite (told once)", server_round)
        metrics = MetricRecord({"test-loss": outcome.loss, "test-accuracy": outcome.accuracy})
        if settings.evaluates_train_loss(server_round):
            metrics["global-train-loss"] = global_train_loss(model, values, dataset, feature_norm)
        return metrics

    def _check_round(self, outcome: RoundResult) -> None:
        is_told = not self._strategy.secret_figures
        if outcome.num_local_failures and is_told:
            _log.warning(
                "round %d: local training failed or diverged on %d clients; their updates are zero",
                outcome.server_round,
                outcome.num_local_failures,
            )
        all_failed = 0 < outcome.num_local_failures == outcome.num_replies
        if all_failed and not self._on_devices:
            raise RunError(
                "local training failed or diverged on every client that answered; see "
                f"{self._client_log}"
            )
        fewest = len(self._client_ids) if self._on_devices else 1
        everybody_out = fewest <= outcome.num_sampled == outcome.num_ineligible
        if self._totals["updates"] == 0 and everybody_out:
            needed = f"{self._training.parameters.min_records} records are needed"
            largest = f", the largest client has {max(self._sizes.values())}" if self._sizes else ""
            why = f"strategy.local_steps * strategy.batch_size = {needed}{largest}"
            if isinstance(self._training, Niss):
                why = f"{WHY_SIT_OUT}; each client's own log says which ({why})"
            asked = f"all {outcome.num_sampled}" if is_told else "all"
            raise RunError(f"{asked} clients of round {outcome.server_round} sit out: {why}")

    def _write_results(self, arrays: ArrayRecord) -> dict[str, Any]:
        settings, totals = self._settings, self._totals
        model = model_arrays(arrays)
        num_parameters = sum(array.size for array in model.values() if array.dtype.kind == "f")
        bits = 8 * totals["update_bytes"] / (totals["updates"] * max(num_parameters, 1))
        self._store.write_model(model, {"model": settings.model.name})
        return {
            "num_parameters": num_parameters,
            "test_accuracy": self._last.get("test_accuracy"),
            "test_loss": self._last.get("test_loss"),
            "uplink_bits_per_parameter": bits,
            "model_sha256": sha256_of_arrays(model),
            "published": compare_with_published(
                settings.published,
                losses=self._train_losses(),
                test_accuracy=self._last.get("test_accuracy"),
                local_epochs=settings.training.local_epochs,
                num_rounds=totals["rounds"],
            ),
        }

    def _train_losses(self) -> dict[int, float]:
        """Return the losses on all training records by round, of before a resumption too."""
        rows = self._store.read_metrics()
        losses = {row["round"]: row.get("global_train_loss") for row in rows}
        return {at: loss for at, loss in losses.items() if loss is not None}
