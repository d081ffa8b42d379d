import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fl_app import roll_call
from fl_app.client_app import app as client_app
from fl_app.engines.in_process import InProcessGrid
from fl_app.errors import ConfigError, RunError
from fl_app.roll_call import MOST_CLIENTS, read_client_ids, read_device_ids
from tests.fl_app.flower_like_grid import FlowerLikeGrid


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "NODE_TIMEOUT", 0.5)
    monkeypatch.setattr(roll_call, "NODE_POLL_SECONDS", 0.01)


@pytest.mark.parametrize("expected", [None, 6])
@pytest.mark.parametrize("at_first", [0, 1, 4, 6])
def test_all_nodes_are_waited_for(expected: int | None, at_first: int) -> None:
    grid = FlowerLikeGrid(6, at_first=at_first)
    first = next(iter(grid._inner.get_node_ids()))
    assert read_client_ids(grid, expected) == {first + index: index for index in range(6)}


def test_many_nodes_are_asked_in_parts() -> None:
    grid = FlowerLikeGrid(150)
    assert sorted(read_client_ids(grid, 150).values()) == list(range(150))
    assert grid.asked == [64, 64, 22]
    grid.change = lambda replies: replies[: 64 if len(grid.asked) < 5 else 10]  # type: ignore
    with pytest.raises(RunError, match="54 of 64 nodes did not say"):
        read_client_ids(grid, 150)


def test_an_in_process_grid_is_not_asked() -> None:
    grid = InProcessGrid(client_app, 4, {})
    assert read_client_ids(grid, 4) == grid.partition_ids
    assert list(read_client_ids(grid, None).values()) == [0, 1, 2, 3]


def test_too_few_nodes() -> None:
    with pytest.raises(RunError, match=r"3 nodes after 0.5 s; 4 needed"):
        read_client_ids(FlowerLikeGrid(3), 4)
    grid = FlowerLikeGrid(3)
    grid.get_node_ids = list  # type: ignore[method-assign]
    with pytest.raises(RunError, match=r"0 nodes after 0.5 s; 1 needed"):
        read_client_ids(grid, None)


def test_more_nodes_than_configured() -> None:
    with pytest.raises(ConfigError, match=r"num_clients: 2; .* connected nodes, 3"):
        read_client_ids(FlowerLikeGrid(3), 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda replies: replies[1:], "1 of 3 nodes did not say"),
        (lambda replies: [], "3 of 3 nodes did not say"),
        (
            lambda replies: [Message(Error(1, "?"), reply_to=replies[0]), *replies[1:]],
            "1 of 3 nodes did not say",
        ),
        (
            lambda replies: [_retold(reply, 1, 3) for reply in replies],
            r"hold the partitions \[1, 1, 1\] of \[3\]",
        ),
        (
            lambda replies: [_retold(reply, index, 5) for index, reply in enumerate(replies)],
            r"\[0, 1, 2\] of \[5\]",
        ),
    ],
)
def test_nodes_that_do_not_fit(
    change: Callable[[list[Message]], list[Message]], words: str
) -> None:
    grid = FlowerLikeGrid(3)
    grid.change = change  # type: ignore[method-assign]
    with pytest.raises(RunError, match=words):
        read_client_ids(grid, 3)


def _retold(reply: Message, partition: int, count: int) -> Message:
    told = ConfigRecord({"partition-id": partition, "num-partitions": count})
    reply.content["config"] = told
    return reply


FIRST = next(iter(FlowerLikeGrid(1)._inner.get_node_ids()))


class Claims(FlowerLikeGrid):
    """Devices that say what they are told to: (number, how many), a record, or None for nothing."""

    def __init__(self, *claims: Any) -> None:
        super().__init__(len(claims))
        self.claims = claims

    def change(self, replies: list[Message]) -> list[Message]:
        said = []
        for reply in replies[::-1]:
            claim = self.claims[reply.metadata.src_node_id - FIRST]
            if isinstance(claim, RecordDict):
                reply.content = claim
            elif isinstance(claim, Error):
                reply = Message(claim, reply_to=_request(reply))
            elif claim is None:
                continue
            elif isinstance(claim, tuple):
                values = dict(zip(("partition-id", "num-partitions"), claim, strict=False))
                reply.content["config"] = ConfigRecord(values)
            said.append(reply)
        return said


def _request(reply: Message) -> Message:
    node = reply.metadata.src_node_id
    return Message(RecordDict(), dst_node_id=node, message_type=roll_call.QUERY_TYPE)


def devices(*claims: Any, least: int | None = None, most: int | None = None) -> dict[int, int]:
    found = read_device_ids(Claims(*claims), least, most)
    return {node - FIRST: number for node, number in found.items()}


def test_devices_that_all_answer() -> None:
    claims = [(number, 5) for number in (3, 0, 4, 1, 2)]
    expected = {0: 3, 1: 0, 2: 4, 3: 1, 4: 2}
    for least in (None, 3, 5):
        assert devices(*claims, least=least) == expected
    grid = Claims(*claims)
    read_device_ids(grid, 5)
    assert grid.found == 6  # looked at once


