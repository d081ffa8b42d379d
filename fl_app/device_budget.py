"""What a device's policy leaves for one more run, and for one more upload of it.

All epsilons are those of an exchange, whatever relation a run declares (`device_spending`).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fl_app.device_ledger import Release, list_releases
from fl_app.device_policy import (
    COLLUDING_KEY,
    MAX_DELTA_KEY,
    MAX_EPSILON_KEY,
    NOISE_KEY,
    UNIT_KEY,
    DevicePolicy,
    PolicyRefusal,
)
from fl_app.device_spending import RunSpending, spend_by_run
from fl_app.device_state import FolderState
from strategies.device_state import LedgerEntry
from strategies.dp_fedpaq import DpFedPaqParameters
from strategies.dp_fedpaq.algorithm import client_noise_multiplier
from strategies.dp_fts_de import DpFtsDeParameters
from strategies.mechanisms.exchange import exchange_epsilon
from strategies.mechanisms.guarantee import MAX_DELTA
from strategies.mechanisms.offset_noise import count_colluders
from strategies.niss import NissParameters
from strategies.niss.calibration import own_noise_multiplier, plan_own_noise
from strategies.niss.key_memory import DeviceTrust

# With max-epsilon: so little noise hides only who is hardly ever drawn.
LEAST_NOISE = 0.1


@dataclass(frozen=True)
class RunLimits:
    """What a device's policy leaves for one run, as it stands before a request is answered.

    Attributes
    ----------
    max_epsilon, max_delta : float or None
        What no other run has spent; None: no limit.
    min_noise_multiplier : float
    min_colluding_fraction : float
    num_released : int
        Uploads of this run so far.
    granted : callable
        Returns the epsilon that the run was granted at its first request, given what is left now.
    """

    max_epsilon: float | None = None
    min_noise_multiplier: float = 0.0
    num_released: int = 0
    granted: Callable[[float], float] = lambda epsilon: epsilon
    max_delta: float | None = None
    min_colluding_fraction: float = 0.0

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
            self._require(self._total_of_update(given, is_repeat))
            if given.noise_multiplier is not None:
                _require_some_noise(given.noise_multiplier)
        if self.min_noise_multiplier and given.noise_at == "client":
            depends = given.noise_multiplier is None and given.record_sampling == "fixed"
            records = num_records() if depends else given.min_records
            self._require_noise(client_noise_multiplier(given, max(records, given.min_records)))

    def _total_of_update(self, given: DpFedPaqParameters, is_repeat: bool) -> float:
        count, z = given.num_participations, given.noise_multiplier
        if z is None:
            assert given.target_epsilon is not None
            if given.neighboring_relation == "replace_one":
                return given.target_epsilon
            # Under the other relations it does not depend on the number of records.
            z = client_noise_multiplier(given, given.min_records)
        else:
            # Without a plan for the whole run: what is spent after this upload, at most.
            count = max(1, self.num_released + (not is_repeat))
        releases = given.releases(z, given.min_records, count)
        return exchange_epsilon(releases, given.target_delta, given.accountant)

    def own_epsilon(self) -> float | None:
        """Return the epsilon for which a client adds noise of its own, in all rounds of the run."""
        return None if self.max_epsilon is None else self.granted(self.max_epsilon)

    def check_niss(
        self,
        given: NissParameters,
        client: int,
        num_records: Callable[[], int],
        own_epsilon: float | None,
        trust: DeviceTrust,
    ) -> None:
        """Refuse NISS with less noise than the owner asks for, its own for `own_epsilon` counted.

        Without a trust list the server may be all of a client's peers, and nothing but its own
        noise hides it.

        Raises
        ------
        PolicyRefusal
        """
        listed = trust.peers is not None
        if own_epsilon is not None:
            if given.mode != "sound" or not _keeps_to_epsilon(given.update):
                raise PolicyRefusal(f"{MAX_EPSILON_KEY}: the run keeps to no epsilon")
            total = own_epsilon
            if trust.peers is not None:
                self._require_colluders(given, client, len(trust.peers))
                total = min(total, _total_among_peers(given, client, own_epsilon))
            self._require(total)
        if self.min_noise_multiplier:
            depends = given.update.record_sampling == "fixed"
            records = max(num_records() if depends else 1, given.update.min_records)
            own = plan_own_noise(given, client, records, own_epsilon, has_trust_list=listed)
            self._require_noise(own.added)

    def _require_colluders(self, given: NissParameters, client: int, num_listed: int) -> None:
        """Refuse a run that holds out against fewer colluders than the owner reckons with.

        The server draws who takes part: all that are on the list may be in one ready set.
        """
        circle, least = given.circle_of(client), self.min_colluding_fraction
        expected = count_colluders(least, num_listed)
        if circle.colluding_fraction < least or circle.num_colluders < expected:
            raise PolicyRefusal(
                f"{COLLUDING_KEY}: the run allows for {circle.num_colluders} colluders, a share of "
                f"{circle.colluding_fraction:g}; {least:g} of {num_listed} peers are {expected}"
            )

    def check_search(self, planned: DpFtsDeParameters, num_rounds: int) -> None:
        """Refuse DP-FTS-DE with less noise than the owner asks for, going by what is promised.

        Raises
        ------
        PolicyRefusal
        """
        if self.max_epsilon is not None:
            if planned.randomness != "secret" or planned.target_delta > MAX_DELTA:
                raise PolicyRefusal(f"{MAX_EPSILON_KEY}: the run keeps to no epsilon")
            z = planned.noise_multiplier or 0.0
            if planned.control != "no_sharing":
                count = max(1, planned.num_planned(num_rounds))
                releases = planned.describe_releases(count, float(z))
                delta = float(planned.target_delta)
                self._require(exchange_epsilon(releases, delta, planned.accountant))
                _require_some_noise(float(z))
        if self.min_noise_multiplier and planned.control != "no_sharing":
            self._require_noise(planned.noise_multiplier or 0.0)

    def check_charge(self, releases: Iterable[Release]) -> None:
        """Refuse an upload that takes more than is left, before it is charged.

        Parameters
        ----------
        releases : iterable of Release
            All of the run, this one among them.

        Raises
        ------
        PolicyRefusal
        """
        for each in spend_by_run(releases):
            key = MAX_EPSILON_KEY if self.max_epsilon is not None else MAX_DELTA_KEY
            if (self.max_epsilon, self.max_delta) != (None, None) and each.is_mixed:
                raise PolicyRefusal(f"{key}: the device's data changed within the run")
            if self.max_delta is not None:
                _require_delta(each.delta, self.max_delta)
            if self.max_epsilon is not None:
                _require_some_noise(each.least_noise)
                self._require(each.epsilon)

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
    left_delta = None
    if policy.max_delta is not None:
        left_delta = policy.max_delta - math.fsum(each.delta for each in others)
        _require_delta(max([delta, *(each.delta for each in own)]), left_delta)
    left = None
    if policy.max_epsilon is not None:
        if policy.unit == "client" and any(each.unit == "record" for each in others):
            raise PolicyRefusal(f"{UNIT_KEY}: other runs have protected records only")
        left = policy.max_epsilon - math.fsum(each.epsilon for each in others)
        if not left > 0.0:
            raise PolicyRefusal(f"{MAX_EPSILON_KEY}: other runs have spent it")
    return RunLimits(
        left,
        policy.min_noise_multiplier or 0.0,
        sum(each.num_releases for each in own),
        granted,
        left_delta,
        policy.min_colluding_fraction,
    )


class LimitedState(FolderState):
    """A device's memory of one run, which charges nothing beyond its policy.

    Parameters
    ----------
    folder, run, client
        As in `FolderState`.
    limits : RunLimits
    """

    def __init__(self, folder: Path, run: str, client: int, limits: RunLimits) -> None:
        super().__init__(folder, run, client, "FULL")
        self._folder_of_releases, self._run, self._limits = folder, (run, client), limits

    def write_entry(self, entry: LedgerEntry) -> None:
        """Replace the run's entry; PolicyRefusal if it charges more than is left."""
        if entry.participations > self.read_entry(entry.method).participations:
            this = (*self._run, entry.method)
            before = [each for each in list_releases(self._folder_of_releases) if each[:3] == this]
            charged = Release(*this, entry.last_round, entry.releases)
            self._limits.check_charge([*before, charged])
        super().write_entry(entry)


