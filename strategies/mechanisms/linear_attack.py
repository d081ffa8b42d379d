"""The best linear attack on noise that cancels: what the uploads tell about one client's update.

The attacker sees all uploads, knows every other client's update and the noise that colluders share
with the others. From covariance and uploads follow the best linear unbiased estimate of the one
update left and its error (Gauss-Markov), to be compared with the deviation that was promised.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from strategies.mechanisms.parameter_checks import ParameterError, check_number

Matrix = NDArray[np.float64]

_NEGLIGIBLE = 1e-12  # of the target's own variance: a remainder of rounding, taken for none


@dataclass(frozen=True)
class AttackResult:
    """Outcome of an attack on one client's update, to be held against what was computed for it.

    Attributes
    ----------
    error_std : float
        Root mean square of the estimate's error over the coordinates.
    predicted_std : float
        Standard deviation of the error by the covariance: 1 / sqrt((Sigma^-1)_kk).
    sigma_eff : float
        Standard deviation that the calibration promised, at most `predicted_std` if it is right.
    num_coordinates : int
        d: how many independent coordinates `error_std` is of.
    """

    error_std: float
    predicted_std: float
    sigma_eff: float
    num_coordinates: int

    @property
    def breaks_promise(self) -> bool:
        """Whether, by the covariance, the client is hidden by less than was promised."""
        return self.predicted_std < self.sigma_eff * (1.0 - 1e-9)

    def agrees(self, false_positive_rate: float = 1e-6) -> bool:
        """Return whether the error is as predicted.

        With Gaussian noise d (error_std / predicted_std)^2 has a chi-square distribution of d
        degrees of freedom; if the prediction is right, False is returned with the probability
        `false_positive_rate`, half of it on either side. A prediction of 0 must be met to 1e-6.
        """
        lowest, highest = (
            _chi_square_quantile(q, self.num_coordinates)
            for q in (false_positive_rate / 2.0, 1.0 - false_positive_rate / 2.0)
        )
        statistic = self.num_coordinates * self.error_std**2
        variance = self.predicted_std**2
        if variance == 0.0:
            return self.error_std <= math.sqrt(_NEGLIGIBLE)
        return lowest * variance <= statistic <= highest * variance

    def beats_promise(self, false_positive_rate: float = 1e-6) -> bool:
        """Return whether the error is so small that `sigma_eff` cannot be right.

        If `sigma_eff` holds, True is returned with at most the probability `false_positive_rate`.
        """
        lowest = _chi_square_quantile(false_positive_rate, self.num_coordinates)
        return self.num_coordinates * self.error_std**2 < lowest * self.sigma_eff**2


def upload_covariance(
    masked_towards: Mapping[int, Collection[int]],
    uploaded: Collection[int],
    colluders: Collection[int],
    own_variance: Mapping[int, float],
    pair_variance: float,
) -> tuple[tuple[int, ...], Matrix]:
    """Return the covariance of the honest uploads' noise, in one coordinate, Gaussian pairs.

    Parameters
    ----------
    masked_towards : mapping of int to collection of int
        For each client who masked, the peers that it shared noise with.
    uploaded : collection of int
        The clients whose upload the server saw.
    colluders : collection of int
        Clients who tell all they know: their noise is known and taken out, and so are their own
        uploads.
    own_variance : mapping of int to float
        s_ind^2 of each honest client that uploaded.
    pair_variance : float
        s_pair^2.

    Returns
    -------
    order : tuple of int, length n
        The honest clients that uploaded, in increasing order.
    covariance : ndarray of float64, shape (n, n)
        On the diagonal own variance and s_pair^2 for each honest peer; minus s_pair^2 for each two
        that masked towards each other. Noise that only one upload holds, as its other end vanished
        or did not use it, is on the diagonal only.
    """
    check_number("pair_variance", pair_variance, positive=False)
    order = _honest_uploads(masked_towards, uploaded, colluders)
    covariance = np.zeros((len(order), len(order)))
    for row, client in enumerate(order):
        peers = set(masked_towards[client]) - set(colluders) - {client}
        covariance[row, row] = own_variance[client] + pair_variance * len(peers)
        for column, other in enumerate(order):
            if other in peers and client in masked_towards[other]:
                covariance[row, column] = -pair_variance
    return order, covariance


def share_covariance(
    shares: Mapping[int, Collection[int]], unit_variance: float, tau: float
) -> tuple[tuple[int, ...], Matrix]:
    """Return the covariance of the uploads of the published algorithm, in one coordinate.

    Parameters
    ----------
    shares : mapping of int to collection of int
        For each client, the neighbours that it sends a share to.
    unit_variance : float
        sigma^2, variance of one share.
    tau : float
        Standard deviation of the factor, of mean 1, that a received share is multiplied by.

    Returns
    -------
    order : tuple of int, length n
        The clients, in increasing order.
    covariance : ndarray of float64, shape (n, n)
        sigma^2 (Laplacian + tau^2 diag(number of received shares)), each share an edge of the graph
        whose Laplacian it is. With tau = 0 the sum of a connected set of uploads has no noise, and
        the attack is exact.
    """
    check_number("unit_variance", unit_variance, positive=True)
    check_number("tau", tau, positive=False)
    order = tuple(sorted(set(shares).union(*shares.values())))
    place = {client: row for row, client in enumerate(order)}
    covariance = np.zeros((len(order), len(order)))
    for sender, receivers in shares.items():
        for receiver in receivers:
            i, j = place[sender], place[receiver]
            covariance[i, i] += unit_variance
            covariance[j, j] += unit_variance * (1.0 + tau * tau)
            covariance[i, j] -= unit_variance
            covariance[j, i] -= unit_variance
    return order, covariance


def summed_clients(
    masked_towards: Mapping[int, Collection[int]],
    uploaded: Collection[int],
    colluders: Collection[int],
    target: int,
) -> frozenset[int] | None:
    """Return the honest clients whose sum is all that is known of a target under uniform masks.

    Parameters
    ----------
    masked_towards, uploaded, colluders
        As in `upload_covariance`.
    target : int
        An honest client that uploaded.

    Returns
    -------
    frozenset of int or None
        Those connected to the target by masks that both ends used; what hides it is their own noise
        in sum. None if one of them holds a mask that no other upload does: nothing is known then.
    """
    order = _honest_uploads(masked_towards, uploaded, colluders)
    if target not in order:
        raise ParameterError("target", target, "an honest client that uploaded")
    honest, connected, waiting = set(order), {target}, [target]
    while waiting:
        client = waiting.pop()
        for peer in set(masked_towards[client]) - set(colluders) - {client}:
            if peer not in honest or client not in masked_towards[peer]:
                return None
            if peer not in connected:
                connected.add(peer)
                waiting.append(peer)
    return frozenset(connected)


def best_linear_estimate(
    residuals: Matrix, covariance: Matrix, target_index: int
) -> tuple[Matrix, float]:
    """Estimate the update of one client from all uploads and the updates of all others.

    Parameters
    ----------
    residuals : ndarray of float64, shape (n, d)
        A row for each upload: the upload less all that is known of it, the noise shared with
        colluders and, but for the target, the update.
    covariance : ndarray of float64, shape (n, n)
        Of the noise left in the rows, in one coordinate; it may be singular.
    target_index : int
        Row of the target.

    Returns
    -------
    estimate : ndarray of float64, shape (d,)
        The linear unbiased estimate of least variance: w^T residuals with w = 1 for the target and
        -Sigma_oo^+ Sigma_ok for the others o.
    error_std : float
        Its standard deviation, 1 / sqrt((Sigma^-1)_kk) where Sigma has an inverse; 0 if less than
        1e-6 of the target's own noise.

    Notes
    -----
    Unbiased means that w is 1 at the target. The variance w^T Sigma w is least where the others
    predict the target's noise best: the Schur complement Sigma_kk - Sigma_ko Sigma_oo^+ Sigma_ok,
    which is 1 / (Sigma^-1)_kk. For Gaussian noise no other unbiased estimate is better.
    """
    others = np.arange(len(covariance)) != target_index
    within, towards = covariance[np.ix_(others, others)], covariance[others, target_index]
    weights = np.ones(len(covariance))
    weights[others] = -np.linalg.lstsq(within, towards, rcond=None)[0]
    own = float(covariance[target_index, target_index])
    variance = float(own + towards @ weights[others])
    if variance <= _NEGLIGIBLE * own:
        variance = 0.0
    return weights @ residuals, math.sqrt(variance)


def attack(
    residuals: Matrix,
    covariance: Matrix,
    target_index: int,
    *,
    update: Matrix,
    sigma_eff: float,
) -> AttackResult:
    """Attack one client, and compare with its true update, shape (d,), and what was promised."""
    estimate, predicted = best_linear_estimate(residuals, covariance, target_index)
    error = estimate - update
    root_mean_square = math.sqrt(float(np.mean(error * error)))
    return AttackResult(root_mean_square, predicted, sigma_eff, error.size)


def _honest_uploads(
    masked_towards: Mapping[int, Collection[int]],
    uploaded: Collection[int],
    colluders: Collection[int],
) -> tuple[int, ...]:
    order = tuple(sorted(set(uploaded) - set(colluders)))
    for client in order:
        if client not in masked_towards:
            raise ParameterError("uploaded", client, "a client of masked_towards")
    return order


def _chi_square_quantile(probability: float, degrees: int) -> float:
    return 2.0 * float(gammaincinv(degrees / 2.0, probability))
