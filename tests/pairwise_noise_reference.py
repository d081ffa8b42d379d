"""The pair noise once more in whole Python numbers, from the description and not from the code.

The key stream is made block by block with AES-256 alone, the probabilities with mpmath.
"""

from functools import cache

import mpmath
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


def key_stream(key: bytes, part: int, size: int) -> bytes:
    """AES-256 of the 128-bit counters part * 2^120, part * 2^120 + 1, ..., big-endian."""
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    counters = range(part * 2**120, part * 2**120 + -(-size // 16))
    return b"".join(encryptor.update(each.to_bytes(16, "big")) for each in counters)[:size]


def read_words(raw: bytes, width: int) -> list[int]:
    return [int.from_bytes(raw[at : at + width], "little") for at in range(0, len(raw), width)]


@cache
def gaussian_masses() -> list[int]:
    with mpmath.workdps(80):
        weights = [mpmath.exp(-mpmath.mpf(n * n) / (2 * 512 * 512)) for n in range(-20000, 20001)]
        total = mpmath.fsum(weights)
        masses = [
            int(mpmath.nint(weights[n + 20000] * mpmath.mpf(2) ** 160 / total))
            for n in range(-8192, 8192)
        ]
    masses[8192] += 2**160 - sum(masses)
    return masses


@cache
def alias_cells() -> list[tuple[int, int]]:
    """(threshold, alias) of every cell, thresholds out of 2^146."""
    left = dict(enumerate(gaussian_masses()))
    cells = [(0, cell) for cell in range(16384)]
    poor = [cell for cell, mass in left.items() if mass < 2**146]
    rich = [cell for cell, mass in left.items() if mass >= 2**146]
    while poor:
        taker, giver = poor.pop(), rich.pop()
        cells[taker] = (left.pop(taker), giver)
        left[giver] += cells[taker][0] - 2**146
        (poor if left[giver] < 2**146 else rich).append(giver)
    return cells


def gaussian_noise(key: bytes, size: int) -> list[int]:
    cells, ties = alias_cells(), 0
    values = []
    for word in read_words(key_stream(key, 0, 4 * size), 4):
        cell, high = divmod(word, 2**18)
        threshold, alias = cells[cell]
        if high == threshold >> 128:
            upper, lower = read_words(key_stream(key, 1, 16 * (ties + 1)), 8)[2 * ties :]
            own = upper * 2**64 + lower < threshold % 2**128
            ties += 1
        else:
            own = high < threshold >> 128
        values.append((cell if own else alias) - 8192)
    return values


def uniform_masks(key: bytes, size: int) -> list[int]:
    return read_words(key_stream(key, 0, 4 * size), 4)
