"""1,000 malformed uploads, of all three methods: counted by kind, dropped, and without effect."""

import logging
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord

from fl_app.client_app import SETTINGS_KEY
from fl_app.client_app import app as client_app
from fl_app.config import compose_settings
from fl_app.data import load_dataset
from fl_app.engines.flower_internals import build_message, describe_metadata
from fl_app.engines.in_process import InProcessGrid
from fl_app.model_arrays import to_arrays
from fl_app.models import build_model
from fl_app.registry import build_strategy
from fl_app.settings import RunSettings
from strategies.dp_fedpaq.messages import model_arrays, model_record
from strategies.dp_fts_de.messages import broadcast_record
from tests.fl_app.devices import ALL, CLIENTS, FEDPAQ, NISS, ROUNDS, SEARCH, Device, copied
from tests.fl_app.devices import run_on_devices as run_on

BAD = 2
FLOATS = "strategy.quantizer=none"
BEARS_ONE = ("strategy.max_dropouts=1", "strategy.max_attempts=1")
# How many of the 1,000.
METHODS = {
    "dp_fedpaq": ((*FEDPAQ,), 300),
    "dp_fedpaq, floats": ((*FEDPAQ, FLOATS), 150),
    "niss": ((*NISS, *BEARS_ONE), 300),
    "dp_fts_de": ((*SEARCH, "strategy.sample_rate=1", "strategy.num_initial=4"), 250),
}
STRANGE: list[Any] = [
    *(0, -1, 2**62, 0.5, float("nan"), float("inf"), True, "", "x" * 100_000, "\x00"),
    *(b"", b"\x00" * 16, b"\xff" * 100_000, [1, 2], [0.5], ["a"], [b"a"], []),
]
NUMBERS: list[Any] = [0, -1, 2**62, float("nan"), float("inf"), -float("inf"), 1e308, [], [1.5]]

Damage = Callable[[Message, random.Random], str]


class Server:
    """A method's server in round 1, with the replies of four honest clients."""

    def __init__(self, overrides: tuple[str, ...]) -> None:
        settings = compose_settings(
            [f"num_clients={CLIENTS}", f"num_rounds={ROUNDS}", "randomness=seeded", *overrides]
        )
        grid = InProcessGrid(client_app, CLIENTS, {})
        self.strategy = build_strategy(settings, client_ids=grid.partition_ids)
        self.arrays = first_arrays(settings)
        terms = ConfigRecord({SETTINGS_KEY: settings.to_json()})
        self.strategy.prepare_run(grid, self.arrays, ROUNDS)
        requests = self.strategy.configure_train(1, self.arrays, terms, grid)
        self.replies = list(grid.send_and_receive(requests))
        assert len(self.replies) == CLIENTS
        assert all("arrays" in each.content for each in self.replies)

    def aggregate(self, replies: list[Message]) -> dict[str, np.ndarray] | None:
        arrays, _ = self.strategy.aggregate_train(1, replies)
        return None if arrays is None else model_arrays(arrays)


def first_arrays(settings: RunSettings) -> ArrayRecord:
    if settings.search is not None:
        return broadcast_record(None)
    data = load_dataset(settings.data, CLIENTS, settings.seed)
    shape, classes = data.feature_shape, data.num_classes
    return model_record(to_arrays(build_model(settings.model, shape, classes, settings.seed)))


def with_array(reply: Message, **changes: Any) -> None:
    """Replace fields of the upload's array, whatever Flower's own constructor would say."""
    reply.content["arrays"]["update"].__dict__.update(changes)


def with_bytes(reply: Message, data: bytes) -> None:
    with_array(reply, data=data, shape=(len(data),))


def change_length(reply: Message, rng: random.Random) -> str:
    data = reply.content["arrays"]["update"].data
    size = rng.choice([0, 1, 3, len(data) - 1, len(data) + 1, 2 * len(data), rng.randrange(9999)])
    with_bytes(reply, rng.randbytes(size + (size == len(data))))
    return "length"


def change_type(reply: Message, rng: random.Random) -> str:
    with_array(
        reply, dtype=rng.choice(["float32", "int8", "object", "", "O", "uint88", "x" * 10_000])
    )
    return "dtype"


def change_shape(reply: Message, rng: random.Random) -> str:
    size = len(reply.content["arrays"]["update"].data)
    shapes: list[Any] = [(), (size, 1), (1, size), (size - 1,), (2**62,), (-1,), (2**40, 2**40)]
    with_array(reply, shape=rng.choice([*shapes, (float(size) + 0.5,), ("a",), None, [size]]))
    return "shape"


def change_kind(reply: Message, rng: random.Random) -> str:
    own = reply.content["arrays"]["update"].stype
    known = ["dp_fedpaq.upload.v1", "niss.upload.v1", "dp_fts_de.upload.v1", "numpy.ndarray", ""]
    with_array(reply, stype=rng.choice([each for each in known if each != own]))
    return "stype"


