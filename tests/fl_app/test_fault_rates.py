"""How often replies are lost or late: the draws, and what runs make of them."""

from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from scipy.stats import binomtest

from fl_app.engines.faults import FaultSettings, FaultyGrid, draw_faults
from fl_app.engines.in_process import InProcessGrid
from fl_app.errors import RunError
from strategies.dp_fedpaq import DpFedPaq
from strategies.dp_fedpaq import client as dp_fedpaq_client
from strategies.dp_fedpaq.client import LocalWork
from strategies.dp_fedpaq.messages import model_record
from tests.conftest import Outcome
from tests.fl_app.test_faults import CLIENTS, expect

# Two-sided, of each statistical assertion below.
FALSE_POSITIVES = 1e-6


def test_the_draws_depend_on_the_seed_the_exchange_and_the_position_alone() -> None:
    settings = FaultSettings(loss_rate=0.5, late_rate=0.5, seed=1)
    one = draw_faults(settings, 1, 64)
    assert one == draw_faults(settings, 1, 64)
    assert [each[:16] for each in one] == list(draw_faults(settings, 1, 16))
    assert one != draw_faults(settings, 2, 64)
    assert one != draw_faults(FaultSettings(loss_rate=0.5, late_rate=0.5, seed=2), 1, 64)
    assert draw_faults(settings, 1, 0) == ([], [])


@pytest.mark.parametrize(("loss_rate", "late_rate"), [(0.2, 0.3), (0.05, 0.0), (0.0, 0.5)])
def test_the_rates(loss_rate: float, late_rate: float) -> None:
    settings = FaultSettings(loss_rate=loss_rate, late_rate=late_rate, seed=0)
    count, exchanges = 1000, 1000
    draws = [draw_faults(settings, number, count) for number in range(1, exchanges + 1)]
    losses = sum(sum(lost) for lost, _ in draws)
    delays = sum(sum(late) for _, late in draws)
    size = count * exchanges

    def agrees(hits: int, rate: float) -> bool:
        return binomtest(hits, size, rate).pvalue > FALSE_POSITIVES

    assert agrees(losses, loss_rate)
    assert agrees(delays, late_rate * (1 - loss_rate))
    # The twin: rates that are wrong by a twentieth.
    assert loss_rate == 0.0 or not agrees(losses, 1.05 * loss_rate)
    assert late_rate == 0.0 or not agrees(delays, 0.95 * late_rate * (1 - loss_rate))


def test_one_position_is_not_hit_more_often_than_another() -> None:
    settings = FaultSettings(loss_rate=0.2, seed=0)
    exchanges = 2000
    hits = np.sum([draw_faults(settings, n, 10)[0] for n in range(1, exchanges + 1)], axis=0)
    assert all(binomtest(int(h), exchanges, 0.2).pvalue > FALSE_POSITIVES / 10 for h in hits)
    both = sum(
        lost[0] and lost[1]
        for lost, _ in (draw_faults(settings, n, 2) for n in range(1, exchanges + 1))
    )
    assert binomtest(both, exchanges, 0.04).pvalue > FALSE_POSITIVES


def run_strategy(faults: FaultSettings, rounds: int = 5) -> tuple[DpFedPaq, list]:
    app = ClientApp()

    def local_update(work: LocalWork) -> tuple[dict[str, np.ndarray], float]:
        return {name: array + 1.0 for name, array in work.arrays.items()}, 1.0

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return dp_fedpaq_client.train(message, context, num_records=64, local_update=local_update)

    inner = InProcessGrid(app, CLIENTS, {})
    results: list = []
    strategy = DpFedPaq(
        noise_multiplier=1.0,
        local_steps=2,
        batch_size=4,
        client_ids=inner.partition_ids,
        num_records=dict.fromkeys(range(CLIENTS), 64),
        on_round=lambda outcome, _: results.append(outcome),
    )
    initial: ArrayRecord = model_record({"w": np.zeros(4, dtype=np.float32)})
    strategy.start(FaultyGrid(inner, faults), initial, num_rounds=rounds)
    return strategy, results


def test_the_ledger_counts_what_was_sent_not_what_arrived() -> None:
    faults = FaultSettings(loss_rate=0.2, seed=4)
    strategy, results = run_strategy(faults)
    lost = [len(expect(faults, number)[0]) for number in range(1, 6)]
    assert sum(lost) > 0
    assert [outcome.num_failures for outcome in results] == lost
    assert [outcome.num_replies for outcome in results] == [CLIENTS - each for each in lost]
    assert dict(strategy.tally.uploads) == dict.fromkeys(range(CLIENTS), 5)
    faultless, _ = run_strategy(FaultSettings())
    assert strategy.epsilon() == faultless.epsilon()


def test_late_replies_are_dropped_as_stale() -> None:
    faults = FaultSettings(late_rate=0.3, seed=4)
    strategy, results = run_strategy(faults)
    late = [len(expect(faults, number)[1]) for number in range(1, 6)]
    assert sum(late[:-1]) > 0
    assert [outcome.num_replies for outcome in results] == [CLIENTS - each for each in late]
    assert [outcome.num_failures for outcome in results] == late
    assert dict(strategy.tally.uploads) == dict.fromkeys(range(CLIENTS), 5)
    # They did travel: their bytes count in the round in which they arrive.
    one = results[0].uplink_bytes // results[0].num_replies
    arrived = [CLIENTS - now + before for now, before in zip(late, [0, *late], strict=False)]
    assert [outcome.uplink_bytes for outcome in results] == [one * each for each in arrived]


def test_a_run_with_losses_ends_and_says_so(run: Callable[..., Outcome]) -> None:
    common = ("num_rounds=4", "num_clients=10", "seed=3")
    lossy = run(*common, "faults.loss_rate=0.2", "faults.seed=1")
    faultless = run(*common)
    again = run(*common, "faults.loss_rate=0.2", "faults.seed=1")
    other = run(*common, "faults.loss_rate=0.2", "faults.seed=2")
    assert lossy.sha256 == again.sha256
    assert len({lossy.sha256, faultless.sha256, other.sha256}) == 3
    assert sum(row["num_failures"] for row in lossy.rows) > 0
    assert [row["epsilon"] for row in lossy.rows] == [row["epsilon"] for row in faultless.rows]


def test_a_run_that_loses_everything_fails(run: Callable[..., Outcome]) -> None:
    with pytest.raises(RunError, match="no valid upload in 2 rounds"):
        run("num_rounds=2", "num_clients=3", "faults.late_rate=1")
