"""The server: what it sums and releases, and when it does not."""

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from scipy import stats

from fl_app.engines.in_process import run_in_process
from strategies import DpFtsDe
from strategies.dp_fedpaq.messages import REFUSED
from strategies.dp_fts_de import ParameterError
from strategies.dp_fts_de.algorithm import release_sums, weigh_agents
from strategies.dp_fts_de.client import train
from strategies.dp_fts_de.messages import (
    UPLOAD_TYPE,
    broadcast_record,
    parse_broadcast,
)
from strategies.dp_fts_de.run_plan import plan_run
from strategies.mechanisms.accounting import compute_epsilon
from strategies.mechanisms.rng import SeededStream
from tests.dp_fts_de.agents import Change, make_parameters
from tests.dp_fts_de.searches import Run


# An application of its own: nothing of fl_app but the engine, and no configuration.
def test_a_server_app_and_a_client_app_of_a_few_lines() -> None:
    client_app, server_app = ClientApp(), ServerApp()
    best: list[float | None] = []

    @client_app.train()
    def answer(message: Message, context: Context) -> Message:
        shift = 0.01 * int(context.node_config["partition-id"])

        def evaluate(point: np.ndarray) -> float:
            return 1.0 - float(((point - 0.4 - shift) ** 2).sum())

        return train(message, context, evaluate=evaluate, optimum=1.0)

    @server_app.main()
    def main(grid: Any, context: Context) -> None:
        strategy = DpFtsDe(
            dimension=2,
            target_epsilon=4.0,
            on_round=lambda row, _: best.append(row.own["simple_regret_worst"]),
        )
        strategy.start(grid, broadcast_record(None), num_rounds=8)
        assert strategy.parameters.release_rounds == (1,)
        assert strategy.epsilon() == pytest.approx(4.0, rel=0.03)

    run_in_process(server_app, client_app, num_clients=3)
    assert len(best) == 8
    assert best[-1] is not None
    assert best[-1] < 0.02


