"""The server: what it sums is FedAvg's sum, bad replies are dropped, too few end an attempt."""

import json
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message

from fl_app.engines.in_process import FIRST_NODE_ID
from strategies.dp_fedpaq.algorithm import UploadStreams, bound_update
from strategies.dp_fedpaq.client import LocalWork
from strategies.mechanisms.layout import ArrayLayout
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.rng import Randomness
from strategies.niss import Coalition
from strategies.niss.messages import READY, REGISTER, UPLOAD, UPLOAD_TYPE
from strategies.niss.noise_plan import plan_round
from tests.niss.small_runs import (
    MASKS_ALONE,
    MODEL,
    SIZE,
    RecordingGrid,
    build,
    client_of,
    local_update,
    make_app,
    record,
    start,
)

UNIFORM = {"pair_noise": "uniform"}


def fedavg(
    num_clients: int, num_rounds: int, strategy: Any, own_noise: bool
) -> dict[str, np.ndarray]:
    """Average the clipped updates as rounded to the grid, and no more: the central computation."""
    parameters = strategy.parameters
    randomness, model = Randomness("seeded", 0), dict(MODEL)
    for server_round in range(1, num_rounds + 1):
        plan = plan_round(parameters, server_round, SIZE)[0]
        layout = ArrayLayout.of(model)
        before, total = layout.flatten(model), np.zeros(SIZE, dtype=np.int64)
        for client in range(num_clients):
            streams = UploadStreams(randomness, server_round, client)
            seed = int(streams.training.words(1)[0] >> np.uint64(1))
            trained, _ = local_update(LocalWork(model, [], 4, 0.1, seed, False))
            update = bound_update(layout.flatten(trained) - before, 1.0)
            steps = plan.grid.encode(update)
            if own_noise:
                noise = streams.noise.standard_normal(SIZE) * (plan.own_std(0.0) / plan.grid.step)
                steps = np.rint(noise + steps).astype(np.int64)
            total += steps
        average = total * plan.grid.step / num_clients
        model = {**model, **layout.unflatten(before + average)}
    return model


