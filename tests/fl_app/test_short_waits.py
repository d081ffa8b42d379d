"""A SuperNode looks soon after it was busy, and less often the longer it is idle."""

import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError

from fl_app.engines import flower_internals
from fl_app.engines.flower_internals import ShortWaits, shorten_waits
from fl_app.warm_worker import shorten_pulls


class Clock:
    """A time that passes only in sleep."""

    def __init__(self) -> None:
        self.now = 50.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(flower_internals, "time", clock)
    return clock


def test_waits_grow_with_the_idle_time_and_never_exceed_flower_s(clock: Clock) -> None:
    waits = ShortWaits()
    for _ in range(60):
        waits.sleep(3)
    assert clock.slept[0] == pytest.approx(0.1)
    assert clock.slept == sorted(clock.slept)
    assert max(clock.slept) == 3.0
    clock.now = 1000.0
    waits.sleep(3)
    assert clock.slept[-1] == 3.0


def test_a_message_begins_anew(clock: Clock) -> None:
    waits = ShortWaits()
    clock.now += 100.0
    waits.sleep(0.5)
    waits.sleep(3)
    assert clock.slept == pytest.approx([0.1, 0.11])
    waits.sleep(0.05)
    assert clock.slept[-1] == 0.05


def test_flower_s_loop_sleeps_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supernode import start_client_internal

    monkeypatch.setattr(start_client_internal, "time", start_client_internal.time)
    shorten_waits()
    assert isinstance(start_client_internal.time, ShortWaits)
    source = Path(start_client_internal.__file__).read_text()
    # Nothing else of the module is used there, and the idle wait is the one that is known.
    assert set(re.findall(r"\btime\.(\w+)", source)) == {"sleep"}
    assert "time.sleep(3)" in source


def test_parts_of_a_message_are_looked_for_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.inflatable import inflatable_utils
    from flwr.supercore.inflatable.inflatable_object import get_object_tree

    slept: list[float] = []

    class Recorded(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            slept.append(timeout or 0.0)
            return False

    def pull(_: str) -> bytes:
        if len(slept) < 12:
            raise ObjectUnavailableError("object")
        return part.deflate()

    part = ConfigRecord({"a": 1})
    for function in (
        *(inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree),
    ):
        monkeypatch.setattr(function, "__kwdefaults__", dict(function.__kwdefaults__))
    shorten_pulls()
    shorten_pulls()
    monkeypatch.setattr(inflatable_utils, "random", SimpleNamespace(uniform=lambda *_: 0.0))
    monkeypatch.setattr(
        inflatable_utils, "threading", SimpleNamespace(Event=Recorded, Lock=threading.Lock)
    )
    expected = [0.05 * 2**k for k in range(8)] + [10.0] * 4
    assert inflatable_utils.pull_objects(["object"], pull)
    assert slept == pytest.approx(expected)
    slept.clear()
    tree = get_object_tree(part)
    got = inflatable_utils.pull_and_inflate_object_from_tree(
        tree, pull, lambda _: None, return_type=ConfigRecord
    )
    assert got == part
    assert slept == pytest.approx(expected)
