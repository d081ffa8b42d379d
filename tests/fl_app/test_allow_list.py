"""What may leave a client: the table, record by record, and everything else."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)

from fl_app.allow_list import ALLOWED, ERRORS, NotAllowedError, keep_allowed
from fl_app.client_app import GuardedApp
from fl_app.engines.flower_internals import deliver, identify_process
from strategies.dp_fedpaq.messages import UPLOAD_TYPE
from strategies.dp_fts_de.progress import Progress, write_progress


@pytest.fixture(autouse=True)
def _identity() -> None:
    identify_process(1)


def request() -> Message:
    return deliver(Message(RecordDict(), 7, "train"))


UPLOAD = Array("uint8", (3,), UPLOAD_TYPE, b"abc")
PROGRESS = Progress(1.0, 2.0, 0.0, 0.0, 0.0, 0.5, 0.5, (0.1,), ((0.1,),), (1.0,), False, 1.0)
SIMULATED: Mapping[tuple[str, str], Any] = {
    ("metrics", "train-loss"): 0.5,
    ("metrics", "local-failure"): 1,
    ("config", "num-examples"): 17,
    **{("metrics", key): value for key, value in write_progress(PROGRESS).items()},
}
PUBLIC: Mapping[tuple[str, str], Any] = {
    ("metrics", "num-examples"): 1,
    ("config", "status"): "ready",
    ("config", "nonce"): bytes(16),
    ("config", "trust"): bytes(32),
    ("config", "card"): bytes(136),
    ("config", "partition-id"): 3,
    ("config", "num-partitions"): 4,
}


def reply_with(values: Mapping[tuple[str, str], Any]) -> Message:
    content = RecordDict()
    kinds = {"arrays": ArrayRecord, "metrics": MetricRecord, "config": ConfigRecord}
    for name, kind in kinds.items():
        inside = {key: value for (record, key), value in values.items() if record == name}
        if inside:
            content[name] = kind(inside)
    return Message(content, reply_to=request())


def told(reply: Message) -> dict[tuple[str, str], Any]:
    return {
        (name, key): value
        for name, record in reply.content.items()
        for key, value in record.items()
    }


def test_the_table_knows_all_that_methods_send() -> None:
    kinds = set(ALLOWED.values())
    assert kinds == {"public", "noised", "simulation_only"}
    assert {key for key, kind in ALLOWED.items() if kind == "simulation_only"} == set(SIMULATED)
    assert {key for key, kind in ALLOWED.items() if kind == "noised"} == {("arrays", "update")}


@pytest.mark.parametrize("key", [key for key, kind in ALLOWED.items() if kind == "simulation_only"])
def test_values_for_simulations_stay_on_a_device(key: tuple[str, str]) -> None:
    values = {("arrays", "update"): UPLOAD, ("metrics", "num-examples"): 1, key: SIMULATED[key]}
    whole = keep_allowed(reply_with(values), request(), is_device=False)
    assert told(whole).keys() == values.keys()
    kept = keep_allowed(reply_with(values), request(), is_device=True)
    assert told(kept).keys() == values.keys() - {key}
    assert kept.content["arrays"]["update"].data == b"abc"  # type: ignore[union-attr]


@pytest.mark.parametrize("is_device", [True, False])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        (("metrics", "loss"), 0.5),
        (("metrics", "num-examples"), 17),
        (("metrics", "num-examples"), 1.0),
        (("config", "status"), "the first record is 7"),
        (("config", "note"), "text"),
        (("config", "nonce"), bytes(17)),
        (("config", "card"), b"short"),
        (("config", "partition-id"), 0.5),
        (("arrays", "linear.weight"), Array(np.zeros(2))),
        (("arrays", "update"), Array(np.zeros(2))),
    ],
)
def test_nothing_else_leaves(key: tuple[str, str], value: Any, is_device: bool) -> None:
    with pytest.raises(NotAllowedError, match=f"^{key[0]}.{key[1]}$"):
        keep_allowed(reply_with({key: value}), request(), is_device=is_device)


def test_a_record_of_another_name() -> None:
    reply = Message(RecordDict({"extra": MetricRecord({"num-examples": 1})}), reply_to=request())
    with pytest.raises(NotAllowedError):
        keep_allowed(reply, request(), is_device=True)


@pytest.mark.parametrize("code", ERRORS)
def test_errors_have_fixed_texts(code: int) -> None:
    reply = Message(Error(code, "the first record is 7"), reply_to=request())
    assert keep_allowed(reply, request(), is_device=True).error.reason == ERRORS[code]


@pytest.mark.parametrize("code", [0, 2, 7, 1000, 1006])
def test_other_errors_do_not_leave(code: int) -> None:
    reply = Message(Error(code, "the first record is 7"), reply_to=request())
    with pytest.raises(NotAllowedError):
        keep_allowed(reply, request(), is_device=True)


@pytest.mark.parametrize("simulated", [True, False])
@pytest.mark.parametrize("raised", [ValueError, SystemExit, KeyError])
def test_whatever_is_raised_its_text_stays(raised: type[BaseException], simulated: bool) -> None:
    app = GuardedApp()

    @app.train()
    def fail(message: Message, context: Context) -> Message:
        raise raised("the first record is 7")

    @app.evaluate()
    def tell(message: Message, context: Context) -> Message:
        return reply_with({("metrics", "loss"): 7.0})

    node_config = {"simulated": True} if simulated else {}
    context = Context(1, 7, node_config, RecordDict(), {})  # type: ignore[arg-type]
    for kind in ("train", "evaluate", "query", "train.other"):
        message = request()
        message.metadata.__dict__["_message_type"] = kind
        reply = app(message, context)
        assert (reply.error.code, reply.error.reason) == (1003, "the client could not answer")


def test_public_values_leave() -> None:
    reply = keep_allowed(reply_with(PUBLIC), request(), is_device=True)
    assert told(reply) == PUBLIC