def change_records(reply: Message, rng: random.Random) -> str:
    others: list[Any] = [None, ConfigRecord(), MetricRecord(), ArrayRecord()]
    other = rng.choice([*others, ConfigRecord({"a": ""})])
    if other is None:
        del reply.content["arrays"]
    else:
        reply.content["arrays"] = other
    return "records"


def change_names(reply: Message, rng: random.Random) -> str:
    array = reply.content["arrays"]["update"]
    names = rng.choice([["x"], ["update", "more"], ["", "update"], ["U" * 10_000], []])
    reply.content["arrays"] = ArrayRecord(dict.fromkeys(names, array))
    return "names"


def change_group(reply: Message, rng: random.Random) -> str:
    group = rng.choice(["0", "2", "1.0.upload", "1.2.upload", "1.1.ready", "", "x", "9" * 10_000])
    reply.metadata.__dict__["_group_id"] = group
    return "group"


def change_sender(reply: Message, rng: random.Random) -> str:
    reply.metadata.__dict__["_src_node_id"] = rng.choice([0, 1, 5, 2**63, -1])
    return "sender"


def change_message_type(reply: Message, rng: random.Random) -> str:
    reply.metadata.__dict__["_message_type"] = rng.choice(["evaluate", "query", "train.x", "", "?"])
    return "message type"


def fail(reply: Message, rng: random.Random) -> str:
    reply.__dict__.update(
        _content=None, _error=Error(rng.choice([0, 2, 7, 1001, 1004, -5, 2**31]), "x" * 10_000)
    )
    return "error"


