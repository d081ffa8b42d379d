"""200 malformed messages of a server, over the format of each method: no crash, no release."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fl_app.allow_list import ERRORS
from fl_app.engines.flower_internals import identify_process
from tests.fl_app.devices import ALL, METHODS, Device, copied, record_requests

PER_METHOD = {"dp_fedpaq": 70, "niss": 70, "dp_fts_de": 60}
# Of the application's and of each method's, what must be there and of one kind.
NEEDED = {
    "dp_fedpaq": ("settings", "server-round", "dp-fedpaq"),
    "niss": ("settings", "server-round", "niss", "phase", "attempt", "run-tag"),
    "dp_fts_de": ("settings", "server-round", "dp-fts-de", "agent", "upload"),
}
STRANGE: list[Any] = [
    *(0, -1, -(2**62), 2**62, 0.5, -0.0, float("nan"), float("inf"), True),
    *("", "0", "x" * 10_000, "{}", "[]", "null", '{"a": NaN}', "\x00", "[" * 5000),
    *(b"", b"\x00" * 16, b"\xff" * 1000, [1, 2], [0.5], ["a"], [b"a"]),
]


def damage(message: Message, rng: random.Random, method: str) -> str:
    """Make a message one that no server of ours sends; return how."""
    config = message.content["config"]
    assert isinstance(config, ConfigRecord)
    kinds: list[Callable[[], str]] = [
        lambda: remove_key(config, rng, method),
        lambda: replace_value(config, rng, method),
        lambda: damage_text(config, rng, method),
        lambda: replace_record(message, rng),
    ]
    if "arrays" in message.content:
        kinds += [lambda: damage_array(message, rng)] * 2
    return rng.choice(kinds)()


def remove_key(config: ConfigRecord, rng: random.Random, method: str) -> str:
    key = rng.choice(NEEDED[method])
    del config[key]
    return f"without {key}"


def replace_value(config: ConfigRecord, rng: random.Random, method: str) -> str:
    key = rng.choice(NEEDED[method])
    kind = type(config[key])
    others = [value for value in STRANGE if type(value) is not kind]
    if kind is int:
        others += [0, -1, -(2**62)] if key != "agent" else [-1, 2**40]
    config[key] = rng.choice(others)
    return f"another {key}"


def damage_text(config: ConfigRecord, rng: random.Random, method: str) -> str:
    key = rng.choice([key for key in NEEDED[method] if str(config[key]).startswith("{")])
    text = str(config[key])
    place = rng.randrange(1, len(text))
    if rng.random() < 0.5:
        config[key] = text[:place]
    else:
        config[key] = text[:place] + rng.choice("{}[],:\x00\u20ac") + text[place:]
    return f"damaged {key}"


def replace_record(message: Message, rng: random.Random) -> str:
    name = rng.choice(list(message.content))
    other = rng.choice([None, MetricRecord({"a": 1}), ArrayRecord(), ConfigRecord({"a": "b"})])
    if other is None:
        del message.content[name]
    else:
        message.content[name] = other
    return f"another record {name}"


def damage_array(message: Message, rng: random.Random) -> str:
    arrays = message.content["arrays"]
    assert isinstance(arrays, ArrayRecord)
    name = rng.choice(list(arrays))
    array = arrays[name]
    how = rng.choice(["cut", "dtype", "shape", "stype", "nan", "pickle", "empty"])
    data, dtype, shape, stype = array.data, array.dtype, array.shape, array.stype
    if how == "cut":
        data = data[: rng.randrange(len(data))]
    elif how == "dtype":
        dtype = rng.choice(["object", "float128x", "", "O", "U5", "complex64"])
        data = data[:17]
    elif how == "shape":
        shape, data = (2**40, *shape), data[:-1]
    elif how == "stype":
        stype, data = rng.choice(["", "pickle", "torch"]), b"\x80\x04K\x07."
    elif how == "nan":
        data = data[:-8] + b"\xff" * 8
    elif how == "pickle":
        data = b"\x80\x04K\x07."
    else:
        data = b""
    arrays[name] = Array(dtype, shape, stype, data)
    return f"array: {how}"


@pytest.mark.parametrize("method", METHODS)
def test_malformed_messages(tmp_path: Path, method: str) -> None:
    identify_process(1)
    requests = record_requests(tmp_path, *METHODS[method])
    identify_process(1)
    asking = [each for each in requests if each.metadata.message_type == "train"]
    assert len(asking) >= 2
    rng = random.Random(20261130)
    device = Device(tmp_path / "target", allowed_strategies=ALL, max_epsilon=100)
    counted: Counter[str] = Counter()
    codes: Counter[int] = Counter()
    for _ in range(PER_METHOD[method]):
        message = copied(rng.choice(asking))
        how = damage(message, rng, method)
        reply = device.ask(message)
        counted[how] += 1
        assert reply.has_error(), how
        assert reply.error.reason == ERRORS[reply.error.code]
        codes[reply.error.code] += 1
        assert device.releases == [], how
    assert len(counted) >= 10
    assert sum(codes.values()) == PER_METHOD[method]
    # After all that, the last honest message is answered as on a device that saw none of them;
    # an earlier round need not be, for one that was begun, however badly, is not gone back on.
    fresh = Device(tmp_path / "fresh", allowed_strategies=ALL)
    kept = [device.ask(each).has_error() for each in asking]
    assert kept[-1] == [fresh.ask(each).has_error() for each in asking][-1]


def test_a_message_without_anything(tmp_path: Path) -> None:
    identify_process(1)
    device = Device(tmp_path / "target")
    for kind in ("train", "query", "evaluate"):
        message = copied(Message(RecordDict(), 7, kind))
        assert device.ask(message).error.reason == "the client could not answer"
    told = device.ask(copied(Message(RecordDict(), 7, "query.partition")))
    assert dict(told.content["config"]) == {"partition-id": 0, "num-partitions": 4}
