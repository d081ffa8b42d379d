"""Replies that are damaged, hostile or twice there are counted and dropped."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message

from strategies.dp_fedpaq.messages import UPLOAD_TYPE
from tests.dp_fedpaq.grid_runs import MODEL, RecordingGrid, make_app, record, start, strategy


@pytest.mark.parametrize("loss", [1.7e308, -1.7e308, float("inf"), 10**18])
def test_a_hostile_loss_harms_nobody(loss: float) -> None:
    class Lying(RecordingGrid):
        def change(self, replies: list[Message]) -> list[Message]:
            for reply in replies[:2]:
                reply.content["metrics"]["train-loss"] = loss
            return replies

    rows = []
    chosen = strategy(on_round=lambda row, _: rows.append(row))
    start(chosen, Lying(make_app(), 4), num_rounds=1)
    assert rows[0].train_loss == 1.0
    secret = strategy(randomness="secret", on_round=lambda row, _: rows.append(row))
    start(secret, Lying(make_app(), 4), num_rounds=1)
    assert rows[1].train_loss is None


def test_a_model_is_never_replaced_by_one_that_is_not_finite() -> None:
    class Huge(RecordingGrid):
        def change(self, replies: list[Message]) -> list[Message]:
            for reply in replies[:3]:
                bad_upload(reply, np.full(16, 3.3e38, "<f4").tobytes())
            return replies

    rows = []
    chosen = strategy(
        quantizer="none",
        noise_multiplier=0.0,
        clipping_norm=None,
        on_round=lambda row, _: rows.append(row),
    )
    large = {**MODEL, "w": np.full((3, 5), 3e38, np.float32)}
    result = chosen.start(Huge(make_app(), 4), record(large), num_rounds=1)
    assert result.arrays is not None
    assert np.array_equal(result.arrays["w"].numpy(), large["w"])
    assert rows[0].num_replies == 0


def test_an_upload_cannot_hide_behind_the_word_ineligible() -> None:
    class Hiding(RecordingGrid):
        def change(self, replies: list[Message]) -> list[Message]:
            replies[0].content["config"] = ConfigRecord({"status": "ineligible"})
            return replies

    rows = []
    chosen = strategy(on_round=lambda row, _: rows.append(row))
    start(chosen, Hiding(make_app(), 3), num_rounds=1)
    assert (rows[0].num_ineligible, rows[0].num_replies) == (0, 3)


def test_a_reply_of_another_type_is_dropped() -> None:
    class Mistaken(RecordingGrid):
        def change(self, replies: list[Message]) -> list[Message]:
            replies[0].metadata.message_type = "evaluate"
            return replies

    rows = []
    chosen = strategy(on_round=lambda row, _: rows.append(row))
    start(chosen, Mistaken(make_app(), 3), num_rounds=1)
    assert (rows[0].num_failures, rows[0].num_replies) == (1, 2)


def bad_upload(reply: Message, data: bytes, stype: str = UPLOAD_TYPE, dtype: str = "uint8") -> None:
    array = Array(dtype, (len(data),), stype, data)
    reply.content["arrays"] = ArrayRecord({"update": array})


DAMAGES = {
    "short": lambda reply: bad_upload(reply, b"\0\0"),
    "empty": lambda reply: bad_upload(reply, b""),
    "codes out of range": lambda reply: bad_upload(reply, b"\0\0\x80\x3f" + b"\xff" * 16),
    "NaN scale": lambda reply: bad_upload(reply, b"\0\0\xc0\x7f" + b"\0" * 16),
    "negative scale": lambda reply: bad_upload(reply, b"\0\0\x80\xbf" + b"\0" * 16),
    "wrong kind": lambda reply: bad_upload(reply, b"\0" * 20, stype="numpy.ndarray"),
    "wrong type": lambda reply: bad_upload(reply, b"\0" * 20, dtype="float32"),
    "no arrays": lambda reply: reply.content.pop("arrays"),
    "a config for arrays": lambda reply: reply.content.update({"arrays": ConfigRecord()}),
    "two arrays": lambda reply: reply.content["arrays"].update(
        {"more": Array("uint8", (1,), UPLOAD_TYPE, b"\0")}
    ),
    "stale": lambda reply: reply.metadata.__dict__.update(_group_id="99"),
    "stranger": lambda reply: reply.metadata.__dict__.update(_src_node_id=5),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_one_bad_reply_never_costs_the_round(damage) -> None:  # type: ignore[no-untyped-def]
    class Damaging(RecordingGrid):
        def change(self, replies: list[Message]) -> list[Message]:
            damage(replies[1])
            return replies

    class Losing(RecordingGrid):
        def change(self, replies: list[Message]) -> list[Message]:
            return replies[:1] + replies[2:]

    rows = []
    damaged = start(
        strategy(on_round=lambda row, _: rows.append(row)), Damaging(make_app(), 4), num_rounds=1
    )
    lost = start(strategy(), Losing(make_app(), 4), num_rounds=1)
    assert (rows[0].num_replies, rows[0].num_failures) == (3, 1)
    for name in MODEL:
        assert damaged[name].tobytes() == lost[name].tobytes()


def test_an_error_reply_and_a_duplicate_are_dropped() -> None:
    class Erring(RecordingGrid):
        def change(self, replies: list[Message]) -> list[Message]:
            error = Message(Error(2, "boom"), reply_to=self.requests[0])
            return [error, *replies[1:], replies[2]]

    class Losing(RecordingGrid):
        def change(self, replies: list[Message]) -> list[Message]:
            return replies[1:]

    rows = []
    erring = start(
        strategy(on_round=lambda row, _: rows.append(row)), Erring(make_app(), 4), num_rounds=1
    )
    losing = start(strategy(), Losing(make_app(), 4), num_rounds=1)
    assert (rows[0].num_replies, rows[0].num_failures) == (3, 1)
    for name in MODEL:
        assert erring[name].tobytes() == losing[name].tobytes()


def test_below_min_replies_the_model_stays_and_uploads_stay_charged() -> None:
    class Losing(RecordingGrid):
        def change(self, replies: list[Message]) -> list[Message]:
            return replies[:1]

    chosen = strategy(min_replies=2)
    model = start(chosen, Losing(make_app(), 4), num_rounds=3)
    for name, array in MODEL.items():
        assert np.array_equal(model[name], array)
    assert set(chosen.tally.uploads.values()) == {3}
    assert chosen.epsilon() > strategy().epsilon()  # type: ignore[operator]


def test_a_loss_that_a_client_may_not_report_is_not_believed() -> None:
    class Talking(RecordingGrid):
        def change(self, replies: list[Message]) -> list[Message]:
            for reply in replies:
                reply.content["metrics"]["train-loss"] = 7.0
            return replies

    rows = []
    for randomness in ("seeded", "secret"):
        chosen = strategy(randomness=randomness, on_round=lambda row, _: rows.append(row))
        start(chosen, Talking(make_app(), 3), num_rounds=1)
    assert [row.train_loss for row in rows] == [7.0, None]
