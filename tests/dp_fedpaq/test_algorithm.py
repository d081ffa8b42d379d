"""The steps of a round: their order, their noise, and what is never skipped."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chi2

from strategies.dp_fedpaq import DpFedPaqParameters
from strategies.dp_fedpaq.algorithm import (
    UploadStreams,
    aggregate_updates,
    aggregate_with_noise,
    bound_update,
    client_mechanism,
    client_noise_multiplier,
    decode_update,
    draw_records,
    encode_update,
    local_round,
    plan_participations,
    privatize_update,
    sample_cohort,
    upload_bits,
)
from strategies.mechanisms.accounting import compute_epsilon
from strategies.mechanisms.clipping import l2_norm
from strategies.mechanisms.gaussian import GaussianMechanism
from strategies.mechanisms.layout import ArrayLayout
from strategies.mechanisms.packing import PackingError
from strategies.mechanisms.rng import Randomness, SecretStream
from strategies.mechanisms.sensitivity import whole_update_sensitivity

ALPHA = 1e-6
D = 100_000


def parameters(**changes: object) -> DpFedPaqParameters:
    values: dict[str, object] = {
        "num_participations": 10,
        "noise_multiplier": 1.5,
        "clipping_norm": 2.0,
        "local_steps": 4,
        "batch_size": 8,
        "quantizer": "none",
    }
    return DpFedPaqParameters(**{**values, **changes})  # type: ignore[arg-type]


def has_variance(numbers: np.ndarray, variance: float) -> bool:
    """Exact chi-square test at level ALPHA."""
    total = float(np.sum(numbers**2)) / variance
    return bool(chi2.ppf(ALPHA / 2, numbers.size) < total < chi2.ppf(1 - ALPHA / 2, numbers.size))


@pytest.mark.parametrize(
    ("unit", "relation", "sensitivity"),
    [
        ("record", "replace_one", 4.0),
        ("client", "replace_one", 4.0),
        ("client", "zero_out", 2.0),
    ],
)
def test_noise_has_the_standard_deviation_z_times_sensitivity(
    unit: str, relation: str, sensitivity: float
) -> None:
    chosen = parameters(unit=unit, neighboring_relation=relation)
    mechanism = client_mechanism(chosen, 1, 100)
    assert mechanism is not None
    assert mechanism.noise_std == 1.5 * sensitivity
    noise = privatize_update(np.zeros(D), chosen, mechanism, SecretStream())
    variance = (1.5 * sensitivity) ** 2
    assert has_variance(noise, variance)
    # Twins that must fail: 2% off in the standard deviation, and C / n for the sensitivity.
    assert not has_variance(noise, (1.02 * 1.5 * sensitivity) ** 2)
    assert not has_variance(noise, (0.98 * 1.5 * sensitivity) ** 2)
    assert not has_variance(noise, (1.5 * 2.0 / 100) ** 2)


def test_the_update_is_clipped_before_the_noise() -> None:
    chosen = parameters(noise_multiplier=5.0)
    mechanism = client_mechanism(chosen, 1, 100)
    assert mechanism is not None
    update = np.full(D, 3.0)  # norm 949, clipped to 2: 0.0063 an entry
    private = privatize_update(update, chosen, mechanism, SecretStream())
    # Noise before clipping would leave a vector of norm 2.
    assert has_variance(private - 2.0 / math.sqrt(D), (5.0 * 4.0) ** 2)


def test_all_arrays_are_clipped_together_and_0d_and_empty_ones_too() -> None:
    start = {
        "a": np.zeros(3, dtype=np.float32),
        "b": np.array(0.0, dtype=np.float32),
        "c": np.zeros((0, 2), dtype=np.float32),
        "n": np.array(5, dtype=np.int64),
    }
    trained = {**start, "a": np.array([3.0, 0, 0], np.float32), "b": np.array(4.0, np.float32)}
    layout = ArrayLayout.of(start)
    chosen = parameters(noise_multiplier=0.0, clipping_norm=1.0)
    streams = UploadStreams(Randomness("seeded", 0), 1, 0)
    data = local_round(layout.flatten(start), trained, layout, chosen, None, streams)
    update = layout.unflatten(decode_update(data, layout.num_parameters, chosen))
    assert np.allclose(update["a"], [0.6, 0, 0])
    assert np.allclose(update["b"], 0.8)  # clipped by layer it would be 1
    assert set(update) == {"a", "b", "c"}  # the integer stays out


def test_0d_arrays_get_noise() -> None:
    start = {"b": np.array(0.0)}
    layout = ArrayLayout.of(start)
    chosen = parameters()
    mechanism = client_mechanism(chosen, 1, 100)
    draws = []
    for client in range(2000):
        streams = UploadStreams(Randomness("seeded", 0), 1, client)
        data = local_round(np.zeros(1), start, layout, chosen, mechanism, streams)
        draws.append(decode_update(data, 1, chosen)[0])
    assert has_variance(np.array(draws), 6.0**2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_non_finite_update_becomes_zero_plus_noise(bad: float) -> None:
    chosen = parameters()
    update = np.ones(D)
    update[7] = bad
    assert np.array_equal(bound_update(update, 2.0), np.zeros(D))
    private = privatize_update(update, chosen, client_mechanism(chosen, 1, 100), SecretStream())
    assert has_variance(private, 6.0**2)


def test_without_clipping_a_norm_that_the_wire_cannot_carry_becomes_zero() -> None:
    assert np.array_equal(bound_update(np.array([1e200, 1.0]), None), np.zeros(2))
    assert np.array_equal(bound_update(np.array([3.0, 4.0]), None), [3.0, 4.0])


@settings(max_examples=100)
@given(values=st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30))
def test_no_update_exceeds_the_clipping_norm(values: list[float]) -> None:
    assert l2_norm(bound_update(np.array(values, dtype=np.float64), 0.75)) <= 0.75


def test_quantising_comes_after_the_noise() -> None:
    chosen = parameters(quantizer="qsgd", num_levels=3)
    private = privatize_update(
        np.zeros(50), chosen, client_mechanism(chosen, 1, 99), SecretStream()
    )
    data = encode_update(private, chosen, SecretStream())
    decoded = decode_update(data, 50, chosen)
    # On the wire there are s + 1 magnitudes; noise after quantising would give 50.
    assert len(np.unique(np.abs(decoded))) <= 4
    assert 8 * len(data) <= upload_bits(50, chosen) + 16


def test_two_clients_and_two_rounds_never_share_noise() -> None:
    chosen = parameters()
    mechanism = client_mechanism(chosen, 1, 100)
    uploads = set()
    for server_round, client in [(1, 0), (1, 1), (2, 0), (2, 1)]:
        streams = UploadStreams(Randomness("seeded", 0), server_round, client)
        uploads.add(privatize_update(np.zeros(3), chosen, mechanism, streams.noise).tobytes())
    assert len(uploads) == 4


def test_noise_and_record_draws_are_separate_streams() -> None:
    # The first word of each: a stream used for two purposes would give it twice.
    words = set()
    for name in ("records", "training", "noise", "rounding"):
        streams = UploadStreams(Randomness("seeded", 0), 1, 0)
        words.add(getattr(streams, name).words(1)[0])
    assert len(words) == 4


@pytest.mark.parametrize("quantizer", ["none", "qsgd"])
def test_bad_uploads_are_refused(quantizer: str) -> None:
    chosen = parameters(quantizer=quantizer)
    good = encode_update(np.ones(10), chosen, SecretStream())
    assert decode_update(good, 10, chosen).shape == (10,)
    for bad in (b"", good[:-1], good + b"\0"):
        with pytest.raises(PackingError):
            decode_update(bad, 10, chosen)
    with pytest.raises(PackingError):
        decode_update(np.full(10, np.nan, "<f4").tobytes(), 10, chosen)


def test_aggregation_is_the_uniform_mean_of_what_arrived() -> None:
    start = np.array([1.0, 2.0])
    updates = [np.array([1.0, 0.0]), np.array([0.0, 4.0])]
    assert aggregate_updates(start, updates).tolist() == [1.5, 4.0]
    assert aggregate_updates(start, []) is start


def test_a_round_s_poisson_sample_takes_each_record_once_at_the_stated_rate() -> None:
    chosen = parameters(
        neighboring_relation="add_or_remove_one", sampling="poisson", sample_rate=0.3
    )
    drawn = np.concatenate(draw_records(chosen, 100_000, SecretStream()))
    assert len(np.unique(drawn)) == len(drawn)
    low, high = binom.ppf([ALPHA / 2, 1 - ALPHA / 2], 100_000, 0.3)
    assert low < len(drawn) < high


def test_cohorts_are_uniform_and_without_replacement() -> None:
    stream, rounds = SecretStream(), 4000
    counts = np.zeros(7)
    for _ in range(rounds):
        cohort = sample_cohort(7, 3, "fixed", stream)
        assert np.all(np.diff(cohort) > 0)
        counts[cohort] += 1
    low, high = binom.ppf([1e-7 / 7, 1 - 1e-7 / 7], rounds, 3 / 7)
    assert np.all((low < counts) & (counts < high))


def test_poisson_cohorts_draw_each_client_by_itself() -> None:
    stream, rounds = SecretStream(), 4000
    drawn = np.zeros((rounds, 6))
    for row in drawn:
        row[sample_cohort(6, 2, "poisson", stream)] = 1.0
    edges = [5e-8 / 6, 1 - 5e-8 / 6]
    low, high = binom.ppf(edges, rounds, 1 / 3)
    assert np.all((low < drawn.sum(axis=0)) & (drawn.sum(axis=0) < high))
    # Two clients together as often as independent draws say; never so with a fixed size of 2.
    low, high = binom.ppf(edges, rounds, 1 / 9)
    pairs = (drawn.T @ drawn)[np.triu_indices(6, 1)]
    assert np.all((low < pairs) & (pairs < high))
    low, high = binom.ppf(edges, rounds, (2 / 3) ** 6)
    assert low < np.sum(drawn.sum(axis=1) == 0) < high
    assert sample_cohort(5, 5, "poisson", stream).tolist() == [0, 1, 2, 3, 4]


def test_the_server_clips_what_it_sums_and_divides_by_a_constant() -> None:
    start, long = np.zeros(4), np.array([30.0, 40.0, 0.0, 0.0])
    sensitivity = whole_update_sensitivity(5.0, unit="client", neighboring_relation="replace_one")
    silent = GaussianMechanism(sensitivity, 0.0)

    def total(*updates: np.ndarray, mechanism: GaussianMechanism = silent) -> np.ndarray:
        return aggregate_with_noise(
            start,
            updates,
            mechanism,
            clipping_norm=5.0,
            num_expected=4,
            stream=SecretStream(bytes(32)),
        )

    assert total(long) == pytest.approx([0.75, 1.0, 0.0, 0.0], rel=1e-12)
    assert total(long, -long, start).tolist() == [0.0] * 4
    assert total().tolist() == [0.0] * 4
    # An empty cohort gets the same noise as any other.
    noisy = GaussianMechanism(sensitivity, 2.0)
    noise = total(mechanism=noisy)
    assert noise == pytest.approx(SecretStream(bytes(32)).standard_normal(4) * 20.0 / 4)
    assert total(long, mechanism=noisy) - noise == pytest.approx(total(long))


@pytest.mark.parametrize(("sampled", "clients"), [(10, 100), (1, 3), (99, 100)])
def test_planned_participations_are_exceeded_with_probability_below_1_percent(
    sampled: int, clients: int
) -> None:
    planned = plan_participations(60, sampled, clients)
    rate = sampled / clients
    assert binom.sf(planned, 60, rate) < 0.01
    assert planned == 1 or binom.sf(planned - 1, 60, rate) >= 0.01


def test_everybody_in_every_round_is_planned_exactly() -> None:
    assert plan_participations(60, 100, 100) == 60
    assert plan_participations(1, 1, 1000) == 1


@pytest.mark.parametrize("records", [32, 33, 100, 1000])
@pytest.mark.parametrize("accountant", ["auto", "closed_form"])
def test_each_client_calibrates_its_own_noise_to_the_total_target(
    records: int, accountant: str
) -> None:
    chosen = parameters(noise_multiplier=None, target_epsilon=3.0, accountant=accountant)
    z = client_noise_multiplier(chosen, records)
    spent = compute_epsilon(chosen.releases(z, records, 10), 1e-5, chosen.resolved_accountant)
    assert 0.99 * 3.0 <= spent <= 3.0


def test_more_records_need_less_noise_only_where_the_draw_is_counted() -> None:
    chosen = parameters(noise_multiplier=None, target_epsilon=3.0)
    assert client_noise_multiplier(chosen, 1000) < 0.7 * client_noise_multiplier(chosen, 32)
    plain = dataclasses.replace(chosen, accountant="closed_form")
    assert client_noise_multiplier(plain, 1000) == client_noise_multiplier(plain, 32)


def test_a_record_that_is_hardly_ever_drawn_still_gets_noise() -> None:
    chosen = parameters(
        noise_multiplier=None, target_epsilon=1.0, target_delta=1e-2, num_participations=2
    )
    # Drawn at all with probability 2 * 32 / 10^6 < delta.
    z = client_noise_multiplier(chosen, 10**6)
    assert z > 0.1
    assert z <= client_noise_multiplier(chosen, 10**4)


def test_without_noise_there_is_no_mechanism() -> None:
    assert client_mechanism(parameters(noise_multiplier=0.0), 1, 100) is None
