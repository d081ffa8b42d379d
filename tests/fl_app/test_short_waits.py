"""A SuperNode looks soon after it was busy, and less often the longer it is idle."""

import re
from pathlib import Path

import pytest

from fl_app.engines import flower_internals
from fl_app.engines.flower_internals import ShortWaits, shorten_waits


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
