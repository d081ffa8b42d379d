"""Normal numbers: the pieces add up to the density, and each is drawn from as it should be."""

import bisect
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import chi2, norm

from strategies.mechanisms import normal
from strategies.mechanisms.normal import NUM_CELLS, cut_density, normal_numbers
from strategies.mechanisms.rng import SecretStream, SeededStream, Stream

ALPHA = 1e-6
PIECES = cut_density()
NUM_RECTANGLES = PIECES.widths.size


class _Left:
    """Words of which every cell is one of the remainder."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.first = stream, True

    def words(self, size: int) -> np.ndarray:
        if self.first:
            self.first = False
            return np.full(size, NUM_CELLS - 1, dtype=np.uint64)
        return self.stream.words(size)


def half_density(x: float) -> float:
    return 2.0 * float(norm.pdf(x))


def test_rectangles_lie_under_the_density_and_have_equal_areas() -> None:
    assert np.all(np.diff(PIECES.widths) < 0)
    heights = np.diff(PIECES.tops, prepend=0.0)
    assert np.allclose(PIECES.widths * heights, 1 / NUM_CELLS, rtol=1e-11)
    assert np.all(PIECES.tops <= 2 * norm.pdf(PIECES.widths))
    # Few cells are left over: that is what makes the method fast.
    assert 0.99 < NUM_RECTANGLES / NUM_CELLS < 1


def test_boxes_cover_what_the_rectangles_leave() -> None:
    assert np.array_equal(PIECES.lefts, np.append(PIECES.widths[1:], 0.0))
    # The density falls, so a box that is high enough at its left end is high enough.
    assert np.allclose(PIECES.tops + PIECES.heights, 2 * norm.pdf(PIECES.lefts), rtol=1e-14)
    assert pytest.approx(2 * norm.sf(PIECES.widths[0]), rel=1e-12) == PIECES.tail
    areas = np.diff(PIECES.shares)
    assert np.allclose(areas, (PIECES.widths - PIECES.lefts) * PIECES.heights, rtol=1e-9)
    assert PIECES.shares[0] == PIECES.tail


def test_the_pieces_add_up_to_the_whole_density() -> None:
    """The remainder's probability is exactly that of the cells that stand for it."""
    wedges = [
        quad(lambda x, top=top: half_density(x) - top, left, right, epsabs=1e-15)[0]
        for left, right, top in zip(PIECES.lefts, PIECES.widths, PIECES.tops, strict=True)
    ]
    total = PIECES.tail + math.fsum(wedges)
    assert total == pytest.approx(1 - NUM_RECTANGLES / NUM_CELLS, abs=1e-12)


def test_a_word_in_a_rectangle_is_scaled_by_its_width() -> None:
    """The straightforward formula, word by word; the words are used in order."""
    size = 20_000
    words = SeededStream(b"words").words(size)
    numbers = normal_numbers(SeededStream(b"words").words, size)
    inside = 0
    for word, number in zip(words.tolist(), numbers.tolist(), strict=True):
        cell = word % NUM_CELLS
        if cell < NUM_RECTANGLES:
            high = word >> 11
            signed = (high - 2**53 if high >= 2**52 else high) | 1
            assert number == signed * (PIECES.widths[cell] * 2.0**-52)
            assert abs(number) < PIECES.widths[cell]
            inside += 1
    assert 0.99 < inside / size < 1


def test_the_remainder_is_drawn_by_the_straightforward_formula() -> None:
    """One candidate after the other: a piece, a point in its box, whether it lies below g."""
    stream = _Left(SeededStream(b"remainder"))
    numbers = normal_numbers(stream.words, 50).tolist()
    candidates = 2 * 50 + 16
    words = SeededStream(b"remainder").words(3 * candidates).reshape(3, candidates).tolist()
    expected = []
    for first, second, third in zip(*words, strict=True):
        which, across, up = (((word >> 12) + 0.5) / 2**52 for word in (first, second, third))
        sign = -1.0 if first % 2 else 1.0
        piece = bisect.bisect_left(PIECES.shares.tolist(), which * PIECES.shares[-1])
        if piece == 0:
            expected.append(sign * norm.isf(across * norm.sf(PIECES.widths[0])))
            continue
        left, right = PIECES.lefts[piece - 1], PIECES.widths[piece - 1]
        number = left + across * (right - left)
        if PIECES.tops[piece - 1] + up * PIECES.heights[piece - 1] < half_density(number):
            expected.append(sign * number)
    assert numbers == pytest.approx(expected[:50], rel=1e-9)


