"""The server side of NISS, a Flower strategy: it passes on cards and nonces, and sums."""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from strategies.dp_fedpaq.algorithm import Vector
from strategies.dp_fedpaq.cohort import CohortPlan
from strategies.dp_fedpaq.messages import model_arrays, model_record
from strategies.dp_fedpaq.replies import collect_replies
from strategies.dp_fedpaq.spending import Participation
from strategies.dp_fedpaq.tally import Tally
from strategies.dp_fedpaq.uplink_budget import UplinkBudget
from strategies.mechanisms.guarantee import Guarantee
from strategies.mechanisms.layout import ArrayLayout
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.rng import Randomness, Stream
from strategies.niss.algorithm import Words, average_uploads, sum_uploads
from strategies.niss.attempt_noise import check_noise, plan_attempt
from strategies.niss.attempts import AttemptLimits
from strategies.niss.exchanges import Line
from strategies.niss.guarantees import describe_noise, list_guarantees, spent_epsilon
from strategies.niss.messages import TAG_BYTES, UPLOAD, exchange_group, parse_upload
from strategies.niss.parameters import NissParameters, unplanned_parameters
from strategies.niss.replies import OWN_METRICS, OpenRound, read_words
from strategies.niss.roster import Roster
from strategies.niss.run_plan import plan_run
from strategies.rounds import EndOfRun, OnRound, RoundResult, RoundStrategy, number_nodes

WORD_BITS = 32
_log = logging.getLogger(__name__)


