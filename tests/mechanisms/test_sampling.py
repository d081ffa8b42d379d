from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from strategies.mechanisms.rng import SecretStream, SeededStream, Stream
from strategies.mechanisms.sampling import (
    draw_batches,
    draw_poisson_batches,
    shuffle_epochs,
    split_poisson_sample,
)

Draw = Callable[[], list[np.ndarray]]


@given(batch=st.integers(1, 9), steps=st.integers(1, 9), extra=st.integers(0, 20))
def test_batches_are_disjoint_and_full(batch: int, steps: int, extra: int) -> None:
    batches = draw_batches(batch * steps + extra, batch, steps, SeededStream(b"x"))
    assert [len(b) for b in batches] == [batch] * steps
    joined = np.concatenate(batches)
    assert len(set(joined.tolist())) == batch * steps
    assert joined.min() >= 0
    assert joined.max() < batch * steps + extra


def test_each_record_is_drawn_with_probability_eb_over_n() -> None:
    stream, draws, n = SecretStream(), 20_000, 12
    counts = np.zeros(n)
    for _ in range(draws):
        counts[np.concatenate(draw_batches(n, 2, 2, stream))] += 1
    low, high = binom.ppf([1e-7 / n, 1 - 1e-7 / n], draws, 4 / n)
    assert np.all((low < counts) & (counts < high))
    # The published probability 1 - (1 - b/n)^E is another one, and does not pass.
    low, high = binom.ppf([1e-7 / n, 1 - 1e-7 / n], draws, 1 - (1 - 2 / n) ** 2)
    assert not np.all((low < counts) & (counts < high))


def test_too_few_records_are_refused() -> None:
    with pytest.raises(ValueError, match="num_records: 7; allowed: at least"):
        draw_batches(7, 4, 2, SecretStream())


@given(n=st.integers(0, 40), batch=st.integers(1, 9), epochs=st.integers(1, 3))
def test_epochs_use_every_record_once_each(n: int, batch: int, epochs: int) -> None:
    batches = shuffle_epochs(n, batch, epochs, SeededStream(b"y"))
    joined = np.concatenate([np.zeros(0, dtype=np.int64), *batches])
    assert np.array_equal(np.bincount(joined, minlength=n), np.full(n, epochs))
    assert all(1 <= len(b) <= batch for b in batches)


@pytest.mark.parametrize(("batch", "count"), [(0, 1), (1, 0)])
def test_batch_size_and_counts_are_positive(batch: int, count: int) -> None:
    with pytest.raises(ValueError, match="allowed: >= 1"):
        draw_batches(10, batch, count, SecretStream())
    with pytest.raises(ValueError, match="allowed: >= 1"):
        shuffle_epochs(10, batch, count, SecretStream())


FPR = 1e-6


def within_binomial(counts: np.ndarray, trials: int, probability: float) -> bool:
    """Whether all counts are plausible: a false alarm has probability below FPR in all."""
    tail = FPR / (2 * np.size(counts))
    low, high = binom.ppf(tail, trials, probability), binom.isf(tail, trials, probability)
    return bool(np.all((low <= counts) & (counts <= high)))


def incidence(draw: Draw, n: int, steps: int, draws: int) -> np.ndarray:
    """Which record is in which batch, shape (draws, steps, n)."""
    found = np.zeros((draws, steps, n), dtype=bool)
    for trial in range(draws):
        for step, batch in enumerate(draw()):
            found[trial, step, batch] = True
    return found


def independent_steps(found: np.ndarray, rate: float) -> bool:
    """Each record is in each batch with the rate; in two batches, or two records, rate^2."""
    draws, steps, n = found.shape
    first = found[:, 0, :] & found[:, 1, :]
    neighbours = found[:, :, 0::2] & found[:, :, 1::2]
    return (
        within_binomial(found.sum(axis=(0, 1)), draws * steps, rate)
        and within_binomial(found.sum(axis=(0, 2)), draws * n, rate)
        and within_binomial(first.sum(axis=0), draws, rate**2)
        and within_binomial(np.array([first.sum()]), draws * n, rate**2)
        and within_binomial(np.array([neighbours.sum()]), neighbours.size, rate**2)
    )


STREAMS: list[Callable[[], Stream]] = [SecretStream, lambda: SeededStream(b"poisson")]


