"""Shamir's t-of-n secret sharing in a prime field, as secure aggregation needs it.

PyCryptodome's, which Flower ships, works bit by bit in GF(2^128), in Python, tens of times slower,
and interpolates anew for each secret; to time the protocol with it would time that choice. Here:
Python's integers modulo a prime, and one interpolation for all secrets that the same clients help
to reconstruct. Not constant in time: for measurements only.
"""

import secrets
from collections.abc import Sequence

SEED_FIELD = 2**128 - 159
"""The largest prime below 2^128."""
KEY_FIELD = 2**256 - 189
"""The largest prime below 2^256."""


def draw_polynomial(secret: int, threshold: int, prime: int) -> list[int]:
    """Return the coefficients, the highest first, of a polynomial with ``secret`` at zero."""
    return [*(secrets.randbelow(prime) for _ in range(threshold - 1)), secret]


def evaluate(polynomial: Sequence[int], point: int, prime: int) -> int:
    """Return the share of the client at ``point`` (1, 2, ...): Horner's rule."""
    value = 0
    for coefficient in polynomial:
        value = (value * point + coefficient) % prime
    return value


def interpolation_weights(points: Sequence[int], prime: int) -> list[int]:
    """Return Lagrange's weights at zero: a secret is the weighted sum of its shares."""
    weights = []
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above = above * other % prime
                below = below * (other - point) % prime
        weights.append(above * pow(below, -1, prime) % prime)
    return weights


def reconstruct(weights: Sequence[int], shares: Sequence[int], prime: int) -> int:
    """Return the secret that the shares, in the order of the weights' points, belong to."""
    return sum(weight * share for weight, share in zip(weights, shares, strict=True)) % prime
