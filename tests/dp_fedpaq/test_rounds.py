"""Budgets, cohorts of any size, and noise at the server, over whole runs."""

import numpy as np
import pytest

from fl_app.engines.in_process import FIRST_NODE_ID
from strategies.dp_fedpaq import DpFedPaq, ParameterError
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

    def test_too_few_replies_leave_the_model_alone(self) -> None:
        _, models = self.run(2, noise_multiplier=1.0, min_replies=9)
        assert not np.any(models[-1])

    def test_a_target_is_met_over_the_run(self) -> None:
        chosen, _ = self.run(
            5, noise_multiplier=None, target_epsilon=2.0, num_sampled_clients=2, unit="client"
        )
        epsilon = chosen.epsilon()
        assert epsilon is not None
        assert 1.98 <= epsilon <= 2.0
        server, user = chosen.guarantees()
        assert (server.epsilon, user.epsilon) == (None, epsilon)


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


def test_an_interrupted_round_is_counted_again_where_the_server_adds_the_noise() -> None:
    spent = {}
    for noise_at in ("client", "server"):
        chosen = strategy(noise_at=noise_at, quantizer="none", randomness="secret")
        chosen.repeat_round(2, [FIRST_NODE_ID, FIRST_NODE_ID + 3])
        grid = RecordingGrid(make_app(), 4)
        start(chosen, grid, num_rounds=2)
        assert len(grid.requests) == 4 + 2
        spent[noise_at] = chosen.tally
        # 16 parameters in float32, and as much again for what may have been sent before.
        assert chosen.tally.uplink_bytes == (4 + 2 + 2) * 64
    assert spent["client"].num_rounds == 2
    assert max(spent["client"].uploads.values()) == 2
    assert spent["server"].num_rounds == 3
    assert max(spent["server"].uploads.values()) == 3
