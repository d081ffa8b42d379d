"""One client between a server and its memory, for the tests of what it does."""

from typing import Any

import pytest
from flwr.app import Message

from strategies.niss.calibration import plan_own_noise
from strategies.niss.noise_plan import choose_grid, plan_noise
from tests.niss.hostile_server import (
    HostileServer,
    make_devices,
    make_parameters,
)

SIZE = 60


MEMBERS = 4


KINDS = ["secret", "seeded"]


def make_server(number: int = MEMBERS, size: int = SIZE, **changes: Any) -> HostileServer:
    return HostileServer(make_devices(number, size), make_parameters(number, **changes))


def code_of(reply: Message) -> int | None:
    return reply.error.code if reply.has_error() else None


def own_part(server: HostileServer) -> float:
    """Return z of a client's own noise alone, by a formula of its own: that of its variance."""
    parameters = server.parameters
    circle = parameters.circle_of(0)
    plan = plan_noise(parameters, circle, 1, SIZE, choose_grid(parameters, 1))
    found = plan_own_noise(parameters, 0, 20, None, has_trust_list=False)
    assert found.counted == pytest.approx(plan.own_std(0.0) / plan.sensitivity.value, rel=1e-9)
    assert found.counted <= plan.own_std(0.0) / plan.sensitivity.value
    return found.counted
