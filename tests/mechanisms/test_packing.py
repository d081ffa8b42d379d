"""Packing: the stated layout bit for bit, its inverse, and refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.mechanisms.packing import PackingError, pack, packed_size, unpack, unsigned_type


def straightforward(numbers: list[int], width: int) -> bytes:
    """The layout as the module states it, one number at a time."""
    data = b""
    for low in range(0, width, 8):
        bits, joined = min(8, width - low), 0
        for position, number in enumerate(numbers):
            joined |= ((number >> low) & (2**bits - 1)) << (bits * position)
        data += joined.to_bytes((len(numbers) * bits + 7) // 8, "little")
    return data


@given(width=st.integers(1, 32), values=st.data())
def test_bytes_are_those_of_the_straightforward_layout(width: int, values: st.DataObject) -> None:
    numbers = values.draw(st.lists(st.integers(0, 2**width - 1), max_size=40))
    data = straightforward(numbers, width)
    for kind in {unsigned_type(width), np.uint32}:
        assert pack(np.array(numbers, dtype=kind), width) == data
    unpacked = unpack(data, len(numbers), width)
    assert unpacked.tolist() == numbers
    assert unpacked.dtype == unsigned_type(width)
    assert unpacked.flags.writeable


@given(width=st.integers(1, 32), count=st.integers(0, 70), seed=st.integers(0, 2**32 - 1))
def test_round_trip(width: int, count: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    numbers = generator.integers(0, 2**width, size=count, dtype=np.uint64).astype(np.uint32)
    data = pack(numbers, width)
    assert len(data) == packed_size(count, width)
    assert 8 * len(data) < count * width + 16
    assert np.array_equal(unpack(data, count, width), numbers)


def test_narrow_numbers_lie_in_the_stated_order() -> None:
    # 3-bit numbers 1, 2, 3: 1 + 2 * 8 + 3 * 64 = 209.
    assert pack(np.array([1, 2, 3], dtype=np.uint32), 3) == bytes([209, 0])


def test_a_number_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="16; allowed: below 2\\^4"):
        pack(np.array([16], dtype=np.uint32), 4)


@pytest.mark.parametrize("length", [0, 3, 5])
def test_a_wrong_length_is_refused(length: int) -> None:
    with pytest.raises(PackingError, match="packed vector of"):
        unpack(bytes(length), 5, 5)  # 25 bits take 4 bytes


def test_padding_bits_must_be_zero() -> None:
    data = bytearray(pack(np.array([1, 2, 3], dtype=np.uint32), 5))
    data[-1] |= 0x80
    with pytest.raises(PackingError, match="padding"):
        unpack(bytes(data), 3, 5)


@pytest.mark.parametrize("width", [0, 33])
def test_widths_are_1_to_32(width: int) -> None:
    with pytest.raises(ValueError, match="width"):
        packed_size(1, width)
