"""Random streams: reproducible for experiments, cryptographic for releases.

Every random decision of a run comes from a stream of its own, named by what it is for and who
draws it (``("noise", round, client)``). Streams with different names are independent, so no draw
can be shared between two clients, and the noise cannot depend on how many records were drawn.

A privacy guarantee holds only if nobody can predict the noise and the sampled records. A seeded
stream is a function of the configuration, which everyone can read: good for experiments, void as a
release. The secret stream is keyed by the operating system's entropy.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from scipy.special import ndtri

RandomnessKind = Literal["seeded", "secret"]
RANDOMNESS_KINDS: tuple[RandomnessKind, ...] = ("seeded", "secret")


class Stream(ABC):
    """One independent source of random numbers."""

    @abstractmethod
    def words(self, size: int) -> NDArray[np.uint64]:
        """Draw `size` uniform 64-bit words."""

    @abstractmethod
    def uniform(self, size: int) -> NDArray[np.float64]:
        """Draw `size` numbers uniform on [0, 1), multiples of 2^-53."""

    @abstractmethod
    def standard_normal(self, size: int) -> NDArray[np.float64]:
        """Draw `size` independent N(0, 1) numbers."""

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


class SeededStream(Stream):
    """A reproducible stream: a function of its key and nothing else.

    Parameters
    ----------
    key : bytes
        Entropy for the generator; equal keys give equal streams on every engine.
    """

    def __init__(self, key: bytes) -> None:
        sequence = np.random.SeedSequence(int.from_bytes(key, "little"))
        self._generator = np.random.Generator(np.random.SFC64(sequence))

    def words(self, size: int) -> NDArray[np.uint64]:  # noqa: D102
        return self._generator.integers(0, 2**64, size=size, dtype=np.uint64)

    def uniform(self, size: int) -> NDArray[np.float64]:  # noqa: D102
        return self._generator.random(size)

    def standard_normal(self, size: int) -> NDArray[np.float64]:  # noqa: D102
        return self._generator.standard_normal(size)


class SecretStream(Stream):
    """An AES-256-CTR key stream; numbers are a fixed function of its bytes.

    Normal numbers are the inverse distribution function at (k + 1/2) / 2^52, k a uniform 52-bit
    integer: exact in law up to that grid, tails to 8.2 standard deviations on both sides.

    Parameters
    ----------
    key : bytes
        32 bytes. Leave it out outside of tests: a fresh key is then taken from the system's
        entropy and kept nowhere.
    """

    def __init__(self, key: bytes | None = None) -> None:
        secret = os.urandom(32) if key is None else key
        self._encryptor = Cipher(algorithms.AES256(secret), modes.CTR(bytes(16))).encryptor()

    def words(self, size: int) -> NDArray[np.uint64]:  # noqa: D102
        return np.frombuffer(self._encryptor.update(bytes(8 * size)), dtype="<u8").astype(
            np.uint64, copy=False
        )

    def uniform(self, size: int) -> NDArray[np.float64]:  # noqa: D102
        return (self.words(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def standard_normal(self, size: int) -> NDArray[np.float64]:  # noqa: D102
        # One bit less than a float64 holds: (k + 1/2) is exact, and never rounds up to 1.
        middles = ((self.words(size) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        numbers: NDArray[np.float64] = ndtri(middles)
        return numbers


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
        return SeededStream(hashlib.sha256(name.encode()).digest())
