"""The server: how a run goes on, what is refused, and coalitions."""

import json
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fl_app.engines.in_process import FIRST_NODE_ID
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.niss import Coalition
from strategies.niss.messages import READY, REGISTER, UPLOAD
from tests.niss.server_rounds import UNIFORM, Vanishing
from tests.niss.small_runs import (
    MASKS_ALONE,
    SIZE,
    RecordingGrid,
    build,
    client_of,
    record,
    start,
)


@pytest.mark.parametrize("randomness", ["seeded", "secret"])
def test_a_run_can_be_cut_anywhere_and_go_on(randomness: str) -> None:
    common = {"num_sampled_clients": 3, "max_participations": 6, "randomness": randomness}
    grid = Vanishing(4, 1, 1)
    cut = build(4, None, **common)
    cut.on_round = lambda row, _: row.server_round < 3
    half = cut.start(grid, record(), num_rounds=6).arrays
    rest = build(4, None, **common)
    state = json.loads(json.dumps(cut.export_state()))
    rest.import_state(state)
    assert rest.export_state() == cut.export_state()
    # The same nodes, with what they keep.
    ended = rest.start(grid, half, num_rounds=6, first_round=4).arrays
    assert len(grid.sent(REGISTER)) <= 4
    assert sum(rest.tally.uploads.values()) == len(grid.sent(UPLOAD))
    if randomness == "seeded":
        whole = start(Vanishing(4, 1, 1), 6, **common)
        assert {k: v.numpy().tobytes() for k, v in ended.items()} == {
            k: v.tobytes() for k, v in whole.model.items()
        }
        assert rest.guarantees() == whole.strategy.guarantees()
        assert rest.export_state() == whole.strategy.export_state()


def test_what_is_no_state_is_refused() -> None:
    state = start(RecordingGrid(3), 1).strategy.export_state()
    card = state["roster"][0]
    for changes in (
        {"tally": {}},
        {"roster": [[0]]},
        {"roster": [[0, "zz", ""]]},
        {"roster": [[*card[:1], card[1][:-2], card[2]]]},
        {"roster": 3},
        {"run_tag": "zz"},
        {"run_tag": "00"},
    ):
        with pytest.raises(ValueError, match=r"state|roster|tag|hex"):
            build(3).import_state({**state, **changes})
    build(3).import_state(state)


