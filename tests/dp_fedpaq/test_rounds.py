"""Budgets, cohorts of any size, and noise at the server, over whole runs."""

import dataclasses
import math

import numpy as np
import pytest
from flwr.app import Message

from fl_app.engines.in_process import FIRST_NODE_ID
from strategies.dp_fedpaq import DpFedPaq, ParameterError
from strategies.dp_fedpaq.algorithm import decode_update, encode_update, longest_upload
from strategies.mechanisms.closed_form import gaussian_epsilon
from strategies.mechanisms.quantization import QuantizedVector, dequantize_qsgd
from strategies.mechanisms.rng import Randomness
from strategies.rounds import RoundResult
from tests.dp_fedpaq.test_server import RecordingGrid, make_app, start, strategy


def test_an_uplink_budget_is_checked_before_anybody_is_asked() -> None:
    # 16 parameters at s = 100: 32 + 16 * 8 bits an upload, 4 clients, 3 rounds.
    needed = 3 * 4 * (32 + 16 * 8)
    grid = RecordingGrid(make_app(), 4)
    with pytest.raises(ParameterError, match=f"= {needed}") as caught:
        start(strategy(uplink_budget_bits=needed - 1), grid, num_rounds=3)
    assert caught.value.key == "uplink_budget_bits"
    assert not grid.requests
    rows: list[RoundResult] = []
    chosen = strategy(uplink_budget_bits=needed, on_round=lambda row, _: rows.append(row))
    start(chosen, grid, num_rounds=3)
    assert 8 * sum(row.uplink_bytes for row in rows) == needed


def test_a_run_stops_before_it_exceeds_its_budget() -> None:
    """Poisson cohorts are larger than expected at times; what a client sends counts, too."""
    size = 32 + 16 * 8
    for seed in range(20):
        rows: list[RoundResult] = []
        chosen = strategy(
            uplink_budget_bits=10 * 4 * size,
            participation="poisson",
            num_sampled_clients=4,
            seed=seed,
            on_round=lambda row, _, rows=rows: rows.append(row),
        )
        grid = RecordingGrid(make_app(), 8)
        start(chosen, grid, num_rounds=10)
        assert 8 * sum(row.uplink_bytes for row in rows) <= 10 * 4 * size
        assert len(grid.requests) == sum(row.num_sampled for row in rows)
        if len(rows) < 10:
            break
    else:
        raise AssertionError("no run of 20 came near its budget")


def test_an_empty_cohort_is_a_round_like_any_other() -> None:
    rows: list[RoundResult] = []
    chosen = strategy(
        participation="poisson",
        num_sampled_clients=1,
        on_round=lambda row, _: rows.append(row),
    )
    start(chosen, RecordingGrid(make_app(), 8), num_rounds=40)
    empty = [row for row in rows if row.num_sampled == 0]
    assert empty
    assert len(rows) == 40
    assert {row.num_replies for row in empty} == {0}


