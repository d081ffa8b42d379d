"""How much privacy a run of Gaussian releases spends, and how much noise a budget needs.

What happened (`GaussianReleases`) is kept apart from how it is counted (an accountant's name). An
accountant that does not match the sampler is refused. One that gives more than what holds without
counting the sampling yields to `closed_form`, and the answer says so (`EpsilonBound`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from scipy import optimize

from strategies.mechanisms.closed_form import (
    analytic_gaussian_std,
    gaussian_epsilon,
    require_count,
    require_real,
)
from strategies.mechanisms.moments import moments_epsilon
from strategies.mechanisms.poisson import poisson_epsilon
from strategies.mechanisms.privacy_loss import fixed_size_epsilon
from strategies.mechanisms.renyi import (
    fixed_size_renyi_epsilon,
    poisson_renyi_epsilon,
    unsampled_renyi_epsilon,
)

ACCOUNTANTS = ("closed_form", "pld", "rdp")
COMPARISON_ACCOUNTANTS = ("moments",)  # as published: never what "auto" stands for

# For every (unit, sampling): the relations under which the releases are defined.
_RELATIONS: dict[tuple[str, str], tuple[str, ...]] = {
    ("record", "none"): ("replace_one", "add_or_remove_one"),
    ("record", "fixed"): ("replace_one",),
    ("record", "poisson"): ("add_or_remove_one",),
    ("client", "none"): ("replace_one", "zero_out"),
    ("client", "fixed"): ("replace_one",),
    ("client", "poisson"): ("zero_out",),
}
# Smallest calibrated noise relative to what is needed without sampling.
_LEAST_SHARE = 1e-9
_AIM, _FLOOR = 0.995, 0.99


class AccountingError(ValueError):
    """Releases that cannot be described, or an accountant that does not cover them."""


@dataclass(frozen=True)
class GaussianReleases:
    """Repeated Gaussian releases about one client's data, as they happened or are planned.

    Attributes
    ----------
    noise_multiplier : float
        ``z``: noise standard deviation over the L2 sensitivity **under neighboring_relation**. At
        least 0.
    num_releases : int
        ``T``, at least 0.
    unit : {"record", "client"}
        What is protected.
    neighboring_relation : {"replace_one", "add_or_remove_one", "zero_out"}
        A record is replaced, or is there or not; a client is replaced, or its contribution is
        there or is nothing (in a Poisson cohort: it is absent, and the noise does not depend on
        who is there).
    sampling : {"none", "fixed", "poisson"}
        Whether every release is computed from a new secret sample of records or clients.
        ``fixed``: of a public size, drawn uniformly without replacement; replace_one only.
        ``poisson``: each is drawn independently; add_or_remove_one of a record or zero_out of a
        client only.
    sample_rate : float
        ``p``, the exact probability that a given record or client is in a sample; 1 without
        sampling.

    Raises
    ------
    AccountingError
        If a value is not finite, out of its range or not a known word, or the words do not go
        together.
    """

    noise_multiplier: float
    num_releases: int
    unit: str
    neighboring_relation: str
    sampling: str
    sample_rate: float

    def __post_init__(self) -> None:
        require_real(
            "noise_multiplier", self.noise_multiplier, 0.0, math.inf, error=AccountingError
        )
        require_count("num_releases", self.num_releases, 0, error=AccountingError)
        _check_words(self.unit, self.sampling)
        relations = _RELATIONS[self.unit, self.sampling]
        if self.neighboring_relation not in relations:
            raise AccountingError(
                f"neighboring_relation={self.neighboring_relation!r} is not allowed for "
                f"unit={self.unit!r} with sampling={self.sampling!r}: one of {relations} is needed"
            )
        least = 1.0 if self.sampling == "none" else 0.0
        closed = "both" if self.sampling == "none" else "upper"
        require_real(
            "sample_rate", self.sample_rate, least, 1.0, closed=closed, error=AccountingError
        )


@dataclass(frozen=True)
class EpsilonBound:
    """An epsilon, and the accountant that it comes from.

    Attributes
    ----------
    epsilon : float
        At least 0; infinite for releases without noise.
    accountant : {"closed_form", "pld", "rdp", "moments"}
        The one asked for, or ``closed_form`` where it gives no more than that one.
    """

    epsilon: float
    accountant: str


def default_accountant(unit: str, sampling: str) -> str:
    """Return the tightest accountant for a unit and a sampler, the one ``"auto"`` stands for.

    Raises
    ------
    AccountingError
        If the unit cannot be sampled so.
    """
    _check_words(unit, sampling)
    return next(iter(_EPSILONS[sampling]))


def check_accountant(accountant: str, releases: GaussianReleases) -> None:
    """Refuse an accountant that does not cover the releases.

    Parameters
    ----------
    accountant : {"closed_form", "pld", "rdp", "moments", "auto"}
        ``closed_form`` covers every sampler: it counts no amplification, which is valid because
        two neighbouring data sets can share the draw; without sampling it is exact. ``pld``
        composes the privacy loss of a sampled release and covers sampling only. ``rdp``, by Renyi
        divergences, covers every sampler and is looser; ``moments`` only client Poisson cohorts.
    releases : GaussianReleases

    Raises
    ------
    AccountingError
        Names the accountant, the sampler and what is allowed.
    """
    _resolve(accountant, releases)


def bound_epsilon(
    releases: GaussianReleases, delta: float, accountant: str = "auto"
) -> EpsilonBound:
    """Compute the epsilon that the releases spend together, and say who counted it.

    With sampling no accountant's epsilon exceeds that of ``closed_form``. Where it would (a Renyi
    bound at high sample rates and at small epsilons, every accountant beyond the range of its
    numbers), the answer is that of ``closed_form`` and carries its name: what it says holds whether
    or not the draw stays secret.

    Parameters
    ----------
    releases : GaussianReleases
    delta : float
        In (0, 1).
    accountant : {"auto", "closed_form", "pld", "rdp", "moments"}
        See `check_accountant` and `default_accountant`.

    Returns
    -------
    EpsilonBound
        ``epsilon >= 0``, an upper bound: all releases together are (epsilon, delta)-private for the
        declared relation. 0 for no releases, infinite for releases without noise.

    Raises
    ------
    AccountingError
        If the accountant does not cover the releases or delta is out of range.
    """
    delta = require_real("delta", delta, 0.0, 1.0, closed="neither", error=AccountingError)
    name = _resolve(accountant, releases)
    epsilon = _covering(releases)[name](releases, delta)
    if releases.sampling != "none" and name != "closed_form":
        unamplified = _closed_form(releases, delta)
        if unamplified <= epsilon:
            return EpsilonBound(unamplified, "closed_form")
    return EpsilonBound(epsilon, name)


def compute_epsilon(releases: GaussianReleases, delta: float, accountant: str = "auto") -> float:
    """Compute the epsilon that the releases spend together: that of `bound_epsilon`."""
    return bound_epsilon(releases, delta, accountant).epsilon


@lru_cache(maxsize=4096, typed=True)
def calibrate_noise_multiplier(
    target_epsilon: float,
    target_delta: float,
    *,
    num_releases: int,
    unit: str,
    neighboring_relation: str,
    sampling: str,
    sample_rate: float,
    accountant: str = "auto",
) -> float:
    """Compute the noise multiplier with which all releases together meet a target.

    Parameters
    ----------
    target_epsilon : float
        Positive, of all releases together.
    target_delta : float
        In (0, 1).
    num_releases : int
        ``T``, at least 1.
    unit, neighboring_relation, sampling, sample_rate
        As in `GaussianReleases`.
    accountant : {"auto", "closed_form", "pld", "rdp", "moments"}
        As in `bound_epsilon`.

    Returns
    -------
    float
        ``z > 0`` with ``epsilon(z) <= target_epsilon`` always, epsilon by the same accountant. For
        targets from 0.01 to 1000 also ``epsilon(z) >= 0.99 target_epsilon``; beyond, the search may
        stop at more noise.

    Raises
    ------
    AccountingError
        If an argument is out of its range, the accountant does not cover the releases, or
        ``target_delta`` is so large that the definition asks for no noise at all: a secret sample
        that leaves a record out with probability ``1 - target_delta`` in all releases together
        would meet it while publishing that record when drawn.
    """
    target = require_real(
        "target_epsilon", target_epsilon, 0.0, math.inf, closed="neither", error=AccountingError
    )
    require_count("num_releases", num_releases, 1, error=AccountingError)

    def spend(noise_multiplier: float) -> float:
        releases = GaussianReleases(
            noise_multiplier, num_releases, unit, neighboring_relation, sampling, sample_rate
        )
        return compute_epsilon(releases, target_delta, accountant)

    spend(1.0)  # refuses bad arguments
    enough = math.sqrt(num_releases) * analytic_gaussian_std(target, target_delta, 1.0)
    growth = 1e-12
    while spend(enough) > target:
        enough *= 1.0 + growth
        growth *= 2.0
    if spend(enough) >= _FLOOR * target:
        return enough
    never = num_releases * math.log1p(-sample_rate) if sample_rate < 1.0 else -math.inf
    drawn = -math.expm1(never)
    if drawn <= target_delta:
        raise AccountingError(
            f"target_delta={target_delta!r} is not allowed: a record is drawn at all with "
            f"probability {drawn:.3g} in {num_releases} releases, so no noise would meet the "
            f"target; a number below that probability is needed"
        )
    little = enough
    while spend(little) <= target and little > _LEAST_SHARE * enough:
        little *= 0.5

    def excess(log_noise: float) -> float:
        epsilon = spend(math.exp(log_noise))
        if _FLOOR * target <= epsilon <= target:
            return 0.0  # ends the search
        return math.log(max(epsilon, 1e-3 * target) / (_AIM * target))

    if excess(math.log(little)) <= 0.0:
        return little
    root = math.exp(optimize.brentq(excess, math.log(little), math.log(enough), xtol=1e-13))
    return root if spend(root) <= target else enough


def _closed_form(releases: GaussianReleases, delta: float) -> float:
    return gaussian_epsilon(releases.noise_multiplier, releases.num_releases, delta)


def _unsampled_renyi(releases: GaussianReleases, delta: float) -> float:
    return unsampled_renyi_epsilon(releases.noise_multiplier, releases.num_releases, delta)


def _sampled(
    epsilon: Callable[[float, float, int, float], float],
) -> Callable[[GaussianReleases, float], float]:
    return lambda releases, delta: epsilon(
        releases.noise_multiplier, releases.sample_rate, releases.num_releases, delta
    )


# For every sampler: its accountants, the tightest first.
_EPSILONS: dict[str, dict[str, Callable[[GaussianReleases, float], float]]] = {
    "none": {"closed_form": _closed_form, "rdp": _unsampled_renyi},
    "fixed": {
        "pld": _sampled(fixed_size_epsilon),
        "rdp": _sampled(fixed_size_renyi_epsilon),
        "closed_form": _closed_form,
    },
    "poisson": {
        "pld": _sampled(poisson_epsilon),
        "rdp": _sampled(poisson_renyi_epsilon),
        "closed_form": _closed_form,
    },
}


def _covering(releases: GaussianReleases) -> dict[str, Callable[[GaussianReleases, float], float]]:
    is_cohort = (releases.unit, releases.sampling) == ("client", "poisson")  # only under zero_out
    more = {"moments": _sampled(moments_epsilon)} if is_cohort else {}
    return {**_EPSILONS[releases.sampling], **more}


def _check_words(unit: str, sampling: str) -> None:
    """Refuse a unit, a sampler or a pair of them that is not described by `GaussianReleases`."""
    for name, value, words in (
        ("unit", unit, ("record", "client")),
        ("sampling", sampling, tuple(_EPSILONS)),
    ):
        if value not in words:
            raise AccountingError(f"{name}={value!r} is not allowed: one of {words} is needed")
    if (unit, sampling) not in _RELATIONS:
        samplings = tuple(s for u, s in _RELATIONS if u == unit)
        raise AccountingError(
            f"sampling={sampling!r} is not allowed for unit={unit!r}: one of {samplings} is needed"
        )


def _resolve(accountant: str, releases: GaussianReleases) -> str:
    """Return the accountant that ``accountant`` stands for, or refuse it."""
    allowed = _covering(releases)
    if accountant == "auto":
        return next(iter(allowed))
    if accountant not in allowed:
        raise AccountingError(
            f"accountant={accountant!r} is not allowed with sampling={releases.sampling!r}: "
            f"one of {('auto', *allowed)} is needed"
        )
    return accountant
