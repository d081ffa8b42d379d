"""QSGD: unbiased, exact on levels, bounded, and of the stated size."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from strategies.mechanisms.packing import PackingError, unsigned_type
from strategies.mechanisms.quantization import (
    QuantizedVector,
    _quantize_block,
    code_width,
    dequantize_qsgd,
    pack_qsgd,
    qsgd_num_bits,
    qsgd_variance_factor,
    quantize_qsgd,
    unpack_qsgd,
)
from strategies.mechanisms.rng import SecretStream, SeededStream, Stream

# Per-coordinate z tests: 6.5 standard errors, below 1e-6 over all coordinates of a test.
Z = float(norm.isf(1e-10))


class Constant(Stream):
    """A stream of one word; 0 always rounds down: what a deterministic quantiser would do."""

    def __init__(self, word: int = 0) -> None:
        self.word = word

    def words(self, size: int) -> np.ndarray:
        return np.full(size, self.word, dtype=np.uint64)


def bias_in_standard_errors(vector: np.ndarray, num_levels: int, stream: Stream) -> np.ndarray:
    repeats = 2000
    tiled = np.stack(
        [dequantize_qsgd(quantize_qsgd(vector, num_levels, stream)) for _ in range(repeats)]
    )
    step = np.linalg.norm(vector) / num_levels
    error = tiled.mean(axis=0) - vector
    # The largest variance that rounding to a grid can have is step^2 / 4.
    return error / (step / 2 / math.sqrt(repeats))


@pytest.mark.parametrize("num_levels", [1, 2, 3, 7, 10, 100, 128, 255])
@pytest.mark.parametrize("size", [2, 3, 17, 101])
def test_quantising_is_unbiased(num_levels: int, size: int) -> None:
    vector = np.random.default_rng(size).normal(size=size)
    assert np.abs(bias_in_standard_errors(vector, num_levels, SecretStream())).max() < Z
    # The twin that must fail: rounding down (of many coordinates, one is far from its level).
    if size > 3:
        assert np.abs(bias_in_standard_errors(vector, num_levels, Constant())).max() > Z


@pytest.mark.parametrize("num_levels", range(1, 256))
def test_every_level_count_keeps_special_vectors(num_levels: int) -> None:
    stream = SecretStream()
    single = np.array([-3.0])
    assert dequantize_qsgd(quantize_qsgd(single, num_levels, stream)) == pytest.approx(single)
    one_non_zero = np.array([0.0, 0.0, 2.5, 0.0, 0.0])
    kept = dequantize_qsgd(quantize_qsgd(one_non_zero, num_levels, stream))
    assert np.array_equal(kept, one_non_zero)
    zeros = quantize_qsgd(np.zeros(7), num_levels, stream)
    assert zeros.scale == 0.0
    assert np.array_equal(dequantize_qsgd(zeros), np.zeros(7))
    empty = quantize_qsgd(np.zeros(0), num_levels, stream)
    assert dequantize_qsgd(empty).shape == (0,)


def test_a_coordinate_exactly_on_a_level_stays_there() -> None:
    # Norm 5, s = 5: 3 and 4 are levels 3 and 4; s = 10: levels 6 and 8.
    vector = np.array([3.0, -4.0])
    for num_levels, levels in ((5, [3, 4]), (10, [6, 8])):
        for _ in range(200):
            quantized = quantize_qsgd(vector, num_levels, SecretStream())
            assert quantized.levels.tolist() == levels
        assert np.array_equal(dequantize_qsgd(quantized), vector)


@settings(max_examples=200)
@given(
    num_levels=st.integers(1, 65535),
    values=st.lists(st.floats(-1e30, 1e30), max_size=40),
    seed=st.integers(0, 1000),
)
def test_error_is_at_most_one_level_and_codes_are_in_range(
    num_levels: int, values: list[float], seed: int
) -> None:
    vector = np.array(values, dtype=np.float64)
    quantized = quantize_qsgd(vector, num_levels, SeededStream(bytes([seed % 256])))
    assert quantized.levels.max(initial=0) <= num_levels
    error = np.abs(dequantize_qsgd(quantized) - vector)
    assert np.all(error <= quantized.scale / num_levels * (1 + 1e-9))
    again = unpack_qsgd(pack_qsgd(quantized), vector.size, num_levels)
    assert again.scale == quantized.scale
    assert np.array_equal(again.levels, quantized.levels)
    assert np.array_equal(again.negative, quantized.negative)


@pytest.mark.parametrize("scale", [1e-300, 1e-45, 1e-38, 1e38])
def test_extreme_scales(scale: float) -> None:
    vector = scale * np.array([1.0, -2.0, 2.0])
    quantized = quantize_qsgd(vector, 10, SecretStream())
    assert quantized.levels.max() <= 10
    assert np.isfinite(dequantize_qsgd(quantized)).all()


@given(
    num_levels=st.integers(1, 65535),
    values=st.lists(st.floats(-1e3, 1e3, allow_subnormal=False), min_size=1, max_size=40),
    seed=st.integers(0, 1000),
)
def test_levels_are_those_of_the_straightforward_formula(
    num_levels: int, values: list[float], seed: int
) -> None:
    """Rational arithmetic, one coordinate at a time, with the same words."""
    vector, name = np.array(values), seed.to_bytes(2, "little")
    quantized = quantize_qsgd(vector, num_levels, SeededStream(name))
    words = SeededStream(name).half_words(vector.size)
    decoded = dequantize_qsgd(quantized)
    for index, (value, word) in enumerate(zip(values, words.tolist(), strict=True)):
        if quantized.scale == 0.0:
            break
        exact = Fraction(value) * num_levels / Fraction(quantized.scale)
        position = exact + (Fraction(word) + Fraction(1, 2)) / 2**32
        level = int(quantized.levels[index]) * (-1 if quantized.negative[index] else 1)
        # Where float64 cannot tell the sum from an integer, either neighbour will do.
        if abs(position - round(position)) > Fraction(1, 2**34):
            assert level == math.floor(position)
        assert decoded[index] == level * quantized.scale / num_levels
        assert abs(level) <= num_levels


@pytest.mark.parametrize("word", [0, 2**64 - 1])
@pytest.mark.parametrize("num_levels", [1, 7, 127, 128, 255, 256, 32767, 32768, 65535])
def test_no_word_moves_a_level_or_leaves_the_range(num_levels: int, word: int) -> None:
    # The largest coordinate fixes the scale; all the others lie on levels.
    levels = np.unique(np.linspace(-num_levels, num_levels, 301).astype(int))
    scale = float(np.float32(3.7))
    vector = levels * scale / num_levels
    codes = np.zeros(vector.size, dtype=unsigned_type(code_width(num_levels)))
    _quantize_block(vector, codes, scale, num_levels, Constant(word))
    quantized = QuantizedVector(scale, codes, num_levels)
    # Zero has one code: no sign.
    sign_bit = 2 ** math.ceil(math.log2(num_levels + 1))
    assert np.array_equal(quantized.codes, np.where(levels < 0, sign_bit - levels, levels))
    # A norm that was rounded down leaves coordinates a little beyond the scale.
    beyond = np.array([scale, -scale]) * (1 + 1e-9)
    _quantize_block(beyond, codes[:2], scale, num_levels, Constant(word))
    assert QuantizedVector(scale, codes[:2], num_levels).levels.tolist() == [num_levels] * 2


@pytest.mark.parametrize("num_levels", [7, 100, 1000])
def test_the_size_of_the_blocks_does_not_show(
    num_levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector = np.random.default_rng(0).normal(size=40_001)
    one = pack_qsgd(quantize_qsgd(vector, num_levels, SeededStream(b"blocks")))
    monkeypatch.setattr("strategies.mechanisms.quantization._BLOCK", 2**8)
    assert pack_qsgd(quantize_qsgd(vector, num_levels, SeededStream(b"blocks"))) == one


def test_a_norm_beyond_float32_is_refused() -> None:
    with pytest.raises(ValueError, match="norm of the vector"):
        quantize_qsgd(np.array([1e300]), 10, SecretStream())


def test_mean_squared_error_is_below_the_published_factor() -> None:
    vector = np.random.default_rng(0).normal(size=400)
    for num_levels in (1, 4, 20, 100):
        errors = [
            np.sum(
                (dequantize_qsgd(quantize_qsgd(vector, num_levels, SecretStream())) - vector) ** 2
            )
            for _ in range(50)
        ]
        factor = qsgd_variance_factor(vector.size, num_levels)
        assert np.mean(errors) <= factor * np.sum(vector**2)


@pytest.mark.parametrize(
    ("num_levels", "bits"), [(1, 15_732), (10, 39_282), (100, 62_832)]
)  # arXiv 2101.12240's experiments, d = 7850
def test_size_of_an_upload(num_levels: int, bits: int) -> None:
    assert qsgd_num_bits(7850, num_levels) == bits
    data = pack_qsgd(quantize_qsgd(np.ones(7850), num_levels, SecretStream()))
    assert bits <= 8 * len(data) < bits + 16


def tampered(data: bytes, position: int, value: bytes) -> bytes:
    return data[:position] + value + data[position + len(value) :]


def test_bad_uploads_are_refused() -> None:
    data = pack_qsgd(quantize_qsgd(np.arange(1.0, 9.0), 10, SecretStream()))
    for bad in (data[:-1], data + b"\0", b""):
        with pytest.raises(PackingError, match="upload of"):
            unpack_qsgd(bad, 8, 10)
    for scale in (np.nan, np.inf, -1.0):
        raw = np.float32(scale).astype("<f4").tobytes()
        with pytest.raises(PackingError, match="scale"):
            unpack_qsgd(tampered(data, 0, raw), 8, 10)
    with pytest.raises(PackingError, match="level 15"):
        unpack_qsgd(tampered(data, 4, b"\xff\xff"), 8, 10)


@pytest.mark.parametrize("num_levels", [0, -1, 65_536, True, 2.0])
def test_levels_are_1_to_65535(num_levels: int) -> None:
    with pytest.raises(ValueError, match="num_levels"):
        quantize_qsgd(np.ones(2), num_levels, SecretStream())
