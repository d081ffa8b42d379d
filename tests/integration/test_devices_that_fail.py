"""Devices that refuse, fail or vanish: they are named, and the others go on."""

from pathlib import Path

import pytest
from flwr.app import Message, MetricRecord

from fl_app.engines.in_process import InProcessGrid
from fl_app.errors import RunError
from strategies.dp_fedpaq.messages import STATE_LOST
from tests.fl_app.devices import ALL, CLIENTS, FEDPAQ, METHODS, NISS, ROUNDS, SEARCH, run_on_devices
from tests.integration.saying_devices import Say, Saying, error, fail_locally, make_devices, sit_out

SAYINGS = {
    "could not keep its state": error(STATE_LOST),
    "unknown error": error(0),
    "client app raised": error(2),
    "lost its connection": error(5),
    "refused by the client": error(1001),
    "could not answer": error(1003),
    "refused by the device's policy": error(1005),
    "error 77": error(77),
    f"error {-(2**31)}": error(-(2**31)),
    "sits out": sit_out,
}


@pytest.mark.parametrize(("why", "say"), SAYINGS.items(), ids=SAYINGS)
def test_no_device_ends_the_run_of_the_others(tmp_path: Path, why: str, say: Say) -> None:
    devices = make_devices(tmp_path)
    devices[2] = Saying(tmp_path / "other", 2, say=say)
    outcome = run_on_devices(tmp_path / "run", devices, *FEDPAQ, "engine=deployment")
    assert [row["num_replies"] for row in outcome.rows[1:]] == [CLIENTS - 1] * ROUNDS
    out = "num_ineligible" if say is sit_out else "num_failures"
    assert [row[out] for row in outcome.rows[1:]] == [1] * ROUNDS
    assert outcome.summary["engine"] == "deployment"
    log = (tmp_path / "run" / "run.log").read_text()
    assert ("dropped {" in log) == (say is not sit_out)
    assert f"client 2: left out of {ROUNDS} of {ROUNDS} rounds: {why}\n" in log
    assert log.count("left out of") == 1
    assert "a text of the device's own" not in log


