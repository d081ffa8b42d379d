"""The server: what it sums and releases, when it does not, and what it tells of a run."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from scipy import stats

from fl_app.engines.in_process import run_in_process
from strategies import DpFtsDe
from strategies.dp_fedpaq.messages import REFUSED
from strategies.dp_fts_de import ParameterError
from strategies.dp_fts_de.algorithm import release_mechanism, release_sums, weigh_agents
from strategies.dp_fts_de.client import train
from strategies.dp_fts_de.messages import (
    UPLOAD_TYPE,
    broadcast_record,
    parse_broadcast,
    parse_reply,
    unpack_vector,
)
from strategies.dp_fts_de.run_plan import plan_run
from strategies.mechanisms.accounting import compute_epsilon
from strategies.mechanisms.rng import SeededStream
from strategies.rounds import RoundResult
from tests.dp_fts_de.agents import Change, RecordingGrid, make_parameters


class Run:
    """A run of five agents, with all that passed."""

    def __init__(
        self,
        num_rounds: int = 3,
        change: Change | None = None,
        num_clients: int = 5,
        **changes: Any,
    ) -> None:
        given: dict[str, Any] = {
            "dimension": 2,
            "noise_multiplier": 1.0,
            "num_random_features": 20,
            "num_initial": 4,
            "release_rounds": (),
            "prior_mean": False,
        }
        self.rows: list[RoundResult] = []
        self.strategy = DpFtsDe(
            **{**given, **changes}, on_round=lambda row, _: self.rows.append(row)
        )
        self.grid = RecordingGrid(num_clients, change)
        self.num_rounds = num_rounds

    def start(self, first_round: int = 1, arrays: ArrayRecord | None = None) -> "Run":
        initial = broadcast_record(None) if arrays is None else arrays
        self.strategy.start(self.grid, initial, num_rounds=self.num_rounds, first_round=first_round)
        return self

    @property
    def broadcasts(self) -> list[np.ndarray | None]:
        found = [parse_broadcast(row.arrays) for row in self.rows]
        return [None if each is None else each.vectors for each in found]

    def uploads(self, server_round: int) -> dict[int, np.ndarray]:
        """The vectors that the agents sent in a round, by number."""
        found = {}
        for reply in self.grid.replies:
            if reply.metadata.group_id == str(server_round) and not reply.has_error():
                data, _ = parse_reply(reply)
                if data is not None:
                    found[reply.metadata.src_node_id - 1_000_000] = unpack_vector(data, 20)
        return found


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


def test_a_target_is_met_by_the_planned_releases() -> None:
    run = Run(6, noise_multiplier=None, target_epsilon=3.0, release_rounds=(1, 2, 4, 8)).start()
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


def own(row: RoundResult) -> dict[str, Any]:
    assert set(row.own) == set(DpFtsDe.own_metrics)
    return dict(row.own)


def test_seeded_runs_tell_how_far_the_agents_are_and_secret_ones_do_not() -> None:
    run = Run(3).start()
    for row in run.rows:
        told = own(row)
        assert told["best_value_worst"] <= told["best_value_mean"] <= 1.0
        assert told["simple_regret_mean"] == pytest.approx(1.0 - told["best_value_mean"])
        assert told["simple_regret_worst"] == pytest.approx(1.0 - told["best_value_worst"])
        assert told["cumulative_regret_worst"] >= told["cumulative_regret_mean"] >= 0.0
        assert told["clipped_fraction"] == 1.0
    assert own(run.rows[0])["cumulative_regret_mean"] == 0.0
    assert set(run.strategy.progress) == {0, 1, 2, 3, 4}

    def boast(replies: list[Message]) -> list[Message]:
        for reply in replies:
            for name, value in seeded.items():
                reply.content["metrics"][name] = value
        return replies

    seeded = dict(run.grid.replies[0].content["metrics"].items())
    for change in (None, boast):
        secret = Run(2, change=change, randomness="secret").start()
        for row in secret.rows:
            told = own(row)
            assert told.pop("num_uploaded") in (0, 5)
            assert told.pop("num_releases") == 1
            assert set(told.values()) == {None}
            assert row.train_loss is None
        assert secret.strategy.progress == {}
    for reply in Run(2, randomness="secret").start().grid.replies:
        assert dict(reply.content["metrics"].items()) == {"num-examples": 1}


def test_signals_are_told_in_seeded_runs_where_there_are_some() -> None:
    run = Run(5, release_rounds=(1, 3), num_subregions=2, sample_rate=0.5).start()
    parameters = run.strategy.parameters
    for row in run.rows:
        t, told = row.server_round, own(row)
        if t not in (1, 3):
            assert told["signal_to_noise"] is None
        else:
            silent = dataclasses.replace(parameters, noise_multiplier=0.0)
            uploads, none = run.uploads(t), SeededStream(b"")
            sums = release_sums(silent, t, list(uploads), list(uploads.values()), none)
            in_units = sums / weigh_agents(parameters, t).largest[:, None]
            expected = np.linalg.norm(in_units) / release_mechanism(parameters, t).noise_std
            assert told["signal_to_noise"] == pytest.approx(expected / math.sqrt(40), rel=1e-9)
        agents = [
            progress
            for reply in run.grid.replies
            if reply.metadata.group_id == str(t) and (progress := parse_reply(reply)[1])
        ]
        assert len(agents) == 5
        assert all(each.is_shared is (t in (2, 4)) for each in agents)
        if t in (2, 4):
            gains = [each.value - (each.best_before or math.nan) for each in agents]
            assert told["sharing_gain"] == pytest.approx(np.mean(gains), rel=1e-12)
        else:
            assert told["sharing_gain"] is None
    silent_run = Run(3, noise_multiplier=0.0).start()
    assert [own(row)["signal_to_noise"] for row in silent_run.rows] == [None] * 3
    apart = Run(3, control="no_sharing").start()
    assert {own(row)["sharing_gain"] for row in apart.rows} == {None}


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300, [1.0]])
def test_a_boast_that_is_no_number_is_not_believed(value: Any) -> None:
    def boast(replies: list[Message]) -> list[Message]:
        replies[0].content["metrics"]["best-value"] = value
        return replies

    run = Run(1, change=boast).start()
    assert set(run.strategy.progress) == {1, 2, 3, 4}
    best = own(run.rows[0])["best_value_mean"]
    assert best is not None
    assert best <= 1.0


def test_a_report_that_does_not_fit_the_run_is_not_believed() -> None:
    def widen(replies: list[Message]) -> list[Message]:
        metrics = replies[0].content["metrics"]
        metrics["best-point"] = [0.5, 0.5, 0.5]
        metrics["points"] = [0.5] * (3 * len(metrics["values"]))
        return replies

    run = Run(1, change=widen).start()
    assert set(run.strategy.progress) == {1, 2, 3, 4}
    assert run.rows[0].num_replies == 5


def test_bytes_counted_are_the_bytes_in_the_messages() -> None:
    run = Run(3, upload="all", sample_rate=0.5).start()
    uplink = sum(len(r.content["arrays"]["update"].data) for r in run.grid.replies)
    assert sum(row.uplink_bytes for row in run.rows) == uplink == 3 * 5 * 80
    downlink = sum(len(a.data) for m in run.grid.requests for a in m.content["arrays"].values())
    assert sum(row.downlink_bytes for row in run.rows) == downlink
    drawn = [
        np.count_nonzero(SeededStream(f"0/fts-cohort/{t}".encode()).uniform(5) < 0.5)
        for t in (1, 2)
    ]
    assert [row.update_bytes for row in run.rows] == [80 * drawn[0], 80 * drawn[1], 0]
    assert run.strategy.export_state()["tally"]["uplink_bytes"] == uplink


def test_a_run_goes_on_where_it_stopped() -> None:
    whole = Run(5, noise_multiplier=None, target_epsilon=5.0).start()
    first = Run(5, noise_multiplier=None, target_epsilon=5.0)
    first.strategy.on_round = lambda row, _: first.rows.append(row) or row.server_round < 2
    first.start()
    second = Run(5, noise_multiplier=None, target_epsilon=5.0)
    second.grid = first.grid
    second.strategy.import_state(json.loads(json.dumps(first.strategy.export_state())))
    second.start(first_round=3, arrays=first.rows[-1].arrays)
    for one, other in zip([*first.broadcasts, *second.broadcasts], whole.broadcasts, strict=True):
        np.testing.assert_array_equal(one, other)
    assert second.strategy.guarantees() == whole.strategy.guarantees()
    assert own(second.rows[-1]) == own(whole.rows[-1])


def test_a_run_that_goes_on_for_longer_keeps_its_noise_and_its_target() -> None:
    first = Run(3, noise_multiplier=None, target_epsilon=2.0).start()
    second = Run(5, noise_multiplier=None, target_epsilon=2.0)
    second.grid = first.grid
    second.strategy.import_state(first.strategy.export_state())
    second.start(first_round=4, arrays=first.rows[-1].arrays)
    assert second.strategy.parameters == first.strategy.parameters
    assert second.strategy.tally.num_releases == 2
    assert second.strategy.epsilon() == first.strategy.epsilon()
    assert all(row.num_replies == 5 for row in second.rows)
    # Releases of another kind would be counted with the wrong epsilon.
    for changes in ({"noise_multiplier": 0.5}, {"target_epsilon": 2.0, "sample_rate": 0.5}):
        other = Run(5, **{"noise_multiplier": None, **changes})
        other.strategy.import_state(first.strategy.export_state())
        with pytest.raises(ParameterError, match=list(changes)[-1]):
            other.start()


def test_a_run_that_goes_on_without_a_node_keeps_the_numbers_of_the_others() -> None:
    def nodes_of(run: Run) -> dict[int, int]:
        return {m.metadata.dst_node_id: m.content["config"]["agent"] for m in run.grid.requests}

    first = Run(2).start()
    state = json.loads(json.dumps(first.strategy.export_state()))
    connected = [1_000_000, 1_000_001, 1_000_003, 1_000_004]
    second = Run(4)
    second.grid = first.grid
    second.grid.requests.clear()
    second.grid.get_node_ids = lambda: connected  # type: ignore[method-assign]
    second.strategy.import_state(state)
    second.strategy.on_round = lambda row, _: second.rows.append(row) or connected.append(1_000_002)
    second.start(first_round=3, arrays=first.rows[-1].arrays)
    assert nodes_of(second) == {1_000_000 + n: n for n in range(5)}
    assert [row.num_replies for row in second.rows] == [4, 5]

    replaced = Run(4)
    replaced.strategy.import_state(state)
    replaced.grid.get_node_ids = lambda: [*connected[:4], 7]  # type: ignore[method-assign]
    replaced.strategy.prepare_run(replaced.grid, broadcast_record(None), 4)
    found = replaced.strategy.configure_train(
        3, broadcast_record(None), ConfigRecord(), replaced.grid
    )
    assert [m.content["config"]["agent"] for m in found] == [0, 1, 2, 3, 4]
    assert found[2].metadata.dst_node_id == 7

    # With a number to spare, an absent node keeps its own.
    roomy = Run(4, num_agents=6)
    roomy.strategy.import_state({**state, "num_agents": 6})
    roomy.grid.get_node_ids = replaced.grid.get_node_ids  # type: ignore[method-assign]
    roomy.strategy.prepare_run(roomy.grid, broadcast_record(None), 4)
    numbers = dict(roomy.strategy.export_state()["numbers"])
    assert (numbers[1_000_002], numbers[7]) == (2, 5)


@pytest.mark.parametrize("state", [{}, {"tally": {}}, [], None, {"tally": {}, "num_agents": 3}])
def test_another_state_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="state of a strategy"):
        Run().strategy.import_state(state)
    whole = Run(num_agents=5).strategy.export_state()
    for numbers in (
        None,
        {},
        [1],
        [[1]],
        [[1, 0], [2, 0]],
        [[1, 0], [1, 2]],
        [[1, -1]],
        [[1, 0.0]],
    ):
        with pytest.raises(ValueError, match="state of a strategy"):
            Run().strategy.import_state({**whole, "numbers": numbers})
    with pytest.raises(ParameterError, match="num_agents"):
        Run(num_agents=4).strategy.import_state(Run(num_agents=5).strategy.export_state())


def test_a_round_that_was_sent_before_the_server_was_killed_gets_the_same_vectors() -> None:
    run = Run(3, randomness="secret", sample_rate=0.5, upload="all", upload_kind="sample")
    run.strategy.on_round = lambda row, _: run.rows.append(row) or False
    run.start()
    state, arrays = run.strategy.export_state(), run.rows[0].arrays
    lost = run.strategy.configure_train(2, arrays, ConfigRecord(), run.grid)
    list(run.grid.send_and_receive(lost))
    first = run.uploads(2)
    assert len(first) == 5
    again = Run(3, randomness="secret", sample_rate=0.5, upload="all", upload_kind="sample")
    again.grid = run.grid
    again.grid.replies.clear()
    again.strategy.import_state(state)
    again.strategy.repeat_round(2, dict.fromkeys(range(5), 1))
    again.start(first_round=2, arrays=arrays)
    assert again.strategy.tally.num_releases == 2
    assert [row.num_replies for row in again.rows] == [5, 5]
    repeated = again.uploads(2)
    assert len(repeated) == 5
    for agent, vector in repeated.items():
        np.testing.assert_array_equal(vector, first[agent])


def test_agents_are_numbered_from_0_and_more_than_n_are_refused() -> None:
    run = Run(2, client_ids={1_000_000 + n: 4 - n for n in range(5)}).start()
    agents = [m.content["config"]["agent"] for m in run.grid.requests[:5]]
    nodes = [m.metadata.dst_node_id for m in run.grid.requests[:5]]
    assert agents == [0, 1, 2, 3, 4]
    assert nodes == [1_000_004 - n for n in range(5)]
    for wrong in ({"num_agents": 4}, {"client_ids": {1_000_000: 1}}):
        with pytest.raises(ParameterError, match="num_agents"):
            Run(**wrong).start()
    more = Run(2, num_agents=8).start()
    assert more.rows[0].num_sampled == 8
    assert more.rows[0].num_failures == 3
    assert more.strategy.parameters.num_agents == 8


def test_the_controls() -> None:
    plain = Run(3, seed=1).start()
    turned = Run(3, seed=1, control="random").start()
    one, other = plain.broadcasts[0], turned.broadcasts[0]
    assert one is not None
    assert other is not None
    assert np.linalg.norm(one) == pytest.approx(np.linalg.norm(other))
    assert np.abs(one - other).max() > 0.01
    assert plain.strategy.epsilon() == turned.strategy.epsilon()
    # What is turned away is the signal of the release itself.
    signals = [own(run.rows[0])["signal_to_noise"] for run in (plain, turned)]
    assert signals[0] == pytest.approx(signals[1], rel=1e-12)

    apart = Run(3, seed=1, control="no_sharing", upload="all").start()
    assert apart.broadcasts == [None] * 3
    assert sum(row.uplink_bytes for row in apart.rows) == 0
    assert apart.strategy.epsilon() == 0.0

    oracle = Run(3, control="oracle", sample_rate=0.3, upload_kind="sample").start()
    uploads = oracle.uploads(1)
    assert len(uploads) == 5
    np.testing.assert_allclose(
        oracle.broadcasts[0], np.mean(list(uploads.values()), axis=0)[None], rtol=1e-6
    )
    assert np.linalg.norm(uploads[0]) > 1.0
    assert oracle.strategy.epsilon() is None
    assert not oracle.strategy.guarantees()[0].valid
    with pytest.raises(ParameterError, match="randomness"):
        Run(control="oracle", randomness="secret")


def test_the_last_broadcast_s_optimum_is_post_processing() -> None:
    run = Run(3).start()
    assert run.strategy.find_shared_optimum(broadcast_record(None)) is None
    found = run.strategy.find_shared_optimum(run.rows[-1].arrays)
    assert found is not None
    assert found.shape == (2,)
    np.testing.assert_array_equal(found, run.strategy.find_shared_optimum(run.rows[-1].arrays))


@pytest.mark.parametrize(
    "changes",
    [
        {"release_rounds": "often"},
        {"release_rounds": [2, 1]},
        {"num_agents": 0},
        {"noise_multiplier": None},
        {"control": "placebo"},
    ],
)
def test_bad_parameters_are_refused_at_once(changes: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(changes))):
        Run(**changes)
    with pytest.raises(TypeError):
        Run(noise=1)


def test_arrays_that_are_no_broadcast_are_refused() -> None:
    run = Run()
    with pytest.raises(ValueError, match="broadcast"):
        run.strategy.start(run.grid, ArrayRecord({"w": Array(np.zeros(3))}), num_rounds=2)


def test_sharing_helps_agents_with_the_same_objective_at_the_first_query() -> None:
    """A check of the whole: without noise, the first shared query beats the own ones."""
    runs = {
        control: Run(2, seed=2, control=control, num_initial=3, num_random_features=50).start()
        for control in ("oracle", "no_sharing")
    }
    regrets = {name: own(run.rows[-1])["simple_regret_mean"] for name, run in runs.items()}
    assert regrets["oracle"] < regrets["no_sharing"]