class Niss(RoundStrategy):
    """NISS as a strategy: give it to a ServerApp and call `start`.

    Parameters
    ----------
    num_sampled_clients, fraction_train, participation, max_participations, min_replies
        As in `CohortPlan`; cohorts have a fixed size.
    min_ready, max_dropouts, max_attempts
        As in `AttemptLimits`.
    uplink_budget_bits, client_ids, num_records, on_round
        As in `strategies.dp_fedpaq.DpFedPaq`.
    **parameters
        The fields of `NissParameters` (privacy, whom noise cancels among) and of
        `DpFedPaqParameters` (training, clipping, the noise that is aimed at), but for those that a
        run's plan fills in and the quantiser, which there is not.

    Raises
    ------
    ParameterError
        If a parameter is not allowed or two contradict each other.
    """

    own_metrics = OWN_METRICS

    def __init__(
        self,
        *,
        num_sampled_clients: int | None = None,
        fraction_train: float | None = None,
        participation: str = "fixed",
        max_participations: int | None = None,
        min_replies: int = 1,
        min_ready: int | None = None,
        max_dropouts: int | None = None,
        max_attempts: int = 3,
        uplink_budget_bits: int | None = None,
        client_ids: Mapping[int, int] | None = None,
        num_records: Mapping[int, int] | None = None,
        on_round: OnRound | None = None,
        **parameters: Any,
    ) -> None:
        super().__init__(on_round)
        self.cohorts = CohortPlan(
            num_sampled_clients, fraction_train, participation, max_participations, min_replies
        )
        if participation == "poisson":
            allowed = "fixed, round_robin with niss (cohorts of the size that noise is planned for)"
            raise ParameterError("participation", participation, allowed)
        limits = AttemptLimits(min_ready, max_dropouts, max_attempts)
        self._parameters = unplanned_parameters(**parameters)
        self.limits = limits.fit(self._parameters)
        self._budget = UplinkBudget(uplink_budget_bits)
        self.client_ids = client_ids
        self.tally = Tally()
        self.roster = Roster()
        self._plan = Participation(num_records=num_records)
        self._population: list[int] | None = None
        self._tag = b""
        self._timeout = 3600.0
        self._size = 1
        self._round = OpenRound()

    @property
    def parameters(self) -> NissParameters:
        """The parameters that clients are sent; complete once a run is prepared."""
        return self._parameters

    def summary(self) -> None:
        """Log what the run does to an update, in one line."""
        _log.info("NISS: %s", self.parameters.describe())

    def prepare_run(self, grid: Grid, arrays: ArrayRecord, num_rounds: int) -> None:
        """Plan participations, ready clients and the noise that all clients allow for.

        Raises
        ------
        ParameterError
            If the target cannot be met, the run would exceed its uplink budget, or clients have
            targets or coalitions of their own and no numbers.
        """
        if self.parameters.is_personal and self.client_ids is None:
            raise ParameterError("client_ids", None, "{node id: number} with numbered clients")
        self._population = sorted(number_nodes(grid, self.client_ids))
        num_clients = len(self._population)
        size = ArrayLayout.of(model_arrays(arrays)).num_parameters
        self.check_budget(num_rounds, num_clients, size)
        plan = replace(self._plan, num_rounds=num_rounds, num_clients=num_clients)
        self._parameters, self._plan = plan_run(
            self._parameters, self.cohorts, plan, self.limits.min_ready
        )
        if not self._tag:
            self._tag = self._stream("niss-run-tag").words(TAG_BYTES // 8).astype("<u8").tobytes()
        self._size = size
        # Refuses before anybody is asked what no grid is fine enough for.
        for warning in check_noise(self._parameters, size, num_rounds):
            _log.warning("%s", warning)

    def check_budget(self, num_rounds: int, num_clients: int, num_parameters: int) -> None:
        """Raise ParameterError if a run would exceed its uplink budget."""
        sampled, bits = self.cohorts.num_sampled(num_clients), self.upload_bits(num_parameters)
        self._budget.check_plan(num_rounds, sampled, bits)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw the cohort, register who is new, ask who is ready; build the requests for uploads.

        Returns
        -------
        list of Message
            By client number; empty if too few are ready. Whoever is asked is charged.

        Raises
        ------
        EndOfRun
            If the uploads might exceed the uplink budget; nobody has been asked for one then.
        """
        layout = ArrayLayout.of(model := model_arrays(arrays))
        size = self.upload_bits(layout.num_parameters)
        self._begin_round(server_round, grid, size)
        current = self._round = self._round.next_attempt(arrays, layout.flatten(model), layout)
        clients = number_nodes(grid, self.client_ids)
        # Whoever is not connected is lost, like one that does not answer.
        nodes = {clients[client]: client for client in current.drawn if client in clients}
        spent = self.tally.uplink_bytes + current.uplink_bytes
        if not self._budget.allows(8 * spent, len(nodes), size):
            raise EndOfRun(f"the uplink budget of {self._budget.bits} bits would be exceeded")
        line = Line(grid, config, self._parameters, self._tag, self._timeout)
        self.roster = line.register(current, nodes, self.roster)
        ready = line.ask_ready(current, nodes, self.roster)
        groups = self.roster.split(ready, self._parameters)
        asked = {client for members in groups.values() for client in members}
        if len(asked) < len(ready) or not ready:
            _log.warning("round %d: %s", server_round, current.explain(len(ready), len(asked)))
        self._round = current = current.with_groups(
            {node: client for node, client in nodes.items() if client in asked},
            groups,
            plan_attempt(
                *(self._parameters, server_round, layout.num_parameters, groups, self.roster),
                {client: records for client, (_, records) in ready.items()},
                *(
                    self._plan.num_records,
                    self._stream("niss-tracker", server_round, current.attempt),
                ),
            ),
        )
        self.tally = self.tally.charge(asked)
        nonces = {client: nonce for client, (nonce, _) in ready.items()}
        current.sent += (sent := line.build_upload_requests(current, arrays, self.roster, nonces))
        return sent

    def _begin_round(self, server_round: int, grid: Grid, upload_bits: int) -> None:
        if self._round.number == server_round:
            return
        population = self._population or sorted(number_nodes(grid, self.client_ids))
        drawn = self.cohorts.draw(population, self._stream("cohort", server_round), server_round)
        uploads: Mapping[int, int] = {}
        attempts = 0
        if server_round in self._repeated:
            uploads, attempts = self._repeated.pop(server_round)
            drawn = sorted(uploads)
        # What may have been uploaded in a round before the server was killed stays charged.
        sent = list(Counter(uploads).elements())
        self.tally = self.tally.begin_round(sent).repeat_uploads(len(sent), upload_bits // 8)
        self._round = OpenRound(number=server_round, drawn=tuple(drawn), attempt=attempts)

    def _stream(self, purpose: str, *labels: int) -> Stream:
        update = self._parameters.update
        return Randomness(update.randomness, update.seed).stream(purpose, *labels)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sum the uploads and add their average to the model.

        The result is None, and the model stays as it is, if too many ready clients vanished, or if
        the sum is longer than any sum of honest uploads: then noise did not cancel that should.
        """
        current = self._round
        if current.arrays is None:
            raise RuntimeError("aggregate_train needs a round begun by configure_train")
        group = exchange_group(UPLOAD, server_round, current.attempt)
        got = collect_replies(group, current.cohort, replies, parse_upload)
        size, summed = current.layout.num_parameters, list[int]()
        total, count = sum_uploads(read_words(got, size, summed), size)
        current.add(got)
        current.num_valid = count
        current.num_dropped = len(current.cohort) - count
        if got.dropped:
            _log.warning("round %d: dropped %s", server_round, dict(got.dropped))
        average = self._average(server_round, total, summed)
        current.num_published = 0 if average is None else count
        if average is None:
            return None, None
        self.tally = self.tally.publish(count)
        floats = current.layout.unflatten(current.start + average)
        if not all(np.isfinite(array).all() for array in floats.values()):
            _log.warning("round %d: dropped, its average is not finite", server_round)
            current.num_published = 0
            return None, None
        model = {**model_arrays(current.arrays), **floats}
        return model_record(model), MetricRecord({"num-replies": count})

    def _average(self, server_round: int, total: Words, summed: list[int]) -> Vector | None:
        """Return the average of the uploads that were summed; None if it cannot be used."""
        current = self._round
        if len(summed) < self.cohorts.min_replies:
            _log.warning("round %d: %d uploads are below min_replies", server_round, len(summed))
            return None
        if not self.limits.bear(current.num_dropped):
            gone = (server_round, current.num_dropped, self.limits.max_dropouts)
            _log.warning("round %d: %d ready clients vanished, max_dropouts %d", *gone)
            return None
        assert current.noise is not None
        weight = current.noise.weight_of(summed)
        average = average_uploads(total, weight, current.noise.grid)
        if average is None:
            _log.warning("round %d: masks that should cancel did not", server_round)
        else:
            current.residual_std = current.noise.residual_std(summed) / weight
        return average

    def run_round(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        timeout: float,
    ) -> RoundResult:
        """Run one round: who is ready, uploads, sum; again with fresh keys if it failed."""
        begin = time.perf_counter()
        self._timeout = timeout
        aggregated = None
        size = ArrayLayout.of(model_arrays(arrays)).num_parameters
        self._begin_round(server_round, grid, self.upload_bits(size))
        # Tries before the server was killed are among them: they were charged.
        tried = self._round.attempt
        if tried >= self.limits.max_attempts:
            _log.warning("round %d: given up after %d tries (max_attempts)", server_round, tried)
        for _ in range(tried, self.limits.max_attempts):
            try:
                requests = self.configure_train(server_round, arrays, config, grid)
            except EndOfRun:
                if self._round.attempt == 1:
                    raise
                break  # there have been uploads: the round counts, and is given up
            if requests:
                replies = grid.send_and_receive(requests, timeout=timeout)
                aggregated, _ = self.aggregate_train(server_round, replies)
            if aggregated is not None:
                break
        ended = self._round
        self.tally = self.tally.end_round(
            complete=ended.is_complete, uplink_bytes=ended.uplink_bytes
        )
        return ended.describe(
            arrays if aggregated is None else aggregated,
            seconds=time.perf_counter() - begin,
            with_loss=self._parameters.update.randomness == "seeded",
        )

    @property
    def run(self) -> Participation:
        """Who took part so far, as the report counts it."""
        return replace(
            self._plan,
            num_rounds=self.tally.num_rounds,
            uploads=self.tally.uploads,
            fewest_uploads=self.tally.fewest_uploads or 0,
            complete=self.tally.complete,
        )

    def export_state(self) -> dict[str, Any]:
        """Return what the rounds so far add up to, and who has registered."""
        return {
            "tally": self.tally.export(),
            "roster": self.roster.export(),
            "run_tag": self._tag.hex(),
        }

    def import_state(self, state: dict[str, Any]) -> None:
        """Take over what `export_state` returned, or the same after a detour through JSON."""
        self.tally = Tally.restore(state["tally"])
        self.roster = Roster.restore(state["roster"])
        self._tag = bytes.fromhex(state["run_tag"])
        if len(self._tag) not in (0, TAG_BYTES):
            raise ValueError("tag of a run: another length")

    def epsilon(self) -> float | None:
        """Return the epsilon spent so far by the most exposed client; None without a guarantee."""
        return spent_epsilon(self._parameters, self.run)

    def guarantees(self) -> list[Guarantee]:
        """Return what the run guarantees so far, for privacy.json."""
        return list_guarantees(
            self._parameters, self.run, has_trust_lists=self.roster.has_trust_lists
        )

    def upload_bits(self, num_parameters: int) -> int:
        """Return the bits of one upload of a model with `num_parameters` parameters."""
        return WORD_BITS * num_parameters

    def describe_noise(self) -> dict[str, Any]:
        """Return which bound the noise follows, and its standard deviations in round 1."""
        return describe_noise(self._parameters, self._size)
