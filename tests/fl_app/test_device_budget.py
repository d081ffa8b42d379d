"""What a device's releases have spent, in one relation, and what is left for one more run."""

import contextlib
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fl_app.device_budget import NO_LIMITS, LimitedState, RunLimits, limit_run
from fl_app.device_ledger import (
    Release,
    list_releases,
    lock_device,
)
from fl_app.device_policy import DevicePolicy, PolicyRefusal
from fl_app.device_spending import spend_by_run
from strategies.device_state import LedgerEntry
from strategies.dp_fedpaq import DpFedPaqParameters
from strategies.mechanisms.accounting import GaussianReleases, bound_epsilon
from strategies.mechanisms.exchange import exchange_epsilon
from strategies.niss.key_memory import NOBODY_KNOWN, DeviceTrust
from tests.fl_app.charges import HALF, ROW, charge

BARE = '{"noise_multiplier": 0.0}'
SPARSE = ROW.replace('"delta"', '"failure": 1e-09, "delta"')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir(mode=0o700)
    return tmp_path / "state"


def rows(*texts: str, run: str = "7", client: int = 1, method: str = "m") -> list[Release]:
    return [Release(run, client, method, i, text) for i, text in enumerate(texts, start=1)]


def test_equal_releases_compose_and_unequal_ones_add_up() -> None:
    def one(rate: float, count: int) -> float:
        found = GaussianReleases(3.0, 2 * count, "record", "replace_one", "fixed", rate)
        return bound_epsilon(found, 1e-5).epsilon

    (same,) = spend_by_run(rows(ROW, ROW, ROW))
    assert (same.epsilon, same.delta, same.is_mixed) == (one(0.25, 3), 1e-5, False)
    (mixed,) = spend_by_run(rows(ROW, HALF, ROW))
    assert (mixed.epsilon, mixed.delta) == (one(0.25, 2) + one(0.5, 1), 2e-5)
    assert mixed.is_mixed
    (sparse,) = spend_by_run(rows(SPARSE, SPARSE))
    assert sparse.delta == pytest.approx(1e-5 + 2e-9, rel=1e-12)
    for bare in (BARE, ""):
        (found,) = spend_by_run(rows(ROW, bare))
        assert (found.epsilon, found.num_releases) == (math.inf, 2)
    promised = spend_by_run(rows(ROW.replace('"delta"', '"noise_at": "server", "delta"')))
    assert promised[0].noise_at == "server"
    apart = spend_by_run([*rows(ROW), *rows(ROW, client=2), *rows(ROW, run="8")])
    assert [each[:2] for each in apart] == [("7", 1), ("7", 2), ("8", 1)]


def limits(policy: DevicePolicy, spent: list[Release], run: str = "9") -> RunLimits:
    return limit_run(policy, spend_by_run(spent), run, "m", 1e-5, lambda epsilon: epsilon)


OWNER = DevicePolicy(1, 4, state_dir=Path("/d"), max_epsilon=3.0, max_delta=2.5e-5)


def test_what_is_left_is_what_other_runs_have_not_spent() -> None:
    used = spend_by_run(rows(ROW))[0].epsilon
    assert 0.5 < used < 1.5
    assert limits(OWNER, []).max_epsilon == 3.0
    assert limits(OWNER, rows(ROW)).max_epsilon == 3.0 - used
    # The present run's own releases are part of its total, and counted there.
    own = limits(OWNER, rows(ROW, ROW, run="9"))
    assert (own.max_epsilon, own.num_released) == (3.0, 2)
    # Another method, or client, under the same name is another run.
    for other in (rows(ROW, run="9", method="n"), rows(ROW, run="9", client=2)):
        assert limits(OWNER, other).max_epsilon == 3.0 - used
    with pytest.raises(PolicyRefusal, match="other runs have spent it"):
        limits(OWNER, rows(BARE))
    with pytest.raises(PolicyRefusal, match="max-delta: 5e-06 is left, the run takes 1e-05"):
        limits(OWNER, [*rows(ROW), *rows(ROW, run="8")])
    # The run's own deltas may have become more than it says.
    more = rows(ROW, HALF, ROW.replace("0.25", "0.125"), run="9")
    with pytest.raises(PolicyRefusal, match=r"max-delta: .* is left, the run takes 3e-05"):
        limits(OWNER, more)
    assert limits(replace(OWNER, max_epsilon=None, max_delta=None), rows(BARE)) is not NO_LIMITS


LISTED = DeviceTrust(peers=frozenset({bytes(32)}))


