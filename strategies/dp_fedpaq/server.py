"""The server side of DP-FedPaq, a Flower strategy."""

import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from strategies.dp_fedpaq.algorithm import (
    Vector,
    aggregate_updates,
    aggregate_with_noise,
    longest_upload,
    upload_bits,
)
from strategies.dp_fedpaq.cohort import CohortPlan, check_hidden_cohorts
from strategies.dp_fedpaq.guarantees import describe_noise, list_guarantees, spent_epsilon
from strategies.dp_fedpaq.messages import model_arrays, model_record, request_config, round_requests
from strategies.dp_fedpaq.parameters import DpFedPaqParameters
from strategies.dp_fedpaq.replies import CollectedReplies, collect_replies, describe_round
from strategies.dp_fedpaq.run_plan import plan_run
from strategies.dp_fedpaq.spending import Participation, are_cohorts_secret, server_mechanism
from strategies.dp_fedpaq.tally import Tally
from strategies.dp_fedpaq.uplink_budget import UplinkBudget
from strategies.mechanisms.guarantee import Guarantee
from strategies.mechanisms.layout import ArrayLayout
from strategies.mechanisms.parameter_checks import check_number
from strategies.mechanisms.rng import Randomness, RandomnessKind, Stream
from strategies.mechanisms.sensitivity import LocalTraining
from strategies.rounds import (
    COHORT_FIGURES,
    EndOfRun,
    OnRound,
    RoundResult,
    RoundStrategy,
    number_nodes,
)

_log = logging.getLogger(__name__)


