"""Means of differences between paired results, with intervals that know what is not independent.

Agents of one run share its seed: the initial draws, the broadcasts, often the functions. Their
differences move together, so a run is one observation of them all, not as many as it has agents.

References
----------
Liang, Zeger: Longitudinal data analysis using generalized linear models, Biometrika 73 (1986): the
variance of a mean over clusters. Cameron, Miller: A practitioner's guide to cluster-robust
inference, Journal of Human Resources 50 (2015): the factor G / (G - 1), and G - 1 degrees of
freedom.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95


@dataclass(frozen=True)
class MeanEstimate:
    """A mean with its confidence interval.

    Attributes
    ----------
    mean : float
        Over all values, each with the same weight.
    half_width : float or None
        The interval is mean ± half_width; ``None`` if a single cluster leaves it open.
    num_values, num_clusters : int
        How many values there are, and how many independent groups of them.
    """

    mean: float
    half_width: float | None
    num_values: int
    num_clusters: int

    @property
    def low(self) -> float | None:
        """The interval's lower end."""
        return None if self.half_width is None else self.mean - self.half_width

    @property
    def high(self) -> float | None:
        """The interval's upper end."""
        return None if self.half_width is None else self.mean + self.half_width


def estimate_mean(
    values: ArrayLike, clusters: ArrayLike | None = None, level: float = LEVEL
) -> MeanEstimate:
    """Estimate a mean whose values are independent only between clusters.

    With G clusters, n values y and residuals e = y - mean(y), the standard error is
    sqrt(G / (G - 1) * sum_g (sum_{i in g} e_i)^2) / n; the interval takes the quantile of
    Student's t with G - 1 degrees of freedom. For clusters of equal size that is the interval of
    the clusters' means; for clusters of one value each, the usual one.

    Parameters
    ----------
    values : array-like, shape (n,)
        Finite, n >= 1.
    clusters : array-like of int, shape (n,), or None
        Which cluster each value belongs to. None: all values are independent.
    level : float
        Of confidence, in (0, 1).

    Returns
    -------
    MeanEstimate
        Covers the mean of normal clusters of equal size with probability `level`, exactly.

    Raises
    ------
    ValueError
        If there is no value, one is not finite or so large that its square is not, the shapes
        differ, or `level` is not in (0, 1).
    """
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    y = np.asarray(values, dtype=np.float64)
    groups = np.arange(y.size) if clusters is None else np.asarray(clusters)
    if y.ndim != 1 or y.size == 0 or groups.shape != y.shape:
        raise ValueError(
            f"values and clusters must have one shape (n,), n >= 1, have {y.shape}, {groups.shape}"
        )
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie in (0, 1), is {level!r}")
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(y.mean())
        _, places = np.unique(groups, return_inverse=True)
        sums = np.bincount(places, weights=y - mean)
        squares = float(sums @ sums)
    if not (math.isfinite(mean) and math.isfinite(squares)):
        raise ValueError("values must be finite, and their squares too")
    count = sums.size
    if count == 1:
        return MeanEstimate(mean, None, y.size, 1)
    error = math.sqrt(count / (count - 1) * squares) / y.size
    quantile = float(stdtrit(count - 1, (1.0 + level) / 2.0))
    return MeanEstimate(mean, quantile * error, y.size, count)


def share_harmed(differences: ArrayLike, tolerance: float) -> float | None:
    """Return the share of pairs in which the first result is worse by more than a tolerance.

    Parameters
    ----------
    differences : array-like, shape (n,)
        First result minus second; higher results are better.
    tolerance : float
        At least 0.

    Returns
    -------
    float or None
        In [0, 1]; ``None`` if there is no pair.
    """
    pairs: NDArray[np.float64] = np.asarray(differences, dtype=np.float64)
    return None if pairs.size == 0 else float(np.mean(pairs < -tolerance))