def _require_delta(delta: float, left: float) -> None:
    if delta > left + 1e-12 * delta:
        raise PolicyRefusal(f"{MAX_DELTA_KEY}: {left:g} is left, the run takes {delta:g}")


def _require_some_noise(noise_multiplier: float) -> None:
    if not noise_multiplier >= LEAST_NOISE:
        raise PolicyRefusal(
            f"{MAX_EPSILON_KEY}: a noise multiplier of {noise_multiplier:g}, below {LEAST_NOISE}, "
            "hides only who is hardly ever drawn"
        )


def _total_among_peers(given: NissParameters, client: int, own_epsilon: float) -> float:
    """Return what a run of NISS takes of a client whose peers are who they should be."""
    update = given.update
    if update.neighboring_relation == "replace_one":
        target = given.epsilon_of(client)
        return own_epsilon if target is None else target
    z = own_noise_multiplier(given, client, update.min_records, own_epsilon)
    releases = update.releases(z, update.min_records, update.num_participations)
    return exchange_epsilon(releases, given.gaussian_delta, update.accountant)


def _keeps_to_epsilon(update: DpFedPaqParameters) -> bool:
    """Return whether the device's own noise can make a run keep to an epsilon."""
    noised = update.adds_noise and update.mode == "sound" and update.randomness == "secret"
    return noised and update.target_delta <= MAX_DELTA
