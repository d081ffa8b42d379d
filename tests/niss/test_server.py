"""The server: what it sums is FedAvg's sum, and bad replies are dropped."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message

from strategies.dp_fedpaq.algorithm import UploadStreams, bound_update
from strategies.dp_fedpaq.client import LocalWork
from strategies.mechanisms.layout import ArrayLayout
from strategies.mechanisms.rng import Randomness
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


@pytest.mark.parametrize("num_clients", [10, pytest.param(100, marks=pytest.mark.slow)])
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