def test_an_upload_beyond_what_is_left_is_not_charged() -> None:
    """The charge itself is looked at, with all that came before it in the run."""
    used = [spend_by_run(rows(*[ROW] * count))[0].epsilon for count in (1, 2)]
    RunLimits(used[1]).check_charge(rows(ROW, ROW))
    cases = [
        (RunLimits(0.999 * used[1]), rows(ROW, ROW), "max-epsilon: .* is left, the run takes"),
        (RunLimits(1e3), rows(ROW, HALF), "data changed within the run"),
        (RunLimits(max_delta=1.0), rows(ROW, HALF), "data changed within the run"),
        (RunLimits(1e9), rows(ROW.replace("3.0", "0.099")), "hides only who is hardly ever drawn"),
        (RunLimits(1e9), rows(BARE), "hides only who is hardly ever drawn"),
        (RunLimits(max_delta=1.15e-8), rows(*[SPARSE.replace("1e-05", "1e-08")] * 2), "max-delta"),
        (RunLimits(max_delta=0.9e-5), rows(ROW), "max-delta"),
    ]
    for left, releases, words in cases:
        with pytest.raises(PolicyRefusal, match=words):
            left.check_charge(releases)
    RunLimits(max_delta=1.25e-8).check_charge(rows(*[SPARSE.replace("1e-05", "1e-08")] * 2))
    NO_LIMITS.check_charge(rows(BARE, ROW, HALF))


def test_what_may_not_be_charged_is_not_in_the_ledger(folder: Path) -> None:
    with lock_device(folder):
        state = LimitedState(folder, "7", 1, RunLimits(1e3))
        charge(state, 2)
        entry = state.read_entry("dp_fedpaq")
        changed = replace(entry, last_round=3, participations=3, releases=HALF)
        with pytest.raises(PolicyRefusal, match="data changed"):
            state.write_entry(changed)
        assert state.read_entry("dp_fedpaq") == entry
        # What is not charged is not looked at, and another run or method is another.
        state.write_entry(replace(entry, reply=b"again"))
        state.write_entry(LedgerEntry("niss", 1, 1, releases=HALF))
        LimitedState(folder, "8", 1, RunLimits(1e3)).write_entry(changed)
        assert [each.description for each in list_releases(folder)] == [ROW, ROW, HALF, HALF]


@pytest.mark.parametrize(
    ("unit", "relation", "sampling", "rate"),
    [
        ("record", "add_or_remove_one", "none", 1.0),
        ("record", "add_or_remove_one", "poisson", 0.25),
        ("client", "zero_out", "none", 1.0),
        ("client", "zero_out", "poisson", 0.25),
    ],
)
def test_one_relation_for_all_runs(unit: str, relation: str, sampling: str, rate: float) -> None:
    """A sum of epsilons is one of the same relation: that of an exchange."""
    releases = GaussianReleases(3.0, 2, unit, relation, sampling, rate)
    text = json.dumps({**asdict(releases), "delta": 1e-5})
    (found,) = spend_by_run(rows(text, text))
    together = replace(releases, num_releases=4)
    assert found.epsilon == exchange_epsilon(together, 1e-5) > found.declared_epsilon
    assert found.declared_epsilon == bound_epsilon(together, 1e-5).epsilon
    assert (found.neighboring_relation, found.least_noise) == (relation, 3.0)


def test_a_client_is_not_covered_by_what_protected_records_only() -> None:
    owner = replace(OWNER, unit="client", max_delta=None)
    client = ROW.replace("record", "client").replace("fixed", "none").replace("0.25", "1.0")
    assert limits(owner, rows(client)).max_epsilon is not None
    with pytest.raises(PolicyRefusal, match="protected records only"):
        limits(owner, rows(ROW))


def test_rare_draws_are_charged() -> None:
    releases = GaussianReleases(0.2, 1, "record", "add_or_remove_one", "poisson", 1e-6)
    assert bound_epsilon(releases, 1e-5).epsilon == 0.0
    (found,) = spend_by_run(rows(json.dumps({**asdict(releases), "delta": 1e-5})))
    assert found.epsilon >= found.declared_epsilon > 1.0


@pytest.mark.parametrize(
    ("target", "trust", "allowed"),
    [
        *((None, LISTED, False), (8.0, LISTED, False), (3.0, LISTED, True)),
        # What peers add does not count without a list.
        (3.0, NOBODY_KNOWN, False),
    ],
)
def test_a_run_whose_grant_was_spent_by_another_is_over(
    target: float | None, trust: DeviceTrust, allowed: bool
) -> None:
    """Own noise is for what was granted at first: with less of it left, no round may follow."""
    left = RunLimits(3.5, granted=lambda _: 4.0)
    assert left.own_epsilon() == 4.0
    update = DpFedPaqParameters(
        3, noise_multiplier=1.0, local_steps=1, quantizer="none", randomness="secret"
    )
    given: Any = SimpleNamespace(
        mode="sound",
        update=update,
        epsilon_of=lambda _: target,
        circle_of=lambda _: SimpleNamespace(colluding_fraction=0.1, num_colluders=0),
    )
    with contextlib.nullcontext() if allowed else pytest.raises(PolicyRefusal):
        left.check_niss(given, 1, lambda: 50, left.own_epsilon(), trust)
