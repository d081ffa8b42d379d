"""Who has missed rounds: counted by client and reason, the most at first."""

from fl_app.left_out import LeftOut


def describe(*rounds: dict[int, str]) -> list[str]:
    left_out = LeftOut()
    for each in rounds:
        left_out.add(each)
    return list(left_out.describe())


def test_nobody_was_left_out():
    assert describe() == describe({}, {}) == []


def test_each_client_is_named_with_its_reasons():
    refused = "refused by the device's policy"
    assert describe({2: refused}) == [f"client 2: left out of 1 of 1 round: {refused}"]
    assert describe({2: refused, 7: "no answer"}, {}, {7: "sits out", 1: "x"}, {7: "sits out"}) == [
        "client 7: left out of 3 of 4 rounds: sits out (2), no answer (1)",
        "client 1: left out of 1 of 4 rounds: x",
        f"client 2: left out of 1 of 4 rounds: {refused}",
    ]


def test_of_many_the_worst_are_named():
    lines = describe(dict.fromkeys(range(12), "x"), {11: "x"})
    assert lines[0] == "client 11: left out of 2 of 2 rounds: x"
    assert len(lines) == 11
    assert lines[-1] == "2 more clients were left out of rounds"
