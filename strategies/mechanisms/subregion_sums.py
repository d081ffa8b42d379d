"""The server's sums, one a sub-region: weighted, clipped, and noised as one Gaussian mechanism.

Agent n sends one vector w_n; box i gets (1/q) sum_n phi_n^(i) clip(w_n) plus noise. Agents that
explore a box weigh more in its sum at first, and all weigh the same in the end.

Privacy
-------
Neighbours differ in one agent's vectors, which are zero on one side. The weights, the box of each
agent and q are public constants over all N agents, absent ones too: if they ran over those present,
one absence would shift everybody's weights. Divide the sum of box i by phi_max^(i) = max_n
phi_n^(i), and stack the P sums. One agent moves the stack by its clipped vector, of norm at most
S / sqrt(P), times r_n^(i) / q with r_n^(i) = phi_n^(i) / phi_max^(i) <= 1 in each box: at most

    S / (q sqrt(P)) sqrt(sum_i (r_n^(i))^2) <= c S / q,
    c = max_n sqrt((1/P) sum_i (r_n^(i))^2) <= 1.

An agent attains it. So all P releases are one Gaussian mechanism of sensitivity c S / q; the paper
takes c = 1. Multiplying by phi_max^(i) afterwards is post-processing.

References
----------
Dai, Low, Jaillet: Differentially private federated Bayesian optimization with distributed
exploration, NeurIPS 2021, Algorithm 1. The schedule is that of the authors' program.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.mechanisms.clipping import clip_by_l2_norm, replace_non_finite
from strategies.mechanisms.finite_arrays import finite_matrix, finite_vector
from strategies.mechanisms.gaussian import GaussianMechanism
from strategies.mechanisms.parameter_checks import ParameterError, check_integer, check_number
from strategies.mechanisms.rng import Stream
from strategies.mechanisms.sensitivity import Sensitivity

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EmphasisSchedule:
    """a_t: how strongly a box's sum favours its own agents in iteration t = 1, 2, ...

    `start` for `num_constant` iterations, then in equal steps down to 1 over `num_falling`
    iterations, then 1: all weights equal.

    Attributes
    ----------
    start : float
        a_1, >= 1 and at most 500.
    num_constant, num_falling : int
        Iterations, >= 0.

    Raises
    ------
    ParameterError
        If a number is not allowed.
    """

    start: float = 16.0
    num_constant: int = 10
    num_falling: int = 30

    def __post_init__(self) -> None:
        check_number("start", self.start, positive=True, below=500.5)
        if self.start < 1.0:
            raise ParameterError("start", self.start, "at least 1")
        check_integer("num_constant", self.num_constant, 0)
        check_integer("num_falling", self.num_falling, 0)

    def emphasis(self, iteration: int) -> float:
        """Return a_t of iteration t >= 1."""
        check_integer("iteration", iteration, 1)
        steps = iteration - self.num_constant
        if steps <= 0:
            return self.start
        if steps >= self.num_falling:
            return 1.0
        return self.start + (1.0 - self.start) * steps / self.num_falling


@dataclass(frozen=True, eq=False)
class SubregionWeights:
    """phi_n^(i) of all N agents in one iteration: public constants.

    Attributes
    ----------
    weights : ndarray of float64, shape (N, P)
        phi_n^(i) > 0.

    Raises
    ------
    ParameterError
        If a weight is not finite and positive, or there is none.
    """

    weights: Floats

    def __post_init__(self) -> None:
        weights = finite_matrix("weights", self.weights)
        if weights.size == 0 or weights.min() <= 0.0:
            raise ParameterError("weights", "none, or one <= 0", "one or more, > 0")

    @property
    def num_agents(self) -> int:
        """N."""
        return len(self.weights)

    @property
    def num_subregions(self) -> int:
        """P."""
        return int(self.weights.shape[1])

    @property
    def largest(self) -> Floats:
        """phi_max^(i) over all N agents, shape (P,)."""
        return np.asarray(self.weights.max(axis=0))

    @property
    def ratios(self) -> Floats:
        """r_n^(i) = phi_n^(i) / phi_max^(i) in (0, 1], shape (N, P)."""
        return np.asarray(self.weights / self.largest)

    @property
    def sensitivity_factor(self) -> float:
        """The factor c = max_n sqrt((1/P) sum_i (r_n^(i))^2), in (0, 1]."""
        mean_squares = np.mean(self.ratios**2, axis=1)
        return math.sqrt(float(mean_squares.max()))


def subregion_weights(
    assignments: ArrayLike, num_subregions: int, emphasis: float
) -> SubregionWeights:
    """Weigh agents: phi_n^(i) = exp(a)/Z_i if n is assigned to box i, else exp(1)/Z_i.

    Parameters
    ----------
    assignments : array_like of int, shape (N,)
        The box of every agent, present or not, below P.
    num_subregions : int
        P >= 1.
    emphasis : float
        a in [1, 500]; 1 gives 1/N each.

    Returns
    -------
    SubregionWeights
        Those of one box add up to 1 over all N agents (Z_i).

    Raises
    ------
    ParameterError
        If a parameter is not allowed.
    """
    check_integer("num_subregions", num_subregions, 1)
    check_number("emphasis", emphasis, positive=True, below=500.5)
    boxes = np.asarray(assignments)
    if boxes.ndim != 1 or boxes.size == 0 or boxes.dtype.kind not in "iu":
        raise ParameterError("assignments", f"shape {boxes.shape}", "integers, one an agent")
    if boxes.min() < 0 or boxes.max() >= num_subregions:
        raise ParameterError("assignments", "a box out of range", f"0 to {num_subregions - 1}")
    if emphasis < 1.0:
        raise ParameterError("emphasis", emphasis, "at least 1")
    own = boxes[:, None] == np.arange(num_subregions)
    # exp(a) and exp(1) over exp(a), which does not overflow.
    scores = np.where(own, 1.0, math.exp(1.0 - emphasis))
    # An agent beyond a box's own gets a weight > 0 even if nobody is assigned to the box.
    return SubregionWeights(scores / scores.sum(axis=0))


def subregion_mechanism(
    weights: SubregionWeights,
    *,
    clipping_norm: float,
    sample_rate: float,
    noise_multiplier: float,
    exact: bool = True,
) -> GaussianMechanism:
    """Return the mechanism of one iteration, for the stack of sums divided by their phi_max.

    Parameters
    ----------
    weights : SubregionWeights
        Of the iteration.
    clipping_norm : float
        S > 0: each vector is clipped to S / sqrt(P).
    sample_rate : float
        q in (0, 1]: the sums are divided by it.
    noise_multiplier : float
        z >= 0, the noise's standard deviation over the sensitivity.
    exact : bool
        Whether the sensitivity is c S / q (what it is) or S / q (as published).

    Raises
    ------
    ParameterError
        If a parameter is not allowed.
    """
    check_number("clipping_norm", clipping_norm, positive=True)
    check_number("sample_rate", sample_rate, positive=True, below=1.0 + 2.0**-52)
    check_number("noise_multiplier", noise_multiplier, positive=False)
    factor = weights.sensitivity_factor if exact else 1.0
    sensitivity = Sensitivity(
        factor * clipping_norm / sample_rate,
        "whole_update",
        "client",
        "zero_out",
        (
            f"an agent's vector is clipped to L2 norm {clipping_norm:g} / "
            f"sqrt({weights.num_subregions}), and a vector that is lost or not finite is zero",
            f"the sums of the {weights.num_subregions} sub-regions, each divided by its largest "
            f"weight over all {weights.num_agents} agents, move together by at most {factor:g} "
            f"times the clipping norm over the sample rate {sample_rate:g}",
            "weights, assignments, sample rate and number of agents are public constants; a "
            "neighbour's vectors are zero, everything else is the same",
        ),
    )
    return GaussianMechanism(sensitivity, noise_multiplier)


def aggregate_subregions(
    vectors: ArrayLike,
    agents: ArrayLike,
    weights: SubregionWeights,
    stream: Stream,
    *,
    clipping_norm: float | None,
    sample_rate: float,
    noise_multiplier: float,
    exact: bool = True,
) -> Floats:
    """Release w^(i) = (1/q) sum_n phi_n^(i) clip(w_n) + N(0, (z c phi_max^(i) S / q)^2 I), all i.

    Parameters
    ----------
    vectors : array_like, shape (n, M)
        w_n of the agents that were sampled and came in time; n = 0 still gives noise. A vector
        with a NaN or an infinity counts as zero.
    agents : array_like of int, shape (n,)
        Who sent them: distinct, below N.
    weights : SubregionWeights
        Of the iteration, over all N agents.
    stream : Stream
        The server's secret source of noise.
    clipping_norm : float or None
        S > 0. None clips nothing, which allows no noise multiplier but 0, and guarantees nothing.
    sample_rate : float
        q in (0, 1], with which each agent was sampled by itself.
    noise_multiplier : float
        z >= 0.
    exact : bool
        See `subregion_mechanism`.

    Returns
    -------
    ndarray of float64, shape (P, M)
        Independent of the order of the vectors.

    Raises
    ------
    ParameterError
        If shapes do not fit, an agent comes twice or is unknown, or a parameter is not allowed.
    """
    received = np.asarray(vectors)
    if received.ndim != 2 or received.shape[1] < 1:
        raise ParameterError("vectors", f"shape {received.shape}", "shape (n, M), M >= 1")
    senders = np.asarray(agents)
    if senders.size == 0:
        senders = senders.astype(np.int64)
    finite_vector("agents", senders, len(received))
    known = senders.dtype.kind in "iu" and ((senders >= 0) & (senders < weights.num_agents)).all()
    if not known or np.unique(senders).size != senders.size:
        raise ParameterError(
            "agents", f"{senders.size} numbers", f"distinct integers below {weights.num_agents}"
        )
    if clipping_norm is None and noise_multiplier != 0.0:
        raise ParameterError("noise_multiplier", noise_multiplier, "0 without a clipping norm")
    mechanism = subregion_mechanism(
        weights,
        clipping_norm=1.0 if clipping_norm is None else clipping_norm,
        sample_rate=sample_rate,
        noise_multiplier=noise_multiplier,
        exact=exact,
    )
    radius = None if clipping_norm is None else clipping_norm / math.sqrt(weights.num_subregions)
    order = np.argsort(senders, kind="stable")
    bounded = np.zeros(received.shape)
    for row, sender in enumerate(order):
        bounded[row] = clip_by_l2_norm(replace_non_finite(received[sender]), radius)
    sums = weights.ratios[senders[order]].T @ bounded / sample_rate
    noisy = mechanism.add_noise(sums.ravel(), stream).reshape(sums.shape)
    return np.asarray(weights.largest[:, None] * noisy)
