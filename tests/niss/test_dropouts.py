"""Acceptance: clients that vanish after they said they are ready, for twenty rounds."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from scipy.stats import binomtest, chi2

from fl_app.checkpoint import read_checkpoint
from fl_app.device_state import list_entries
from fl_app.engines.faults import FaultSettings, FaultyGrid
from strategies.dp_fedpaq.client import LocalWork
from strategies.niss import Niss
from strategies.niss.client import train
from strategies.niss.messages import READY, UPLOAD
from strategies.niss.noise_plan import plan_round
from strategies.rounds import RoundResult
from tests.conftest import Outcome, read_outcome
from tests.integration.launcher import Launcher, new_launcher
from tests.niss.small_runs import RecordingGrid, build, client_of, record

CLIENTS, ROUNDS, SIZE = 20, 20, 400
RATES = [0.05, 0.3]
# Two-sided, of each statistical assertion.
FALSE_POSITIVES = 1e-6


def stand_still(work: LocalWork) -> tuple[dict[str, np.ndarray], float]:
    """Update by nothing: what moves the model is the noise that is left in the sum."""
    return dict(work.arrays), 0.0  # type: ignore[arg-type]


def make_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        return train(message, context, num_records=50, local_update=stand_still)

    return app


def attempt_of(request: Message) -> tuple[int, int]:
    server_round, attempt, _ = request.metadata.group_id.split(".")
    return int(server_round), int(attempt)


@dataclass
class Run:
    """Twenty rounds."""

    strategy: Niss
    grid: RecordingGrid
    rows: list[RoundResult] = field(default_factory=list)
    moves: list[np.ndarray] = field(default_factory=list)

    def delivered(self) -> dict[tuple[int, int], int]:
        """Return how many requests for uploads arrived, by round and attempt."""
        asked = dict.fromkeys(map(attempt_of, self.grid.sent(READY)), 0)
        for message in self.grid.sent(UPLOAD):
            asked[attempt_of(message)] += 1
        return asked

    def ledger(self) -> dict[int, int]:
        """Return the uploads that each client has charged itself."""
        entries = {node: state["ledger.niss"] for node, state in self.grid._states.items()}
        return {
            self.grid.partition_ids[node]: int(entry["participations"])
            for node, entry in entries.items()
        }


def execute(rate: float, seed: int = 1, **changes: Any) -> Run:
    grid = RecordingGrid(CLIENTS, make_app())
    run = Run(build(CLIENTS, None, **{"noise_multiplier": 3.0, **changes}), grid)
    models = [np.zeros(SIZE)]

    def keep(row: RoundResult, _: Any) -> None:
        run.rows.append(row)
        models.append(row.arrays["w"].numpy())
        run.moves.append(models[-1] - models[-2])

    run.strategy.on_round = keep
    faulty = FaultyGrid(grid, FaultSettings(drop_after_ready=rate, seed=seed))
    run.strategy.start(faulty, record({"w": models[0]}), num_rounds=ROUNDS)
    return run


def is_as_stated(run: Run, stds: list[float]) -> bool:
    """Return whether what is left in the averages has these deviations (chi-square, exact)."""
    squares = sum(
        float((move / std) @ (move / std)) for move, std in zip(run.moves, stds, strict=True)
    )
    freedom = SIZE * len(stds)
    low, high = chi2.ppf([FALSE_POSITIVES / 2, 1 - FALSE_POSITIVES / 2], freedom)
    return bool(low < squares < high)


def assert_charged(run: Run) -> None:
    """Each upload that a client was asked for is charged by the server; what it sent, by itself."""
    got = Counter(client_of(message) for message in run.grid.sent(UPLOAD))
    assert run.ledger() == {client: got[client] for client in range(CLIENTS)}
    attempts = len(run.delivered())
    lost = CLIENTS * attempts - sum(got.values())
    assert dict(run.strategy.tally.uploads) == dict.fromkeys(range(CLIENTS), attempts)
    assert all(run.ledger()[c] <= run.strategy.tally.uploads[c] for c in range(CLIENTS))
    assert lost == sum(CLIENTS - count for count in run.delivered().values())


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("expected", [0, 3])
def test_gaussian_pairs_leave_what_the_metrics_state(rate: float, expected: int) -> None:
    run = execute(rate, expected_dropouts=expected)
    lost = [int(row.own["num_dropped_after_ready"]) for row in run.rows]  # type: ignore[arg-type]
    assert [row.num_replies for row in run.rows] == [CLIENTS - each for each in lost]
    assert [row.own["num_attempts"] for row in run.rows] == [1] * ROUNDS
    assert binomtest(sum(lost), CLIENTS * ROUNDS, rate).pvalue > FALSE_POSITIVES
    assert binomtest(sum(lost), CLIENTS * ROUNDS, 0.15).pvalue < FALSE_POSITIVES  # the twin
    stated = [float(row.own["residual_noise_std"]) for row in run.rows]  # type: ignore[arg-type]
    (plan,) = plan_round(run.strategy.parameters, 1, SIZE).values()
    own, pair = plan.own_std(0.0) ** 2, plan.pair_std**2
    by_hand = [((own + m * pair) / (CLIENTS - m)) ** 0.5 for m in lost]
    assert stated == pytest.approx(by_hand, rel=1e-12)
    assert is_as_stated(run, stated)
    # Twins: one client more or less had vanished, or none at all.
    for wrong in (1, -1):
        others = [((own + max(0, m + wrong) * pair) / (CLIENTS - m)) ** 0.5 for m in lost]
        assert not is_as_stated(run, others)
    assert not is_as_stated(run, [(own / (CLIENTS - m)) ** 0.5 for m in lost])
    assert_charged(run)


def test_expected_dropouts_make_a_sum_less_noisy_after_them() -> None:
    plain, planned = (execute(0.3, expected_dropouts=m) for m in (0, 6))
    noise = [
        np.mean([float(row.own["residual_noise_std"]) for row in run.rows])  # type: ignore[arg-type]
        for run in (plain, planned)
    ]
    assert noise[1] < 0.7 * noise[0]


@pytest.mark.parametrize("attempts", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rate", RATES)
def test_uniform_masks_and_the_round_is_tried_again_then_given_up(
    rate: float, attempts: int
) -> None:
    run = execute(
        rate, pair_noise="uniform", max_attempts=attempts, max_participations=ROUNDS * attempts
    )
    delivered = run.delivered()
    for number, row in enumerate(run.rows, start=1):
        tries = [count for (at, _), count in sorted(delivered.items()) if at == number]
        good = tries[-1] == CLIENTS
        assert all(count < CLIENTS for count in tries[:-1])
        assert len(tries) == row.own["num_attempts"] <= attempts
        assert good or len(tries) == attempts
        assert row.num_replies == (CLIENTS if good else 0)
        assert row.num_failures == CLIENTS - row.num_replies
        assert row.own["num_dropped_after_ready"] == sum(CLIENTS - count for count in tries)
        assert bool(run.moves[number - 1].any()) == good
    if rate == 0.3:
        assert len(delivered) == ROUNDS * attempts
    if (rate, attempts) == (0.05, 3):
        assert {len([1 for at, _ in delivered if at == n]) for n in range(1, ROUNDS + 1)} > {1, 3}
    assert_charged(run)
    good_rows = [row for row in run.rows if row.num_replies]
    if good_rows:
        stated = [float(row.own["residual_noise_std"]) for row in good_rows]  # type: ignore[arg-type]
        run.moves = [move for move in run.moves if move.any()]
        assert is_as_stated(run, stated)
        assert not is_as_stated(run, [1.3 * std for std in stated])
    # What was tried in vain has been paid for.
    paid = run.strategy.tally.uploads[0]
    assert paid == len(delivered) >= ROUNDS
    assert run.strategy.run.uploads[0] == paid


@pytest.mark.parametrize("most", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_more_dropouts_than_allowed_and_the_round_is_tried_again(most: int) -> None:
    run = execute(0.2, max_dropouts=most, max_participations=3 * ROUNDS)
    delivered = run.delivered()
    for number, row in enumerate(run.rows, start=1):
        tries = [count for (at, _), count in sorted(delivered.items()) if at == number]
        good = CLIENTS - tries[-1] <= most
        assert all(CLIENTS - count > most for count in tries[:-1])
        assert good or len(tries) == 3
        assert row.num_replies == (tries[-1] if good else 0)
    assert_charged(run)


def test_no_nonce_is_used_twice_over_all_tries() -> None:
    run = execute(0.1, pair_noise="uniform", max_participations=3 * ROUNDS, randomness="secret")
    nonces = [
        reply.content["config"]["nonce"]
        for reply in run.grid.replies
        if "nonce" in reply.content.get("config", {})
    ]
    assert len(set(nonces)) == len(nonces) == CLIENTS * len(run.delivered())


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    one = new_launcher()
    yield one
    one.close()


COMMON = (
    *("strategy=niss", "num_clients=8", "num_rounds=6", "seed=5", "strategy.batch_size=4"),
    *("strategy.max_participations=18", "faults.seed=2"),
)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(("faults.loss_rate=0.05",), marks=pytest.mark.slow),
        pytest.param(("faults.drop_after_ready=0.1",), marks=pytest.mark.slow),
        ("faults.late_rate=0.05", "faults.loss_rate=0.02", "faults.drop_after_ready=0.05"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_the_devices_ledgers_and_the_server_s_tally(
    run: Callable[..., Outcome], kind: str, faults: tuple[str, ...]
) -> None:
    options = (f"strategy.pair_noise={kind}", "strategy.min_ready=4")
    outcome = run(*COMMON, *options, "randomness=secret", *faults)
    folder = outcome.folder / "checkpoint"
    ledger = {each.client: each.entry.participations for each in list_entries(folder)}
    checkpoint = read_checkpoint(folder)
    assert checkpoint is not None
    tally = dict(checkpoint.strategy["tally"]["uploads"])
    vanishes = any("drop_after_ready" in each for each in faults)
    # A client that vanishes before it is asked has charged nothing; the server charges it.
    assert all(ledger[client] <= charged for client, charged in tally.items())
    assert (ledger == tally) == (not vanishes)
    assert sum(tally.values()) > sum(row["num_replies"] for row in outcome.rows)
    assert all(row["valid"] for row in outcome.guarantees[1:])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_both_engines_drop_the_same_and_end_with_the_same_bits(
    run: Callable[..., Outcome], launcher: Launcher, kind: str
) -> None:
    options = (*COMMON, f"strategy.pair_noise={kind}", "faults.drop_after_ready=0.08")
    one = run(*options)
    code, _, errors = launcher.run(
        *("run", *options, "engine=simulation", "engine.workers=2", "hydra.run.dir=out")
    )
    assert (code, errors) == (0, "")
    other = read_outcome(launcher.folder / "out")
    assert one.sha256 == other.sha256
    rows = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in each.rows]
        for each in (one, other)
    ]
    assert rows[0] == rows[1]
    assert one.guarantees == other.guarantees
    lost = [row["num_dropped_after_ready"] or 0 for row in one.rows]
    tried = [row["num_attempts"] or 1 for row in one.rows]
    assert max(lost) > 0 or max(tried) > 1
    launcher.assert_nothing_is_left()
