"""What privacy.json says: true numbers, and no validity without secret randomness."""

import dataclasses
import math

import pytest

from strategies.dp_fedpaq import DpFedPaqParameters
from strategies.dp_fedpaq.guarantees import list_guarantees
from strategies.dp_fedpaq.spending import Participation, spend_on_server
from strategies.mechanisms.guarantee import Guarantee
from tests.softmax_training import SOFTMAX


def parameters(**changes: object) -> DpFedPaqParameters:
    values: dict[str, object] = {
        "num_participations": 20,
        "target_epsilon": 8.0,
        "local_steps": 8,
        "clipping_norm": 1.0,
        "randomness": "secret",
    }
    return DpFedPaqParameters(**{**values, **changes})  # type: ignore[arg-type]


CURATOR = DpFedPaqParameters(
    num_participations=20,
    unit="client",
    noise_at="server",
    noise_multiplier=3.0,
    local_epochs=1,
    randomness="secret",
)


def rows_of(
    chosen: DpFedPaqParameters, *, num_rounds: int = 20, records: int | None = 143
) -> list[Guarantee]:
    """Return the rows after a run in which each of ten clients took part in every round."""
    run = Participation(
        num_rounds=num_rounds,
        num_clients=10,
        num_sampled=10,
        uploads=dict.fromkeys(range(10), num_rounds),
        num_records=None if records is None else dict.fromkeys(range(10), records),
        fewest_uploads=10,
        complete=True,
    )
    if chosen.noise_at == "server":
        run = dataclasses.replace(run, server_noise_multiplier=chosen.noise_multiplier)
    return list_guarantees(chosen, run)


def test_a_secret_run_with_noise_is_a_release() -> None:
    rows = rows_of(parameters())
    assert [row.adversary for row in rows] == ["server", "model_user"]
    for row in rows:
        assert row.valid
        assert row.why_not is None
        assert row.epsilon is not None
        assert 7.9 <= row.epsilon <= 8.0
        assert (row.delta, row.accountant, row.colluding_fraction) == (1e-5, "pld", 1.0)
        assert (row.unit, row.neighboring_relation) == ("record", "replace_one")


def test_a_seeded_run_is_not_a_release() -> None:
    for row in rows_of(parameters(randomness="seeded")):
        assert not row.valid
        assert row.epsilon is not None
        assert row.why_not is not None
        assert "seeded" in row.why_not


def test_without_noise_there_is_no_guarantee_and_no_assumption() -> None:
    chosen = parameters(target_epsilon=None, noise_multiplier=0.0, clipping_norm=None)
    for row in rows_of(chosen):
        assert (row.epsilon, row.delta, row.accountant, row.valid) == (None, None, None, False)
        assert row.why_not
        assert row.as_dict()["assumptions"] == []


@pytest.mark.parametrize("word", ["code integrity", "Sybil", "floating point"])
def test_assumptions_always_name(word: str) -> None:
    rows = [*rows_of(parameters()), rows_of(CURATOR)[1]]
    for row in rows:
        assert any(word in line for line in row.assumptions)


def test_secret_draws_are_an_assumption_only_where_they_are_counted() -> None:
    def named(chosen: DpFedPaqParameters) -> bool:
        return any("secret draws" in line for line in rows_of(chosen)[0].assumptions)

    assert named(parameters())
    assert not named(parameters(accountant="closed_form"))
    assert not named(parameters(unit="client"))


def test_the_conditions_of_the_sensitivity_are_assumptions() -> None:
    chosen = parameters()
    lines = rows_of(chosen)[0].assumptions
    assert set(chosen.sensitivity_in_round(1).conditions) <= set(lines)
    assert len(lines) == len(set(lines))