def test_candidates_are_drawn_until_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_some = normal._remainder
    monkeypatch.setattr(normal, "_remainder", lambda draw, _, pieces: draw_some(draw, 3, pieces))
    numbers = normal_numbers(_Left(SecretStream()).words, 200)
    assert np.all(numbers != 0)
    assert len(np.unique(numbers)) == 200


def frequencies_fit(numbers: np.ndarray, edges: np.ndarray) -> bool:
    """Pearson's test of N(0, 1) at level ALPHA."""
    expected = np.diff(ndtr(edges)) * numbers.size
    counts = np.histogram(numbers, bins=edges)[0]
    statistic = np.sum((counts - expected) ** 2 / expected)
    return bool(statistic < chi2.ppf(1 - ALPHA, len(edges) - 2))


@pytest.mark.parametrize("twin", [0.98, 1.02, 1.0])
def test_frequencies_are_normal(twin: float) -> None:
    edges = norm.ppf(np.linspace(0, 1, 257))
    numbers = normal_numbers(SecretStream().words, 1_000_000)
    assert frequencies_fit(twin * numbers, edges) == (twin == 1.0)


def remainder_fits(numbers: np.ndarray) -> bool:
    """Test the remainder alone, in the signed pieces between the widths: tail, wedges, cap."""
    right, left = PIECES.widths[::64], np.append(PIECES.widths[64::64], 0.0)
    share = NUM_CELLS - NUM_RECTANGLES
    expected, counts = [2 * norm.sf(right[0])], [np.sum(np.abs(numbers) > right[0])]
    for low, high in zip(left, right, strict=True):
        mass = 2 * (ndtr(high) - ndtr(low))
        covered = np.clip(PIECES.widths, None, high) - np.clip(PIECES.widths, None, low)
        expected.append(mass - float(np.sum(covered / PIECES.widths)) / NUM_CELLS)
        counts.append(np.sum((np.abs(numbers) > low) & (np.abs(numbers) <= high)))
    wanted = np.array(expected) * (NUM_CELLS / share) * numbers.size
    assert wanted.sum() == pytest.approx(numbers.size)
    statistic = np.sum((np.array(counts) - wanted) ** 2 / wanted)
    return bool(statistic < chi2.ppf(1 - ALPHA, len(wanted) - 1))


@pytest.mark.parametrize("twin", [0.98, 1.0])
def test_frequencies_of_the_remainder(twin: float) -> None:
    # More than one block: only the first counts as the remainder, the rest is cut off.
    numbers = np.concatenate([normal_numbers(_Left(SecretStream()).words, 8192) for _ in range(25)])
    assert remainder_fits(twin * numbers) == (twin == 1.0)
    positive = np.sum(numbers > 0)
    assert abs(positive - numbers.size / 2) < norm.isf(ALPHA / 2) * math.sqrt(numbers.size) / 2


def test_the_tail_is_normal() -> None:
    edge = PIECES.widths[0]
    numbers = np.abs(
        np.concatenate([normal_numbers(_Left(SecretStream()).words, 8192) for _ in range(25)])
    )
    # The probability integral transform of what lies beyond the rectangles is uniform.
    uniform = norm.sf(numbers[numbers > edge]) / norm.sf(edge)
    assert uniform.size > 2_000
    counts = np.histogram(uniform, bins=np.linspace(0, 1, 17))[0]
    expected = uniform.size / 16
    assert np.sum((counts - expected) ** 2 / expected) < chi2.ppf(1 - ALPHA, 15)


@given(size=st.integers(0, 40), seed=st.integers(0, 2**32))
def test_numbers_are_a_function_of_the_words(size: int, seed: int) -> None:
    name = seed.to_bytes(8, "little")
    one = normal_numbers(SeededStream(name).words, size)
    assert one.shape == (size,)
    assert one.dtype == np.float64
    assert np.isfinite(one).all()
    assert np.array_equal(one, normal_numbers(SeededStream(name).words, size))


def test_the_size_of_the_blocks_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    one = normal_numbers(SeededStream(b"blocks").words, 30_000)
    monkeypatch.setattr("strategies.mechanisms.normal._BLOCK", 1000)
    assert np.array_equal(one, normal_numbers(SeededStream(b"blocks").words, 30_000))
