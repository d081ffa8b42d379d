"""The server side of DP-FTS-DE, a Flower strategy."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from strategies.dp_fedpaq.replies import CollectedReplies, describe_round
from strategies.dp_fts_de.algorithm import (
    Broadcast,
    Floats,
    apply_control,
    read_broadcast,
    release_sums,
    sample_agents,
)
from strategies.dp_fts_de.guarantees import describe_noise, list_guarantees, spent_epsilon
from strategies.dp_fts_de.messages import broadcast_record, build_requests, parse_broadcast
from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.dp_fts_de.progress import Progress
from strategies.dp_fts_de.release_signal import signal_to_noise
from strategies.dp_fts_de.replies import OWN_METRICS, StepReplies, sort_replies, summarize
from strategies.dp_fts_de.run_plan import AUTO, plan_run, unplanned_parameters, warn_of_releases
from strategies.dp_fts_de.spending import affords_release
from strategies.dp_fts_de.tally import ReleaseTally
from strategies.mechanisms.guarantee import Guarantee
from strategies.mechanisms.parameter_checks import ParameterError, check_integer
from strategies.mechanisms.rng import Randomness, Stream
from strategies.rounds import COHORT_FIGURES, OnRound, RoundResult, RoundStrategy, number_nodes

UPLOAD_BYTES = 4  # a number of a vector
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Asked:
    """Whom a round asks: node id to agent's number, for vectors, and whose are summed."""

    cohort: Mapping[int, int]
    uploaders: frozenset[int]
    sample: frozenset[int]
    releases: bool