def test_a_repeated_round_asks_the_same_clients_with_fresh_keys_and_charges_both() -> None:
    common = {"num_sampled_clients": 3, "randomness": "secret", "max_participations": 9}
    grid = RecordingGrid(8)
    strategy = build(8, None, **common)
    strategy.on_round = lambda row, _: False
    arrays = strategy.start(grid, record(), num_rounds=3).arrays
    # Killed in round 2, after the uploads of its second attempt: they are on no record.
    resumed = build(8, None, **common)
    resumed.import_state(strategy.export_state())
    before = dict(resumed.tally.uploads)
    resumed.repeat_round(2, {1: 2, 4: 1, 6: 2}, 2)
    grid.requests.clear()
    resumed.on_round = lambda row, _: False
    resumed.start(grid, arrays, num_rounds=3, first_round=2)
    sent = grid.sent(UPLOAD)
    assert [client_of(m) for m in sent] == [1, 4, 6]
    assert {m.content["config"]["attempt"] for m in sent} == {3}
    gained = {k: v - before.get(k, 0) for k, v in resumed.tally.uploads.items()}
    assert {k: v for k, v in gained.items() if v} == {1: 3, 4: 2, 6: 3}
    assert resumed.tally.uplink_bytes == strategy.tally.uplink_bytes + 8 * 4 * SIZE


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"participation": "poisson"}, "participation: 'poisson'; allowed: fixed, round_robin"),
    ({"min_ready": 1}, "min_ready: 1"),
    ({"min_ready": True}, "min_ready: True"),
    ({"max_dropouts": -1}, "max_dropouts: -1"),
    ({"max_attempts": 0}, "max_attempts: 0"),
    ({"max_attempts": 1.5}, "max_attempts: 1.5"),
    ({"max_dropouts": 1, **UNIFORM}, "max_dropouts: 1; allowed: 0"),
    ({"clipping_norm": None}, "clipping_norm: None"),
    ({"quantizer": "qsgd"}, "quantizer: 'qsgd'; allowed: none"),
    ({"noise_at": "server"}, "noise_at: 'server'"),
    ({"graph": "sparse"}, "graph: 'sparse'; allowed: complete unless pair_noise=uniform"),
    ({"pair_noise": "none"}, "pair_noise: 'none'"),
    ({"pair_noise": "laplace"}, "pair_noise: 'laplace'; allowed: gaussian, uniform, none"),
    ({"weighting": "examples"}, "weighting: 'examples'"),
    ({"tau": 0.5}, "tau: 0.5"),
    ({"unit_noise_std": 0.5}, "unit_noise_std: 0.5"),
    ({"noise_multiplier": 0.0}, "noise_multiplier: 0.0"),
    ({"colluding_fraction": 1.0}, "colluding_fraction: 1.0"),
    ({"colluding_fraction": float("nan")}, "colluding_fraction: nan"),
    ({"colluding_fraction": 0.9}, "colluding_fraction: 0.9"),
    ({"expected_dropouts": -1}, "expected_dropouts: -1"),
    ({"expected_dropouts": 4}, "expected_dropouts: 4"),
    ({"expected_dropouts": 1, **UNIFORM}, "expected_dropouts: 1"),
    (
        {"expected_dropouts": 2, "max_dropouts": 1},
        "expected_dropouts: 2; allowed: at most max_dropouts = 1",
    ),
    ({"expected_dropouts": 1, **MASKS_ALONE}, "expected_dropouts: 1; allowed: 0 with pair_noise"),
    ({"collusion_bound": "optimistic"}, "collusion_bound: 'optimistic'; allowed: conservative"),
    ({"mechanism": "dp_sgd"}, "mechanism: 'dp_sgd'; allowed: update_noise with niss"),
    ({"max_grad_norm": 1.0}, "max_grad_norm: 1.0; allowed: null with niss, but for"),
    (
        {"coalitions": (Coalition((0, 1), 0.0, 2), Coalition((2, 3, 4), 0.5, 2))},
        "coalitions[1].colluding_fraction: 0.5; allowed: a fraction that leaves 2 honest clients",
    ),
    (
        {"coalitions": (Coalition((0, 1), 0.0, 2),), "expected_dropouts": 1, "min_ready": 3},
        "expected_dropouts: 1; allowed: 0 to 0 with 2 honest clients of min_ready = 2",
    ),
    (
        {"coalitions": (Coalition((0, 1, 2, 3), 0.0, 4),), "num_sampled_clients": 3},
        "coalitions: '4 of 5 clients'; allowed: all clients, or all but two at least",
    ),
    (
        {"coalitions": (Coalition((0, 1, 2), 0.0, 3),), "num_sampled_clients": 2},
        "coalitions[0].min_ready: 3; allowed: at most the clients of a round, 2",
    ),
    ({"client_epsilons": ((0, 1.0),)}, "target_epsilons: {0: 1.0}; allowed: none without"),
    ({"client_epsilons": ((0, -1.0),)}, "target_epsilons.0: -1.0"),
    ({"num_sampled_clients": 1}, "num_sampled_clients: 1; allowed: at least 2"),
    ({"num_sampled_clients": 6}, "num_sampled_clients: 6; allowed: at most"),
    ({"min_ready": 6}, "min_ready: 6; allowed: at most the clients of a round, 5"),
    (
        {"coalitions": (Coalition((0, 1), 0.0, 2), Coalition((1, 2), 0.0, 2))},
        "coalitions: [0, 1, 1, 2]",
    ),
    ({"coalitions": (Coalition((0, 1), 0.0, 2),), "client_ids": None}, "client_ids: None"),
    ({"uplink_budget_bits": 0}, "uplink_budget_bits: 0"),
    ({"graph": "sparse", **UNIFORM, "target_delta": 1e-9}, "target_delta: 1e-09"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_is_refused_is_named(changes: dict[str, Any], words: str) -> None:
    grid = RecordingGrid(5)
    with pytest.raises(ParameterError) as refused:
        start(grid, 2, **changes)
    assert str(refused.value).startswith(words)
    assert not grid.requests  # before anybody is asked


def test_an_unknown_parameter_is_an_error() -> None:
    with pytest.raises(TypeError):
        build(3, None, min_raedy=3)


@pytest.mark.parametrize(
    "changes",
    [
        {"clients": (0, 0)},
        {"clients": (0,)},
        {"clients": (-1, 2)},
        {"min_ready": 1},
        {"colluding_fraction": 1.0},
        {"min_ready": 4},
        {"clients": (True, 2, 3)},
    ],
    ids=str,
)
def test_a_coalition_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"^coalitions"):
        Coalition(**{"clients": (0, 1, 2), "colluding_fraction": 0.0, "min_ready": 2, **changes})