class TestCurator:
    """The server is trusted and adds the noise."""

    def run(self, num_rounds: int, **changes: object) -> tuple[DpFedPaq, list[np.ndarray]]:
        models: list[np.ndarray] = []

        def keep(row: RoundResult, _: object) -> None:
            models.append(row.arrays["w"].numpy().astype(np.float64).ravel())

        values = {"noise_at": "server", "quantizer": "none", "clipping_norm": 0.5}
        chosen = strategy(**{**values, "on_round": keep, **changes})
        start(chosen, RecordingGrid(make_app(), 8), num_rounds=num_rounds)
        return chosen, models

    def test_uploads_carry_no_noise_and_the_sum_does(self) -> None:
        _, silent = self.run(1, noise_multiplier=0.0)
        _, noisy = self.run(1, noise_multiplier=3.0)
        noise = Randomness("seeded", 0).stream("server-noise", 1).standard_normal(16)
        # The layout sorts the names: b, then w. Sensitivity 2 S = 1, eight clients.
        assert noisy[0] - silent[0] == pytest.approx(3.0 * noise[1:] / 8, abs=1e-6)

    def test_the_divisor_is_the_expected_number_of_clients(self) -> None:
        chosen, models = self.run(
            60, participation="poisson", num_sampled_clients=1, noise_multiplier=1.0
        )
        steps = np.diff(np.array(models), axis=0)
        # Rounds with an empty cohort get noise, too: the model moves in every round.
        assert np.all(np.any(steps != 0.0, axis=1))
        assert chosen.run.num_sampled == 1

    def test_nothing_shows_how_many_took_part(self) -> None:
        with pytest.raises(ParameterError, match="min_replies"):
            self.run(2, noise_multiplier=1.0, min_replies=2)
        with pytest.raises(ParameterError, match="participation"):
            self.run(2, participation="poisson", uplink_budget_bits=10**9)

    def test_a_round_without_any_reply_gets_noise_like_any_other(self) -> None:
        models: list[np.ndarray] = []
        chosen = strategy(
            noise_at="server",
            quantizer="none",
            on_round=lambda row, _: models.append(row.arrays["w"].numpy().copy()),
        )
        grid = RecordingGrid(make_app(), 8)
        grid.change = lambda replies: []  # type: ignore[method-assign]
        start(chosen, grid, num_rounds=2)
        assert np.any(models[0] != 0.0)
        assert np.all(models[1] != models[0])

    def test_a_cap_that_is_given_holds_and_is_counted(self) -> None:
        chosen, _ = self.run(9, num_sampled_clients=4, max_participations=2, noise_multiplier=1.0)
        assert chosen.parameters.num_participations == 2
        assert max(chosen.tally.uploads.values()) <= 2
        (_, user) = chosen.guarantees()
        assert not any("secret cohorts" in line for line in user.assumptions)
        assert user.epsilon == pytest.approx(gaussian_epsilon(1.0, 2, 1e-5), rel=1e-9)

    def test_a_target_is_met_over_the_run(self) -> None:
        chosen, _ = self.run(
            5, noise_multiplier=None, target_epsilon=2.0, num_sampled_clients=2, unit="client"
        )
        epsilon = chosen.epsilon()
        assert epsilon is not None
        assert 1.98 <= epsilon <= 2.0
        server, user = chosen.guarantees()
        assert (server.epsilon, user.epsilon) == (None, epsilon)
        # Without amplification: five participations, each counted.
        known, _ = self.run(
            5,
            noise_multiplier=None,
            target_epsilon=2.0,
            unit="client",
            neighboring_relation="zero_out",
        )
        assert 1.98 <= known.epsilon() <= 2.0  # type: ignore[operator]


def test_the_report_knows_what_was_lost() -> None:
    chosen = strategy(num_sampled_clients=3, max_participations=2, min_replies=1)
    grid = RecordingGrid(make_app(), 8)
    start(chosen, grid, num_rounds=2)
    assert chosen.run.complete
    assert chosen.run.fewest_uploads == 3
    grid = RecordingGrid(make_app(), 8)
    grid.change = lambda replies: replies[1:]  # type: ignore[method-assign]
    chosen = strategy(num_sampled_clients=3, max_participations=2)
    start(chosen, grid, num_rounds=2)
    assert not chosen.run.complete
    assert chosen.run.fewest_uploads == 2


def test_a_round_that_is_repeated_asks_the_same_clients_and_takes_its_bits_twice() -> None:
    chosen = strategy(quantizer="none", randomness="secret")
    chosen.repeat_round(2, {FIRST_NODE_ID: 1, FIRST_NODE_ID + 3: 1})
    grid = RecordingGrid(make_app(), 4)
    start(chosen, grid, num_rounds=2)
    asked = [request.metadata.dst_node_id for request in grid.requests[4:]]
    assert asked == [FIRST_NODE_ID, FIRST_NODE_ID + 3]
    # 16 parameters in float32, and as much again for what may have been sent before.
    assert chosen.tally.uplink_bytes == (4 + 2 + 2) * 64
    assert dict(chosen.tally.uploads) == {FIRST_NODE_ID + i: 2 - (i in (1, 2)) for i in range(4)}


