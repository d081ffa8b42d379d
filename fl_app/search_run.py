"""A run that searches: each client for a good point of its own objective."""

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from fl_app.checkpoint import Checkpoint
from fl_app.device_state import list_best
from fl_app.engines.client_work import client_at_work
from fl_app.errors import RunError
from fl_app.objectives import UserObjectiveSettings
from fl_app.published import compare_with_published
from fl_app.recorded_run import RecordedRun
from fl_app.run_store import RunStore
from fl_app.search_space import RealAxis, SearchSpace
from fl_app.search_task import build_search
from fl_app.settings import RunSettings
from strategies.dp_fts_de import DpFtsDe
from strategies.dp_fts_de.algorithm import read_broadcast
from strategies.dp_fts_de.messages import broadcast_record, parse_broadcast
from strategies.dp_fts_de.progress import Progress
from strategies.dp_fts_de.release_signal import MOST_NOISE, bound_noise_share
from strategies.mechanisms.guarantee import Guarantee
from strategies.rounds import RoundResult

# Places along an axis at which the last broadcast is drawn, for one and two axes.
_GRID = {1: 201, 2: 41}
_KEPT = (
    "checkpoint/ holds all clients' points and values, from which each may read its best one "
    "(devices.sqlite), and how evaluations failed (clients.log): delete it before you pass this "
    "folder on"
)
_log = logging.getLogger(__name__)


