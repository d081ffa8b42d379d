"""The formulas of the comparison with secure aggregation, against cases counted by hand."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

from bench import secure_aggregation_costs as costs
from bench.secret_shares import (
    KEY_FIELD,
    SEED_FIELD,
    draw_polynomial,
    evaluate,
    interpolation_weights,
    reconstruct,
)
from bench.secure_aggregation_costs import Traffic, double_masking_traffic, niss_traffic
from strategies.mechanisms.key_agreement import CARD_SIZE, NONCE_SIZE


def test_a_round_of_niss_counted_by_hand() -> None:
    # Up 16 + 10 words; down 10 words and 2 peers' cards (8 + 32 + 32 + 64) with nonces (16).
    assert niss_traffic(3, 10) == Traffic(56, 344, 168, 1032, 2)
    # One of three said "ready" and uploads nothing.
    assert niss_traffic(3, 10, dropped=1) == Traffic(56, 344, 3 * 16 + 2 * 40, 1032, 2)


def test_cards_and_nonces_have_the_sizes_that_are_counted() -> None:
    assert (costs.CARD, costs.NONCE) == (CARD_SIZE, NONCE_SIZE)


def test_a_repeated_round_of_niss_counted_by_hand() -> None:
    # Then the other two once more, with one peer each.
    again = Traffic(56, 40 + 152, 2 * 56, 2 * 192, 2)
    assert niss_traffic(3, 10, dropped=1, repeat=True) == niss_traffic(3, 10, dropped=1) + again
    assert again.client_down + 344 == niss_traffic(3, 10, dropped=1, repeat=True).client_down


def test_a_round_of_double_masking_counted_by_hand() -> None:
    # Up: keys and signature 128; to each peer a number and 28 + 16 + 32 + 16 sealed; 10 words;
    # a signature; 3 seed shares. Down: from each peer number, keys and signature 136, and number
    # and sealed shares 100; 10 words; a bitmap; 2 signatures.
    up = 128 + 2 * 100 + 40 + 64 + 3 * 16
    down = 2 * 136 + 2 * 100 + 40 + 1 + 2 * 64
    assert double_masking_traffic(3, 10) == Traffic(up, down, 3 * up, 3 * down, 5)


def test_a_dropout_in_double_masking_counted_by_hand() -> None:
    up = 128 + 2 * 100 + 40 + 64 + 2 * 16 + 32
    down = 2 * 136 + 2 * 100 + 40 + 1 + 64
    # It sent its keys and its shares, and got those of the others and the model.
    server_in, server_out = 2 * up + 328, 2 * down + 512
    assert double_masking_traffic(3, 10, dropped=1) == Traffic(up, down, server_in, server_out, 5)


def test_neighbours_counted_by_hand() -> None:
    # 5 clients with 2 neighbours, one of five out: half a neighbour, rounded to even, is none.
    up = 64 + 2 * 100 + 40 + 3 * 16
    down = 2 * 72 + 2 * 100 + 40 + 1
    before = (64 + 2 * 100, 2 * 72 + 2 * 100 + 40)
    assert double_masking_traffic(5, 10, 1, num_neighbours=2, active=False) == Traffic(
        up, down, 4 * up + before[0], 4 * down + before[1], 4
    )


@pytest.mark.parametrize("num_clients", [2, 10, 100])
def test_the_published_count_of_a_client(num_clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bonawitz et al. (2017): 2n a_K + (5n - 4) a_S + m log2 R, up and down, passive server."""
    key, share, size = 7, 11, 100
    for name, value in {
        "NUMBER": 0,
        "PUBLIC_KEY": key,
        "SEED_SHARE": share,
        "KEY_SHARE": share,
    }.items():
        monkeypatch.setattr(costs, name, value)
    monkeypatch.setattr(costs, "SEALED_SHARES", 2 * share)
    found = double_masking_traffic(num_clients, size, active=False)
    # What the paper leaves out: the model, and the list of those that uploaded.
    left_out = 4 * size + -(-num_clients // 8)
    published = 2 * num_clients * key + (5 * num_clients - 4) * share + 4 * size
    assert found.client_up + found.client_down - left_out == published


def test_all_others_as_neighbours_is_the_complete_graph() -> None:
    assert double_masking_traffic(9, 5, 2, 8) == double_masking_traffic(9, 5, 2)


def test_registration_is_a_card_each() -> None:
    assert costs.registration_bytes(10_000) == {"niss": 1_360_000, "double masking": 400_000}


def _tail(population: int, marked: int, drawn: int, least: int) -> float:
    """Return P[at least ``least`` marked ones among the drawn], by counting."""
    hits = sum(
        comb(marked, j) * comb(population - marked, drawn - j) for j in range(least, drawn + 1)
    )
    return hits / comb(population, drawn)


def _is_enough(n: int, k: int, t: int) -> bool:
    staying = n - 1 - int(0.3 * n)
    return (
        n * 0.5 ** (k / 2) <= 2**-40
        and n * _tail(n - 1, int(0.2 * n), k, t) <= 2**-40
        and n * _tail(n - 1, n - 1 - staying, k, k - t + 1) <= 2**-30
    )


@pytest.mark.parametrize("num_clients", [100, 1000])
def test_neighbours_are_enough_and_two_fewer_are_not(num_clients: int) -> None:
    k, t = costs.choose_neighbours(num_clients)
    assert k < num_clients - 1
    assert _is_enough(num_clients, k, t)
    assert not any(_is_enough(num_clients, k - 2, each) for each in range(1, k - 1))


def test_a_small_cohort_has_no_sparse_graph() -> None:
    assert costs.choose_neighbours(10) == (9, costs.threshold_of(10))


@pytest.mark.parametrize(("num_clients", "dropped"), [(10, 1), (30, 9), (100, 5)])
def test_the_residual_variance_is_that_of_the_covariance(num_clients: int, dropped: int) -> None:
    w = np.sqrt(dropped)
    own = (1 + w) / num_clients
    pair = own * (1 - own) / w
    laplacian = num_clients * np.eye(num_clients) - 1
    covariance = pair * laplacian + own * np.eye(num_clients)
    assert 1 / np.linalg.inv(covariance)[0, 0] == pytest.approx(1)
    survivors = covariance[dropped:, dropped:]
    found = costs.residual_variance(num_clients, dropped)
    assert found == pytest.approx((covariance.sum(), survivors.sum()))


def test_the_residual_variance_of_the_golden_table() -> None:
    # 10 clients, no colluders, one dropout expected; 100 clients, none expected.
    assert costs.residual_variance(10, 1) == pytest.approx((2.00, 3.24))
    assert costs.residual_variance(100, 0) == pytest.approx((1.05, 1.05))


@pytest.mark.parametrize(("num_clients", "threshold"), [(3, 3), (10, 7), (100, 67), (1000, 667)])
def test_the_threshold_is_above_two_thirds(num_clients: int, threshold: int) -> None:
    assert costs.threshold_of(num_clients) == threshold


def test_dropouts_are_rounded_up() -> None:
    assert [costs.count_dropouts(n, 5) for n in (10, 100, 1000)] == [1, 5, 50]
    assert costs.count_dropouts(10, 0) == 0


@pytest.mark.parametrize("prime", [SEED_FIELD, KEY_FIELD])
def test_any_t_shares_give_the_secret_and_fewer_do_not(prime: int) -> None:
    assert all(pow(base, prime - 1, prime) == 1 for base in (2, 3, 5, 7, 11))
    secret = prime - 2
    polynomial = draw_polynomial(secret, 3, prime)
    shares = {point: evaluate(polynomial, point, prime) for point in range(1, 6)}
    for points in combinations(shares, 3):
        weights = interpolation_weights(points, prime)
        assert reconstruct(weights, [shares[p] for p in points], prime) == secret
    for points in combinations(shares, 2):
        weights = interpolation_weights(points, prime)
        assert reconstruct(weights, [shares[p] for p in points], prime) != secret
