"""Messages and states in the in-process engine are what they are on Flower's own engines."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from fl_app.engines import client_node
from fl_app.engines.flower_internals import copy_records
from fl_app.engines.in_process import InProcessGrid

Handler = Callable[[Message, Context], RecordDict]


def make_app(handle: Handler) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(handle(message, context), reply_to=message)

    return app


def make_grid(handle: Handler, num_clients: int = 3) -> InProcessGrid:
    return InProcessGrid(make_app(handle), num_clients, {})


def ask(grid: InProcessGrid, content: RecordDict | None = None) -> list[Message]:
    record = RecordDict() if content is None else content
    return [
        Message(record, dst_node_id=node, message_type="train", group_id="1")
        for node in grid.get_node_ids()
    ]


def tell_partition(message: Message, context: Context) -> RecordDict:
    return RecordDict({"config": ConfigRecord({"id": context.node_config["partition-id"]})})


def read_ids(replies: list[Message]) -> list[int]:
    return [reply.content["config"]["id"] for reply in replies]


def sample_content() -> RecordDict:
    return RecordDict(
        {
            "arrays": ArrayRecord({"w": Array(np.arange(4.0))}),
            "metrics": MetricRecord({"list": [1, 2], "one": 1.0}),
            "config": ConfigRecord({"words": ["a"], "raw": b"bytes", "flag": True}),
        }
    )


def describe(content: RecordDict) -> dict:
    return {
        "w": content["arrays"]["w"].numpy().tolist(),
        "names": list(content["arrays"]),
        "metrics": copy.deepcopy(dict(content["metrics"].items())),
        "config": copy.deepcopy(dict(content["config"].items())),
        "records": list(content),
    }


def vandalise(content: RecordDict) -> None:
    content["arrays"]["w"] = Array(np.full(4, -1.0))
    content["arrays"]["more"] = Array(np.zeros(1))
    content["metrics"]["list"].append(3)
    content["metrics"]["one"] = 9.0
    content["config"]["words"].append("b")
    content["config"]["flag"] = False
    content["extra"] = ConfigRecord({})


def test_what_a_client_does_to_its_message_stays_with_it() -> None:
    seen = []

    def handle(message: Message, context: Context) -> RecordDict:
        seen.append(describe(message.content))
        vandalise(message.content)
        return RecordDict()

    content = sample_content()
    before = describe(content)
    grid = make_grid(handle)
    grid.send_and_receive(ask(grid, content))
    assert seen == [before] * 3
    assert describe(content) == before


def test_what_the_server_does_to_a_reply_stays_with_it() -> None:
    kept: dict[int, RecordDict] = {}

    def handle(message: Message, context: Context) -> RecordDict:
        return kept.setdefault(context.node_id, sample_content())

    grid = make_grid(handle)
    for reply in grid.send_and_receive(ask(grid)):
        vandalise(reply.content)
    assert [describe(each) for each in kept.values()] == [describe(sample_content())] * 3


def test_bytes_are_shared_and_not_copied() -> None:
    received = []

    def handle(message: Message, context: Context) -> RecordDict:
        received.append(message.content["arrays"]["w"])
        return RecordDict({"arrays": message.content["arrays"]})

    content = sample_content()
    sent = content["arrays"]["w"]
    grid = make_grid(handle)
    replies = grid.send_and_receive(ask(grid, content))
    assert all(array is not sent and array.data is sent.data for array in received)
    assert all(reply.content["arrays"]["w"].data is sent.data for reply in replies)
    assert (sent.dtype, sent.shape, sent.stype) == (
        received[0].dtype,
        received[0].shape,
        received[0].stype,
    )


def test_clients_answer_in_the_order_of_sending() -> None:
    grid = make_grid(tell_partition, num_clients=6)
    messages = ask(grid)
    assert read_ids(grid.send_and_receive(messages)) == [0, 1, 2, 3, 4, 5]
    assert read_ids(grid.send_and_receive(messages[::-1])) == [5, 4, 3, 2, 1, 0]
    identifiers = list(grid.push_messages(messages[::-1]))
    # Whatever order the replies are asked for in, and a set has none.
    assert read_ids(grid.pull_messages(set(identifiers))) == [5, 4, 3, 2, 1, 0]


def test_replies_can_be_read_more_than_once() -> None:
    grid = make_grid(tell_partition)
    replies = grid.send_and_receive(ask(grid))
    assert len(list(replies)) == len(list(replies)) == 3


def test_pushed_messages_are_answered_once_and_by_number() -> None:
    grid = make_grid(tell_partition)
    first = list(grid.push_messages(ask(grid)))
    second = list(grid.push_messages(ask(grid)))
    assert len({*first, *second}) == 6
    replies = list(grid.pull_messages([second[0], first[2], "unknown"]))
    assert [reply.metadata.reply_to_message_id for reply in replies] == [first[2], second[0]]
    assert list(grid.pull_messages([first[2]])) == []
    assert read_ids(grid.pull_messages(first + second)) == [0, 1, 1, 2]


def test_messages_are_numbered_and_say_where_they_belong() -> None:
    seen = []

    def handle(message: Message, context: Context) -> RecordDict:
        seen.append(message.metadata)
        return RecordDict()

    grid = make_grid(handle)
    messages = ask(grid)
    replies = list(grid.send_and_receive(messages))
    numbers = [m.message_id for m in seen] + [r.metadata.message_id for r in replies]
    assert len(set(numbers)) == 6
    assert all(numbers)
    for request, reply in zip(seen, replies, strict=True):
        assert request.src_node_id == reply.metadata.dst_node_id
        assert request.dst_node_id == reply.metadata.src_node_id
        assert reply.metadata.reply_to_message_id == request.message_id
        assert (reply.metadata.group_id, reply.metadata.run_id) == ("1", client_node.RUN_ID)
    # The sender's own message is as it was, so that it can be sent again.
    assert [m.metadata.message_id for m in messages] == [""] * 3


def count_calls(message: Message, context: Context) -> RecordDict:
    record = context.state.get("calls")
    count = 0 if record is None else int(record["count"])
    context.state["calls"] = ConfigRecord({"count": count + 1})
    return RecordDict({"config": ConfigRecord({"id": count})})


def test_a_node_s_state_survives_rounds_and_is_its_own() -> None:
    grid = make_grid(count_calls)
    messages = ask(grid)
    assert read_ids(grid.send_and_receive(messages[:1])) == [0]
    assert read_ids(grid.send_and_receive(messages)) == [1, 0, 0]
    assert read_ids(grid.send_and_receive(messages)) == [2, 1, 1]
    assert read_ids(make_grid(count_calls).send_and_receive(messages)) == [0, 0, 0]


def test_a_state_can_be_replaced_and_emptied() -> None:
    def handle(message: Message, context: Context) -> RecordDict:
        before = list(context.state)
        context.state = RecordDict() if before else RecordDict({"first": ConfigRecord({})})
        return RecordDict({"config": ConfigRecord({"id": len(before)})})

    grid = make_grid(handle, num_clients=1)
    assert [read_ids(grid.send_and_receive(ask(grid))) for _ in range(4)] == [[0], [1], [0], [1]]


def test_a_record_kept_in_a_state_is_out_of_others_reach() -> None:
    def handle(message: Message, context: Context) -> RecordDict:
        known = context.state.setdefault("config", ConfigRecord({"id": 0}))
        return RecordDict({"config": known})

    grid = make_grid(handle, num_clients=1)
    for reply in grid.send_and_receive(ask(grid)):
        reply.content["config"]["id"] = 7
    assert read_ids(grid.send_and_receive(ask(grid))) == [0]


class SecretError(Exception):
    pass


@pytest.mark.parametrize("error", [SecretError("record 17"), SystemExit("record 17")])
def test_what_a_client_raises_becomes_an_error_without_its_text(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(message: Message, context: Context) -> RecordDict:
        if context.node_config["partition-id"] == 1:
            context.state["half"] = ConfigRecord({})
            raise error
        return tell_partition(message, context)

    grid = make_grid(handle)
    for _ in range(2):
        replies = list(grid.send_and_receive(ask(grid)))
        assert [reply.has_error() for reply in replies] == [False, True, False]
        assert replies[1].error.code == client_node.CLIENT_APP_RAISED
        assert "17" not in repr(replies[1].error.reason)
        assert replies[1].metadata.src_node_id == list(grid.get_node_ids())[1]
    assert "record 17" in caplog.text  # the client's own log


def test_a_failed_message_leaves_the_state_as_it_was() -> None:
    """As on Flower's own engines, where the changed state is lost with the failure."""

    def handle(message: Message, context: Context) -> RecordDict:
        answer = count_calls(message, context)
        if answer["config"]["id"] == 1:
            context.state["more"] = ConfigRecord({})
            context.state["calls"]["list"] = [1]
            raise SecretError
        assert list(context.state) == ["calls"]
        assert list(context.state["calls"]) == ["count"]
        return answer

    grid = make_grid(handle, num_clients=1)
    assert read_ids(grid.send_and_receive(ask(grid))) == [0]
    for _ in range(2):
        assert [reply.has_error() for reply in grid.send_and_receive(ask(grid))] == [True]
    assert list(grid._states[client_node.FIRST_NODE_ID]["calls"].items()) == [("count", 1)]


def test_what_is_no_message_is_an_error() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return None  # type: ignore[return-value]

    grid = InProcessGrid(app, 1, {})
    assert [reply.has_error() for reply in grid.send_and_receive(ask(grid))] == [True]


def test_ctrl_c_in_a_client_ends_the_run() -> None:
    def handle(message: Message, context: Context) -> RecordDict:
        raise KeyboardInterrupt

    grid = make_grid(handle)
    with pytest.raises(KeyboardInterrupt):
        grid.send_and_receive(ask(grid))


def test_a_copied_array_is_what_the_constructor_builds() -> None:
    """Copying skips the constructor's checks, so nothing of what it sets may be missing."""
    array = Array(np.arange(4.0))
    array.object_id  # noqa: B018 what it remembers must not be copied
    copied = copy_records(RecordDict({"arrays": ArrayRecord({"w": array})}))["arrays"]["w"]
    built = Array(array.dtype, array.shape, array.stype, array.data)
    assert copied == built
    assert copied.__dict__.keys() <= built.__dict__.keys()
    assert copied.is_dirty == built.is_dirty
    assert copied.data is array.data
    assert copied.deflate() == built.deflate()
    assert copied.object_id == array.object_id