def use_no_number(reply: Message, rng: random.Random) -> str:
    """Make a number of the upload none: the scale, where there is one."""
    data = reply.content["arrays"]["update"].data
    bits = rng.choice([b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\x00\x00\x80\xff"])
    with_bytes(reply, bits + data[4:])
    return "no number"


def use_high_codes(reply: Message, rng: random.Random) -> str:
    data = bytearray(reply.content["arrays"]["update"].data)
    place = rng.randrange(4, len(data) - 1)
    data[place] = rng.choice([0x7F, 0xFF])
    with_bytes(reply, bytes(data))
    return "code"


def use_huge_numbers(reply: Message, rng: random.Random) -> str:
    data = reply.content["arrays"]["update"].data
    huge = np.float32(rng.choice([1e4, 1e30, 3e38])).tobytes()
    with_bytes(reply, huge + data[4:])
    return "huge norm"


COMMON: list[Damage] = [
    *(change_length, change_length, change_type, change_shape, change_shape, change_kind),
    *(change_records, change_names, change_group, change_sender, change_message_type, fail),
]
OWN: dict[str, list[Damage]] = {
    "dp_fedpaq": [use_no_number, use_high_codes, use_huge_numbers],
    "dp_fedpaq, floats": [use_no_number, use_huge_numbers],
    # Its words are masked: each by itself is as good as another.
    "niss": [],
    # Whatever is finite is clipped, and counts as one agent's.
    "dp_fts_de": [use_no_number],
}


def add_nonsense(reply: Message, rng: random.Random) -> None:
    """Put what is not read beside the upload: it changes nothing."""
    if not reply.has_content():
        return
    metrics = {key: rng.choice(NUMBERS) for key in ("num-examples", "train-loss", "x" * 999)}
    config = {key: rng.choice(STRANGE) for key in ("status", "card", "nonce", "\x00")}
    for name, record in (("metrics", MetricRecord(metrics)), ("config", ConfigRecord(config))):
        if rng.random() < 0.3:
            reply.content[name] = record


@pytest.mark.parametrize("method", METHODS)
def test_malformed_uploads(method: str, caplog: pytest.LogCaptureFixture) -> None:
    overrides, count = METHODS[method]
    server, rng = Server(overrides), random.Random(20261202)
    honest = server.replies
    without = server.aggregate([each for n, each in enumerate(honest) if n != BAD])
    whole = server.aggregate(honest)
    assert without is not None
    assert whole is not None
    assert any(without[name].tobytes() != whole[name].tobytes() for name in whole)
    counted: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for _ in range(count):
        bad = copied(honest[BAD])
        how = rng.choice(COMMON + OWN[method])(bad, rng)
        add_nonsense(bad, rng)
        twice = rng.random() < 0.2
        replies = [*honest, bad] if twice else [*honest[:BAD], bad, *honest[BAD + 1 :]]
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = server.aggregate(replies)
        expected = whole if twice else without
        assert found is not None, how
        for name, array in expected.items():
            assert found[name].tobytes() == array.tobytes(), how
            assert array.dtype.kind != "f" or np.isfinite(array).all()
        (told,) = [each for each in caplog.records if "dropped" in str(each.msg)]
        dropped = told.args[1]  # type: ignore[index]
        assert sum(dropped.values()) == 1, (how, dropped)
        counted[how] += 1
        kinds.update(dropped)
        assert "x" * 100 not in caplog.text
    assert sum(kinds.values()) == count
    assert len(counted) == len(set(COMMON + OWN[method]))
    assert len(kinds) >= 8, kinds


def test_they_are_a_thousand() -> None:
    assert sum(count for _, count in METHODS.values()) == 1000


class Fuzzing(Device):
    """A device whose every upload is malformed, each in another way."""

    def __init__(self, *given: Any, damages: list[Damage], **policy: Any) -> None:
        super().__init__(*given, **policy)
        self._damages, self._rng = damages, random.Random(20261203)

    def ask(self, message: Message, *given: Any) -> Message:
        reply = super().ask(message, *given)
        if reply.has_content() and "arrays" in reply.content:
            reply = build_message(describe_metadata(reply), copied(reply).content)
            self._rng.choice(self._damages)(reply, self._rng)
        return reply


class Silent(Device):
    def ask(self, message: Message, *given: Any) -> Message:
        reply = super().ask(message, *given)
        if reply.has_content() and "arrays" in reply.content:
            return Message(Error(2, ""), reply_to=message)
        return reply


@pytest.mark.parametrize("method", METHODS)
def test_a_whole_run_with_a_device_whose_uploads_are_all_malformed(
    tmp_path: Path, method: str
) -> None:
    overrides, _ = METHODS[method]
    common = (*overrides, "engine=deployment", "randomness=seeded", "num_rounds=3")

    def run(kind: type[Device], **more: Any) -> Any:
        folder = tmp_path / kind.__name__
        devices = [
            Device(folder / f"{number}", number, allow_seeded=True, allowed_strategies=ALL)
            for number in range(CLIENTS)
        ]
        devices[BAD] = kind(folder / "bad", BAD, allow_seeded=True, allowed_strategies=ALL, **more)
        return run_on(folder / "run", devices, *common)

    bad, silent = run(Fuzzing, damages=COMMON + OWN[method]), run(Silent)
    if method == "dp_fts_de":
        assert (bad.folder / "best_point.json").read_text() == (
            silent.folder / "best_point.json"
        ).read_text()
    else:
        assert bad.sha256 == silent.sha256
    for row, other in zip(bad.rows[1:], silent.rows[1:], strict=True):
        assert row["num_failures"] == other["num_failures"]
        assert row["num_replies"] == other["num_replies"]
    log = (tmp_path / "Fuzzing" / "run" / "run.log").read_text()
    assert log.count("dropped {") >= sum(row["num_failures"] > 0 for row in bad.rows[1:])


def test_malformed_cards_and_nonces(tmp_path: Path) -> None:
    """What NISS's other exchanges bring back: a device that talks nonsense is left out of them."""
    rng, others = random.Random(20261204), dict[str, Any]()

    class Babbling(Device):
        def ask(self, message: Message, *given: Any) -> Message:
            reply = super().ask(message, *given)
            config = reply.content.get("config") if reply.has_content() else None
            if not isinstance(config, ConfigRecord) or "status" not in config:
                return reply
            reply = build_message(describe_metadata(reply), copied(reply).content)
            config = reply.content["config"]
            key = rng.choice([each for each in config if each != "trust"])
            pool = [each for each in STRANGE if type(each) is not type(config[key])]
            if key == "card" and "card" in others and rng.random() < 0.5:
                config[key] = others["card"]  # another's
            elif rng.random() < 0.2:
                reply.content["config"] = rng.choice([MetricRecord(), ArrayRecord()])
            elif rng.random() < 0.2:
                del config[key]
            else:
                config[key] = rng.choice(pool)
            asked.append(key)
            return reply

    def watch(number: int, message: Message, reply: Message) -> None:
        if number == 0 and reply.has_content() and "card" in reply.content.get("config", {}):
            others["card"] = reply.content["config"]["card"]

    asked: list[str] = []
    for attempt in range(2):
        devices = [Device(tmp_path / f"{attempt}.{each}", each) for each in range(CLIENTS)]
        devices[BAD] = Babbling(tmp_path / f"{attempt}.bad", BAD)
        chosen = (*METHODS["niss"][0], "engine=deployment", "num_rounds=8")
        outcome = run_on(tmp_path / f"run{attempt}", devices, *chosen, watch=watch)
        assert [row["num_replies"] for row in outcome.rows[1:]] == [CLIENTS - 1] * 8
        assert [row["num_failures"] for row in outcome.rows[1:]] == [1] * 8
    assert len(asked) >= 16
