"""What travels: requests and replies of all phases, whole and damaged."""

import io
import json
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.engines.flower_internals import deliver
from strategies.dp_fedpaq.messages import REFUSED
from strategies.mechanisms.key_agreement import CARD_SIZE
from strategies.niss.messages import PHASES, READY, REGISTER, UPLOAD, exchange_group, parse_request
from strategies.niss.peers import pack_ready_set
from tests.niss.hostile_server import HostileServer, make_devices, make_parameters

SIZE = 12


KEYS = {
    REGISTER: ("phase", "server-round", "attempt", "niss", "run-tag"),
    READY: ("phase", "server-round", "attempt", "niss", "run-tag"),
    UPLOAD: (
        *("phase", "server-round", "attempt", "niss", "run-tag"),
        *("ready-set", "step-exponent", "pair-scale"),
    ),
}


EDGES = (0, -1, 1, 2**31 - 1, 2**31, 2**62, -(2**62), -1074, 1024)


numbers = st.one_of(st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1))


texts = st.one_of(
    st.text(max_size=20), st.sampled_from(["[" * 100_000, "{}", "null", "[]", "1e999"])
)


scalars = st.one_of(numbers, st.floats(), st.booleans(), texts, st.binary(max_size=200))


values = st.one_of(
    scalars,
    st.lists(st.integers(-5, 5), max_size=3),
    st.lists(st.floats(), max_size=3),
    st.lists(st.binary(max_size=3), max_size=3),
)


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.floats(),
        st.integers(-5, 5),
        st.sampled_from([10**400, -(10**400), 2**63, 2**64, 1e308, 5e-324, 10**18]),
        st.text(max_size=5),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)


def zipped() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, w=np.zeros(12))
    return buffer.getvalue()


arrays = st.builds(
    Array,
    dtype=st.sampled_from(["float32", "float64", "object", "uint8", "nonsense", ""]),
    shape=st.lists(st.sampled_from([0, 1, 12, -1, 2**40]), max_size=2).map(tuple),
    stype=st.sampled_from(["numpy.ndarray", "pickle", ""]),
    data=st.one_of(
        st.binary(max_size=60),
        st.sampled_from(
            [b"PK\x03\x04" + bytes(30), zipped(), b"\x93NUMPY\x01\x00v\x00{", b"\x80\x04N."]
        ),
        st.binary(max_size=8).map(lambda tail: Array(np.zeros(12)).data[:-8] + tail),
        st.binary(max_size=8).map(lambda head: head + Array(np.zeros(12)).data[len(head) :]),
    ),
)


def make_server() -> HostileServer:
    server = HostileServer(make_devices(3, SIZE), make_parameters(3))
    server.begin()
    return server


def start_anew(server: HostileServer) -> None:
    """After an upload: the next example finds a client that has said that it is ready."""
    server.__dict__.update(make_server().__dict__)


# One server for all examples: whatever is refused leaves no trace, which is what is tested.
@pytest.fixture(scope="module")
def server() -> HostileServer:
    from fl_app.engines.flower_internals import identify_process

    identify_process(1)
    return make_server()


def request(server: HostileServer, phase: str) -> Message:
    fields: dict[str, Any] = {}
    if phase == UPLOAD:
        fields = {"ready_set": pack_ready_set(server.ready_set(0)), **server.scale()}
    return server.request(phase, 1, 1, **fields)


def with_entry(message: Message, key: str, value: Any) -> bool:
    """Replace an entry of the request; whether the result is another request."""
    config = message.content["config"]
    old = config[key]
    if type(value) is type(old) and value == old:
        return False
    config[key] = value
    return True


def assert_no_trace(server: HostileServer, message: Message) -> None:
    device = server.devices[0]
    before = (device.entry, dict(device.context.state["keys"]), device.data_read)
    reply = device.answer(message)
    assert reply.has_error()
    assert reply.error.code == REFUSED
    assert len(reply.error.reason) < 60
    assert (device.entry, dict(device.context.state["keys"]), device.data_read) == before


@pytest.mark.parametrize("phase", PHASES)
def test_a_request_survives_the_wire(server: HostileServer, phase: str) -> None:
    message = deliver(request(server, phase))
    parsed = parse_request(message)
    assert (parsed.phase, parsed.server_round, parsed.attempt) == (phase, 1, 1)
    assert parsed.parameters == server.parameters
    assert parsed.tag == server.tag
    assert message.metadata.group_id == exchange_group(phase, 1, 1)
    assert set(message.content["config"]) == set(KEYS[phase])
    if phase == UPLOAD:
        assert parsed.ready_set == pack_ready_set(server.ready_set(0))
        assert {"step_exponent": parsed.step_exponent, "pair_scale": parsed.pair_scale} == (
            server.scale()
        )