@pytest.mark.parametrize("overrides", [NISS, SEARCH], ids=["niss", "dp_fts_de"])
def test_nor_in_the_other_methods(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    devices = make_devices(tmp_path, allowed_strategies=ALL)
    devices[2] = Saying(tmp_path / "other", 2, say=error(STATE_LOST), allowed_strategies=ALL)
    outcome = run_on_devices(tmp_path / "run", devices, *overrides, "engine=deployment")
    assert [row["num_replies"] for row in outcome.rows[1:]] == [CLIENTS - 1] * ROUNDS
    assert all(row["num_failures"] == 1 for row in outcome.rows[1:])
    log = (tmp_path / "run" / "run.log").read_text()
    assert f"client 2: left out of {ROUNDS} of {ROUNDS} rounds: could not keep its state\n" in log
    assert log.count("left out of") == 1


@pytest.mark.parametrize("name", METHODS)
def test_a_device_that_is_gone_is_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    nodes, gone = InProcessGrid.get_node_ids, list[int]()

    def leave(number: int, message: Message, reply: Message) -> None:
        if number == 2 and message.metadata.message_type == "train":
            gone.append(message.metadata.dst_node_id)

    def left(grid: InProcessGrid) -> list[int]:
        return [node for node in nodes(grid) if node not in gone]

    monkeypatch.setattr(InProcessGrid, "get_node_ids", left)
    devices = make_devices(tmp_path, allowed_strategies=ALL)
    words = (*METHODS[name], "engine=deployment")
    run_on_devices(tmp_path / "run", devices, *words, watch=leave)
    log = (tmp_path / "run" / "run.log").read_text()
    assert f"client 2: left out of {ROUNDS - 1} of {ROUNDS} rounds: not connected\n" in log


CURATOR = (
    *("strategy=dp_fedpaq", "strategy.noise_at=server", "strategy.unit=client"),
    *("strategy.quantizer=none", "strategy.sensitivity=whole_update", "strategy.target_epsilon=4"),
    *("num_sampled_clients=2", "participation=poisson", "strategy.neighboring_relation=zero_out"),
)


SAMPLED = (*SEARCH, "strategy.sample_rate=0.5")


@pytest.mark.parametrize("overrides", [CURATOR, SAMPLED], ids=["curator", "search"])
def test_where_cohorts_are_secret_nobody_is_named(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    """How often a client was left out would say how often it was drawn."""
    devices = make_devices(tmp_path, allowed_strategies=ALL)
    devices[2] = Saying(tmp_path / "other", 2, say=error(1005), allowed_strategies=ALL)
    run_on_devices(tmp_path / "run", devices, *overrides, "engine=deployment")
    log = (tmp_path / "run" / "run.log").read_text()
    assert "left out" not in log
    assert "policy" not in log


def test_a_run_that_fails_names_who_was_left_out_too(tmp_path: Path) -> None:
    devices = [Saying(tmp_path / f"{n}", n, say=error(1005)) for n in range(CLIENTS)]
    with pytest.raises(RunError, match="every client of round 1 answered with an error"):
        run_on_devices(tmp_path / "run", devices, *FEDPAQ, "engine=deployment")
    log = (tmp_path / "run" / "run.log").read_text()
    for client in range(CLIENTS):
        assert f"client {client}: left out of 1 of 1 round: refused by the device's policy" in log


def test_a_simulation_ends_where_a_client_s_state_is_lost(tmp_path: Path) -> None:
    devices = make_devices(tmp_path)
    devices[2] = Saying(tmp_path / "other", 2, say=error(STATE_LOST))
    with pytest.raises(RunError, match="1 clients could not write to"):
        run_on_devices(tmp_path / "run", devices, *FEDPAQ)


@pytest.mark.parametrize("say", [error(STATE_LOST), sit_out, fail_locally])
def test_a_device_that_was_asked_alone_ends_nothing_either(tmp_path: Path, say: Say) -> None:
    devices = make_devices(tmp_path)
    devices[0] = Saying(tmp_path / "other", 0, say=say)
    small = ("participation=round_robin", "num_sampled_clients=1", "num_rounds=4")
    outcome = run_on_devices(tmp_path / "run", devices, *FEDPAQ, *small, "engine=deployment")
    counts = [row["num_replies"] for row in outcome.rows[1:]]
    assert counts.count(0) == (0 if say is fail_locally else 1)
    assert outcome.summary["num_rounds"] == 4


def test_failures_that_others_interrupt_end_nothing(tmp_path: Path) -> None:
    """However often one device fails: not all did, one after the other."""
    devices = make_devices(tmp_path)
    devices[0] = Saying(tmp_path / "other", 0, say=error(1005))
    small = ("participation=round_robin", "num_sampled_clients=1", "num_rounds=20")
    outcome = run_on_devices(tmp_path / "run", devices, *FEDPAQ, *small, "engine=deployment")
    assert [row["num_replies"] for row in outcome.rows[1:]].count(0) == 5


def test_a_device_s_word_that_its_evaluations_failed_ends_nothing(tmp_path: Path) -> None:
    """Honest devices say nothing of them."""

    def boast(message: Message, reply: Message) -> Message:
        told = {"value": -1.0, "best-value": -1.0, "clipped": 0.0, "failures": 1.0, "is-shared": 0}
        told["outside"] = 0.0
        points = {"best-point": [0.5], "points": [0.5], "values": [-1.0]}
        reply.content["metrics"] = MetricRecord({"num-examples": 1, **told, **points})
        return reply

    policy = {"allowed_strategies": ALL, "allow_seeded": True}
    devices = make_devices(tmp_path, **policy)
    devices[1] = Saying(tmp_path / "other", 1, say=boast, **policy)
    chosen = (*SEARCH, "engine=deployment", "randomness=seeded")
    outcome = run_on_devices(tmp_path / "run", devices, *chosen)
    assert outcome.summary["num_rounds"] == ROUNDS
    # The word arrived.
    assert "evaluations failed on 1 clients" in (tmp_path / "run" / "run.log").read_text()


def test_when_all_devices_fail_the_run_ends(tmp_path: Path) -> None:
    devices = [Saying(tmp_path / f"{number}", number, say=error(1005)) for number in range(CLIENTS)]
    small = ("participation=round_robin", "num_sampled_clients=1", "num_rounds=8")
    with pytest.raises(RunError, match="every client of round 4 answered with an error"):
        run_on_devices(tmp_path / "run", devices, *FEDPAQ, *small, "engine=deployment")


def test_when_all_devices_of_niss_sit_out_the_run_ends_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    devices = make_devices(tmp_path, allowed_strategies=ALL, max_epsilon=0.05)
    reason = "all 4 clients of round 1 sit out: .* has no room; each client's own log says which"
    with pytest.raises(RunError, match=reason):
        run_on_devices(tmp_path / "run", devices, *NISS, "engine=deployment")
    assert "NISS: sits out: max-epsilon leaves 0.05 for the run; " in caplog.text
    log = (tmp_path / "run" / "run.log").read_text()
    for client in range(CLIENTS):
        assert f"client {client}: left out of 1 of 1 round: sits out\n" in log
