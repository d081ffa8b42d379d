"""Rounds of a server that does anything, for the tests of what clients lose by it.

Every attack that is answered is judged by the best linear attacker, who knows all other updates and
the colluders' keys, from the uploads as clients computed them. The chi-square bounds are exact, at
1e-6 an assertion.
"""

from flwr.app import Message

from strategies.dp_fedpaq.messages import REFUSED
from tests.niss.hostile_server import (
    Device,
    HostileServer,
    make_devices,
    make_parameters,
)

SIZE = 20_000


MEMBERS = 6


def make_server(
    number: int = MEMBERS, *, trusted: bool = False, size: int = SIZE, **changes: object
) -> HostileServer:
    return HostileServer(
        make_devices(number, size, trusted=trusted), make_parameters(number, **changes)
    )


def is_refused(reply: Message) -> bool:
    return reply.has_error() and reply.error.code == REFUSED


def assert_uncharged(device: Device) -> None:
    assert device.data_read <= 1  # when it said that it was ready
    assert device.entry.participations == 0
    assert device.entry.reply == b""