@pytest.mark.parametrize("phase", PHASES)
@settings(max_examples=150)
@given(data=st.data())
def test_a_request_with_an_entry_of_another_kind_is_refused(
    server: HostileServer, phase: str, data: st.DataObject
) -> None:
    message = request(server, phase)
    key = data.draw(st.sampled_from(KEYS[phase]))
    old = message.content["config"][key]
    wrong = values.filter(lambda value: type(value) is not type(old))
    message.content["config"][key] = data.draw(wrong)
    assert_no_trace(server, message)


@pytest.mark.parametrize("phase", PHASES)
def test_a_request_that_lacks_an_entry_is_refused(server: HostileServer, phase: str) -> None:
    for key in KEYS[phase]:
        message = request(server, phase)
        del message.content["config"][key]
        assert_no_trace(server, message)


@settings(max_examples=150)
@given(data=st.data())
def test_an_upload_request_with_an_entry_of_another_value_is_refused(
    server: HostileServer, data: st.DataObject
) -> None:
    """But for a scale one larger, and the phases that ask for less."""
    message = request(server, UPLOAD)
    key = data.draw(st.sampled_from(KEYS[UPLOAD]))
    old = message.content["config"][key]
    value = data.draw(values)
    changed = with_entry(message, key, value)
    let_pass = key == "pair-scale" and value == old + 1
    if changed and not let_pass and value not in (REGISTER, READY):
        assert_no_trace(server, message)


@pytest.mark.parametrize("phase", PHASES)
@settings(max_examples=200)
@given(data=st.data())
def test_parameters_that_are_damaged_are_refused(
    server: HostileServer, phase: str, data: st.DataObject
) -> None:
    values: dict[str, Any] = json.loads(server.parameters.to_json())
    inner: dict[str, Any] = json.loads(values["update"])
    place = data.draw(st.sampled_from([values, inner]))
    key = data.draw(st.one_of(st.sampled_from(sorted(place)), st.text(max_size=4)))
    if data.draw(st.booleans()):
        place[key] = data.draw(json_values)
    else:
        place.pop(key, None)
    if place is inner:
        values["update"] = json.dumps(inner)
    text = json.dumps(values, sort_keys=True)
    message = request(server, phase)
    message.content["config"]["niss"] = text
    if text != server.parameters.to_json():
        device = server.devices[0]
        before = (device.entry, device.data_read)
        reply = device.answer(message)
        # Equal parameters may be written otherwise: a key may be left to its default.
        if not reply.has_error():
            assert parse_request(message).parameters.to_json() == server.parameters.to_json()
            if phase == UPLOAD:
                start_anew(server)
        else:
            assert reply.error.code == REFUSED
            assert (device.entry, device.data_read) == before


@settings(max_examples=150)
@given(array=arrays, name=st.text(max_size=3))
def test_a_model_that_is_none_is_refused(server: HostileServer, array: Array, name: str) -> None:
    message = request(server, UPLOAD)
    message.content["arrays"] = ArrayRecord({name: array})
    try:
        readable = np.isfinite(array.numpy()).all() and array.numpy().dtype.kind == "f"
    except Exception:
        readable = False
    if not readable or array.numpy().size == 0:
        assert_no_trace(server, message)


@settings(max_examples=100)
@given(cut=st.binary(max_size=500))
def test_a_ready_set_of_random_bytes_is_refused(server: HostileServer, cut: bytes) -> None:
    message = request(server, UPLOAD)
    message.content["config"]["ready-set"] = cut
    assert_no_trace(server, message)


@settings(max_examples=200)
@given(data=st.data())
def test_a_ready_set_with_a_byte_changed_is_refused_but_for_nonces(
    server: HostileServer, data: st.DataObject
) -> None:
    message = request(server, UPLOAD)
    packed = bytearray(message.content["config"]["ready-set"])
    at = data.draw(st.integers(0, len(packed) - 1))
    if at % 152 >= CARD_SIZE:
        return
    packed[at] ^= data.draw(st.integers(1, 255))
    message.content["config"]["ready-set"] = bytes(packed)
    assert_no_trace(server, message)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"config": MetricRecord({"phase": 1})}),
        RecordDict({"config": ConfigRecord({})}),
        RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(3))})}),
    ],
)
def test_a_message_that_is_no_request_is_refused(
    server: HostileServer, content: RecordDict
) -> None:
    message = Message(content, dst_node_id=7, message_type="train", group_id="1")
    assert_no_trace(server, message)


def test_an_upload_request_without_a_model_is_refused(server: HostileServer) -> None:
    for replaced in (None, ConfigRecord({"w": 1}), ArrayRecord({})):
        message = request(server, UPLOAD)
        del message.content["arrays"]
        if replaced is not None:
            message.content["arrays"] = replaced
        assert_no_trace(server, message)


def test_whatever_was_refused_the_round_goes_on() -> None:
    server = make_server()
    for phase in PHASES:
        message = request(server, phase)
        message.content["config"]["run-tag"] = b"another run's tag"[:16]
        assert_no_trace(server, message)
    assert not server.ask_upload(0).has_error()
