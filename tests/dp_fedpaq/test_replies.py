"""What is said of replies that are of no use, and of whom."""

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from fl_app import allow_list
from strategies.dp_fedpaq.messages import ineligible_reply
from strategies.dp_fedpaq.replies import ERRORS, NODE_UNAVAILABLE, UNVERIFIED, collect_replies

FLOWERS = {name: code for name, code in vars(ErrorCode).items() if isinstance(code, int)}


@pytest.mark.parametrize("code", [*FLOWERS.values(), *allow_list.ERRORS])
def test_each_error_that_can_come_has_a_name(code: int) -> None:
    assert ERRORS[code]
    assert list(ERRORS.values()).count(ERRORS[code]) == 1


def test_flower_s_numbers() -> None:
    assert FLOWERS["INVALID_FAB"] == UNVERIFIED
    assert FLOWERS["NODE_UNAVAILABLE"] == NODE_UNAVAILABLE


def request(node: int) -> Message:
    return Message(RecordDict(), dst_node_id=node, message_type="train", group_id="4")


def test_each_client_that_is_left_out_has_a_reason() -> None:
    replies = [
        Message(Error(7, "the client's own words"), reply_to=request(11)),
        ineligible_reply(request(12)),
        Message(RecordDict(), reply_to=request(13)),
        Message(RecordDict(), reply_to=request(99)),
    ]
    got = collect_replies("4", {11: 1, 12: 2, 13: 3, 14: 4}, replies)
    assert set(got.left_out) == {1, 2, 3, 4}
    assert (got.left_out[1], got.left_out[2]) == ("could not verify the code", "sits out")
    assert got.left_out[4] == "no answer"
    assert got.dropped[got.left_out[3]] == 1
    assert "own words" not in str(got)
