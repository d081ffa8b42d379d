"""The server: bad replies are counted and dropped, and the sum does not depend on their order."""

import json
from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_app.engines.in_process import InProcessGrid
from strategies.dp_fedpaq import DpFedPaq, ParameterError
from strategies.dp_fedpaq.client import LocalWork, train
from strategies.dp_fedpaq.messages import UPLOAD_TYPE, upload_reply

MODEL = {"w": np.zeros((3, 5), np.float32), "b": np.array(0.5), "n": np.array(3)}


def local_update(work: LocalWork) -> tuple[dict[str, np.ndarray], float]:
    floats = {name: array for name, array in work.arrays.items() if array.dtype.kind == "f"}
    return {
        name: (array + np.sin(work.seed)).astype(array.dtype) for name, array in floats.items()
    }, 1.0


def make_app(num_records: int = 50) -> ClientApp:
    app = ClientApp()

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        return train(message, context, num_records=num_records, local_update=local_update)

    return app


class RecordingGrid(InProcessGrid):
    """Keeps every message that passes, and lets a test change the replies."""

    def __init__(self, app: ClientApp, num_clients: int) -> None:
        super().__init__(app, num_clients, {})
        self.requests: list[Message] = []
        self.replies: list[Message] = []

    def change(self, replies: list[Message]) -> list[Message]:
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        self.requests += messages
        replies = self.change(list(super().send_and_receive(messages, timeout=timeout)))
        self.replies += replies
        return replies


def strategy(**changes: object) -> DpFedPaq:
    values: dict[str, object] = {
        "noise_multiplier": 1.0,
        "clipping_norm": 1.0,
        "local_steps": 2,
        "batch_size": 4,
        "unit": "client",
    }
    return DpFedPaq(**{**values, **changes})  # type: ignore[arg-type]


def record(model: dict[str, np.ndarray] = MODEL) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})


def start(chosen: DpFedPaq, grid: InProcessGrid, num_rounds: int = 2) -> dict[str, np.ndarray]:
    result = chosen.start(grid, record(), num_rounds=num_rounds)
    assert result.arrays is not None
    return {name: array.numpy() for name, array in result.arrays.items()}


def test_bytes_counted_are_the_bytes_in_the_messages() -> None:
    rows = []
    grid = RecordingGrid(make_app(), 4)
    start(strategy(on_round=lambda row, _: rows.append(row)), grid)
    uplink = sum(len(a.data) for m in grid.replies for a in m.content["arrays"].values())
    downlink = sum(len(a.data) for m in grid.requests for a in m.content["arrays"].values())
    assert sum(row.uplink_bytes for row in rows) == uplink > 0
    assert sum(row.downlink_bytes for row in rows) == downlink > 0
    assert all(row.control_bytes > 0 for row in rows)


def test_a_7850_parameter_update_takes_39282_bits_and_at_most_64_bytes_more() -> None:
    grid = RecordingGrid(make_app(), 3)
    chosen = strategy(num_levels=10)
    chosen.start(grid, record({"w": np.zeros(7850, np.float32)}), num_rounds=1)
    for reply in grid.replies:
        (array,) = reply.content["arrays"].values()
        assert 39_282 <= 8 * len(array.data) <= 39_282 + 8 * 64
    assert chosen.upload_bits(7850) == 39_282


def test_the_fixture_trains() -> None:
    rows = []
    start(strategy(on_round=lambda row, _: rows.append(row)), RecordingGrid(make_app(), 4))
    assert [(row.num_replies, row.num_local_failures, row.train_loss) for row in rows] == [
        (4, 0, 1.0)
    ] * 2


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


def test_the_order_of_replies_does_not_matter() -> None:
    class Shuffled(RecordingGrid):
        def change(self, replies: list[Message]) -> list[Message]:
            order = np.random.default_rng(len(self.replies)).permutation(len(replies))
            return [replies[i] for i in order]

    straight = start(strategy(), RecordingGrid(make_app(), 7))
    shuffled = start(strategy(), Shuffled(make_app(), 7))
    for name in MODEL:
        assert straight[name].tobytes() == shuffled[name].tobytes()


def test_node_ids_do_not_matter_where_client_numbers_are_known() -> None:
    class Renamed(RecordingGrid):
        """Nodes in another order, as on an engine with random node ids."""

        def get_node_ids(self) -> Iterable[int]:
            return reversed(list(super().get_node_ids()))

    models = []
    for grid in (RecordingGrid(make_app(), 6), Renamed(make_app(), 6)):
        chosen = strategy(client_ids=grid.partition_ids, num_sampled_clients=3)
        models.append(start(chosen, grid, 4))
    for name in MODEL:
        assert models[0][name].tobytes() == models[1][name].tobytes()


def test_integers_and_types_are_kept() -> None:
    model = start(strategy(), RecordingGrid(make_app(), 2))
    for name, array in MODEL.items():
        assert model[name].dtype == array.dtype
        assert model[name].shape == array.shape
    assert model["n"] == 3
    assert not np.array_equal(model["w"], MODEL["w"])


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


