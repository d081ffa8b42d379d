"""What privacy.json says: true numbers, and no validity without secret randomness."""

import math

import pytest

from strategies.dp_fedpaq import DpFedPaqParameters
from strategies.dp_fedpaq.algorithm import client_noise_multiplier
from strategies.dp_fedpaq.guarantees import list_guarantees, spent_epsilon
from strategies.mechanisms.accounting import compute_epsilon
from strategies.mechanisms.closed_form import gaussian_epsilon
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


def test_a_secret_run_with_noise_is_a_release() -> None:
    rows = list_guarantees(parameters(), 7.9)
    assert [row.adversary for row in rows] == ["server", "model_user"]
    for row in rows:
        assert row.valid
        assert row.why_not is None
        assert (row.epsilon, row.delta, row.accountant) == (7.9, 1e-5, "pld")
        assert (row.unit, row.neighboring_relation) == ("record", "replace_one")


def test_a_seeded_run_is_not_a_release() -> None:
    for row in list_guarantees(parameters(randomness="seeded"), 7.9):
        assert not row.valid
        assert row.epsilon == 7.9
        assert row.why_not is not None
        assert "seeded" in row.why_not


@pytest.mark.parametrize("epsilon", [None, math.inf])
def test_without_noise_there_is_no_guarantee_and_no_assumption(epsilon: float | None) -> None:
    chosen = parameters(target_epsilon=None, noise_multiplier=0.0, clipping_norm=None)
    for row in list_guarantees(chosen, epsilon):
        assert (row.epsilon, row.delta, row.accountant, row.valid) == (None, None, None, False)
        assert row.why_not
        assert row.as_dict()["assumptions"] == []


@pytest.mark.parametrize("word", ["code integrity", "Sybil", "floating point"])
def test_assumptions_always_name(word: str) -> None:
    for row in list_guarantees(parameters(), 1.0):
        assert any(word in line for line in row.assumptions)


def test_secret_draws_are_an_assumption_only_where_they_are_counted() -> None:
    def named(chosen: DpFedPaqParameters) -> bool:
        return any("secret draws" in line for line in list_guarantees(chosen, 1.0)[0].assumptions)

    assert named(parameters())
    assert not named(parameters(accountant="closed_form"))
    assert not named(parameters(unit="client"))


def test_the_conditions_of_the_sensitivity_are_assumptions() -> None:
    chosen = parameters()
    lines = list_guarantees(chosen, 1.0)[0].assumptions
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
        lines = list_guarantees(chosen, 1.0, num_rounds=num_rounds)[0].assumptions
        assert any("float64" in line for line in lines) == listed
        assert any("clipped to L2 norm 0.02" in line for line in lines)
    # The convex line names the largest rate under which it was used, not the last one.
    rate = chosen.learning_rate_in_round(3)
    lines = list_guarantees(chosen, 1.0, num_rounds=500)[0].assumptions
    assert any(f"learning rate is public and at most {rate:g}," in line for line in lines)


@pytest.mark.parametrize(
    ("delta", "records", "valid"),
    [(1e-5, 143, True), (1e-5, 10**5, False), (0.008, 143, False), (0.009, None, True)],
)
def test_a_delta_that_allows_publishing_a_record_is_no_guarantee(
    delta: float, records: int | None, valid: bool
) -> None:
    chosen = parameters(target_delta=delta)
    for row in list_guarantees(chosen, 1.0, most_records=records):
        assert row.valid == valid
        assert (row.why_not is None) == valid
    assert not list_guarantees(parameters(target_delta=0.01, unit="client"), 1.0)[0].valid


def test_an_epsilon_that_hides_nothing_is_no_guarantee() -> None:
    row = list_guarantees(parameters(), 1001.0)[0]
    assert (row.epsilon, row.valid) == (None, False)
    assert "1e+03" in str(row.why_not)


def test_the_size_of_a_client_is_an_assumption_only_where_it_is_public() -> None:
    def named(**changes: object) -> bool:
        lines = list_guarantees(parameters(**changes), 1.0)[0].assumptions
        return any("number of records" in line for line in lines)

    assert named()
    assert not named(unit="client")
    assert not named(neighboring_relation="add_or_remove_one", local_steps=None, local_epochs=1)


def test_the_most_exposed_client_is_reported() -> None:
    chosen = parameters(target_epsilon=None, noise_multiplier=2.0)
    sizes = {0: 128, 1: 150, 2: 1000}
    one = {client: spent_epsilon(chosen, {client: 5}, sizes) for client in sizes}
    # Fewer records: a larger share of them is drawn, and less is hidden.
    assert one[0] > one[1] > one[2]  # type: ignore[operator]
    assert spent_epsilon(chosen, dict.fromkeys(sizes, 5), sizes) == one[0]
    mixed = {0: 1, 1: 2, 2: 20}
    each = [spent_epsilon(chosen, {client: count}, sizes) for client, count in mixed.items()]
    assert spent_epsilon(chosen, mixed, sizes) == max(each)  # type: ignore[type-var]
    assert one[0] == pytest.approx(gaussian_epsilon(2.0, 5, 1e-5), rel=5e-3)


def test_epsilon_follows_the_participations_that_happened() -> None:
    chosen, sizes = parameters(), {0: 143}
    z = client_noise_multiplier(chosen, 143)
    for count in (1, 7, 20):
        expected = compute_epsilon(chosen.releases(z, 143, count), 1e-5, "pld")
        assert spent_epsilon(chosen, {0: count}, sizes) == expected
    assert 7.92 <= spent_epsilon(chosen, {0: 20}, sizes) <= 8.0  # type: ignore[operator]
    # A client that was asked more often sat out: it counts its participations itself.
    assert spent_epsilon(chosen, {0: 99}, sizes) == spent_epsilon(chosen, {0: 20}, sizes)
    assert spent_epsilon(chosen, {}, sizes) == 0.0


def test_unknown_sizes_are_counted_at_their_worst() -> None:
    target = parameters()
    assert spent_epsilon(target, {5: 1}, None) == 8.0
    given = parameters(target_epsilon=None, noise_multiplier=2.0)
    assert spent_epsilon(given, {5: 4}, None) == pytest.approx(
        gaussian_epsilon(2.0, 4, 1e-5), rel=5e-3
    )


def test_without_noise_nothing_is_spent_that_could_be_named() -> None:
    chosen = parameters(target_epsilon=None, noise_multiplier=0.0)
    assert spent_epsilon(chosen, {0: 3}, {0: 143}) is None
