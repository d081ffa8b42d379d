"""The server side of DP-FedPaq, a Flower strategy."""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from strategies.dp_fedpaq.algorithm import (
    Vector,
    aggregate_updates,
    plan_participations,
    sample_cohort,
    upload_bits,
)
from strategies.dp_fedpaq.guarantees import Guarantee, list_guarantees, spent_epsilon
from strategies.dp_fedpaq.messages import (
    ARRAYS,
    CONFIG,
    model_arrays,
    model_record,
    request_config,
)
from strategies.dp_fedpaq.parameters import DpFedPaqParameters
from strategies.dp_fedpaq.replies import CollectedReplies, collect_replies
from strategies.mechanisms.layout import ArrayLayout
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.rng import Randomness, RandomnessKind
from strategies.mechanisms.sensitivity import LocalTraining
from strategies.rounds import OnRound, RoundResult, RoundStrategy, payload_bytes, timed_exchange

_log = logging.getLogger(__name__)


class DpFedPaq(RoundStrategy):
    """DP-FedPaq as a strategy: give it to a ServerApp and call `start`.

    The parameters of privacy and training are those of `DpFedPaqParameters`, where each is
    explained; here are the server's own.

    Parameters
    ----------
    num_sampled_clients : int or None
        r, clients asked in a round. At most one of this and `fraction_train` is given.
    fraction_train : float or None
        r / M in (0, 1]; r is rounded to the nearest integer, at least 1. Neither: everybody.
    max_participations : int or None
        Uploads of one client in the run at most, for which the noise is calibrated. None: the
        number of rounds if everybody takes part in each or there is no noise, else the number
        that a client exceeds with probability below 1% (it then sits out).
    min_replies : int
        Valid uploads below which a round leaves the model as it was.
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
        max_participations: int | None = None,
        min_replies: int = 1,
        client_ids: Mapping[int, int] | None = None,
        num_records: Mapping[int, int] | None = None,
        on_round: OnRound | None = None,
        unit: str = "record",
        neighboring_relation: str = "replace_one",
        sensitivity: str = "whole_update",
        clipping_norm: float | None = 1.0,
        target_epsilon: float | None = None,
        noise_multiplier: float | None = None,
        target_delta: float = 1e-5,
        accountant: str = "auto",
        training: LocalTraining | None = None,
        local_steps: int | None = None,
        local_epochs: int | None = None,
        batch_size: int = 16,
        learning_rate: float = 0.1,
        lr_schedule: str = "constant",
        lr_decay: float = 1.0,
        quantizer: str = "qsgd",
        num_levels: int = 100,
        randomness: RandomnessKind = "seeded",
        seed: int = 0,
    ) -> None:
        super().__init__(on_round)
        _check_cohort(num_sampled_clients, fraction_train, max_participations, min_replies)
        self.num_sampled_clients = num_sampled_clients
        self.fraction_train = fraction_train
        self.max_participations = max_participations
        self.min_replies = min_replies
        self.client_ids = client_ids
        self.num_records = num_records
        self.participations: Counter[int] = Counter()
        self._parameters = DpFedPaqParameters(
            num_participations=max_participations or 1,
            unit=unit,
            neighboring_relation=neighboring_relation,
            sensitivity=sensitivity,
            clipping_norm=clipping_norm,
            target_epsilon=target_epsilon,
            noise_multiplier=noise_multiplier,
            target_delta=target_delta,
            accountant=accountant,
            training=training,
            local_steps=local_steps,
            local_epochs=local_epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            lr_schedule=lr_schedule,
            lr_decay=lr_decay,
            quantizer=quantizer,
            num_levels=num_levels,
            randomness=randomness,
            seed=seed,
        )
        self._num_rounds = 0
        self._cohort: dict[int, int] = {}
        self._start: tuple[ArrayRecord, Vector, ArrayLayout] | None = None
        self._collected = CollectedReplies()

    @property
    def parameters(self) -> DpFedPaqParameters:
        """The parameters that clients are sent; complete once a run is prepared."""
        return self._parameters

    def summary(self) -> None:
        """Log what the run does to an update, in one line."""
        chosen = self._parameters
        _log.info(
            "DP-FedPaq: unit %s, %s, clipping norm %s, %s, quantiser %s, <= %d participations",
            chosen.unit,
            chosen.neighboring_relation,
            chosen.clipping_norm,
            f"target epsilon {chosen.target_epsilon}"
            if chosen.target_epsilon is not None
            else f"noise multiplier {chosen.noise_multiplier}",
            chosen.quantizer,
            chosen.num_participations,
        )

    def prepare_run(self, grid: Grid, arrays: ArrayRecord, num_rounds: int) -> None:
        """Plan how often a client takes part, which its noise is calibrated for."""
        num_clients = len(self._clients(grid))
        # Without noise nothing is spent, and nobody has to sit out.
        sampled = self._num_sampled(num_clients) if self._parameters.adds_noise else num_clients
        planned = self.max_participations or plan_participations(num_rounds, sampled, num_clients)
        self._parameters = replace(self._parameters, num_participations=planned)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Pick the cohort and build its requests, in the order of the client numbers."""
        layout = ArrayLayout.of(model := model_arrays(arrays))
        self._start = (arrays, layout.flatten(model), layout)
        self._num_rounds = max(self._num_rounds, server_round)
        clients = self._clients(grid)
        randomness = Randomness(self._parameters.randomness, self._parameters.seed)
        positions = sample_cohort(
            len(clients), self._num_sampled(len(clients)), randomness.stream("cohort", server_round)
        )
        ordered = sorted(clients)
        self._cohort = {clients[ordered[p]]: ordered[p] for p in positions}
        request = request_config(server_round, self._parameters, config)
        return [
            Message(
                RecordDict({ARRAYS: arrays, CONFIG: request}),
                dst_node_id=node,
                message_type=MessageType.TRAIN,
                group_id=str(server_round),
            )
            for node in self._cohort
        ]

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
        collected = collect_replies(server_round, self._cohort, replies)
        # Whoever was asked and did not say that it sits out may have uploaded: it is charged.
        self.participations.update(set(self._cohort.values()) - collected.ineligible)
        uploads = collected.decode(layout.num_parameters, self._parameters)
        averaged = aggregate_updates(start, uploads)
        if collected.dropped:
            _log.warning("round %d: dropped %s", server_round, dict(collected.dropped))
        self._collected = collected
        if collected.num_valid < self.min_replies:
            return None, None
        floats = layout.unflatten(averaged)
        if not all(np.isfinite(array).all() for array in floats.values()):
            _log.warning("round %d: dropped, its average is not finite", server_round)
            collected.num_valid = 0
            return None, None
        model = {**model_arrays(arrays), **floats}
        return model_record(model), MetricRecord({"num-replies": collected.num_valid})

    def run_round(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        timeout: float,
    ) -> RoundResult:
        """Run one round: ask, collect, aggregate."""
        requests = self.configure_train(server_round, arrays, config, grid)
        sizes = [payload_bytes(request) for request in requests]
        replies, seconds = timed_exchange(grid, requests, timeout)
        aggregated, _ = self.aggregate_train(server_round, replies)
        got = self._collected
        return RoundResult(
            server_round=server_round,
            arrays=arrays if aggregated is None else aggregated,
            seconds=seconds,
            num_sampled=len(requests),
            num_replies=got.num_valid,
            num_failures=len(requests) - got.num_valid - len(got.ineligible),
            num_ineligible=len(got.ineligible),
            num_errors=got.num_errors,
            num_local_failures=got.local_failures,
            train_loss=self._mean_loss(got.losses),
            uplink_bytes=got.uplink_bytes,
            downlink_bytes=sum(size for size, _ in sizes),
            update_bytes=got.valid_bytes,
            control_bytes=sum(size for _, size in sizes) + got.control_bytes,
        )

    def _mean_loss(self, losses: list[float]) -> float | None:
        """Return the mean loss; in a secret run no client may report one, so none is believed."""
        if not losses or self._parameters.randomness == "secret":
            return None
        return math.fsum(losses) / len(losses)

    def epsilon(self) -> float | None:
        """Return the epsilon spent so far by the most exposed client; None without noise."""
        return spent_epsilon(self._parameters, self.participations, self.num_records)

    def guarantees(self) -> list[Guarantee]:
        """Return what the run guarantees so far, for privacy.json."""
        sizes = self.num_records
        return list_guarantees(
            self._parameters,
            self.epsilon(),
            num_rounds=self._num_rounds,
            most_records=max(sizes.values()) if sizes else None,
        )

    def upload_bits(self, num_parameters: int) -> int:
        """Return beta, the bits of one upload of a model with `num_parameters` parameters."""
        return upload_bits(num_parameters, self._parameters)

    def _clients(self, grid: Grid) -> dict[int, int]:
        """Return client number -> node id."""
        nodes = list(grid.get_node_ids())
        if not nodes:
            raise RuntimeError("no node is connected")
        if self.client_ids is None:
            return {node: node for node in nodes}
        return {self.client_ids[node]: node for node in nodes if node in self.client_ids}

    def _num_sampled(self, num_clients: int) -> int:
        if self.fraction_train is not None:
            return max(1, round(self.fraction_train * num_clients))
        wanted = num_clients if self.num_sampled_clients is None else self.num_sampled_clients
        if wanted > num_clients:
            raise ParameterError(
                "num_sampled_clients", wanted, f"at most the number of clients, {num_clients}"
            )
        return wanted


def _check_cohort(
    num_sampled_clients: int | None,
    fraction_train: float | None,
    max_participations: int | None,
    min_replies: int,
) -> None:
    if num_sampled_clients is not None and fraction_train is not None:
        raise ParameterError("fraction_train", fraction_train, "null beside num_sampled_clients")
    if fraction_train is not None and not 0.0 < fraction_train <= 1.0:
        raise ParameterError("fraction_train", fraction_train, "a number in (0, 1]")
    counts = {
        "num_sampled_clients": num_sampled_clients,
        "max_participations": max_participations,
        "min_replies": min_replies,
    }
    for key, value in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise ParameterError(key, value, "an integer >= 1")
        if value is not None and value < 1:
            raise ParameterError(key, value, "an integer >= 1")
