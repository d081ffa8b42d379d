import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from strategies.mechanisms.rng import SecretStream, SeededStream
from strategies.mechanisms.sampling import draw_batches, shuffle_epochs


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