@pytest.mark.parametrize(("noise_multiplier", "warned"), [(2.0, False), (3.0, True)])
@pytest.mark.parametrize("randomness", ["seeded", "secret"])
def test_noise_that_drowns_the_signal_is_told_before_anything_is_asked(
    noise_multiplier: float, warned: bool, randomness: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(noise_multiplier=noise_multiplier, num_random_features=4, randomness=randomness)
    run.strategy.prepare_run(run.grid, broadcast_record(None), run.num_rounds)
    assert ("mostly noise" in caplog.text) is warned
    assert not run.grid.requests


def test_a_release_is_the_noised_sum_of_the_clipped_vectors_of_the_sample() -> None:
    run = Run(4, sample_rate=0.5, upload="all", num_subregions=4, seed=3).start()
    parameters = run.strategy.parameters
    for t in (1, 2, 3):
        drawn = SeededStream(f"3/fts-cohort/{t}".encode()).uniform(5) < 0.5
        sample = [int(n) for n in np.flatnonzero(drawn)]
        uploads = run.uploads(t)
        assert sorted(uploads) == [0, 1, 2, 3, 4]
        noise = SeededStream(f"3/fts-server-noise/{t}".encode())
        expected = release_sums(parameters, t, sample, [uploads[n] for n in sample], noise)
        np.testing.assert_array_equal(run.broadcasts[t - 1], expected)
    assert [row.own["num_uploaded"] for row in run.rows] == [5] * 4


def test_only_the_sample_uploads_and_only_in_rounds_with_a_release() -> None:
    run = Run(6, sample_rate=0.5, release_rounds=(1, 3), seed=4).start()
    for t in (1, 3):
        drawn = SeededStream(f"4/fts-cohort/{t}".encode()).uniform(5) < 0.5
        assert sorted(run.uploads(t)) == list(np.flatnonzero(drawn))
        assert run.rows[t - 1].own["num_uploaded"] == np.count_nonzero(drawn)
    assert [len(run.uploads(t)) for t in (2, 4, 5, 6)] == [0] * 4
    rounds = [parse_broadcast(row.arrays).release_round for row in run.rows]  # type: ignore[union-attr]
    assert rounds == [1, 1, 3, 3, 3, 3]
    assert all(row.num_replies == 5 for row in run.rows)
    everybody = Run(2, sample_rate=0.5, upload="all", release_rounds=(1,)).start()
    assert len(everybody.uploads(1)) == len(everybody.uploads(2)) == 5


def test_the_last_round_releases_nothing() -> None:
    run = Run(3).start()
    assert [row.own["num_releases"] for row in run.rows] == [1, 2, 2]
    assert run.rows[2].arrays is run.rows[1].arrays
    alone = Run(1).start()
    assert alone.broadcasts == [None]
    assert alone.strategy.epsilon() == 0.0


def test_runs_are_reproducible_and_secret_ones_are_not() -> None:
    first, second = (Run(3, sample_rate=0.5).start().broadcasts for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    first, second = (Run(3, randomness="secret").start().broadcasts for _ in range(2))
    assert all(np.abs(one - other).min() > 0.0 for one, other in zip(first, second, strict=True))


def drop_all(replies: list[Message]) -> list[Message]:
    return []


def test_when_everything_is_lost_noise_is_released_and_epsilon_stays() -> None:
    lossy, whole = Run(3, change=drop_all).start(), Run(3).start()
    assert lossy.strategy.epsilon() == whole.strategy.epsilon()
    assert lossy.strategy.guarantees() == whole.strategy.guarantees()
    assert [row.own["num_uploaded"] for row in lossy.rows] == [0, 0, 0]
    assert [row.num_failures for row in lossy.rows] == [5, 5, 5]
    noise = SeededStream(b"0/fts-server-noise/1")
    expected = release_sums(lossy.strategy.parameters, 1, [], [], noise)
    np.testing.assert_array_equal(lossy.broadcasts[0], expected)
    assert expected.any()


@pytest.mark.parametrize("change", [None, drop_all])
def test_a_round_in_which_nothing_is_summed_releases_noise_of_the_right_size(
    change: Change | None,
) -> None:
    """Nobody is sampled, or nothing arrives; in secret. False positives: 1e-6 each."""
    q = 1e-12 if change is None else 1.0
    run = Run(
        2,
        change=change,
        randomness="secret",
        sample_rate=q,
        num_subregions=4,
        num_random_features=10_000,
        clipping_norm=22.0,
        noise_multiplier=1.6,
    ).start()
    assert run.rows[0].own["num_uploaded"] == 0
    released, weights = run.broadcasts[0], weigh_agents(run.strategy.parameters, 1)
    assert released is not None
    # Five agents in four boxes, a_1 = 16: c_1 is .5 up to 1e-12.
    white = released / (1.6 * 0.5 * weights.largest[:, None] * 22.0 / q)
    low, high = stats.chi2.ppf(5e-7, white.size), stats.chi2.isf(5e-7, white.size)
    squares = float((white**2).sum())
    assert low <= squares <= high
    for twin in (0.95, 1.05):
        assert not low <= twin**2 * squares <= high


def test_a_lost_message_is_a_zero_and_the_order_of_the_others_does_not_matter() -> None:
    def lose(replies: list[Message]) -> list[Message]:
        return [each for each in reversed(replies) if each.metadata.src_node_id != 1_000_002]

    lossy, whole = Run(2, change=lose).start(), Run(2).start()
    assert lossy.rows[0].own["num_uploaded"] == 4
    assert (lossy.rows[0].num_replies, lossy.rows[0].num_failures) == (4, 1)
    noises = [SeededStream(b"0/fts-server-noise/1") for _ in range(2)]
    uploads = whole.uploads(1)
    uploads[2] = np.zeros(20)
    expected = release_sums(
        lossy.strategy.parameters, 1, list(uploads), list(uploads.values()), noises[0]
    )
    np.testing.assert_allclose(lossy.broadcasts[0], expected, atol=1e-12)
    assert lossy.strategy.epsilon() == whole.strategy.epsilon()


def replace_upload(reply: Message, data: bytes, stype: str = UPLOAD_TYPE) -> None:
    array = Array("uint8", (len(data),), stype, data)
    reply.content["arrays"] = ArrayRecord({"update": array})


@pytest.mark.parametrize("kind", ["short", "stype", "nan", "huge", "late", "error", "empty", "two"])
def test_a_bad_reply_moves_a_release_by_a_clipped_vector_at_most(kind: str) -> None:
    def change(replies: list[Message]) -> list[Message]:
        for reply in replies:
            if reply.metadata.src_node_id != 1_000_002:
                continue
            if kind == "short":
                replace_upload(reply, b"\0" * 79)
            elif kind == "stype":
                replace_upload(reply, b"\0" * 80, "other")
            elif kind == "nan":
                replace_upload(reply, np.full(20, np.nan, "<f4").tobytes())
            elif kind == "huge":
                replace_upload(reply, np.full(20, 1e38, "<f4").tobytes())
            elif kind == "late":
                reply.metadata.__dict__["_group_id"] = "0"
            elif kind == "empty":
                reply.content.pop("arrays", None)
        if kind == "error":
            node = next(each for each in replies if each.metadata.src_node_id == 1_000_002)
            replies.remove(node)
            replies.append(Message(Error(REFUSED, "no"), reply_to=node))
        return [*replies, replies[2]] if kind == "two" else replies

    run, whole = Run(2, change=change).start(), Run(2).start()
    one, other = run.broadcasts[0], whole.broadcasts[0]
    assert one is not None
    assert other is not None
    uploads = whole.uploads(1)
    # S = 1, weights 1/5: what the agent sent, and what counts in its place.
    factor = {"huge": np.full(20, 1 / math.sqrt(20)), "two": uploads[2]}
    expected = other[0] + (factor.get(kind, np.zeros(20)) - uploads[2]) / 5.0
    np.testing.assert_allclose(one[0], expected, atol=1e-6)
    assert run.strategy.epsilon() == whole.strategy.epsilon()
    arrived = kind in ("huge", "two")
    assert run.rows[0].own["num_uploaded"] == 4 + arrived


def test_an_upload_that_nobody_asked_for_is_not_summed() -> None:
    def change(replies: list[Message]) -> list[Message]:
        for reply in replies:
            replace_upload(reply, np.ones(20, "<f4").tobytes())
        return replies

    run = Run(2, change=change, sample_rate=0.5, seed=4).start()
    drawn = np.count_nonzero(SeededStream(b"4/fts-cohort/1").uniform(5) < 0.5)
    assert 0 < drawn < 5
    assert run.rows[0].own["num_uploaded"] == drawn
    assert run.rows[0].num_replies == drawn


def test_the_budget_stops_the_releases_and_not_the_search() -> None:
    run = Run(6, noise_multiplier=2.0, target_epsilon=4.0).start()
    spent = [
        compute_epsilon(run.strategy.parameters.describe_releases(t, 2.0), 1e-5)
        for t in range(1, 6)
    ]
    afforded = sum(each <= 4.0 for each in spent)
    assert 0 < afforded < 5
    assert [row.own["num_releases"] for row in run.rows] == [
        min(t, afforded) for t in (*range(1, 6), 5)
    ]
    assert run.strategy.epsilon() == spent[afforded - 1]
    assert all(row.num_replies == 5 for row in run.rows)
    assert len(run.uploads(5)) == 0


@pytest.mark.parametrize("rounds", [(6,), (1, 9)])
def test_a_named_round_that_cannot_release_is_refused(rounds: tuple[int, ...]) -> None:
    with pytest.raises(ParameterError, match=r"^release_rounds: .* from 1 to num_rounds - 1 = 5 "):
        Run(6, release_rounds=rounds).start()
    assert Run(6, release_rounds=rounds, control="no_sharing").start().broadcasts == [None] * 6


def test_a_target_is_met_by_the_planned_releases() -> None:
    run = Run(6, noise_multiplier=None, target_epsilon=3.0, release_rounds=(1, 2, 4)).start()
    assert run.strategy.tally.num_releases == 3
    epsilon = run.strategy.epsilon()
    assert epsilon is not None
    assert 0.98 * 3.0 <= epsilon <= 3.0


def test_auto_means_one_release_and_every_round_in_mode_paper() -> None:
    sound, paper = make_parameters(), make_parameters(mode="paper")
    found = [plan_run(sound, n, 9, auto_rounds=True).release_rounds for n in (3, 30, 3000)]
    assert found == [(1,)] * 3
    assert plan_run(paper, 29, 9, auto_rounds=True).release_rounds == ()
    chosen = make_parameters(release_rounds=(2,))
    assert plan_run(chosen, 29, 9, auto_rounds=False).release_rounds == (2,)


def test_the_number_of_features_is_chosen_from_public_constants() -> None:
    def chosen(**fields: Any) -> int:
        given = {"dimension": 2, "noise_multiplier": 1.0, "num_agents": 4, **fields}
        return DpFtsDe(**given).parameters.num_random_features

    # 99% of the kernel's variance on the unit square, l = .25.
    assert chosen() == chosen(num_random_features=None, num_agents=900) == 19
    assert chosen(dimension=1) == 5
    assert chosen(lengthscale=0.05) == chosen(dimension=9) == 100
    assert chosen(features="rff", dimension=1) == 100
    assert chosen(num_random_features=7) == 7
    with pytest.raises(ParameterError) as refused:
        chosen(lengthscale=0.001)
    assert refused.value.key == "lengthscale"


@pytest.mark.parametrize("rounds", [(1,), (3,), ()])
def test_noise_with_which_nothing_could_be_released_is_refused(rounds: tuple[int, ...]) -> None:
    """It names the least that one release needs: with that, one is affordable."""
    given = {"noise_multiplier": 0.5, "target_epsilon": 2.0, "release_rounds": rounds}
    with pytest.raises(
        ParameterError, match=r"noise_multiplier: 0\.5; allowed: at least (\S+), so"
    ):
        plan_run(make_parameters(**given), 5, 9, auto_rounds=False)
    enough = make_parameters(**{**given, "noise_multiplier": 1.995})
    assert plan_run(enough, 5, 9, auto_rounds=False).noise_multiplier == 1.995
    # Without a target anything goes, and where nobody shares nothing is released.
    free = make_parameters(**{**given, "target_epsilon": None})
    assert plan_run(free, 5, 9, auto_rounds=False).noise_multiplier == 0.5
    alone = make_parameters(**given, control="no_sharing")
    assert plan_run(alone, 5, 9, auto_rounds=False).noise_multiplier == 0.5
