"""Streams: reproducible, separate, and of the right law (each assertion fails by chance < 1e-6)."""

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.stats import chi2, norm

from strategies.mechanisms.rng import KeyStream, Randomness, SecretStream, SeededStream, Stream

N = 100_000
ALPHA = 1e-6


def make(kind: str) -> Stream:
    return SeededStream(b"test") if kind == "seeded" else SecretStream()


def variance_is_one(numbers: np.ndarray) -> bool:
    """Exact chi-square test of unit variance at level ALPHA."""
    total = float(np.sum(numbers**2))
    return bool(chi2.ppf(ALPHA / 2, numbers.size) < total < chi2.ppf(1 - ALPHA / 2, numbers.size))


@pytest.mark.parametrize("kind", ["seeded", "secret"])
def test_normal_numbers_have_mean_zero_and_variance_one(kind: str) -> None:
    numbers = make(kind).standard_normal(N)
    assert variance_is_one(numbers)
    assert abs(numbers.mean()) * np.sqrt(N) < norm.ppf(1 - ALPHA / 2)
    # The twin that must fail: a standard deviation wrong by 2%.
    assert not variance_is_one(1.02 * make(kind).standard_normal(N))
    assert not variance_is_one(0.98 * make(kind).standard_normal(N))


@pytest.mark.parametrize("kind", ["seeded", "secret"])
def test_normal_numbers_have_normal_frequencies(kind: str) -> None:
    edges = norm.ppf(np.linspace(0, 1, 65))
    counts = np.histogram(make(kind).standard_normal(N), bins=edges)[0]
    statistic = np.sum((counts - N / 64) ** 2) / (N / 64)
    assert statistic < chi2.ppf(1 - ALPHA, 63)


@pytest.mark.parametrize("kind", ["seeded", "secret"])
def test_uniform_numbers_have_uniform_frequencies(kind: str) -> None:
    numbers = make(kind).uniform(N)
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts = np.histogram(numbers, bins=np.linspace(0, 1, 65))[0]
    assert np.sum((counts - N / 64) ** 2) / (N / 64) < chi2.ppf(1 - ALPHA, 63)


@pytest.mark.parametrize("kind", ["seeded", "secret"])
def test_ordered_samples_are_equally_likely(kind: str) -> None:
    stream, draws = make(kind), 12_000
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(draws):
        sample = tuple(stream.sample_without_replacement(4, 2).tolist())
        counts[sample] = counts.get(sample, 0) + 1
    assert len(counts) == 12
    assert all(a != b for a, b in counts)
    statistic = sum((count - draws / 12) ** 2 / (draws / 12) for count in counts.values())
    assert statistic < chi2.ppf(1 - ALPHA, 11)


def test_samples_are_refused_beyond_the_population() -> None:
    with pytest.raises(ValueError, match="size: 5; allowed: 0 to population = 4"):
        SecretStream().sample_without_replacement(4, 5)


def test_seeded_streams_depend_on_every_part_of_their_name() -> None:
    names = [("noise", 1, 2), ("noise", 2, 1), ("noise", 12), ("records", 1, 2), ("noise", 1, 3)]
    for seed in (0, 1):
        first = {
            Randomness("seeded", seed).stream(*name).words(1)[0]
            for name in names  # type: ignore[arg-type]
        }
        again = {
            Randomness("seeded", seed).stream(*name).words(1)[0]
            for name in names  # type: ignore[arg-type]
        }
        assert len(first) == len(names)
        assert first == again
    one = Randomness("seeded", 0).stream("noise", 1).words(4)
    assert not np.array_equal(one, Randomness("seeded", 1).stream("noise", 1).words(4))


def test_secret_streams_never_repeat() -> None:
    randomness = Randomness("secret", 0)
    assert randomness.stream("noise", 1).words(1) != randomness.stream("noise", 1).words(1)


def test_secret_stream_is_the_aes_ctr_key_stream() -> None:
    key = bytes(range(32))
    expected = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(80))
    stream = SecretStream(key)
    words = np.concatenate([stream.words(3), stream.words(7)])
    assert words.tobytes() == expected


@pytest.mark.parametrize("part", [0, 1, 255])
def test_a_part_of_a_key_stream_starts_at_its_own_counter(part: int) -> None:
    counter = (part * 2**120).to_bytes(16, "big")
    expected = Cipher(algorithms.AES(bytes(32)), modes.CTR(counter)).encryptor().update(bytes(80))
    assert KeyStream(bytes(32), part).words(10).tobytes() == expected


@pytest.mark.parametrize(("kind", "seed"), [("fast", 0), ("seeded", -1), ("seeded", True)])
def test_bad_settings_are_refused(kind: str, seed: int) -> None:
    with pytest.raises(ValueError, match="allowed"):
        Randomness(kind, seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 1, 2, 7, 20_000])
def test_half_words_are_the_halves_of_the_words(size: int) -> None:
    halves = SeededStream(b"halves").half_words(size)
    words = SeededStream(b"halves").words((size + 1) // 2).tolist()
    assert halves.dtype == np.uint32
    expected = [half for word in words for half in (word % 2**32, word >> 32)]
    assert halves.tolist() == expected[:size]


def test_words_do_not_depend_on_how_many_are_drawn_at_once() -> None:
    # More than the piece of the key stream that is made at once, and an odd rest.
    stream = SeededStream(b"pieces")
    parts = [stream.words(size) for size in (20_001, 1, 0, 8191)]
    assert np.array_equal(np.concatenate(parts), SeededStream(b"pieces").words(28_193))


def test_a_seeded_stream_is_keyed_by_the_hash_of_its_name() -> None:
    key = hashlib.sha256(b"name").digest()
    assert np.array_equal(SeededStream(b"name").words(5), SecretStream(key).words(5))
    assert np.array_equal(
        Randomness("seeded", 7).stream("noise", 1, 2).words(5),
        SeededStream(b"7/noise/1/2").words(5),
    )
