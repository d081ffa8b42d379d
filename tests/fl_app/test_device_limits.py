"""A device's ``max-epsilon``: it adds noise, or takes no part; nobody else pays for that."""

import json
from pathlib import Path

import pytest
from flwr.app import Context, Message

from fl_app.checkpoint import read_checkpoint
from fl_app.client_app import app as client_app
from fl_app.config import compose_settings
from fl_app.device_policy import MAX_EPSILON_KEY, SIMULATED_KEY, read_policy
from fl_app.device_state import list_entries
from fl_app.engines.in_process import run_in_process
from fl_app.errors import ConfigError, RunError
from fl_app.server_app import app as server_app
from strategies.mechanisms.accounting import GaussianReleases, bound_epsilon
from tests.conftest import Outcome, read_outcome

CLIENTS, ROUNDS = 6, 3
NODE = {SIMULATED_KEY: True, "partition-id": 0, "num-partitions": 1}
COMMON = (f"num_clients={CLIENTS}", f"num_rounds={ROUNDS}", "randomness=secret")
NISS = ("strategy=niss", "strategy.min_ready=4")
UNIFORM = (*NISS, "strategy.pair_noise=uniform")


def run_with(folder: Path, limits: dict[int, object], *overrides: str) -> Outcome:
    """Run on devices some of whose owners limit epsilon."""

    def answer(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        if number in limits:
            context.node_config[MAX_EPSILON_KEY] = limits[number]  # type: ignore[assignment]
        return client_app(message, context)

    settings = compose_settings([*COMMON, *overrides])
    run_config = {
        "settings": settings.to_json(),
        "output-dir": str(folder / "run"),
        "state-dir": str(folder / "run" / "checkpoint"),
    }
    run_in_process(server_app, answer, CLIENTS, run_config)  # type: ignore[arg-type]
    return read_outcome(folder / "run")


def charged(outcome: Outcome) -> tuple[dict[int, int], dict[int, int]]:
    """Return the uploads that devices charged themselves, and those that the server charged."""
    folder = outcome.folder / "checkpoint"
    checkpoint = read_checkpoint(folder)
    assert checkpoint is not None
    devices = {each.client: each.entry.participations for each in list_entries(folder)}
    tally = checkpoint.strategy.get("tally", checkpoint.strategy)
    return devices, dict(tally["uploads"])


def spent(outcome: Outcome, client: int) -> float:
    """Return the epsilon that a device's own ledger adds up to."""
    found = {each.client: each.entry for each in list_entries(outcome.folder / "checkpoint")}
    values = json.loads(found[client].releases)
    delta = values.pop("delta")
    values["num_releases"] *= found[client].participations
    return bound_epsilon(GaussianReleases(**values), delta, "auto").epsilon


@pytest.mark.parametrize("given", [0, -1.0, "nan", "inf", float("inf"), True, "much", [1.0]])
def test_a_limit_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match=r"max-epsilon: .*allowed: a number > 0"):
        read_policy({**NODE, MAX_EPSILON_KEY: given})


@pytest.mark.parametrize(("given", "limit"), [(None, None), (3, 3.0), ("2.5", 2.5), (0.1, 0.1)])
def test_a_limit(given: object, limit: float | None) -> None:
    found = read_policy(NODE if given is None else {**NODE, MAX_EPSILON_KEY: given})
    assert found.max_epsilon == limit


@pytest.mark.parametrize("strategy", [(), NISS, UNIFORM], ids=["dp_fedpaq", "niss", "uniform"])
def test_too_strict_a_device_sits_alone(tmp_path: Path, strategy: tuple[str, ...]) -> None:
    """The others go on at the first attempt of each round; nobody pays for the strict one."""
    outcome = run_with(tmp_path, {2: 0.05}, *strategy)
    assert [row["num_replies"] for row in outcome.rows[1:]] == [CLIENTS - 1] * ROUNDS
    if strategy:
        assert [row["num_ineligible"] for row in outcome.rows[1:]] == [1] * ROUNDS
        assert [row["num_attempts"] for row in outcome.rows[1:]] == [1] * ROUNDS
        assert [row["num_dropped_after_ready"] for row in outcome.rows[1:]] == [0] * ROUNDS
    devices, server = charged(outcome)
    others = dict.fromkeys((0, 1, 3, 4, 5), ROUNDS)
    assert {client: count for client, count in devices.items() if count} == others
    # A server cannot know that a client which refuses has released nothing.
    assert {client: count for client, count in server.items() if client != 2} == others
    assert server.get(2, 0) == (0 if strategy else ROUNDS)
    # Without trust lists, what the others add to a client's own noise hides nobody for sure.
    most = 20.0 if strategy else 8.0
    assert 0.8 * most < max(spent(outcome, client) for client in others) <= most
    assert sum(row["valid"] for row in outcome.guarantees) >= 1


@pytest.mark.parametrize("strategy", [NISS, UNIFORM], ids=["gaussian", "uniform"])
def test_a_stricter_device_adds_noise_of_its_own(tmp_path: Path, strategy: tuple[str, ...]) -> None:
    """Its own noise alone keeps to its limit: it has no trust list."""
    outcome = run_with(tmp_path, {2: "4", 3: 30.0}, *strategy)
    assert [row["num_replies"] for row in outcome.rows[1:]] == [CLIENTS] * ROUNDS
    devices, server = charged(outcome)
    assert devices == server == dict.fromkeys(range(CLIENTS), ROUNDS)
    assert 3.0 < spent(outcome, 2) <= 4.0
    # A device that would allow more than its share of the noise gives away changes nothing.
    assert 15.0 < spent(outcome, 3) == spent(outcome, 4) <= 20.0


def test_dp_fedpaq_takes_a_device_whose_limit_the_run_keeps(tmp_path: Path) -> None:
    outcome = run_with(tmp_path, {2: 8.0, 3: 7.999})
    assert [row["num_replies"] for row in outcome.rows[1:]] == [CLIENTS - 1] * ROUNDS
    devices, _ = charged(outcome)
    assert {client for client, count in devices.items() if count} == {0, 1, 2, 4, 5}


@pytest.mark.parametrize("strategy", [(), NISS], ids=["dp_fedpaq", "niss"])
def test_a_limited_device_takes_no_part_in_a_seeded_run(
    tmp_path: Path, strategy: tuple[str, ...]
) -> None:
    outcome = run_with(tmp_path, {2: 100.0}, *strategy, "randomness=seeded")
    assert [row["num_replies"] for row in outcome.rows[1:]] == [CLIENTS - 1] * ROUNDS
    assert charged(outcome)[0].get(2, 0) == 0


@pytest.mark.parametrize("strategy", [(), NISS], ids=["dp_fedpaq", "niss"])
def test_a_limit_that_cannot_be_read_is_no_licence(
    tmp_path: Path, strategy: tuple[str, ...]
) -> None:
    outcome = run_with(tmp_path, {2: "none"}, *strategy)
    assert [row["num_replies"] for row in outcome.rows[1:]] == [CLIENTS - 1] * ROUNDS
    assert charged(outcome)[0].get(2, 0) == 0


def test_with_too_many_strict_devices_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        run_with(tmp_path, dict.fromkeys(range(3), 0.05), *NISS)
    assert sum(each.entry.participations for each in list_entries(tmp_path / "run/checkpoint")) == 0