class DpFtsDe(RoundStrategy):
    """DP-FTS-DE as a strategy: give it to a ServerApp and call `start`.

    The arrays of a run are its last broadcast; it starts from ``broadcast_record(None)``. In each
    round every agent does one step of its own. A run of T iterations has T + 1 rounds: the first
    is the initialisation, and what the last one would release nobody could query, so it does not.

    Parameters
    ----------
    num_agents : int or None
        N, a public constant; None: the nodes that are connected when the run starts.
    release_rounds : "auto" or sequence of int
        As in `DpFtsDeParameters`, empty for every round; "auto": see `plan_run`. Named ones lie
        below `num_rounds` of `start`.
    client_ids : mapping of int to int, or None
        Node id to agent's number, from 0 to N - 1. Sub-regions, streams and sums follow the
        numbers. None: the order of the node ids when the run starts.
    on_round : callable or None
        See `strategies.rounds.RoundStrategy`.
    **parameters
        The other fields of `DpFtsDeParameters`.

    Attributes
    ----------
    progress : dict of int to Progress
        What each agent last said of itself; empty in secret runs.

    Raises
    ------
    ParameterError
        If a parameter is not allowed or two contradict each other.
    """

    own_metrics = OWN_METRICS

    def __init__(
        self,
        *,
        num_agents: int | None = None,
        release_rounds: str | Sequence[int] = AUTO,
        client_ids: Mapping[int, int] | None = None,
        on_round: OnRound | None = None,
        **parameters: Any,
    ) -> None:
        super().__init__(on_round)
        check_integer("num_agents", num_agents, 1, optional=True)
        self._parameters = unplanned_parameters(num_agents, release_rounds, parameters)
        self._num_agents = num_agents
        self._auto_rounds = release_rounds == AUTO
        self._last_round: int | None = None
        self._numbers: dict[int, int] = {}
        self._asked = _Asked({}, frozenset(), frozenset(), releases=False)
        self._collected = StepReplies(CollectedReplies())
        self._signal: float | None = None
        self.client_ids = client_ids
        self.tally = ReleaseTally()
        self.progress: dict[int, Progress] = {}

    @property
    def parameters(self) -> DpFtsDeParameters:
        """The parameters that agents are sent; complete once a run is prepared."""
        return self._parameters

    @property
    def secret_figures(self) -> frozenset[str]:
        """What shows how many vectors came, where amplification needs the samples secret."""
        chosen = self._parameters
        samples = chosen.sample_rate < 1.0 and chosen.upload == "sampled"
        hidden = samples and chosen.adds_noise and chosen.randomness == "secret"
        # Everybody is asked in every round.
        return COHORT_FIGURES - {"num_sampled", "downlink_bytes"} if hidden else frozenset()

    @property
    def round_progress(self) -> dict[int, Progress]:
        """What each agent said of itself in the last round; empty in secret runs."""
        return self._collected.progress

    def summary(self) -> None:
        """Log what the run releases, in one line."""
        _log.info("DP-FTS-DE: %s", self._parameters.describe())

    def prepare_run(self, grid: Grid, arrays: ArrayRecord, num_rounds: int) -> None:
        """Give agents their numbers, plan the release rounds and their noise.

        Raises
        ------
        ParameterError
            If there are more agents than the run's constant N says, the noise differs from that of
            the rounds before, or a named release round is none that can release.
        """
        nodes = number_nodes(grid, self.client_ids)
        if self.client_ids is None:
            nodes = self._number_anew(set(nodes.values()))
        count = len(self.client_ids or nodes) if self._num_agents is None else self._num_agents
        if not all(0 <= number < count for number in nodes):
            raise ParameterError(
                "num_agents", count, f"more than the largest agent's number, {max(nodes)}"
            )
        self._num_agents = count
        self._numbers = {node: number for number, node in nodes.items()}
        self._last_round = num_rounds
        self._parameters = plan_run(
            self._parameters,
            count,
            num_rounds,
            auto_rounds=self._auto_rounds,
            planned_noise=self.tally.noise_multiplier,
        )
        if warning := warn_of_releases(self._parameters, num_rounds):
            _log.warning(warning)
        assert self._parameters.noise_multiplier is not None
        self.tally = self.tally.plan(
            float(self._parameters.noise_multiplier), float(self._parameters.sample_rate)
        )
        parse_broadcast(arrays)

    def _number_anew(self, connected: set[int]) -> dict[int, int]:
        """Return agent's number to node id.

        Numbers hold for the run; new nodes take those that are left, then those of absent nodes.
        """
        nodes = {number: node for node, number in self._numbers.items()}
        new = sorted(connected.difference(nodes.values()))
        size = len(new) if self._num_agents is None else self._num_agents
        left = [number for number in range(size) if number not in nodes]
        absent = [number for number, node in nodes.items() if node not in connected]
        return nodes | dict(zip([*left, *absent, *range(size, size + len(new))], new, strict=False))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Sample the agents whose vectors are summed, and build the requests to all agents."""
        parameters = self._parameters
        numbers = self._numbers if self.client_ids is None else self.client_ids
        # Whoever is not connected is lost, like one that does not answer.
        nodes = {numbers[node]: node for node in grid.get_node_ids() if node in numbers}
        # A round that may have been sent before is drawn anew: of its sample nothing was released.
        self._repeated.pop(server_round, None)
        releases = self._may_release(server_round)
        sample: list[int] = []
        if releases:
            sample = sample_agents(parameters, self._stream("cohort", server_round))
        uploaders = sample
        if parameters.upload == "all" and parameters.control != "no_sharing":
            uploaders = list(range(parameters.num_agents))
        self._asked = _Asked(
            {node: number for number, node in nodes.items()},
            frozenset(uploaders),
            frozenset(sample),
            releases,
        )
        self.tally = self.tally.begin_round()
        return build_requests(nodes, server_round, arrays, parameters, uploaders, config)

    def _may_release(self, server_round: int) -> bool:
        """Return whether a round releases: a function of public facts only."""
        is_last = self._last_round is not None and server_round >= self._last_round
        if is_last or not self._parameters.releases_in(server_round):
            return False
        if affords_release(self._parameters, self.tally.num_releases):
            return True
        target = self._parameters.target_epsilon
        _log.warning("round %d: no release, epsilon would exceed %s", server_round, target)
        return False

    def _stream(self, purpose: str, server_round: int) -> Stream:
        randomness = Randomness(self._parameters.randomness, self._parameters.seed)
        return randomness.stream(f"fts-{purpose}", server_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sum the sample's vectors and add noise, in a round that releases.

        Whatever is missing, late or malformed counts as zero, and with nothing at all the noise
        alone is released. The result is None in a round without a release, and if sums of vectors
        that are not clipped (no noise either) exceed the range of numbers.
        """
        parameters, asked = self._parameters, self._asked
        got = sort_replies(
            str(server_round),
            asked.cohort,
            asked.uploaders,
            replies,
            parameters,
        )
        self.log_dropped(server_round, got.counts.dropped)
        self._collected, self._signal = got, None
        self.progress.update(got.progress)
        self.tally = self.tally.receive(got.counts.uplink_bytes)
        if not asked.releases:
            return None, None
        self.tally = self.tally.release()
        summed = {agent: each for agent, each in got.vectors.items() if agent in asked.sample}
        got.counts.valid_bytes = UPLOAD_BYTES * parameters.num_random_features * len(summed)
        vectors = release_sums(
            parameters,
            server_round,
            list(summed),
            list(summed.values()),
            self._stream("server-noise", server_round),
        )
        if not np.isfinite(vectors).all():
            _log.warning("round %d: sums that are not finite are not broadcast", server_round)
            return None, None
        self._signal = signal_to_noise(
            parameters, server_round, vectors, self._stream("server-noise", server_round)
        )
        vectors = apply_control(parameters, vectors, self._stream("control", server_round))
        metrics = MetricRecord({"num-uploaded": len(got.vectors)})
        return broadcast_record(Broadcast(vectors, server_round)), metrics

    def run_round(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        timeout: float,
    ) -> RoundResult:
        """Run one round: ask all agents for a step, collect, release if it is due."""
        begin = time.perf_counter()
        requests = self.configure_train(server_round, arrays, config, grid)
        replies = grid.send_and_receive(requests, timeout=timeout) if requests else []
        released, _ = self.aggregate_train(server_round, replies)
        result = describe_round(
            server_round,
            arrays if released is None else released,
            requests,
            self._collected.counts,
            num_sampled=self._parameters.num_agents,
            absent=set(self._numbers.values()).difference(self._asked.cohort.values()),
            seconds=time.perf_counter() - begin,
            with_loss=False,
        )
        own = summarize(self._collected.progress.values())
        own["num_uploaded"] = len(self._collected.vectors)
        own["num_releases"] = self.tally.num_releases
        own["signal_to_noise"] = self._signal
        return replace(result, own=own)

    def find_shared_optimum(self, arrays: ArrayRecord) -> Floats | None:
        """Return where the last broadcast is largest, shape (D,); None before the first.

        A function of what was released: post-processing.
        """
        broadcast = parse_broadcast(arrays)
        if broadcast is None:
            return None
        public = Randomness("seeded", self._parameters.seed).stream("fts-optimum")
        return read_broadcast(self._parameters, broadcast).maximize(public)

    def export_state(self) -> dict[str, Any]:
        """Return what the rounds so far add up to, and the agents' numbers."""
        return {
            "tally": self.tally.export(),
            "num_agents": self._num_agents,
            "numbers": [[node, number] for node, number in self._numbers.items()],
        }

    def import_state(self, state: dict[str, Any]) -> None:
        """Take over what `export_state` returned, or the same after a detour through JSON."""
        names = {"tally", "num_agents", "numbers"}
        if not isinstance(state, dict) or state.keys() != names or not _is_numbering(state):
            raise ValueError("state of a strategy: what export_state returns is needed")
        check_integer("num_agents", state["num_agents"], 1, optional=True)
        if self._num_agents not in (None, state["num_agents"]):
            raise ParameterError(
                "num_agents", self._num_agents, f"{state['num_agents']}, as the run began"
            )
        self.tally = ReleaseTally.restore(state["tally"])
        self._num_agents = state["num_agents"]
        self._numbers = dict(state["numbers"])

    def epsilon(self) -> float | None:
        """Return the epsilon spent so far, the same for each agent; None without noise."""
        return spent_epsilon(self._parameters, self.tally.num_releases)

    def guarantees(self) -> list[Guarantee]:
        """Return what the run guarantees so far, for privacy.json."""
        return list_guarantees(self._parameters, self.tally.num_releases)

    def describe_noise(self) -> dict[str, Any]:
        """Return which bound the noise follows, and its largest standard deviation."""
        return describe_noise(self._parameters)


def _is_numbering(state: dict[str, Any]) -> bool:
    """Return whether a state numbers nodes: pairs of integers, each number once."""
    pairs = state["numbers"]
    if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
        return False
    if not all(type(each) is int for pair in pairs for each in pair):
        return False
    numbers = {number for _, number in pairs}
    return len(numbers) == len(dict(pairs)) == len(pairs) and all(each >= 0 for each in numbers)