def test_a_round_is_charged_before_anybody_is_asked() -> None:
    class Cable(RecordingGrid):
        def send_and_receive(self, messages, *, timeout=None):  # type: ignore[no-untyped-def]
            raise KeyboardInterrupt

    chosen = strategy()
    with pytest.raises(KeyboardInterrupt):
        start(chosen, Cable(make_app(), 3), num_rounds=2)
    assert sorted(chosen.tally.uploads.values()) == [1, 1, 1]
    assert chosen.epsilon() > 0.0  # type: ignore[operator]


def test_cohorts_are_drawn_from_the_clients_that_the_run_began_with() -> None:
    """The figures count M clients: those that are gone are lost, and new ones are not asked."""

    class Shrinking(RecordingGrid):
        left: range | None = None

        def get_node_ids(self):  # type: ignore[no-untyped-def]
            return super().get_node_ids() if self.left is None else self.left

    rows: list[RoundResult] = []
    grid = Shrinking(make_app(), 40)

    def leave(row: RoundResult, _: object) -> None:
        rows.append(row)
        grid.left = range(FIRST_NODE_ID, FIRST_NODE_ID + 4)

    chosen = strategy(num_sampled_clients=4, max_participations=30, on_round=leave)
    start(chosen, grid, num_rounds=30)
    assert {row.num_sampled for row in rows} == {4}
    # Each of the four that stay is drawn in 3 of 30 rounds, not in 30.
    assert max(chosen.tally.uploads.values()) < 15
    assert sum(row.num_failures for row in rows[1:]) > 60
    assert not chosen.tally.complete
    assert not any("secret cohorts" in line for line in chosen.guarantees()[1].assumptions)


def test_colluders_cannot_round_the_noise_of_the_others_away() -> None:
    """+1e30 and -1e30 in a sum of doubles leave nothing of what was added before."""

    def enlarge(replies: list[Message]) -> list[Message]:
        for reply, sign in zip(replies[:2], (1.0, -1.0), strict=True):
            array = reply.content["arrays"]["update"]
            array.data = (
                (np.frombuffer(array.data, "<f4") * 0 + sign * 1e30).astype("<f4").tobytes()
            )
        return replies

    rows: list[RoundResult] = []
    grid = RecordingGrid(make_app(), 6)
    grid.change = enlarge  # type: ignore[method-assign]
    chosen = strategy(quantizer="none", on_round=lambda row, _: rows.append(row))
    start(chosen, grid, num_rounds=1)
    assert (rows[0].num_replies, rows[0].num_failures) == (4, 2)
    assert chosen.run.fewest_uploads == 4


def test_no_honest_upload_is_too_long() -> None:
    """The bound is exceeded with probability below exp(-50); half of it, always here."""
    chosen = strategy(quantizer="none", clipping_norm=1e-3, noise_multiplier=50.0).parameters
    longest = longest_upload(chosen, 1, 16)
    stream = Randomness("seeded", 1).stream("noise")
    std = chosen.sensitivity_in_round(1).value * 50.0
    norms = np.linalg.norm(stream.standard_normal(16 * 20_000).reshape(-1, 16) * std, axis=1)
    assert norms.max() + 1e-3 < longest < 1e-3 + std * 15
    assert longest_upload(strategy(clipping_norm=None, noise_multiplier=0.0).parameters, 1, 16) == (
        math.inf
    )


def test_rounding_makes_no_honest_upload_too_long() -> None:
    """Where it lengthens most: numbers just above a level, each rounded up."""
    chosen = strategy(clipping_norm=1.0, noise_multiplier=0.0, num_levels=2).parameters
    longest = longest_upload(chosen, 1, 10_000)
    update = np.full(10_000, 0.01)
    codes = QuantizedVector(1.0, np.ones(10_000, np.uint8), 2)
    assert float(np.linalg.norm(dequantize_qsgd(codes))) == 50.0 < longest < 51.1
    sent = encode_update(update, chosen, Randomness("seeded", 1).stream("rounding"))
    norm = float(np.linalg.norm(decode_update(sent, 10_000, chosen)))
    assert 5.0 < norm < longest
    precise = dataclasses.replace(chosen, num_levels=60_000)
    assert 1.0 < longest_upload(precise, 1, 16) < 1.0001
