"""The server: what it tells of a run, how a run goes on, and what it refuses."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message

from strategies import DpFtsDe
from strategies.dp_fts_de import ParameterError
from strategies.dp_fts_de.algorithm import release_mechanism, release_sums, weigh_agents
from strategies.dp_fts_de.messages import (
    broadcast_record,
    parse_reply,
)
from strategies.mechanisms.rng import SeededStream
from strategies.rounds import RoundResult
from tests.dp_fts_de.searches import Run


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
