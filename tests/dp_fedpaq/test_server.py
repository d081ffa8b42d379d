"""The server: bad replies are counted and dropped, and the sum does not depend on their order."""

import json
from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, RecordDict

from fl_app.engines.in_process import InProcessGrid
from strategies.dp_fedpaq import DpFedPaq, ParameterError
from strategies.dp_fedpaq.messages import upload_reply
from tests.dp_fedpaq.grid_runs import MODEL, RecordingGrid, make_app, record, start, strategy


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