def test_clients_that_sit_out_are_counted_and_not_charged() -> None:
    rows = []
    chosen = strategy(unit="record", on_round=lambda row, _: rows.append(row))
    start(chosen, RecordingGrid(make_app(num_records=3), 4), num_rounds=1)
    assert (rows[0].num_ineligible, rows[0].num_replies, rows[0].num_failures) == (4, 0, 0)
    assert not +chosen.tally.uploads
    assert chosen.epsilon() == 0.0


def test_a_client_drawn_too_often_sits_out() -> None:
    rows = []
    chosen = strategy(
        num_sampled_clients=1, max_participations=1, on_round=lambda row, _: rows.append(row)
    )
    start(chosen, RecordingGrid(make_app(), 2), num_rounds=6)
    assert sum(row.num_replies for row in rows) == 2
    assert sum(row.num_ineligible for row in rows) == 4
    assert max(chosen.tally.uploads.values()) == 1


def test_the_callback_can_stop_the_run() -> None:
    grid = RecordingGrid(make_app(), 2)
    start(strategy(on_round=lambda row, _: row.server_round < 2), grid, num_rounds=9)
    assert len(grid.requests) == 4


def test_a_run_can_be_cut_anywhere_and_go_on() -> None:
    """A strategy of the same parameters ends where the whole run ends, in model and in counts."""
    common = {"num_sampled_clients": 2, "max_participations": 3}
    rows: list[int] = []
    evaluated: list[int] = []

    def evaluate(server_round: int, _: ArrayRecord) -> None:
        evaluated.append(server_round)

    whole = strategy(**common, on_round=lambda row, _: rows.append(row.server_round))
    grid = RecordingGrid(make_app(), 4)
    expected = whole.start(grid, record(), num_rounds=6, evaluate_fn=evaluate).arrays
    cut = strategy(**common, on_round=lambda row, _: row.server_round < 4)
    grid = RecordingGrid(make_app(), 4)
    half = cut.start(grid, record(), num_rounds=6).arrays
    rest = strategy(**common, on_round=lambda row, _: rows.append(row.server_round))
    rest.import_state(json.loads(json.dumps(cut.export_state())))
    ended = rest.start(grid, half, num_rounds=6, evaluate_fn=evaluate, first_round=5).arrays
    assert (rows, evaluated) == ([1, 2, 3, 4, 5, 6, 5, 6], [0, 1, 2, 3, 4, 5, 6, 5, 6])
    assert all(expected[name].data == ended[name].data for name in MODEL)
    assert rest.tally.uploads == whole.tally.uploads
    assert rest.epsilon() == whole.epsilon()
    assert rest.guarantees() == whole.guarantees()
    finished = rest.start(grid, ended, num_rounds=6, first_round=7).arrays
    assert finished is ended


@pytest.mark.parametrize("number", [0, -1, True, 1.0])
def test_rounds_are_counted_from_one(number: int) -> None:
    with pytest.raises(ValueError, match="first_round"):
        strategy().start(RecordingGrid(make_app(), 2), record(), first_round=number)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_sampled_clients": 2, "fraction_train": 0.5}, "fraction_train"),
        ({"fraction_train": 0.0}, "fraction_train"),
        ({"fraction_train": 1.1}, "fraction_train"),
        ({"num_sampled_clients": 0}, "num_sampled_clients"),
        ({"min_replies": 0}, "min_replies"),
        ({"max_participations": True}, "max_participations"),
    ],
)
def test_bad_cohorts_are_refused(changes: dict[str, object], key: str) -> None:
    with pytest.raises(ParameterError) as caught:
        strategy(**changes)
    assert caught.value.key == key


def test_a_cohort_larger_than_the_federation_is_refused() -> None:
    with pytest.raises(ParameterError, match="num_sampled_clients"):
        start(strategy(num_sampled_clients=5), RecordingGrid(make_app(), 4))


def test_upload_reply_is_what_the_server_reads() -> None:
    grid = RecordingGrid(make_app(), 1)
    start(strategy(), grid, num_rounds=1)
    copy = upload_reply(grid.requests[0], b"abc", 0.5, False)
    assert isinstance(copy.content, RecordDict)
    assert copy.content["arrays"]["update"].data == b"abc"


def test_the_seconds_of_a_round_are_those_of_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choosing and asking, the clients' work, and the aggregation, each a second of a clock."""
    clock = [0.0]
    monkeypatch.setattr("strategies.dp_fedpaq.server.time.perf_counter", lambda: clock[0])

    def a_second_longer(name: str, owner: type) -> None:
        action = getattr(owner, name)

        def slow(*arguments: object, **named: object) -> object:
            clock[0] += 1.0
            return action(*arguments, **named)

        monkeypatch.setattr(owner, name, slow)

    for name in ("configure_train", "aggregate_train"):
        a_second_longer(name, DpFedPaq)
    a_second_longer("send_and_receive", InProcessGrid)
    rows = []
    start(strategy(on_round=lambda row, _: rows.append(row)), RecordingGrid(make_app(), 3))
    assert [row.seconds for row in rows] == [3.0, 3.0]


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