BAD: dict[str, Any] = {
    "silent": None,
    "refused": Error(1005, "x"),
    "negative": (-1, 4),
    "beyond its own count": (4, 4),
    "a count of zero less": (1, -4),
    "an absurd count": (1, 10**9),
    "beyond all counts": (1, MOST_CLIENTS + 1),
    "beyond all numbers": (MOST_CLIENTS,),
    "another count": (1, 5),
    "text": ("1", 4),
    "fraction": (1.0, 4),
    "yes": (True, 4),
    "a list": ([1], 4),
    "bytes": (b"1", 4),
    "count of text": (1, "4"),
    "nothing": (),
    "no records": RecordDict(),
    "metrics": RecordDict({"config": MetricRecord({"partition-id": 1, "num-partitions": 4})}),
    "arrays": RecordDict({"config": ArrayRecord({"partition-id": Array("i", (1,), "", b"1")})}),
    "a taken number": (3, 4),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_device_is_left_out(bad: Any, caplog: pytest.LogCaptureFixture) -> None:
    good = [(3, 4), (0, 4), (2, 4)]
    with caplog.at_level(logging.WARNING):
        assert devices(*good, bad, least=3) == {0: 3, 1: 0, 2: 2}
    assert f"node {FIRST + 3} is left out: " in caplog.text
    assert "1 of 4 nodes are left out" in caplog.text


def test_too_few_devices() -> None:
    good = [(3, 4), (0, 4), (2, 4)]
    with pytest.raises(RunError, match=r"0 of 1 nodes take part"):
        devices((0, MOST_CLIENTS + 1))
    for bad in (None, (3, 4)):
        with pytest.raises(
            RunError, match=r"3 of 4 nodes take part after 0.5 s; 4 needed, each with a number"
        ):
            devices(*good, bad, least=4)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Error(1005, "x"), "refused by the device's policy (why is in the device's own log)"),
        (Error(1003, "x"), "could not answer (why is in the device's own log)"),
        (Error(7, "x"), "could not verify the code (sign it, with fl-app sign, and set engine.sig"),
        (Error(5, "x"), "lost its connection"),
        (Error(77, "x"), "error 77"),
        (None, "no answer"),
        ((-1, 2), "no valid answer"),
    ],
)
def test_why_a_device_is_left_out(bad: Any, words: str, caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    with pytest.raises(RunError) as ended:
        read_device_ids(Claims((0, 2), bad), 2, tell=told.append)
    assert f"of its own; 1 left out: {words}" in str(ended.value)
    assert f"node {FIRST + 1} is left out: {words}" in caplog.text
    assert told[0] == "waiting for devices: 0 of 2"
    assert told[1].startswith(
        f"waiting for devices: 1 of 2 (others may still connect); 1 left out: {words}"
    )
    assert len(told) == 2, "a line only where something has changed"


def test_equal_reasons_are_counted() -> None:
    with pytest.raises(RunError, match=r"; 2 left out: could not verify .*; 1 left out: no answer"):
        devices(Error(7, "x"), None, Error(7, "y"), least=3)


def test_of_two_that_claim_a_number_the_smaller_node_id_has_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert devices((1, 3), (1, 3), (0, 3), (1, 3)) == {0: 1, 2: 0}
    assert f"node {FIRST + 1} is left out: claims number 1, as another" in caplog.text
    assert f"node {FIRST + 3} is left out: claims number 1, as another" in caplog.text


def test_most_say_how_many_there_are() -> None:
    assert devices((0, 2), (1, 3), (2, 3)) == {1: 1, 2: 2}
    # Rather what the configuration says, and else the smaller.
    assert devices((0, 2), (1, 3), least=1) == {0: 0}
    assert devices((0, 2), (1, 2), (0, 3), (2, 3), least=2) == {0: 0, 1: 1}
    # A device knows how many there are, and is bound by it.
    assert devices((0,), (1, 0), (2, 7)) == {2: 2}
    assert devices((0, 0), (0, 3), (1, 3)) == {1: 0, 2: 1}


def test_a_run_of_so_many_clients_and_no_more() -> None:
    claims = [(number, 6) for number in range(6)]
    assert devices(*claims, least=4) == {number: number for number in range(6)}
    assert devices(*claims, least=4, most=4) == {number: number for number in range(4)}


def test_others_may_connect_in_place_of_those_that_are_left_out() -> None:
    grid = Claims((0, 3), Error(1005, "x"), (1, 3), (2, 3))
    grid.found = 2
    assert sorted(read_device_ids(grid, 3).values()) == [0, 1, 2]


def test_only_the_first_reply_of_those_who_were_asked_counts() -> None:
    class Twice(Claims):
        def change(self, replies: list[Message]) -> list[Message]:
            said = super().change(replies)
            again = Claims((1, 2), (0, 2)).change([_copy(reply) for reply in replies])
            return [*said, *again]

    found = read_device_ids(Twice((0, 2), (1, 2)), 2)
    assert found == {FIRST: 0, FIRST + 1: 1}


def _copy(reply: Message) -> Message:
    return Message(RecordDict({"config": ConfigRecord()}), reply_to=_request(reply))


def test_whatever_devices_say_nobody_ends_the_start() -> None:
    """300 starts of three honest devices among five that say anything."""
    rng = random.Random(20261201)
    pool = [
        *(None, 0, 1, -1, 2**31, -(2**63), 2**63 - 1, 0.0, float("nan"), True, "", "0", "x" * 999),
        *(b"", b"1", [], [0], ["a"], [0.5], 2, 3, 7),
    ]

    def anything() -> Any:
        kind = rng.randrange(5)
        if kind == 0:
            return rng.choice([None, Error(rng.randrange(-3, 2000), "why")])
        values = {
            key: rng.choice(pool)
            for key in ("partition-id", "num-partitions", "more")
            if rng.random() < 0.8
        }
        config = ConfigRecord({key: value for key, value in values.items() if value is not None})
        return RecordDict({rng.choice(["config", "config", "arrays"]): config})

    for _ in range(300):
        claims = [(0, 8), (1, 8), (2, 8), *(anything() for _ in range(5))]
        found = devices(*claims, least=3)
        assert {0: 0, 1: 1, 2: 2}.items() <= found.items()
        assert len(set(found.values())) == len(found)
        assert all(type(number) is int and 0 <= number < 8 for number in found.values())