def test_conditions_of_every_round_are_listed() -> None:
    # 2 S = .04 in rounds 1 and 2; then the learning rate falls and the convex bound is smaller.
    chosen = parameters(
        sensitivity="convex",
        training=SOFTMAX,
        clipping_norm=0.02,
        lr_schedule="inverse_rounds",
        learning_rate=0.3,
    )
    kinds = [chosen.sensitivity_in_round(t).kind for t in (1, 3)]
    assert kinds == ["whole_update", "convex"]
    for num_rounds, listed in ((2, False), (3, True)):
        lines = rows_of(chosen, num_rounds=num_rounds)[0].assumptions
        assert any("float64" in line for line in lines) == listed
        assert any("clipped to L2 norm 0.02" in line for line in lines)
    # The convex line names the largest rate under which it was used, not the last one.
    rate = chosen.learning_rate_in_round(3)
    lines = rows_of(chosen, num_rounds=500)[0].assumptions
    assert any(f"learning rate is public and at most {rate:g}," in line for line in lines)


@pytest.mark.parametrize(
    ("delta", "records", "valid"),
    [(1e-5, 143, True), (1e-5, 10**5, False), (0.008, 143, False), (0.009, None, True)],
)
def test_a_delta_that_allows_publishing_a_record_is_no_guarantee(
    delta: float, records: int | None, valid: bool
) -> None:
    for row in rows_of(parameters(target_delta=delta), records=records):
        assert row.valid == valid
        assert (row.why_not is None) == valid
    assert not rows_of(parameters(target_delta=0.01, unit="client"))[0].valid


def test_delta_is_held_against_the_largest_client_and_does_not_name_it() -> None:
    chosen = parameters(
        target_delta=5e-4,
        neighboring_relation="add_or_remove_one",
        local_steps=None,
        local_epochs=1,
    )
    for sizes, valid in (({0: 10, 1: 1_900}, True), ({0: 10, 1: 2_100}, False)):
        (row, _) = list_guarantees(chosen, Participation(uploads={0: 1}, num_records=sizes))
        assert row.valid == valid
        assert "2100" not in str(row.why_not)
        assert "0.000476" not in str(row.why_not)
    # For whole clients it is their number that counts.
    whole = parameters(unit="client", target_delta=5e-4)
    for clients, valid in ((1_900, True), (2_100, False)):
        (row, _) = list_guarantees(whole, Participation(uploads={0: 1}, num_clients=clients))
        assert row.valid == valid


def test_an_epsilon_that_hides_nothing_is_no_guarantee() -> None:
    chosen = parameters(target_epsilon=None, noise_multiplier=0.05)
    spent = spend_on_server(chosen, Participation(uploads={0: 20}, num_records={0: 143}))
    assert spent is not None
    assert 1000.0 < spent.epsilon < math.inf
    row = rows_of(chosen)[0]
    assert (row.epsilon, row.valid) == (None, False)
    assert f"{spent.epsilon:.3g}" in str(row.why_not)


def test_the_size_of_a_client_is_an_assumption_only_where_it_is_public() -> None:
    def named(**changes: object) -> bool:
        lines = rows_of(parameters(**changes))[0].assumptions
        return any("number of records of a client is public" in line for line in lines)

    assert named()
    assert not named(unit="client")
    assert not named(neighboring_relation="add_or_remove_one", local_steps=None, local_epochs=1)


def test_a_trusted_server_has_no_row_of_its_own() -> None:
    server, user = rows_of(CURATOR)
    assert (server.epsilon, server.valid) == (None, False)
    assert "trusted" in str(server.why_not)
    assert user.valid
    assert any("trusted server" in line for line in user.assumptions)
    assert not any("post-processing" in line for line in user.assumptions)


def test_the_published_noise_is_never_valid_and_says_why() -> None:
    chosen = parameters(
        mode="paper",
        target_epsilon=1.0,
        target_delta=1e-3,
        max_grad_norm=1.0,
        clipping_norm=None,
        local_steps=6,
        batch_size=16,
    )
    for row in rows_of(chosen, records=600):
        assert not row.valid
        assert row.epsilon is None  # far above 1,000
        for word in ("is not proven", "add up", "drawn with probability", "epsilon < 1 only"):
            assert word in str(row.why_not)
    # One large step and a sample of everything: the noise then hides something, never as claimed.
    generous = parameters(
        mode="paper",
        target_epsilon=0.5,
        target_delta=1e-3,
        max_grad_norm=1.0,
        clipping_norm=0.001,
        local_steps=1,
        batch_size=16,
    )
    row = rows_of(generous, num_rounds=1, records=16)[0]
    assert row.epsilon is not None
    assert not row.valid
