"""Amplification of privacy by a secret sample of fixed size, in closed form.

A mechanism that is (epsilon0, delta0)-private for its input, run on a uniform sample without
replacement that contains any given record with probability ``p``, is (epsilon, delta)-private
with ``epsilon = ln(1 + p (exp(epsilon0) - 1))`` and ``delta = p delta0``, for neighbours that
differ in one replaced record [1]_ (Theorem 11). It holds only while nobody else can predict the
sample.

The ``published_*`` formulas are those of the DP-FedPaq paper [2]_ and of its experiments. They are
not valid in general: they serve ``mode: paper`` and comparisons only.

References
----------
.. [1] B. Balle, G. Barthe and M. Gaboardi, "Privacy amplification by subsampling: tight analyses
   via couplings and divergences", NeurIPS 2018, arXiv:1807.01647.
.. [2] "Differential Privacy Meets Federated Learning under Communication Constraints",
   arXiv:2101.12240, 2021.
"""

import math

import numpy as np
from numpy.typing import NDArray

from strategies.mechanisms.closed_form import require_count, require_real

Array = NDArray[np.float64]


def loss_with_sampling(loss: Array, sample_rate: float) -> Array:
    """Compute ``ln(1 + p (exp(loss) - 1))`` without overflow and with relative precision.

    Parameters
    ----------
    loss : ndarray of float64, any shape
        Privacy losses without sampling, at least 0; not checked.
    sample_rate : float
        ``p`` in (0, 1]; not checked.

    Returns
    -------
    ndarray of float64, shape of ``loss``
        At most ``loss``; 0 at 0; ``loss`` itself for ``p = 1``.
    """
    # The second form cancels at small rates unless the loss is far above their logarithm.
    small = np.log1p(sample_rate * np.expm1(np.minimum(loss, 500.0)))
    large = loss + np.log(sample_rate + (1.0 - sample_rate) * np.exp(-loss))
    return np.where(loss < 500.0, small, large)


def loss_without_sampling(loss: Array, sample_rate: float) -> Array:
    """Compute ``ln(1 + (exp(loss) - 1) / p)``, the inverse of `loss_with_sampling`.

    Parameters and precision are the same.
    """
    small = np.log1p(np.expm1(np.minimum(loss, 1.0)) / sample_rate)
    rest = -(1.0 - sample_rate) * np.exp(-np.maximum(loss, 1.0))
    return np.where(loss < 1.0, small, loss - math.log(sample_rate) + np.log1p(rest))


def exact_inclusion_probability(num_records: int, batch_size: int, local_steps: int) -> float:
    """Compute the probability that a record is in one of ``E`` disjoint batches.

    Parameters
    ----------
    num_records : int
        ``n``, at least ``E b``.
    batch_size, local_steps : int
        ``b`` and ``E``, at least 1.

    Returns
    -------
    float
        ``p = E b / n`` in (0, 1], for ``E b`` records drawn without replacement.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    _check_draw(num_records, batch_size, local_steps)
    return local_steps * batch_size / num_records


def published_inclusion_probability(num_records: int, batch_size: int, local_steps: int) -> float:
    """Compute the published inclusion probability, ``1 - (1 - b/n)^E``.

    It belongs to ``E`` batches drawn independently of one another. Each mechanism call here sees
    ``E`` disjoint batches, where the probability is ``E b / n``: this one is too small for
    ``E > 1`` and what follows from it is not a guarantee. Parameters and errors are those of
    `exact_inclusion_probability`.
    """
    _check_draw(num_records, batch_size, local_steps)
    return 1.0 - (1.0 - batch_size / num_records) ** local_steps


def amplify(epsilon0: float, delta0: float, p: float) -> tuple[float, float]:
    """Compute the guarantee on a sample from the guarantee without sampling.

    Parameters
    ----------
    epsilon0 : float
        At least 0, for the replace-one relation.
    delta0 : float
        In [0, 1].
    p : float
        Exact inclusion probability, in (0, 1].

    Returns
    -------
    epsilon, delta : float
        ``ln(1 + p (exp(epsilon0) - 1))`` and ``p delta0``. For one release only: repeated releases
        are composed by `strategies.mechanisms.privacy_loss`.

    Raises
    ------
    ValueError
        If an argument is not finite or out of its range.
    """
    epsilon0 = require_real("epsilon0", epsilon0, 0.0, math.inf)
    delta0 = require_real("delta0", delta0, 0.0, 1.0)
    p = require_real("p", p, 0.0, 1.0, closed="upper")
    return float(loss_with_sampling(np.float64(epsilon0), p)), p * delta0  # type: ignore[arg-type]


def required_before_amplification(epsilon: float, delta: float, p: float) -> tuple[float, float]:
    """Compute the guarantee needed without sampling for a guarantee on a sample.

    Parameters
    ----------
    epsilon : float
        At least 0.
    delta : float
        In [0, 1].
    p : float
        Exact inclusion probability, in (0, 1].

    Returns
    -------
    epsilon0, delta0 : float
        ``ln(1 + (exp(epsilon) - 1) / p)`` and ``min(delta / p, 1)``, the exact inverse of `amplify`
        while ``delta <= p``.

    Raises
    ------
    ValueError
        If an argument is not finite or out of its range.
    """
    epsilon = require_real("epsilon", epsilon, 0.0, math.inf)
    delta = require_real("delta", delta, 0.0, 1.0)
    p = require_real("p", p, 0.0, 1.0, closed="upper")
    epsilon0 = float(loss_without_sampling(np.float64(epsilon), p))  # type: ignore[arg-type]
    return epsilon0, min(delta / p, 1.0)


def published_noise_std(epsilon: float, delta: float, gamma: float, sensitivity: float) -> float:
    """Compute the published noise, ``sqrt(8 gamma^2 ln(1.25 gamma / delta)) Delta / epsilon``.

    Formal guarantees
    -----------------
    None. It is the textbook noise with ``epsilon / (2 gamma)`` in the place of the exact
    ``epsilon0 = ln(1 + (exp(epsilon) - 1) / gamma)``. Beside the textbook noise at ``epsilon0`` it
    is **too small** from ``epsilon = 2.51 gamma`` for tiny gamma, 3.02 gamma at 0.1, 3.80 gamma at
    0.2 and 5.23 gamma at 0.3. For gamma above about 0.53 it exceeds what no amplification needs.

    Parameters
    ----------
    epsilon : float
        Positive.
    delta : float
        In (0, 1), below ``1.25 gamma``.
    gamma : float
        ``E b / n`` in (0, 1].
    sensitivity : float
        L2 sensitivity without sampling, positive.

    Returns
    -------
    float
        Noise standard deviation.

    Raises
    ------
    ValueError
        If an argument is not finite or out of its range.
    """
    epsilon = require_real("epsilon", epsilon, 0.0, math.inf, closed="neither")
    gamma = require_real("gamma", gamma, 0.0, 1.0, closed="upper")
    delta = require_real("delta", delta, 0.0, min(1.0, 1.25 * gamma), closed="neither")
    sensitivity = require_real("sensitivity", sensitivity, 0.0, math.inf, closed="neither")
    return math.sqrt(8.0 * math.log(1.25 * gamma / delta)) * gamma * sensitivity / epsilon


def _check_draw(num_records: int, batch_size: int, local_steps: int) -> None:
    require_count("batch_size", batch_size, 1)
    require_count("local_steps", local_steps, 1)
    require_count("num_records", num_records, local_steps * batch_size)
