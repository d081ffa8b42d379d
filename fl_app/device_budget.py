"""What a device's releases have spent, over all runs, and what its policy leaves for one more.

Each run is counted by itself, in the unit and the relation that it declares; the sums over runs are
basic composition: epsilons add up, and so do deltas.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from fl_app.device_ledger import Release
from fl_app.device_policy import (
    MAX_DELTA_KEY,
    MAX_EPSILON_KEY,
    NOISE_KEY,
    DevicePolicy,
    PolicyRefusal,
)
from strategies.dp_fedpaq import DpFedPaqParameters
from strategies.dp_fedpaq.algorithm import client_noise_multiplier
from strategies.dp_fts_de import DpFtsDeParameters
from strategies.dp_fts_de.spending import spend
from strategies.mechanisms.accounting import GaussianReleases, bound_epsilon
from strategies.mechanisms.guarantee import MAX_DELTA
from strategies.niss import NissParameters
from strategies.niss.calibration import own_noise_multiplier


class RunSpending(NamedTuple):
    """What one client has released in one run.

    Attributes
    ----------
    run : str
    client : int
    method : str
    num_releases : int
        Uploads.
    unit, neighboring_relation : str or None
        None where nothing is proven.
    epsilon : float
        Infinite for a release without noise, or with noise that somebody can draw again.
    delta : float
    noise_at : {"client", "server"}
        Whose noise it counts; the server's is a promise.
    is_mixed : bool
        Whether its releases were not all alike: the number of records has changed.
    """

    run: str
    client: int
    method: str
    num_releases: int
    unit: str | None
    neighboring_relation: str | None
    epsilon: float
    delta: float
    noise_at: str
    is_mixed: bool = False


def spend_by_run(releases: Iterable[Release]) -> list[RunSpending]:
    """Return what each run has taken from each client, in the order of their first releases."""
    grouped: dict[tuple[str, int, str], Counter[str]] = {}
    for each in releases:
        key = (each.run, each.client, each.method)
        grouped.setdefault(key, Counter())[each.description] += 1
    return [_spend(*key, descriptions) for key, descriptions in grouped.items()]


def _spend(run: str, client: int, method: str, descriptions: Counter[str]) -> RunSpending:
    """Compose equal releases by their accountant, and unequal ones by adding up."""
    epsilon = delta = 0.0
    units, relations, places = set(), set(), set()
    for text, count in descriptions.items():
        values = _read_description(text)
        places.add(values.pop("noise_at", "client"))
        if not values.get("noise_multiplier"):
            epsilon = math.inf
            continue
        each = values.pop("delta")
        delta += each + count * values.pop("failure", 0.0)
        values["num_releases"] *= count
        epsilon += bound_epsilon(GaussianReleases(**values), each).epsilon
        units.add(values["unit"])
        relations.add(values["neighboring_relation"])
    return RunSpending(
        *(run, client, method, descriptions.total()),
        unit=units.pop() if len(units) == 1 else None,
        neighboring_relation=relations.pop() if len(relations) == 1 else None,
        epsilon=epsilon,
        delta=min(1.0, delta),
        noise_at="server" if "server" in places else "client",
        is_mixed=len(descriptions) > 1,
    )


def _read_description(text: str) -> dict[str, Any]:
    return dict(json.loads(text)) if text else {}


@dataclass(frozen=True)
class RunLimits:
    """What a device's policy leaves for one run, as it stands before a request is answered.

    Attributes
    ----------
    max_epsilon : float or None
        What no other run has spent; None: no limit.
    min_noise_multiplier : float
    num_released : int
        Uploads of this run so far.
    granted : callable
        Returns the epsilon that the run was granted at its first request, given what is left now.
    """

    max_epsilon: float | None = None
    min_noise_multiplier: float = 0.0
    num_released: int = 0
    granted: Callable[[float], float] = lambda epsilon: epsilon

    def check_update(
        self, given: DpFedPaqParameters, num_records: Callable[[], int], is_repeat: bool
    ) -> None:
        """Refuse DP-FedPaq with less noise than the owner asks for.

        Parameters
        ----------
        given : DpFedPaqParameters
            What the server asks for.
        num_records : callable
            Returns n_k; called only if the device's own noise must be known and depends on it,
            which is in runs that treat it as public.
        is_repeat : bool
            Whether the request is for the round that was charged last.

        Raises
        ------
        PolicyRefusal
        """
        if self.max_epsilon is not None:
            if not _keeps_to_epsilon(given) or given.noise_at == "server":
                raise PolicyRefusal(f"{MAX_EPSILON_KEY}: the run keeps to no epsilon")
            total = given.target_epsilon
            if total is None:
                # Without a plan for the whole run: what is spent after this upload, at most.
                assert given.noise_multiplier is not None
                count = max(1, self.num_released + (not is_repeat))
                releases = given.releases(given.noise_multiplier, given.min_records, count)
                total = bound_epsilon(releases, given.target_delta, given.accountant).epsilon
            self._require(total)
        if self.min_noise_multiplier and given.noise_at == "client":
            depends = given.noise_multiplier is None and given.record_sampling == "fixed"
            records = num_records() if depends else given.min_records
            self._require_noise(client_noise_multiplier(given, max(records, given.min_records)))

    def own_epsilon(self) -> float | None:
        """Return the epsilon for which a client adds noise of its own, in all rounds of the run."""
        return None if self.max_epsilon is None else self.granted(self.max_epsilon)

    def check_niss(
        self,
        given: NissParameters,
        client: int,
        num_records: Callable[[], int],
        own_epsilon: float | None,
    ) -> None:
        """Refuse NISS with less noise than the owner asks for, its own for `own_epsilon` counted.

        Raises
        ------
        PolicyRefusal
        """
        if own_epsilon is not None:
            if given.mode != "sound" or not _keeps_to_epsilon(given.update):
                raise PolicyRefusal(f"{MAX_EPSILON_KEY}: the run keeps to no epsilon")
            target = given.epsilon_of(client)
            self._require(own_epsilon if target is None else min(own_epsilon, target))
        if self.min_noise_multiplier:
            depends = given.update.record_sampling == "fixed"
            records = max(num_records() if depends else 1, given.update.min_records)
            self._require_noise(own_noise_multiplier(given, client, records, own_epsilon))

    def check_search(self, planned: DpFtsDeParameters, num_rounds: int) -> None:
        """Refuse DP-FTS-DE with less noise than the owner asks for, going by what is promised.

        Raises
        ------
        PolicyRefusal
        """
        if self.max_epsilon is not None:
            if planned.randomness != "secret" or planned.target_delta > MAX_DELTA:
                raise PolicyRefusal(f"{MAX_EPSILON_KEY}: the run keeps to no epsilon")
            total = planned.target_epsilon
            if total is None:
                spent = spend(planned, max(1, planned.num_planned(num_rounds)))
                total = math.inf if spent is None else spent.epsilon
            self._require(total)
        if self.min_noise_multiplier and planned.control != "no_sharing":
            self._require_noise(planned.noise_multiplier or 0.0)

    def _require(self, total: float) -> None:
        assert self.max_epsilon is not None
        if not total <= self.max_epsilon:
            raise PolicyRefusal(
                f"{MAX_EPSILON_KEY}: {self.max_epsilon:.6g} is left, the run takes {total:.6g}"
            )

    def _require_noise(self, noise_multiplier: float) -> None:
        if not noise_multiplier >= self.min_noise_multiplier:
            raise PolicyRefusal(f"{NOISE_KEY}: the run's noise multiplier is {noise_multiplier:g}")


NO_LIMITS = RunLimits()


def limit_run(
    policy: DevicePolicy,
    spent: Iterable[RunSpending],
    run: str,
    method: str,
    delta: float,
    granted: Callable[[float], float],
) -> RunLimits:
    """Return what a policy leaves for a run.

    Parameters
    ----------
    policy : DevicePolicy
    spent : iterable of RunSpending
        Of all runs. Only what has this run's name, the client's number and the same method is not
        another run's: whatever name a server gives it, a budget is spent once.
    run, method : str
    delta : float
        The run's target_delta, which is spent with its first release.
    granted : callable
        See `RunLimits`.

    Raises
    ------
    PolicyRefusal
        If nothing is left.
    """
    rows, this = list(spent), (run, policy.partition_id, method)
    others = [each for each in rows if each[:3] != this]
    own = [each for each in rows if each[:3] == this]
    if policy.max_epsilon is not None and any(each.is_mixed for each in own):
        raise PolicyRefusal(f"{MAX_EPSILON_KEY}: the device's data changed within the run")
    if policy.max_delta is not None:
        deltas = math.fsum([*(each.delta for each in others), delta])
        if deltas > policy.max_delta * (1.0 + 1e-12):
            raise PolicyRefusal(f"{MAX_DELTA_KEY}: with this run's, deltas add up to {deltas:g}")
    left = None
    if policy.max_epsilon is not None:
        left = policy.max_epsilon - math.fsum(each.epsilon for each in others)
        if not left > 0.0:
            raise PolicyRefusal(f"{MAX_EPSILON_KEY}: other runs have spent it")
    return RunLimits(
        left, policy.min_noise_multiplier or 0.0, sum(each.num_releases for each in own), granted
    )


def _keeps_to_epsilon(update: DpFedPaqParameters) -> bool:
    """Return whether the device's own noise can make a run keep to an epsilon."""
    noised = update.adds_noise and update.mode == "sound" and update.randomness == "secret"
    return noised and update.target_delta <= MAX_DELTA