class SearchRun(RecordedRun):
    """A run of DP-FTS-DE.

    Parameters
    ----------
    settings : RunSettings
        With `num_clients` set.
    space : SearchSpace
        The axes, which are public; the server evaluates nothing.
    nested : sequence of Guarantee
        Of what the evaluations themselves release, all of them together.
    client_ids, store, checkpoint, is_stopped
        As in `RecordedRun`.
    """

    def __init__(
        self,
        settings: RunSettings,
        space: SearchSpace,
        nested: Sequence[Guarantee],
        client_ids: dict[int, int],
        store: RunStore,
        checkpoint: Checkpoint | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(settings, client_ids, store, checkpoint, is_stopped)
        self._nested = list(nested)
        self._space = space
        self._search = build_search(settings, client_ids, self._on_round)
        # What each agent last said, its evaluations that failed, and its values outside the
        # objective's range; nothing in secret runs.
        self._told: dict[int, dict[str, Any]] = {}
        self._failures: Counter[int] = Counter()
        self._outside: Counter[int] = Counter()

    @property
    def _strategy(self) -> DpFtsDe:
        return self._search

    def _begin_with(self) -> ArrayRecord:
        self._remember(self._store.read_queries())
        return broadcast_record(None)

    def _further_guarantees(self) -> list[Guarantee]:
        return self._nested

    def _assess(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        return None

    def _check_round(self, outcome: RoundResult) -> None:
        progress = self._search.round_progress
        rows = [_row(outcome.server_round, agent, each) for agent, each in sorted(progress.items())]
        self._remember(rows)
        if rows:
            self._store.append_queries(rows)
        self._warn_of_outside(rows)
        if outcome.num_local_failures:
            _log.warning(
                "round %d: evaluations failed on %d clients, and count as the lowest value",
                outcome.server_round,
                outcome.num_local_failures,
            )
        if outcome.server_round == 1 and not self._on_devices:
            if rows:
                self._check_values(rows)
            else:
                self._warn_of_useless_values()

    def _warn_of_useless_values(self) -> None:
        """Say where clients' own lines go, in a secret simulation, that no value is of use."""
        clients = list_best(self._store.checkpoints)
        if clients and all(each.num_useless == each.num_evaluations for each in clients):
            with client_at_work():
                _log.warning(
                    "every evaluation of every client has failed, or was outside %s: whatever this "
                    "run finds says nothing (see %s)",
                    *(self._value_range(), self._client_log),
                )

    def _check_values(self, rows: Sequence[dict[str, Any]]) -> None:
        """Raise RunError if no client has a value that tells one point from another."""
        if any(row["failures"] + row["outside"] < len(row["values"]) for row in rows):
            return
        if not any(row["outside"] for row in rows):
            raise RunError(f"every evaluation failed on every client; see {self._client_log}")
        raise RunError(
            f"every value of every client is outside {self._value_range()}: set objective.low and "
            "objective.high to the range of the values (of an accuracy in percent 0 and 100), and "
            "return what is better the higher it is (of a loss its negative); what was returned "
            f"is in {self._client_log}"
        )

    def _warn_of_outside(self, rows: Sequence[dict[str, Any]]) -> None:
        outside = [row["outside"] for row in rows if row["outside"]]
        if outside:
            _log.warning(
                "round %d: %d values of %d clients were outside %s and count as the nearer end",
                *(rows[0]["round"], sum(outside), len(outside), self._value_range()),
            )

    def _value_range(self) -> str:
        chosen = self._settings.objective
        if isinstance(chosen, UserObjectiveSettings):
            return f"objective.low..high ({chosen.low:g} to {chosen.high:g})"
        return "the objective's range"  # as devices may say that do not do what is asked

    def _remember(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            self._told[row["agent"]] = row
            self._failures[row["agent"]] += row["failures"]
            self._outside[row["agent"]] += row["outside"]

    def _write_results(self, arrays: ArrayRecord) -> dict[str, Any]:
        settings = self._settings
        assert settings.objective is not None
        assert settings.search is not None
        agents = [self._told[agent] for agent in sorted(self._told)]
        shared = self._shared_optimum(arrays)
        self._store.write_best_point(
            {
                "search_space": [dataclasses.asdict(axis) for axis in self._space.axes],
                "agents": [
                    {
                        "agent": row["agent"],
                        "value": row["best_value"],
                        "point": self._space.decode(np.array(row["best_point"])),
                        "failures": self._failures[row["agent"]],
                        "outside": self._outside[row["agent"]],
                    }
                    for row in agents
                ],
                "shared": shared,
            }
        )
        if (function := self._shared_function(arrays)) is not None:
            self._store.write_shared_function(function)
        best = [row["best_value"] for row in agents]
        simulates = settings.engine.name != "deployment"
        return {
            "kept": _KEPT if simulates and settings.randomness == "secret" else None,
            "num_parameters": None,
            "test_accuracy": None,
            "test_loss": None,
            # Whether anybody's vector came is the samples' secret; that one was asked for is not.
            "uplink_bits_per_parameter": 32.0 if self._search.tally.num_releases else None,
            "objective": settings.objective.name,
            "control": settings.search.control,
            "best_value_mean": float(np.mean(best)) if best else None,
            "best_value_worst": min(best, default=None),
            "simple_regret_mean": self._last.get("simple_regret_mean"),
            "num_releases": self._search.tally.num_releases,
            "noise_multiplier": self._search.parameters.noise_multiplier,
            # Of the last release.
            "noise_share": shared["noise_share"] if shared else None,
            "mostly_noise": shared["mostly_noise"] if shared else None,
            "published": compare_with_published(
                settings.published, best_values=self._best_values()
            ),
        }

    def _best_values(self) -> dict[int, float]:
        """Return the mean best value by round, of before a resumption too; none in secret runs."""
        rows = self._store.read_metrics()
        best = {row["round"]: row.get("best_value_mean") for row in rows}
        return {at: value for at, value in best.items() if value is not None}

    def _shared_optimum(self, arrays: ArrayRecord) -> dict[str, Any] | None:
        """Return where the last broadcast is largest, and how much of that may be noise.

        Post-processing of what was released, and public constants; what was signal is measured in
        seeded runs only.
        """
        place, broadcast = self._search.find_shared_optimum(arrays), parse_broadcast(arrays)
        if place is None or broadcast is None:
            return None
        released = broadcast.release_round
        parameters = self._search.parameters
        # Of random vectors nothing is signal.
        is_random = parameters.control == "random"
        share = None if is_random else bound_noise_share(parameters, released)
        rows = self._store.read_metrics()
        measured = [row.get("signal_to_noise") for row in rows if row["round"] == released]
        return {
            "point": self._space.decode(place),
            "value": None,
            "release_round": released,
            "noise_share": share,
            "mostly_noise": is_random or (share is not None and share > MOST_NOISE),
            "signal_to_noise": measured[-1] if measured else None,
        }

    def _shared_function(self, arrays: ArrayRecord) -> dict[str, Any] | None:
        """Return the last broadcast on a grid, for spaces that can be drawn."""
        broadcast, space = parse_broadcast(arrays), self._space
        is_real = all(isinstance(axis, RealAxis) for axis in space.axes)
        if broadcast is None or space.dimension not in _GRID or not is_real:
            return None
        grid = np.linspace(0.0, 1.0, _GRID[space.dimension])
        places = np.array(list(product(grid, repeat=space.dimension)))
        function = read_broadcast(self._search.parameters, broadcast)
        boxes = self._search.parameters.boxes
        return {
            "release_round": broadcast.release_round,
            "axes": list(space.names),
            "subregions": [
                {"low": low.tolist(), "high": high.tolist()}
                for low, high in map(boxes.bounds, range(boxes.num_subregions))
            ],
            "grid": grid.tolist(),
            "values": function.values(places).reshape((len(grid),) * space.dimension).tolist(),
        }


def _row(server_round: int, agent: int, progress: Progress) -> dict[str, Any]:
    return {
        "round": server_round,
        "agent": agent,
        "points": [list(point) for point in progress.points],
        "values": list(progress.values),
        "is_shared": progress.is_shared,
        "best_value": progress.best_value,
        "best_point": list(progress.best_point),
        "failures": int(progress.failures),
        "outside": int(progress.outside),
    }
