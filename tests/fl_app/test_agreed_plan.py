"""A server's plan is that of the settings: one that allows for fewer colluders is refused.

By the client side of the application, judged by the best linear attacker where it is obeyed.
"""

from dataclasses import replace
from typing import Any

import pytest
from flwr.app import Message

from fl_app import registry
from fl_app.config import compose_settings
from fl_app.engines.flower_internals import deliver, identify_process
from fl_app.local_task import LocalTask
from fl_app.registry import METHODS, build_strategy
from fl_app.settings import RunSettings
from strategies.dp_fedpaq.cohort import CohortPlan
from strategies.dp_fedpaq.messages import REFUSED
from strategies.dp_fedpaq.spending import Participation
from strategies.niss.messages import REGISTER
from strategies.niss.parameters import NissParameters, fill_plan
from strategies.niss.run_plan import plan_run
from tests.niss.hostile_server import Device, HostileServer, Wiretap, make_devices
from tests.niss.judge import assert_hidden, judge

SIZE = 20_000
# Two uploads: after the last of its plan a client forgets its keys, which the judge needs.
SETTINGS = (
    *("strategy=niss", "num_clients=10", "strategy.min_ready=9", "strategy.colluding_fraction=0.3"),
    *("randomness=secret", "strategy.target_epsilon=1", "strategy.max_participations=2"),
    *("strategy.unit=client", "strategy.sensitivity=whole_update"),
)
FEW = {"min_ready": 3, "max_ready": 3}


@pytest.fixture(autouse=True)
def _identity() -> None:
    identify_process(1)


@pytest.fixture
def wiretap(monkeypatch: pytest.MonkeyPatch) -> Wiretap:
    return Wiretap(monkeypatch)


class AppDevice(Device):
    """A device that answers as the application does; what it is sent is no model that it knows."""

    settings: RunSettings

    def answer(self, message: Message, **options: Any) -> Message:
        task = LocalTask(self.settings, self.number, 10, self.state, self.trust)
        # As if it were: a model that it cannot train would be refused before anything is sent.
        task.num_records_for = lambda _: task.num_records()  # type: ignore[method-assign]
        return METHODS["niss"].train(deliver(message), self.context, task)


def make_server(**changes: Any) -> HostileServer:
    settings = compose_settings(list(SETTINGS))
    planned, _ = plan_run(
        build_strategy(settings).parameters,  # type: ignore[arg-type]
        CohortPlan(max_participations=2),
        Participation(num_rounds=1, num_clients=10),
        9,
    )
    devices = []
    for each in make_devices(10, SIZE, trusted=True):
        devices.append(AppDevice(each.number, each.update, trust=each.trust))
        devices[-1].settings = settings
    server = HostileServer(devices, replace(planned, **changes))
    server.run_tag = None  # type: ignore[assignment, method-assign]  # of the settings, too
    return server


def upload(server: HostileServer, chosen: range) -> None:
    server.begin()
    for number in chosen:
        assert not server.ask_upload(number, server.ready_set(number, chosen)).has_error()


@pytest.mark.parametrize(
    "changes",
    [
        FEW,
        *({"min_ready": 8}, {"min_ready": 10}, {"min_ready": 9, "max_ready": 9}),
        *({"max_ready": 11, "num_clients": 11}, {"num_clients": 11}),
        {"colluding_fraction": 0.2},
    ],
    ids=str,
)
def test_another_plan_is_refused_before_a_key_is_made(changes: dict[str, Any]) -> None:
    server = make_server(**changes)
    for device in server.devices.values():
        reply = device.answer(server.request(REGISTER, 1, 1))
        assert reply.error.code == REFUSED
        assert reply.error.reason == "parameters refused by the client"
        assert device.state.read_key("niss.exchange") is None
        assert device.entry.participations == 0


@pytest.mark.parametrize("base", [None, 0.01, 100.0])
def test_with_the_settings_plan_three_colluders_learn_no_more(
    wiretap: Wiretap, base: float | None
) -> None:
    """Whatever common noise the server names: clients add what they need beside it."""
    agreed = make_server().parameters
    server = make_server(**({} if base is None else {"base_noise_multiplier": base}))
    upload(server, range(9))
    assert_hidden(judge(wiretap, server, colluders=(6, 7, 8), parameters=at_least(agreed, server)))


def at_least(agreed: NissParameters, server: HostileServer) -> NissParameters:
    """The promise: that of the settings, or that of a server that names more."""
    named = server.parameters.base_noise_multiplier
    return replace(agreed, base_noise_multiplier=max(named, agreed.base_noise_multiplier))


def test_a_twin_that_obeys_another_plan_is_caught(
    wiretap: Wiretap, monkeypatch: pytest.MonkeyPatch
) -> None:
    def obey(expected: NissParameters, given: NissParameters, _: object) -> NissParameters:
        planned = given.min_ready, given.max_ready, given.num_clients
        return fill_plan(expected, given, planned)

    monkeypatch.setattr(registry, "fill_plan", obey)
    agreed = make_server().parameters
    server = make_server(**FEW)
    upload(server, range(3))
    result = judge(wiretap, server, colluders=(1, 2), parameters=agreed)
    assert result is not None
    assert result.agrees()
    assert result.breaks_promise
    assert result.beats_promise()
