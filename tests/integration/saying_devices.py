"""Devices that answer as they are told, whatever they are asked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from tests.fl_app.devices import CLIENTS, Device


def make_devices(folder: Path, **policy: object) -> list[Device]:
    return [Device(folder / f"{number}", number, **policy) for number in range(CLIENTS)]


Say = Callable[[Message, Message], Message]


class Saying(Device):
    """A device that answers each training request as it is told, whatever it is asked."""

    def __init__(self, *given: object, say: Say, **policy: object) -> None:
        super().__init__(*given, **policy)  # type: ignore[arg-type]
        self._say = say

    def ask(self, message: Message, *given: Any) -> Message:
        reply = super().ask(message, *given)
        trains = message.metadata.message_type == "train"
        return self._say(message, reply) if trains else reply


def error(code: int) -> Say:
    return lambda message, _: Message(Error(code, "a text of the device's own"), reply_to=message)


def sit_out(message: Message, _: Message) -> Message:
    config = ConfigRecord({"status": "ineligible"})
    return Message(RecordDict({"config": config}), reply_to=message)


def fail_locally(message: Message, reply: Message) -> Message:
    reply.content["metrics"] = MetricRecord({"num-examples": 1, "local-failure": 1})
    return reply