@pytest.mark.parametrize("make", STREAMS)
def test_poisson_batches_are_independent_with_the_rate(make: Callable[[], Stream]) -> None:
    stream, n, steps, draws, rate = make(), 40, 4, 10_000, 0.3

    def fresh(q: float) -> np.ndarray:
        return incidence(lambda: draw_poisson_batches(n, q, steps, stream), n, steps, draws)

    assert independent_steps(fresh(rate), rate)
    assert not independent_steps(fresh(1.02 * rate), rate)

    def reused() -> list[np.ndarray]:
        return steps * draw_poisson_batches(n, rate, 1, stream)

    assert not independent_steps(incidence(reused, n, steps, draws), rate)


def even_split(found: np.ndarray, rate: float) -> bool:
    """Each record is in the round with the rate, and in each batch with rate / E."""
    draws, steps, n = found.shape
    used = found.any(axis=1)
    neighbours = used[:, 0::2] & used[:, 1::2]
    together = (found[:, :, 0::2] & found[:, :, 1::2]).any(axis=1)
    return (
        int(found.sum(axis=1).max()) <= 1
        and within_binomial(used.sum(axis=0), draws, rate)
        and within_binomial(np.array([used.sum()]), draws * n, rate)
        and within_binomial(found.sum(axis=(0, 2)), draws * n, rate / steps)
        and within_binomial(np.array([neighbours.sum()]), neighbours.size, rate**2)
        and within_binomial(np.array([together.sum()]), neighbours.size, rate**2 / steps)
    )


@pytest.mark.parametrize("make", STREAMS)
def test_a_split_sample_has_the_rate_and_disjoint_even_batches(make: Callable[[], Stream]) -> None:
    stream, n, steps, draws, rate = make(), 40, 3, 20_000, 0.6

    def split(q: float) -> np.ndarray:
        return incidence(lambda: split_poisson_sample(n, q, steps, stream), n, steps, draws)

    assert even_split(split(rate), rate)
    assert not even_split(split(1.02 * rate), rate)

    def cut() -> list[np.ndarray]:  # a sample cut in order: not every batch is equally likely
        return np.array_split(split_poisson_sample(n, rate, 1, stream)[0], steps)

    assert not even_split(incidence(cut, n, steps, draws), rate)

    def separate() -> list[np.ndarray]:  # independent batches: not disjoint
        return draw_poisson_batches(n, rate / steps, steps, stream)

    assert not even_split(incidence(separate, n, steps, draws), rate)


@given(n=st.integers(0, 40), steps=st.integers(1, 9), rate=st.floats(1e-9, 1.0))
def test_poisson_draws_are_sorted_records(n: int, steps: int, rate: float) -> None:
    for draw in (draw_poisson_batches, split_poisson_sample):
        batches = draw(n, rate, steps, SeededStream(b"z"))
        assert len(batches) == steps
        for batch in batches:
            assert batch.dtype == np.int64
            assert np.all(np.diff(batch) > 0)
            assert np.all((batch >= 0) & (batch < n))


def test_rate_one_draws_every_record() -> None:
    assert all(len(b) == 9 for b in draw_poisson_batches(9, 1.0, 3, SecretStream()))
    joined = np.concatenate(split_poisson_sample(9, 1, 3, SecretStream()))
    assert sorted(joined.tolist()) == list(range(9))


def test_a_rare_rate_leaves_batches_empty() -> None:
    for draw in (draw_poisson_batches, split_poisson_sample):
        assert [len(b) for b in draw(50, 1e-12, 4, SeededStream(b"rare"))] == [0, 0, 0, 0]
        assert [len(b) for b in draw(0, 0.5, 2, SecretStream())] == [0, 0]


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0001, float("nan"), float("inf"), True, "0.5", None])
def test_a_sample_rate_is_in_zero_to_one(rate: object) -> None:
    for draw in (draw_poisson_batches, split_poisson_sample):
        with pytest.raises(ValueError, match=r"sample_rate: .*allowed: a number in \(0, 1\]"):
            draw(5, rate, 1, SecretStream())  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "steps"), [(-1, 1), (5, 0)])
def test_poisson_counts_are_checked(n: int, steps: int) -> None:
    for draw in (draw_poisson_batches, split_poisson_sample):
        with pytest.raises(ValueError, match="allowed: >= 0, >= 1"):
            draw(n, 0.5, steps, SecretStream())