class DpFedPaq(RoundStrategy):
    """DP-FedPaq as a strategy: give it to a ServerApp and call `start`.

    The parameters of privacy and training are those of `DpFedPaqParameters`, those of the cohorts
    those of `CohortPlan`, where each is explained; here are the server's own.

    Parameters
    ----------
    colluding_fraction : float
        Share of the other clients, in [0, 1], that may help a user of the models.
    uplink_budget_bits : int or None
        B, bits of all uploads together: the run is refused if K r beta exceeds it, and ends before
        a round that would exceed it.
    client_ids : mapping of int to int, or None
        Node id to client number. Streams, cohorts and sums follow the client numbers, which
        makes seeded runs reproducible on every engine. None: the node ids themselves.
    num_records : mapping of int to int, or None
        n_k of each client number, where it may be known, for the reported epsilon.
    on_round : callable or None
        See `strategies.rounds.RoundStrategy`.

    Raises
    ------
    ParameterError
        If a parameter is not allowed or two contradict each other.
    """

    def __init__(
        self,
        *,
        num_sampled_clients: int | None = None,
        fraction_train: float | None = None,
        participation: str = "fixed",
        max_participations: int | None = None,
        min_replies: int = 1,
        colluding_fraction: float = 0.1,
        uplink_budget_bits: int | None = None,
        client_ids: Mapping[int, int] | None = None,
        num_records: Mapping[int, int] | None = None,
        on_round: OnRound | None = None,
        mode: str = "sound",
        unit: str = "record",
        neighboring_relation: str = "replace_one",
        sensitivity: str = "whole_update",
        mechanism: str = "update_noise",
        noise_at: str = "client",
        clipping_norm: float | None = 1.0,
        max_grad_norm: float | None = None,
        target_epsilon: float | None = None,
        noise_multiplier: float | None = None,
        target_delta: float = 1e-5,
        accountant: str = "auto",
        training: LocalTraining | None = None,
        local_steps: int | None = None,
        local_epochs: int | None = None,
        sampling: str = "fixed",
        sample_rate: float | None = None,
        batch_size: int = 16,
        learning_rate: float = 0.1,
        lr_schedule: str = "constant",
        lr_decay: float = 1.0,
        lr_decay_rounds: int = 1,
        quantizer: str = "qsgd",
        num_levels: int = 100,
        randomness: RandomnessKind = "seeded",
        seed: int = 0,
    ) -> None:
        super().__init__(on_round)
        self.cohorts = CohortPlan(
            num_sampled_clients, fraction_train, participation, max_participations, min_replies
        )
        check_number("colluding_fraction", colluding_fraction, positive=False, below=1.0 + 1e-12)
        self._budget = UplinkBudget(uplink_budget_bits)
        if noise_at == "server":
            check_hidden_cohorts(self.cohorts, self._budget)
        self.client_ids = client_ids
        self.num_records = num_records
        self.tally = Tally()
        self._parameters = DpFedPaqParameters(
            num_participations=max_participations or 1,
            mode=mode,
            unit=unit,
            neighboring_relation=neighboring_relation,
            sensitivity=sensitivity,
            mechanism=mechanism,
            noise_at=noise_at,
            clipping_norm=clipping_norm,
            max_grad_norm=max_grad_norm,
            target_epsilon=target_epsilon,
            noise_multiplier=noise_multiplier,
            target_delta=target_delta,
            accountant=accountant,
            training=training,
            local_steps=local_steps,
            local_epochs=local_epochs,
            sampling=sampling,
            sample_rate=sample_rate,
            batch_size=batch_size,
            learning_rate=learning_rate,
            lr_schedule=lr_schedule,
            lr_decay=lr_decay,
            lr_decay_rounds=lr_decay_rounds,
            quantizer=quantizer,
            num_levels=num_levels,
            randomness=randomness,
            seed=seed,
        )
        self._plan = Participation(kind=participation, colluding_fraction=colluding_fraction)
        self._population: list[int] | None = None
        self._drawn: list[int] = []
        self._cohort: dict[int, int] = {}
        self._start: tuple[ArrayRecord, Vector, ArrayLayout] | None = None
        self._collected = CollectedReplies()

    @property
    def parameters(self) -> DpFedPaqParameters:
        """The parameters that clients are sent; complete once a run is prepared."""
        return self._parameters

    @property
    def secret_figures(self) -> frozenset[str]:
        """All that show the cohorts' sizes, where the server's noise needs them secret."""
        hidden = are_cohorts_secret(self._parameters, self._plan)
        return COHORT_FIGURES if hidden else frozenset()

    def summary(self) -> None:
        """Log what the run does to an update, in one line."""
        _log.info("DP-FedPaq: %s", self._parameters.describe())

    def prepare_run(self, grid: Grid, arrays: ArrayRecord, num_rounds: int) -> None:
        """Plan how often a client takes part, which the noise is calibrated for.

        Raises
        ------
        ParameterError
            If the run would exceed its uplink budget.
        """
        # Cohorts are drawn from these, connected or not: the figures count their number.
        self._population = sorted(number_nodes(grid, self.client_ids))
        num_clients = len(self._population)
        size = ArrayLayout.of(model_arrays(arrays)).num_parameters
        self.check_budget(num_rounds, num_clients, size)
        plan = replace(
            self._plan,
            num_rounds=num_rounds,
            num_clients=num_clients,
            num_records=self.num_records,
        )
        self._parameters, self._plan = plan_run(self._parameters, self.cohorts, plan)

    def check_budget(self, num_rounds: int, num_clients: int, num_parameters: int) -> None:
        """Raise ParameterError if a run would exceed its uplink budget."""
        sampled, bits = self.cohorts.num_sampled(num_clients), self.upload_bits(num_parameters)
        self._budget.check_plan(num_rounds, sampled, bits)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Pick the cohort and build its requests, in the order of the client numbers.

        Raises EndOfRun if the uploads might exceed the uplink budget; nobody has been asked then.
        """
        layout = ArrayLayout.of(model := model_arrays(arrays))
        clients = number_nodes(grid, self.client_ids)
        population = sorted(clients) if self._population is None else self._population
        drawn = self.cohorts.draw(population, self._stream("cohort", server_round), server_round)
        size = self.upload_bits(layout.num_parameters)
        if server_round in self._repeated:
            drawn = sorted(self._repeated.pop(server_round)[0])
            self.tally = self.tally.repeat_uploads(len(drawn), math.ceil(size / 8))
        if not self._budget.allows(8 * self.tally.uplink_bytes, len(drawn), size):
            raise EndOfRun(f"the uplink budget of {self._budget.bits} bits would be exceeded")
        self._start = (arrays, layout.flatten(model), layout)
        self._drawn = drawn
        # Whoever is not connected is lost, like one that does not answer.
        self._cohort = {clients[client]: client for client in drawn if client in clients}
        self.tally = self.tally.begin_round(self._cohort.values())
        request = request_config(server_round, self._parameters, config)
        return round_requests(self._cohort, server_round, arrays, request)

    def _stream(self, purpose: str, server_round: int) -> Stream:
        randomness = Randomness(self._parameters.randomness, self._parameters.seed)
        return randomness.stream(purpose, server_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the valid uploads, in the order of the client numbers, and add them to the model.

        A bad reply is counted and dropped; with fewer than `min_replies` valid ones the result is
        None and the model stays as it is.
        """
        if self._start is None:
            raise RuntimeError("aggregate_train needs a round begun by configure_train")
        arrays, start, layout = self._start
        collected = collect_replies(str(server_round), self._cohort, replies)
        longest = longest_upload(self._parameters, server_round, layout.num_parameters)
        uploads = collected.decode(layout.num_parameters, self._parameters, longest)
        averaged = self._aggregate(server_round, start, uploads)
        self.log_dropped(server_round, collected.dropped)
        self._collected = collected
        self.tally = self.tally.add_replies(
            len(self._drawn), collected.ineligible, collected.num_valid, collected.uplink_bytes
        )
        if not self._is_published(collected.num_valid):
            valid, least = collected.num_valid, self.cohorts.min_replies
            if valid:
                _log.warning(
                    "round %d: %d valid uploads, min_replies %d", server_round, valid, least
                )
            return None, None
        self.tally = self.tally.publish(collected.num_valid)
        floats = layout.unflatten(averaged)
        if not all(np.isfinite(array).all() for array in floats.values()):
            _log.warning("round %d: dropped, its average is not finite", server_round)
            collected.num_valid = 0
            return None, None
        model = {**model_arrays(arrays), **floats}
        return model_record(model), MetricRecord({"num-replies": collected.num_valid})

    def _is_published(self, num_valid: int) -> bool:
        """Say whether a round with that many valid uploads changes the model.

        With noise at the server every round does, an empty one too: who was there must not be seen.
        """
        hidden = self._parameters.noise_at == "server" and self._parameters.adds_noise
        return hidden or num_valid >= self.cohorts.min_replies

    def _aggregate(self, server_round: int, start: Vector, uploads: Iterable[Vector]) -> Vector:
        parameters = self._parameters
        if parameters.noise_at == "client" or not parameters.adds_noise:
            return aggregate_updates(start, uploads)
        assert parameters.clipping_norm is not None
        return aggregate_with_noise(
            start,
            uploads,
            server_mechanism(parameters, self._plan, server_round),
            clipping_norm=parameters.clipping_norm,
            num_expected=self._plan.num_sampled,
            stream=self._stream("server-noise", server_round),
        )

    def run_round(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        timeout: float,
    ) -> RoundResult:
        """Run one round: ask, collect, aggregate."""
        begin = time.perf_counter()
        requests = self.configure_train(server_round, arrays, config, grid)
        replies = grid.send_and_receive(requests, timeout=timeout) if requests else []
        aggregated, _ = self.aggregate_train(server_round, replies)
        return describe_round(
            server_round,
            arrays if aggregated is None else aggregated,
            requests,
            self._collected,
            num_sampled=len(self._drawn),
            absent=set(self._drawn).difference(self._cohort.values()),
            seconds=time.perf_counter() - begin,
            # In a secret run no client may report a loss, so none is believed.
            with_loss=self._parameters.randomness == "seeded",
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
            num_records=self.num_records,
        )

    def export_state(self) -> dict[str, Any]:
        """Return what the rounds so far add up to."""
        return self.tally.export()

    def import_state(self, state: dict[str, Any]) -> None:
        """Take over what `export_state` returned, or the same after a detour through JSON."""
        self.tally = Tally.restore(state)

    def epsilon(self) -> float | None:
        """Return the epsilon spent so far by the most exposed client; None without noise."""
        return spent_epsilon(self._parameters, self.run)

    def describe_noise(self) -> dict[str, Any]:
        """Return which bound the noise follows, and its largest standard deviation."""
        return describe_noise(self._parameters, self.run)

    def guarantees(self) -> list[Guarantee]:
        """Return what the run guarantees so far, for privacy.json."""
        return list_guarantees(self._parameters, self.run)

    def upload_bits(self, num_parameters: int) -> int:
        """Return beta, the bits of one upload of a model with `num_parameters` parameters."""
        return upload_bits(num_parameters, self._parameters)
