"""Pair noise: the same bits on any machine, the stated law (chance of a false alarm < 1e-6 each).

The golden values come from `tests.pairwise_noise_reference`, which shares no code with the product.
"""

import hashlib
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from strategies.mechanisms import pairwise_noise
from strategies.mechanisms.pairwise_noise import (
    GAUSSIAN_STD,
    gaussian_pair_noise,
    has_edge,
    list_gaussian_masses,
    sum_pair_noise,
    sum_uniform_masks,
    uniform_masks,
)
from strategies.mechanisms.parameter_checks import ParameterError
from tests import pairwise_noise_reference as reference

KEY = bytes(range(32))
OTHERS = [bytes([each]) * 32 for each in range(5)]
BLOCK = 2**14
N = 200_000
ALPHA = 1e-6


def digest(values: np.ndarray) -> str:
    return hashlib.sha256(values.astype(values.dtype.newbyteorder("<")).tobytes()).hexdigest()


def test_gaussian_noise_is_the_golden_one() -> None:
    noise = gaussian_pair_noise(KEY, 100_000)
    assert noise.dtype == np.int16
    assert noise[:12].tolist() == [183, 352, -7, 28, 140, 523, -336, -260, 460, 228, -309, 25]
    assert digest(noise) == "ec14d2a50224777f2a87eaae716e74a90ef84bbc7c8dd015c2a46062f515893d"


def test_masks_are_the_golden_ones() -> None:
    masks = uniform_masks(KEY, 100_000)
    assert masks.dtype == np.uint32
    assert masks[:4].tolist() == [3053490418, 3500099882, 1788539817, 2155294429]
    assert digest(masks) == "e76ab9ae57d18f0654cfee040e93753dabe66ae975dd252e54b3bd8d5f7d23d5"


