"""Replies of all phases, whole and damaged."""

from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.engines.flower_internals import deliver, identify_process
from strategies.dp_fedpaq.messages import MessageError, ineligible_reply, upload_reply
from strategies.niss.messages import (
    READY,
    REGISTER,
    UPLOAD_TYPE,
    card_reply,
    parse_card,
    parse_ready,
    parse_request,
    parse_upload,
    ready_reply,
    split_card,
    split_ready,
)
from tests.niss.hostile_server import HostileServer, make_sybil
from tests.niss.test_messages import make_server, request, values


@pytest.fixture(scope="module")
def server() -> HostileServer:
    identify_process(1)
    return make_server()


def reply_to(server: HostileServer, phase: str, content: RecordDict) -> Message:
    return Message(content, reply_to=deliver(request(server, phase)))


def test_replies_survive_the_wire(server: HostileServer) -> None:
    card = make_sybil(3).peer(b"tag").card
    asked = deliver(request(server, REGISTER))
    for trust in (b"", bytes(range(32))):
        upload = parse_card(deliver(card_reply(asked, card, trust))).upload
        assert upload is not None
        assert split_card(upload) == (card, trust)
    for records in (None, 0, 17):
        reply = parse_ready(deliver(ready_reply(asked, bytes(range(16)), records)))
        assert reply.upload is not None
        assert split_ready(reply.upload) == (bytes(range(16)), records or 0)
    assert parse_ready(ineligible_reply(asked)).upload is None
    assert parse_upload(upload_reply(asked, b"1234", None, False, UPLOAD_TYPE)).upload == b"1234"
    with pytest.raises(MessageError):
        parse_upload(upload_reply(asked, b"1234", None, False))


@settings(max_examples=200)
@given(data=st.data())
def test_a_damaged_reply_is_no_reply(server: HostileServer, data: st.DataObject) -> None:
    """Only MessageError, or a reply that can be split, leaves the parsers."""
    phase = data.draw(st.sampled_from([REGISTER, READY]))
    good = (
        {"status": "register", "card": make_sybil(3).peer(b"tag").card.to_bytes()}
        if phase == REGISTER
        else {"status": "ready", "nonce": bytes(16)}
    )
    names = st.sampled_from(["status", "card", "trust", "nonce", "num-examples"])
    changes = data.draw(st.dictionaries(names, values, max_size=3))
    reply = reply_to(server, phase, RecordDict({"config": ConfigRecord({**good, **changes})}))
    parse = parse_card if phase == REGISTER else parse_ready
    try:
        upload = parse(reply).upload
    except MessageError:
        assert changes
        return
    if upload is None:
        assert changes["status"] == "ineligible"
    elif phase == REGISTER:
        card, trust = split_card(upload)
        assert len(trust) in (0, 32)
        assert card.to_bytes() == changes.get("card", good["card"])
    else:
        nonce, records = split_ready(upload)
        assert len(nonce) == 16
        assert 0 <= records < 2**31


@pytest.mark.parametrize("parse", [parse_card, parse_ready, parse_upload])
def test_a_reply_without_a_configuration_is_none(server: HostileServer, parse: Any) -> None:
    for content in (RecordDict(), RecordDict({"config": MetricRecord({"a": 1})})):
        with pytest.raises(MessageError):
            parse(reply_to(server, READY, content))


def test_an_error_is_no_request(server: HostileServer) -> None:
    message = Message(Error(1, "no"), reply_to=deliver(request(server, READY)))
    with pytest.raises(ValueError, match="content"):
        parse_request(message)