def test_coalitions_mask_among_themselves() -> None:
    coalitions = (Coalition((0, 1, 2), 0.0, 3), Coalition((5, 6), 0.0, 2))
    grid = RecordingGrid(9)
    run = start(grid, 1, coalitions=coalitions, min_ready=3)
    assert run.rows[0].num_replies == 9
    sizes = {client_of(m): len(m.content["config"]["ready-set"]) for m in grid.sent(UPLOAD)}
    one = sizes[5]
    assert {client: size // one for client, size in sizes.items()} == {
        **dict.fromkeys((0, 1, 2), 2),
        **dict.fromkeys((5, 6), 1),
        **dict.fromkeys((3, 4, 7, 8), 3),
    }
    assert np.abs(run.model["w"]).max() < 5  # all noise cancelled that should

    class Without(RecordingGrid):
        def after(self, phase: str, replies: list[Message]) -> list[Message]:
            gone = FIRST_NODE_ID + 6
            return [m for m in replies if phase != READY or m.metadata.src_node_id != gone]

    small = start(Without(9), 1, coalitions=coalitions, min_ready=3)
    assert small.rows[0].num_replies == 7  # its last member uploads nothing
    assert 5 not in small.strategy.tally.uploads


def test_with_numbers_of_their_own_clients_register_under_the_server_s() -> None:
    """Else the server would count another client's epsilon than the client's noise is for."""
    swapped = {FIRST_NODE_ID + index: index ^ 1 for index in range(4)}
    coalitions = (Coalition((0, 1), 0.0, 2),)
    run = start(RecordingGrid(4), 1, client_ids=swapped, coalitions=coalitions, min_ready=2)
    assert run.rows[0].num_replies == 0
    assert not run.strategy.roster.cards
    plain = start(RecordingGrid(4), 1, client_ids=swapped, min_ready=2)
    assert plain.rows[0].num_replies == 4


def test_the_callback_can_stop_the_run() -> None:
    grid = RecordingGrid(3)
    strategy = build(3, None)
    strategy.on_round = lambda row, _: row.server_round < 2
    strategy.start(grid, record(), num_rounds=9)
    assert len(grid.sent(UPLOAD)) == 6


def test_a_sum_that_is_not_finite_in_the_model_s_type_is_dropped() -> None:
    big = {"w": np.full(20, 65000, np.float16)}
    run = start(RecordingGrid(3), 1, big, max_attempts=1, clipping_norm=1e3, noise_multiplier=1e2)
    assert (run.rows[0].num_replies, run.rows[0].num_failures) == (0, 3)
    assert np.array_equal(run.model["w"], big["w"])
