"""Calibration of noise that cancels in a sum: how much of it is shared, how much is a client's own.

Every pair of clients adds and subtracts the same noise (variance s_pair^2, or a mask that is
uniform modulo a power of two); each client adds independent noise of variance s_ind^2. What hides
client k from somebody who sees all uploads, and knows the updates of all others and the pair noise
of the colluders, is 1 / (Sigma^-1)_kk, where Sigma is the covariance of the honest clients' noise
(Sabater, Bellet and Ramon 2022, "An accurate, scalable and verifiable protocol for federated
differentially private averaging", arXiv 2006.07218). All variances are those of one coordinate.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from strategies.mechanisms.pairwise_noise import GAUSSIAN_STD
from strategies.mechanisms.parameter_checks import ParameterError, check_integer, check_number

COMPONENT_SHARE = 0.9
"""Share of the honest clients that sparse masks connect, except with a negligible probability."""

_OWN_SHARE = 0.05  # w without dropouts: own noise above the least possible, s_ind^2 = sigma^2 / h
# Of the variance: far above the rounding of the formulas, and above what a grid, a table and finite
# words cost (`smoothing_error` and `list_gaussian_masses`, together below 1e-11 up to 1e14 draws).
_MARGIN = 1.0 + 1e-9


@dataclass(frozen=True)
class OffsetNoise:
    """Variances of the noise that a client shares and of the noise it keeps for itself.

    Attributes
    ----------
    own_variance : float
        s_ind^2 > 0.
    pair_variance : float
        s_pair^2 >= 0; 0 with uniform masks, which have no variance on the line.
    num_honest : int
        h >= 1: the honest clients, the target among them, that a ready set names at least.
    pair_noise : str
        ``gaussian`` or ``uniform``.
    sparse : bool
        Whether only some pairs share a mask (`sparse_graph.edge_probability`); uniform masks only.
    """

    own_variance: float
    pair_variance: float
    num_honest: int
    pair_noise: str = "gaussian"
    sparse: bool = False

    def __post_init__(self) -> None:
        check_number("own_variance", self.own_variance, positive=True)
        check_number("pair_variance", self.pair_variance, positive=False)
        check_integer("num_honest", self.num_honest, 1)
        _check_pair_noise(self.pair_noise, self.sparse)
        if self.pair_noise == "uniform" and self.pair_variance != 0.0:
            raise ParameterError("pair_variance", self.pair_variance, "0 with uniform masks")

    @property
    def effective_variance(self) -> float:
        """Variance that hides a client among `num_honest`; see `effective_variance_against`."""
        return self.effective_variance_against(self.num_honest)

    def effective_variance_against(self, num_honest: int) -> float:
        """Return a lower bound on what hides a client when its ready set names h honest clients.

        Parameters
        ----------
        num_honest : int
            h >= 1, the client among them. With sparse masks not below the field of that name, for
            which the graph was chosen; more honest clients than that are not counted on.

        Returns
        -------
        float
            Gaussian: s_ind^2 (s_ind^2 + h s_pair^2) / (s_ind^2 + s_pair^2). Uniform: h s_ind^2,
            and .9 h s_ind^2 with sparse masks.

        Notes
        -----
        *Formal guarantee.* Whatever ready sets the server shows (different ones to different
        clients, with further peers), whoever vanishes, and if other clients' own variance is larger
        than s_ind^2: 1 / (Sigma^-1)_kk is at least the value returned, for every honest client k
        that masks once towards a set with at least h - 1 other honest clients.

        *Proof.* Gaussian: the colluders' pair noise is known and left out. Then Sigma is the matrix
        of a network of conductances: s_pair^2 between i and j if both used their common noise; to
        ground, s_ind,i^2 and another s_pair^2 for each noise with an honest client that i used
        alone. 1 / (Sigma^-1)_kk is the conductance between k and ground. By Rayleigh it does not
        grow if conductances are taken away. Take away all but k's own: a star remains, each of its
        h - 1 ends either a path to ground through a peer, s_pair^2 in series with s_ind^2 or more,
        or s_pair^2 to ground at once, which is more. In sum that is `star_variance`,
        s_ind^2 + (h - 1) s_pair^2 s_ind^2 / (s_pair^2 + s_ind^2), equal to the value above, and
        reached by the complete graph, in which all ends have the same potential.

        Uniform: masks of a connected set of honest clients with no mask to others hide all but
        the sum of the set, with its own noises; a mask that one end used alone hides the sum too.
        In the complete graph the set is all those named, or such a mask exists.
        """
        check_integer("num_honest", num_honest, 1)
        own, pair = self.own_variance, self.pair_variance
        if self.pair_noise == "gaussian":
            return own * ((own + num_honest * pair) / (own + pair))
        if not self.sparse:
            return num_honest * own
        if num_honest < self.num_honest:
            raise ParameterError(
                "num_honest",
                num_honest,
                f">= {self.num_honest}, for which the sparse graph was chosen",
            )
        return COMPONENT_SHARE * self.num_honest * own

    def sum_variance(self, num_ready: int, num_dropped: int = 0) -> float:
        """Return the variance of the noise in the sum of the uploads, complete graph.

        Parameters
        ----------
        num_ready : int
            M: how many clients masked towards each other.
        num_dropped : int
            m: how many of them vanished without an upload, 0 <= m <= M.

        Returns
        -------
        float
            (M - m) (s_ind^2 + m s_pair^2): own noise of those who uploaded, and the pair noise
            between each of them and each who did not.

        Raises
        ------
        ValueError
            With uniform masks if m > 0: the sum is then uniform noise.
        """
        check_integer("num_ready", num_ready, 1)
        check_integer("num_dropped", num_dropped, 0)
        if num_dropped > num_ready:
            raise ParameterError("num_dropped", num_dropped, f"at most num_ready = {num_ready}")
        if self.pair_noise == "uniform" and num_dropped:
            raise ParameterError("num_dropped", num_dropped, "0 with uniform masks")
        return (num_ready - num_dropped) * (self.own_variance + num_dropped * self.pair_variance)

    def largest_sum_variance(self, max_ready: int) -> float:
        """Return the largest `sum_variance` of up to `max_ready` clients, whoever vanishes.

        For a given number m of dropouts it grows with the number of clients; it is a parabola in m.
        """
        check_integer("max_ready", max_ready, 1)
        if self.pair_variance == 0.0:
            return self.sum_variance(max_ready)
        vertex = math.floor(max(0.0, (max_ready - self.own_variance / self.pair_variance) / 2.0))
        return max(self.sum_variance(max_ready, dropped) for dropped in (vertex, vertex + 1))

    def pair_multiple(self, step: float) -> int:
        """Return c, the whole number that table noise is multiplied by on a grid of this step.

        The least c >= 1 with (512 c step)^2 >= s_pair^2; 0 if there is no Gaussian pair noise.
        """
        check_number("step", step, positive=True)
        if self.pair_variance == 0.0:
            return 0
        multiple = max(1, math.floor(math.sqrt(self.pair_variance) / (GAUSSIAN_STD * step)))
        while (multiple * GAUSSIAN_STD * step) ** 2 < self.pair_variance:
            multiple += 1
        return multiple

    def on_grid(self, step: float) -> "OffsetNoise":
        """Return the noise as clients make it: s_pair rounded up to a multiple of 512 steps.

        The effective variance grows with s_pair^2 (`effective_variance_against`), so the target
        still holds; the variance of the sum after dropouts is to be taken from the result.
        """
        multiple = self.pair_multiple(step)
        return replace(self, pair_variance=(multiple * GAUSSIAN_STD * step) ** 2)


def calibrate_offset_noise(
    target_std: float,
    *,
    min_ready: int,
    colluding_fraction: float,
    max_ready: int | None = None,
    expected_dropouts: int = 0,
    pair_noise: str = "gaussian",
    sparse: bool = False,
) -> OffsetNoise:
    """Choose the variances so that a client is hidden by noise of a given standard deviation.

    Parameters
    ----------
    target_std : float
        sigma > 0, the standard deviation that a Gaussian mechanism of one client would need.
    min_ready : int
        M >= 2: the least number of clients of a ready set.
    colluding_fraction : float
        rho, 0 to 1: at most floor(rho M) of the M = `max_ready` clients of a round tell the server
        all they know. It names the ready set, so all of them may be in the smallest one.
    max_ready : int or None
        The most clients of a ready set; None: `min_ready`.
    expected_dropouts : int
        m >= 0: how many of a ready set usually vanish before they upload.
    pair_noise : str
        ``gaussian`` or ``uniform``.
    sparse : bool
        Whether only some pairs share a mask; uniform masks only.

    Returns
    -------
    OffsetNoise
        For h = `min_ready` - floor(rho `max_ready`) honest clients, with
        ``effective_variance >= target_std^2``.
        Uniform: s_ind^2 = sigma^2 / h, or sigma^2 / (.9 h) with sparse masks. Gaussian:
        s_ind^2 = (1 + w) sigma^2 / h and s_pair^2 = s_ind^2 (sigma^2 - s_ind^2) / (w sigma^2), with
        w = .05 without dropouts and else w = sqrt(m (h - 1) / (h - m)).

    Raises
    ------
    ParameterError
        If a value is out of range, fewer than two clients are honest, or so many dropouts are
        expected that cancelling is useless.

    Notes
    -----
    The two Gaussian variances solve ``effective_variance = sigma^2`` for any 0 < w < h - 1. With
    sigma = 1 a sum that m clients left has, for each upload, the variance
    s_ind^2 + m s_pair^2 = ((h - m)(1 + w) + m (h - 1)(1 + 1 / w)) / h^2, least at the w above
    (about sqrt(m)), where it is (sqrt(h - m) + sqrt(m (h - 1)))^2 / h^2. That w is below h - 1
    as long as m <= h - 2. With more dropouts no w beats w = h - 1: s_ind = sigma and no pair noise,
    local differential privacy.
    """
    check_number("target_std", target_std, positive=True)
    check_integer("min_ready", min_ready, 2)
    check_number(
        "colluding_fraction", colluding_fraction, positive=False, below=math.nextafter(1.0, 2.0)
    )
    check_integer("expected_dropouts", expected_dropouts, 0)
    _check_pair_noise(pair_noise, sparse)
    most_ready = min_ready if max_ready is None else max_ready
    check_integer("max_ready", most_ready, min_ready)
    honest = min_ready - count_colluders(colluding_fraction, most_ready)
    if honest < 2:
        raise ParameterError(
            "colluding_fraction",
            colluding_fraction,
            f"a fraction that leaves 2 honest clients of min_ready = {min_ready}; with {honest} "
            "nobody is left to hide among, and the noise would be that of local privacy",
        )
    most = honest - 2 if pair_noise == "gaussian" else 0
    if expected_dropouts > most:
        reason = (
            f"0 to {most} with {honest} honest clients of min_ready = {min_ready}; beyond, noise "
            "that cancels saves nothing over local privacy"
            if pair_noise == "gaussian"
            else "0 with pair_noise = 'uniform': one client that vanishes ruins the sum"
        )
        raise ParameterError("expected_dropouts", expected_dropouts, reason)
    variance = target_std * target_std * _MARGIN
    if pair_noise == "uniform":
        share = COMPONENT_SHARE if sparse else 1.0
        return OffsetNoise(variance / (share * honest), 0.0, honest, pair_noise, sparse)
    w = _OWN_SHARE
    if expected_dropouts:
        w = math.sqrt(expected_dropouts * (honest - 1) / (honest - expected_dropouts))
    own = (1.0 + w) * variance / honest
    return OffsetNoise(own, own * (1.0 - own / variance) / w, honest)


def count_colluders(colluding_fraction: float, num_ready: int) -> int:
    """Return floor(rho M), taking a product within 1e-9 below an integer for that integer."""
    return math.floor(colluding_fraction * num_ready + 1e-9)


def extra_own_variance(base_std: float, target_std: float) -> float:
    """Return what a client adds to its own variance to be hidden by more than the others.

    Parameters
    ----------
    base_std : float
        What the common variances were calibrated to: the smallest target of all clients.
    target_std : float
        This client's target, at least `base_std`.

    Returns
    -------
    float
        target_std^2 - base_std^2, not rounded down. The client's effective variance is its own
        variance plus a sum over its peers (`star_variance`), so it grows by exactly as much.
    """
    check_number("base_std", base_std, positive=True)
    check_number("target_std", target_std, positive=True)
    if target_std < base_std:
        raise ParameterError("target_std", target_std, f"at least base_std = {base_std!r}")
    return (target_std - base_std) * (target_std + base_std) * _MARGIN


def star_variance(own_variance: float, pair_variance: float, others_own: Sequence[float]) -> float:
    """Return what hides a client whose peers share Gaussian noise with it alone.

    Parameters
    ----------
    own_variance : float
        s_ind,k^2 of the client.
    pair_variance : float
        s_pair^2.
    others_own : sequence of float
        s_ind,j^2 of each honest peer.

    Returns
    -------
    float
        s_ind,k^2 + sum_j s_pair^2 s_ind,j^2 / (s_pair^2 + s_ind,j^2): a lower bound for every graph
        that has these edges (`OffsetNoise.effective_variance_against`, proof).
    """
    check_number("own_variance", own_variance, positive=True)
    check_number("pair_variance", pair_variance, positive=False)
    for other in others_own:
        check_number("others_own", other, positive=True)
    return own_variance + math.fsum(
        pair_variance * other / (pair_variance + other) for other in others_own
    )


def _check_pair_noise(pair_noise: str, sparse: bool) -> None:
    if pair_noise not in ("gaussian", "uniform"):
        raise ParameterError("pair_noise", pair_noise, "gaussian or uniform")
    if not isinstance(sparse, bool) or (sparse and pair_noise != "uniform"):
        raise ParameterError("sparse", sparse, "true or false; true with uniform masks only")