def assert_same_model(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert {k: (v.dtype, v.tobytes()) for k, v in found.items()} == {
        k: (np.asarray(v).dtype, np.asarray(v).tobytes()) for k, v in expected.items()
    }


@pytest.mark.parametrize("num_clients", [10, 100])
def test_with_masks_and_no_noise_it_is_fedavg_over_rounded_updates(num_clients: int) -> None:
    run = start(RecordingGrid(num_clients), 3, **MASKS_ALONE)
    assert [row.num_replies for row in run.rows] == [num_clients] * 3
    assert_same_model(run.model, fedavg(num_clients, 3, run.strategy, own_noise=False))
    assert run.strategy.epsilon() is None
    assert [row.own["residual_noise_std"] for row in run.rows] == [0.0] * 3


@pytest.mark.parametrize("num_clients", [2, 10])
@pytest.mark.parametrize(
    ("kind", "graph"),
    [("gaussian", "complete"), ("uniform", "complete"), ("uniform", "sparse")],
)
def test_where_nobody_drops_only_own_noise_is_left(kind: str, graph: str, num_clients: int) -> None:
    run = start(RecordingGrid(num_clients), 2, pair_noise=kind, graph=graph)
    assert_same_model(run.model, fedavg(num_clients, 2, run.strategy, own_noise=True))
    (plan,) = plan_round(run.strategy.parameters, 1, SIZE).values()
    expected = plan.own_std(0.0) / num_clients**0.5
    assert run.rows[0].own["residual_noise_std"] == pytest.approx(expected, rel=1e-12)


def test_uploads_that_are_each_alone_hide_the_update() -> None:
    """A word of an upload is near nothing: with masks, uniform on the whole range."""
    run = start(RecordingGrid(5), 1, **MASKS_ALONE)
    uploads = [m for m in run.grid.replies if "arrays" in m.content]
    words = [np.frombuffer(next(iter(m.content["arrays"].values())).data, "<u4") for m in uploads]
    assert len(words) == 5
    spread = np.std(np.stack(words).astype(np.float64)) / 2**32
    assert 0.2 < spread < 0.4  # 12^-.5 = .289 for 80 uniform words


def test_bytes_counted_are_the_bytes_in_the_messages() -> None:
    rows = []
    grid = RecordingGrid(4)
    strategy = build(4, rows)
    strategy.start(grid, record(), num_rounds=2)

    def arrays_in(messages: list[Message]) -> int:
        return sum(len(a.data) for m in messages for a in m.content.get("arrays", {}).values())

    assert sum(row.uplink_bytes for row in rows) == arrays_in(grid.replies) == 2 * 4 * 4 * SIZE
    assert sum(row.downlink_bytes for row in rows) == arrays_in(grid.requests)
    assert sum(row.update_bytes for row in rows) == 2 * 4 * 4 * SIZE
    control = [
        sum(
            record.count_bytes()
            for message in messages
            for record in message.content.values()
            if not isinstance(record, ArrayRecord)
        )
        for messages in (grid.requests, grid.replies)
    ]
    assert sum(row.control_bytes for row in rows) == sum(control)
    assert rows[0].own["registration_bytes"] > 0 == rows[1].own["registration_bytes"]
    assert strategy.upload_bits(SIZE) == 32 * SIZE


def test_who_is_asked_what() -> None:
    grid = RecordingGrid(4)
    start(grid, 3, num_sampled_clients=4)
    assert [client_of(m) for m in grid.sent(REGISTER)] == [0, 1, 2, 3]
    for phase in (READY, UPLOAD):
        assert [client_of(m) for m in grid.sent(phase)] == [0, 1, 2, 3] * 3
    assert all("arrays" not in m.content for m in grid.sent(READY) + grid.sent(REGISTER))


def replace_upload(reply: Message, data: bytes, stype: str = UPLOAD_TYPE) -> None:
    reply.content["arrays"] = ArrayRecord({"update": Array("uint8", (len(data),), stype, data)})


DAMAGES = {
    "short": lambda reply: replace_upload(reply, b"\0" * 63),
    "long": lambda reply: replace_upload(reply, b"\0" * 65),
    "empty": lambda reply: replace_upload(reply, b""),
    "of another method": lambda reply: replace_upload(reply, b"\0" * 64, "dp_fedpaq.upload.v1"),
    "no arrays": lambda reply: reply.content.pop("arrays"),
    "a config for arrays": lambda reply: reply.content.update({"arrays": ConfigRecord()}),
    "two arrays": lambda reply: reply.content["arrays"].update(
        {"more": Array("uint8", (1,), UPLOAD_TYPE, b"\0")}
    ),
    "of an earlier attempt": lambda reply: reply.metadata.__dict__.update(_group_id="1.0.upload"),
    "of a later attempt": lambda reply: reply.metadata.__dict__.update(_group_id="1.2.upload"),
    "of another round": lambda reply: reply.metadata.__dict__.update(_group_id="2.1.upload"),
    "of another phase": lambda reply: reply.metadata.__dict__.update(_group_id="1.1.ready"),
    "stranger": lambda reply: reply.metadata.__dict__.update(_src_node_id=5),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_bad_upload_is_counted_and_dropped_as_if_it_had_been_lost(damage: Any) -> None:
    class Damaging(RecordingGrid):
        def after(self, phase: str, replies: list[Message]) -> list[Message]:
            if phase == UPLOAD:
                damage(replies[1])
            return replies

    class Losing(RecordingGrid):
        def after(self, phase: str, replies: list[Message]) -> list[Message]:
            return replies[:1] + replies[2:] if phase == UPLOAD else replies

    damaged, lost = (start(grid(4), 1) for grid in (Damaging, Losing))
    assert damaged.model["w"].tobytes() == lost.model["w"].tobytes()
    for run in (damaged, lost):
        (row,) = run.rows
        assert (row.num_sampled, row.num_replies, row.num_failures) == (4, 3, 1)
        assert row.own["num_dropped_after_ready"] == 1
        assert run.strategy.tally.uploads == dict.fromkeys(range(4), 1)
    # Noise that nobody takes away again: three clients' with the one that is missing.
    (plan,) = plan_round(damaged.strategy.parameters, 1, SIZE).values()
    expected = (3 * (plan.own_std(0.0) ** 2 + plan.pair_std**2)) ** 0.5 / 3
    assert damaged.rows[0].own["residual_noise_std"] == pytest.approx(expected, rel=1e-12)


def test_a_second_reply_does_not_count() -> None:
    class Twice(RecordingGrid):
        def after(self, phase: str, replies: list[Message]) -> list[Message]:
            return [*replies, replies[0]]

    twice, once = start(Twice(4), 2), start(RecordingGrid(4), 2)
    assert twice.model["w"].tobytes() == once.model["w"].tobytes()
    assert [row.num_replies for row in twice.rows] == [4, 4]


def test_the_order_of_replies_does_not_matter() -> None:
    app = make_app(loss=lambda number: 0.1 * 3.0**number)

    class Reversed(RecordingGrid):
        def after(self, phase: str, replies: list[Message]) -> list[Message]:
            return replies[::-1]

    reverse, straight = start(Reversed(7, app), 3), start(RecordingGrid(7, app), 3)
    assert_same_model(reverse.model, straight.model)
    assert [row.train_loss for row in reverse.rows] == [row.train_loss for row in straight.rows]


def test_words_that_are_no_honest_sum_leave_the_model_and_are_tried_again() -> None:
    class Hostile(RecordingGrid):
        def after(self, phase: str, replies: list[Message]) -> list[Message]:
            if phase == UPLOAD:
                noise = np.random.default_rng(len(self.replies)).bytes(4 * 100)
                replace_upload(replies[0], noise)
            return replies

    model = {"w": np.zeros(100, np.float32)}
    run = start(Hostile(4), 2, model, max_attempts=2, max_participations=9)
    assert not run.model["w"].any()
    assert [(row.num_replies, row.own["num_attempts"]) for row in run.rows] == [(0, 2), (0, 2)]
    assert run.strategy.tally.uploads == dict.fromkeys(range(4), 4)
    assert [row.own["residual_noise_std"] for row in run.rows] == [None, None]


class Vanishing(RecordingGrid):
    """Loses the uploads of the first clients in the first attempts of each round."""

    def __init__(self, num_clients: int, lost: int, attempts: int = 99) -> None:
        super().__init__(num_clients)
        self.lost, self.attempts = lost, attempts

    def after(self, phase: str, replies: list[Message]) -> list[Message]:
        attempt = int(self.requests[-1].content["config"]["attempt"])
        return replies[self.lost :] if phase == UPLOAD and attempt <= self.attempts else replies


@pytest.mark.parametrize(
    ("changes", "lost", "failing", "expected"),
    [
        # replies, attempts and uploads charged to each client, of one round
        ({}, 3, 99, (2, 1, 1)),
        ({"max_dropouts": 3}, 3, 99, (2, 1, 1)),
        ({"max_dropouts": 2}, 3, 99, (0, 3, 3)),
        ({"max_dropouts": 2}, 3, 2, (5, 3, 3)),
        ({"max_dropouts": 0}, 1, 1, (5, 2, 2)),
        ({"max_dropouts": 0, "max_attempts": 1}, 1, 1, (0, 1, 1)),
        ({"min_replies": 4}, 2, 1, (5, 2, 2)),
        ({"min_replies": 4}, 1, 1, (4, 1, 1)),
        (UNIFORM, 1, 99, (0, 3, 3)),
        (UNIFORM, 1, 1, (5, 2, 2)),
        (UNIFORM, 0, 1, (5, 1, 1)),
        ({**UNIFORM, "max_attempts": 5}, 5, 4, (5, 5, 5)),
    ],
)
def test_dropouts_are_borne_or_the_round_is_tried_again(
    changes: dict[str, Any], lost: int, failing: int, expected: tuple[int, int, int]
) -> None:
    run = start(Vanishing(5, lost, failing), 1, max_participations=9, **changes)
    (row,) = run.rows
    (charged,) = set(run.strategy.tally.uploads.values())
    assert (row.num_replies, row.own["num_attempts"], charged) == expected
    assert row.num_failures == 5 - row.num_replies
    assert np.array_equal(run.model["w"], MODEL["w"]) == (row.num_replies == 0)
    nonces = [m.content["config"]["nonce"] for m in run.grid.replies if "nonce" in _config(m)]
    assert len(nonces) == len(set(nonces)) == 5 * row.own["num_attempts"]


def _config(message: Message) -> ConfigRecord:
    return message.content["config"] if "config" in message.content else ConfigRecord()


class NotReady(RecordingGrid):
    """The first clients do not answer whether they are ready, in the first attempts."""

    def __init__(self, num_clients: int, silent: int, attempts: int = 99) -> None:
        super().__init__(num_clients)
        self.silent, self.attempts = silent, attempts

    def after(self, phase: str, replies: list[Message]) -> list[Message]:
        attempt = int(self.requests[-1].content["config"]["attempt"])
        return replies[self.silent :] if phase == READY and attempt <= self.attempts else replies


@pytest.mark.parametrize(
    ("min_ready", "silent", "failing", "expected"),
    [
        # replies, attempts, upload requests
        (4, 1, 99, (4, 1, 4)),
        (4, 2, 99, (0, 3, 0)),
        (4, 2, 2, (5, 3, 5)),
        (None, 1, 99, (0, 3, 0)),  # nine of ten of five: all
        (5, 0, 0, (5, 1, 5)),
    ],
)
def test_below_min_ready_nobody_is_asked_to_upload(
    min_ready: int | None, silent: int, failing: int, expected: tuple[int, int, int]
) -> None:
    grid = NotReady(5, silent, failing)
    run = start(grid, 1, min_ready=min_ready)
    (row,) = run.rows
    assert (row.num_replies, row.own["num_attempts"], len(grid.sent(UPLOAD))) == expected
    assert sum(run.strategy.tally.uploads.values()) == expected[2]
    # A client that is not in the ready set is no dropout: nobody masked towards it.
    assert row.own["num_dropped_after_ready"] == 0
    if row.num_replies:
        ready = {len(m.content["config"]["ready-set"]) for m in grid.sent(UPLOAD)}
        assert len(ready) == 1


def test_a_client_that_could_not_register_is_asked_again_in_the_next_round() -> None:
    class Late(RecordingGrid):
        def after(self, phase: str, replies: list[Message]) -> list[Message]:
            return replies[1:] if phase == REGISTER and len(replies) > 1 else replies

    grid = Late(4)
    run = start(grid, 2, min_ready=3)
    assert [client_of(m) for m in grid.sent(REGISTER)] == [0, 1, 2, 3, 0]
    assert [row.num_replies for row in run.rows] == [3, 4]
    assert run.strategy.tally.uploads == {0: 1, 1: 2, 2: 2, 3: 2}


def test_clients_that_sit_out_are_no_failures_and_not_charged() -> None:
    app = make_app(num_records=lambda number: 3 if number == 0 else 50)
    unit = {"unit": "record", "min_ready": 3}
    run = start(RecordingGrid(4, app), 1, **unit)
    (row,) = run.rows
    assert (row.num_replies, row.num_ineligible, row.num_failures) == (3, 1, 0)
    assert run.strategy.tally.uploads == {1: 1, 2: 1, 3: 1}


def test_a_client_whose_participations_are_used_up_sits_out() -> None:
    run = start(RecordingGrid(4), 3, max_participations=2)
    assert [(row.num_replies, row.num_ineligible) for row in run.rows] == [(4, 0), (4, 0), (0, 4)]
    assert set(run.strategy.tally.uploads.values()) == {2}


def test_tries_of_a_round_use_up_participations() -> None:
    run = start(Vanishing(4, 1), 3, max_participations=4, **UNIFORM)
    assert [row.own["num_attempts"] for row in run.rows] == [3, 3, 3]
    assert [row.num_ineligible for row in run.rows] == [0, 4, 4]
    assert set(run.strategy.tally.uploads.values()) == {4}
    # What was planned is spent, although no model was ever released.
    assert run.strategy.epsilon() == pytest.approx(
        start(RecordingGrid(4), 4, **UNIFORM).strategy.epsilon()
    )


def test_the_uplink_budget_counts_every_try() -> None:
    bits = 4 * 32 * SIZE  # of one round
    whole = start(Vanishing(4, 0), 3, uplink_budget_bits=3 * bits, **UNIFORM)
    assert [row.num_replies for row in whole.rows] == [4, 4, 4]
    # The first round takes two tries, the second two: 16 uploads, of which two are lost.
    failing = start(
        Vanishing(4, 1, 1), 3, uplink_budget_bits=3 * bits, max_participations=9, **UNIFORM
    )
    assert [row.num_replies for row in failing.rows] == [4, 0]
    assert [row.own["num_attempts"] for row in failing.rows] == [2, 2]
    assert 8 * failing.strategy.tally.uplink_bytes <= 3 * bits
    # What was uploaded before the budget was used up is charged.
    assert set(failing.strategy.tally.uploads.values()) == {3}
    with pytest.raises(ParameterError, match="uplink_budget_bits"):
        start(RecordingGrid(4), 3, uplink_budget_bits=3 * bits - 1, **UNIFORM)


def test_in_turn_everybody_is_asked_as_often() -> None:
    grid = RecordingGrid(6)
    run = start(grid, 6, num_sampled_clients=2, participation="round_robin")
    asked = [client_of(m) for m in grid.sent(UPLOAD)]
    assert asked == [0, 1, 2, 3, 4, 5] * 2
    assert run.strategy.parameters.update.num_participations == 2
    assert run.strategy.tally.uploads == dict.fromkeys(range(6), 2)


def test_a_cohort_of_which_some_are_not_connected() -> None:
    class Gone(RecordingGrid):
        def get_node_ids(self) -> list[int]:
            nodes = list(super().get_node_ids())
            return nodes if not self.requests else nodes[1:]

    run = start(Gone(4), 2, min_ready=3)
    assert [(row.num_replies, row.num_failures) for row in run.rows] == [(4, 0), (3, 1)]


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