@pytest.mark.parametrize("size", [0, 1, 2, 7, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_both_are_the_reference_s_for_every_size(size: int) -> None:
    assert gaussian_pair_noise(KEY, size).tolist() == reference.gaussian_noise(KEY, size)
    assert uniform_masks(KEY, size).tolist() == reference.uniform_masks(KEY, size)


@given(st.binary(min_size=32, max_size=32), st.integers(0, 100))
def test_both_are_the_reference_s_for_every_key(key: bytes, size: int) -> None:
    assert gaussian_pair_noise(key, size).tolist() == reference.gaussian_noise(key, size)
    assert uniform_masks(key, size).tolist() == reference.uniform_masks(key, size)


# Keys with a word equal to the threshold's upper bits among their first 64, found by search.
@pytest.mark.parametrize(
    ("number", "place", "value"),
    [(7902, 48, -634), (15837, 43, 700), (19033, 44, -698), (21097, 15, -266), (41068, 33, -928)],
)
def test_a_tie_is_settled_by_the_second_part(number: int, place: int, value: int) -> None:
    key = number.to_bytes(32, "big")
    cells = reference.alias_cells()
    words = reference.read_words(reference.key_stream(key, 0, 256), 4)
    assert words[place] % 2**18 == cells[words[place] >> 18][0] >> 128
    assert gaussian_pair_noise(key, 64)[place] == value
    assert gaussian_pair_noise(key, 64).tolist() == reference.gaussian_noise(key, 64)


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_ties_are_settled_in_their_order_and_exactly(
    shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every cell with a threshold ties, in an order that goes up and down, over two blocks.
    cells = reference.alias_cells()
    chosen = [cell * 4099 % 16384 for cell in range(3 * BLOCK // 2)]
    chosen = [cell for cell in chosen if 0 < cells[cell][0] % 2**64 < 2**64 - 1]
    first = [(cell << 18) + (cells[cell][0] >> 128) for cell in chosen]
    lower = [cells[cell][0] % 2**128 + shift for cell in chosen]
    second = [half for each in lower for half in divmod(each, 2**64)]

    class Scripted:
        def __init__(self, key: bytes, part: int) -> None:
            self.part, self.place = part, 0

        def half_words(self, size: int) -> np.ndarray:
            assert self.part == 0
            self.place += size
            return np.array(first[self.place - size : self.place], dtype=np.uint32)

        def words(self, size: int) -> np.ndarray:
            assert self.part == 1
            self.place += size
            return np.array(second[self.place - size : self.place], dtype=np.uint64)

    monkeypatch.setattr(pairwise_noise, "KeyStream", Scripted)
    assert len(chosen) > BLOCK
    expected = [(cell if shift < 0 else cells[cell][1]) - 8192 for cell in chosen]
    assert gaussian_pair_noise(KEY, len(chosen)).tolist() == expected


def test_a_draw_has_exactly_the_law_of_the_table() -> None:
    table, masses = pairwise_noise._alias_table(), [0] * 16384
    for cell in range(16384):
        upper, lower = (int(half) for half in table.low[cell])
        own = ((int(table.limits[cell]) - (cell << 18)) << 128) + (upper << 64) + lower
        assert 0 <= own < 2**146
        masses[int(table.outcomes[2 * cell + 1]) + 8192] += own
        masses[int(table.outcomes[2 * cell]) + 8192] += 2**146 - own
    assert masses == list_gaussian_masses() == reference.gaussian_masses()
    assert sum(masses) == 2**160


def distance_to_discrete_gaussian(masses: list[int], std: int) -> Fraction:
    """Total variation in whole multiples of 10^-70, with what lies beyond the table counted."""
    with mpmath.workdps(90):
        weights = [mpmath.exp(-mpmath.mpf(n * n) / (2 * std**2)) for n in range(-20000, 20001)]
        scale = mpmath.mpf(10) ** 70 / mpmath.fsum(weights)
        wanted = [int(mpmath.nint(weight * scale)) for weight in weights]
    table = [0] * (20000 - 8192) + [mass * 10**70 // 2**160 for mass in masses]
    table += [0] * (len(wanted) - len(table))
    return Fraction(sum(abs(a - b) for a, b in zip(wanted, table, strict=True)), 2 * 10**70)


def test_the_table_is_within_the_stated_distance_of_the_discrete_gaussian() -> None:
    masses = list_gaussian_masses()
    assert all(mass >= 0 for mass in masses)
    assert GAUSSIAN_STD == 512
    assert distance_to_discrete_gaussian(masses, 512) <= Fraction(1, 2**146)
    assert distance_to_discrete_gaussian(masses, 513) > Fraction(1, 2**146)
    variance = Fraction(sum(mass * (cell - 8192) ** 2 for cell, mass in enumerate(masses)), 2**160)
    assert abs(variance - 512**2) < Fraction(1, 2**50)


def has_gaussian_frequencies(values: np.ndarray) -> bool:
    """Chi-square test of 64 about equally likely bins at level ALPHA."""
    cumulative = np.cumsum([mass / 2**160 for mass in reference.gaussian_masses()])
    edges = np.searchsorted(cumulative, np.arange(1, 64) / 64)
    expected = values.size * np.diff(np.concatenate([[0.0], cumulative[edges], [1.0]]))
    bins = np.searchsorted(edges - 8192, values, side="left")
    counts = np.bincount(bins, minlength=64)
    return bool(np.sum((counts - expected) ** 2 / expected) < chi2.ppf(1 - ALPHA, 63))


def variance_is_right(values: np.ndarray) -> bool:
    """Test the second moment at level ALPHA; at 512 steps a deviation the rounding is nothing."""
    total = float(np.sum((values / 512.0) ** 2))
    return bool(chi2.ppf(ALPHA / 2, values.size) < total < chi2.ppf(1 - ALPHA / 2, values.size))


@pytest.mark.parametrize("key", [KEY, *OTHERS[:2]])
def test_gaussian_noise_has_the_stated_law(key: bytes) -> None:
    noise = gaussian_pair_noise(key, N).astype(np.float64)
    assert has_gaussian_frequencies(noise)
    assert variance_is_right(noise)
    assert abs(noise.mean()) * np.sqrt(N) / 512 < norm.ppf(1 - ALPHA / 2)
    # The twins that must fail: a standard deviation wrong by 2%.
    for factor in (0.98, 1.02):
        wrong = np.rint(factor * noise)
        assert not has_gaussian_frequencies(wrong)
        assert not variance_is_right(wrong)


def test_masks_are_uniform() -> None:
    def is_uniform(values: np.ndarray) -> bool:
        counts = np.bincount(values >> np.uint32(24), minlength=256)
        statistic = np.sum((counts - values.size / 256) ** 2) / (values.size / 256)
        return bool(statistic < chi2.ppf(1 - ALPHA, 255))

    masks = uniform_masks(KEY, N)
    assert is_uniform(masks)
    assert not is_uniform(masks & ~np.uint32(2**24))


def are_uncorrelated(a: np.ndarray, b: np.ndarray) -> bool:
    correlation = float(np.mean(a.astype(np.float64) * b)) / 512**2
    return abs(correlation) * np.sqrt(a.size) < norm.ppf(1 - ALPHA / 2)


def test_different_keys_and_neighbouring_coordinates_are_uncorrelated() -> None:
    flipped = bytes([KEY[0] ^ 1]) + KEY[1:]
    one, other = gaussian_pair_noise(KEY, N), gaussian_pair_noise(flipped, N)
    assert are_uncorrelated(one, other)
    assert are_uncorrelated(one[1:], one[:-1])
    assert are_uncorrelated(one[BLOCK:], one[:-BLOCK])
    assert not are_uncorrelated(one, one)
    assert not are_uncorrelated(one, np.rint(other + 0.05 * one))


@pytest.mark.parametrize("size", [0, 1, 3, BLOCK, 2 * BLOCK + 1])
def test_sums_add_some_keys_and_take_away_others(size: int) -> None:
    added, subtracted = OTHERS[:3], OTHERS[3:]
    sign = dict.fromkeys(added, 1) | dict.fromkeys(subtracted, -1)
    noise = sum(sign[key] * gaussian_pair_noise(key, size).astype(np.int64) for key in OTHERS)
    masks = sum(sign[key] * uniform_masks(key, size).astype(np.int64) for key in OTHERS)
    total = sum_pair_noise(added, subtracted, size)
    assert total.dtype == np.int64
    assert np.array_equal(total, noise)
    assert np.array_equal(total, -sum_pair_noise(subtracted, added, size))
    total_masks = sum_uniform_masks(added, subtracted, size)
    assert total_masks.dtype == np.uint32
    assert np.array_equal(total_masks, masks % 2**32)


def test_sums_of_no_keys_are_zero() -> None:
    assert sum_pair_noise([], [], 3).tolist() == [0, 0, 0]
    assert sum_uniform_masks([], [], 3).tolist() == [0, 0, 0]


def test_sums_do_not_overflow_a_small_type() -> None:
    keys = [each.to_bytes(32, "big") for each in range(4000)]
    total = sum_pair_noise(keys, [], 8)
    assert total.tolist() == np.sum([gaussian_pair_noise(key, 8) for key in keys], axis=0).tolist()
    assert np.abs(total).max() > 2**15


def test_the_edge_is_the_third_part_below_the_probability() -> None:
    for key in (KEY, *OTHERS):
        word = reference.read_words(reference.key_stream(key, 2, 8), 8)[0]
        # A double has 53 bits: round the word's share down and up.
        share = (word >> 11) / 2**53
        assert not has_edge(key, share)
        assert has_edge(key, share + 2.0**-53)
        assert has_edge(key, 1.0)
        assert has_edge(key, 1)
        assert not has_edge(key, 0.0)


@pytest.mark.parametrize(
    ("word", "probability", "edge"),
    [(2**63, 0.5, False), (2**63 - 1, 0.5, True), (0, 0.0, False), (2**64 - 1, 1.0, True)],
)
def test_the_edge_s_bound_is_exact(
    word: int, probability: float, edge: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scripted:
        def __init__(self, key: bytes, part: int) -> None:
            assert part == 2

        def words(self, size: int) -> np.ndarray:
            return np.full(size, word, dtype=np.uint64)

    monkeypatch.setattr(pairwise_noise, "KeyStream", Scripted)
    assert has_edge(KEY, probability) is edge


def test_edges_are_as_frequent_as_their_probability() -> None:
    keys, probability = [each.to_bytes(32, "big") for each in range(20_000)], 0.3
    edges = sum(has_edge(key, probability) for key in keys)
    deviation = np.sqrt(len(keys) * probability * (1 - probability))
    bound = norm.ppf(1 - ALPHA / 2)
    assert abs(edges - len(keys) * probability) < bound * deviation
    assert abs(edges - len(keys) * 0.33) > bound * deviation


@pytest.mark.parametrize("key", [b"", KEY[1:], KEY + b"0", "0" * 32, None, bytearray(KEY)])
def test_keys_of_another_kind_are_refused_and_not_shown(key: object) -> None:
    for draw in (gaussian_pair_noise, uniform_masks):
        with pytest.raises(ParameterError, match="allowed: 32 bytes"):
            draw(key, 3)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="allowed: 32 bytes"):
        has_edge(key, 0.5)  # type: ignore[arg-type]
    secret = b"secret" * 5
    with pytest.raises(ParameterError) as caught:
        sum_pair_noise([KEY], [secret], 3)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("total", [sum_pair_noise, sum_uniform_masks])
def test_a_key_that_occurs_twice_is_refused(total) -> None:
    for added, subtracted in (([KEY, KEY], []), ([KEY], [KEY]), ([], [KEY, OTHERS[0], KEY])):
        with pytest.raises(ParameterError, match="allowed: each key once"):
            total(added, subtracted, 3)


@pytest.mark.parametrize("size", [-1, 1.5, True, None])
def test_sizes_below_zero_or_no_integers_are_refused(size: object) -> None:
    with pytest.raises(ParameterError, match="size"):
        gaussian_pair_noise(KEY, size)  # type: ignore[arg-type]


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan"), float("inf"), True, "1"])
def test_probabilities_out_of_range_are_refused(probability: object) -> None:
    with pytest.raises(ParameterError, match="probability"):
        has_edge(KEY, probability)  # type: ignore[arg-type]
