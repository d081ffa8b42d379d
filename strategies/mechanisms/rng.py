"""Random streams: reproducible for experiments, cryptographic for releases.

Every random decision of a run comes from a stream of its own, named by what it is for and who
draws it (``("noise", round, client)``). Streams with different names are independent, so no draw
can be shared between two clients, and the noise cannot depend on how many records were drawn.

A privacy guarantee holds only if nobody can predict the noise and the sampled records. A seeded
stream is a function of the configuration, which everyone can read: good for experiments, void as a
release. The secret stream is keyed by the operating system's entropy. Apart from the key they are
the same stream, AES-256 in counter mode.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from strategies.mechanisms.normal import normal_numbers

RandomnessKind = Literal["seeded", "secret"]
RANDOMNESS_KINDS: tuple[RandomnessKind, ...] = ("seeded", "secret")

# What is encrypted to get a key stream; in pieces, so that it stays in a cache.
_ZEROS = memoryview(bytes(2**16))


class Stream(ABC):
    """One independent source of random numbers; all of them are functions of its words."""

    @abstractmethod
    def words(self, size: int) -> NDArray[np.uint64]:
        """Draw `size` uniform 64-bit words, a new array."""

    def half_words(self, size: int) -> NDArray[np.uint32]:
        """Draw `size` uniform 32-bit words, the lower half of a word first; an odd half is lost."""
        words = self.words((size + 1) // 2).astype("<u8", copy=False)
        return words.view("<u4")[:size].astype(np.uint32, copy=False)

    def uniform(self, size: int) -> NDArray[np.float64]:
        """Draw `size` numbers uniform on [0, 1), multiples of 2^-53."""
        return (self.words(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def standard_normal(self, size: int) -> NDArray[np.float64]:
        """Draw `size` independent N(0, 1) numbers; see `strategies.mechanisms.normal`."""
        return normal_numbers(self.words, size)

    def sample_without_replacement(self, population: int, size: int) -> NDArray[np.int64]:
        """Draw an ordered sample of distinct numbers below `population`.

        Every ordered sample is equally likely, up to ties between 64-bit keys (total variation
        at most population^2 / 2^65).

        Parameters
        ----------
        population : int
            How many numbers there are, >= 0.
        size : int
            How many are drawn, 0 <= size <= population.

        Returns
        -------
        ndarray of int64, shape (size,)
        """
        if not 0 <= size <= population:
            raise ValueError(f"size: {size}; allowed: 0 to population = {population}")
        order = np.argsort(self.words(population), kind="stable")
        return order[:size].astype(np.int64)


class KeyStream(Stream):
    """The AES-256-CTR key stream of a key, as little-endian words.

    Parameters
    ----------
    key : bytes
        32 bytes.
    part : int
        0 to 255. The 128-bit counter starts at part * 2^120, so the parts of one key never overlap.
    """

    def __init__(self, key: bytes, part: int = 0) -> None:
        counter = bytes([part]) + bytes(15)
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(counter)).encryptor()

    def words(self, size: int) -> NDArray[np.uint64]:  # noqa: D102
        # The cipher wants room for one block less a byte after what it writes.
        raw = np.empty(8 * size + 16, dtype=np.uint8)
        for start in range(0, 8 * size, len(_ZEROS)):
            self._encryptor.update_into(_ZEROS[: 8 * size - start], raw[start:].data)
        return raw[: 8 * size].view("<u8").astype(np.uint64, copy=False)


class SeededStream(KeyStream):
    """A reproducible stream: its words are a function of its name and nothing else.

    Parameters
    ----------
    name : bytes
        Equal names give equal streams.
    """

    def __init__(self, name: bytes) -> None:
        super().__init__(hashlib.sha256(name).digest())


class SecretStream(KeyStream):
    """A stream that nobody can predict.

    Parameters
    ----------
    key : bytes
        32 bytes. Leave it out outside of tests: a fresh key is then taken from the system's
        entropy and kept nowhere.
    """

    def __init__(self, key: bytes | None = None) -> None:
        super().__init__(os.urandom(32) if key is None else key)


class Randomness:
    """Where a run's streams come from.

    Parameters
    ----------
    kind : {"seeded", "secret"}
        `seeded`: streams are functions of `seed` and their names. `secret`: every stream has a
        fresh key from the operating system; `seed` is not used.
    seed : int
        Seed of the experiment, >= 0.
    """

    def __init__(self, kind: RandomnessKind, seed: int) -> None:
        if kind not in RANDOMNESS_KINDS:
            raise ValueError(f"randomness: {kind!r}; allowed: {', '.join(RANDOMNESS_KINDS)}")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed: {seed!r}; allowed: an integer >= 0")
        self.kind = kind
        self.seed = seed

    def stream(self, purpose: str, *labels: int) -> Stream:
        """Open the stream of one purpose.

        Parameters
        ----------
        purpose : str
            What the numbers are for, for example ``"noise"``.
        *labels : int
            Whose they are, for example the round and the client.
        """
        if self.kind == "secret":
            return SecretStream()
        name = "/".join([str(self.seed), purpose, *map(str, labels)])
        return SeededStream(name.encode())
