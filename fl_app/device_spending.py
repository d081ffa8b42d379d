"""What a device's releases have spent, over all runs, in one relation.

Epsilons of different relations do not add up, so each run is counted as if a record were exchanged
for another, or all of the client's data where the run protects a client, which covers its records.
The sums over runs are basic composition: epsilons add up, and so do deltas.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from fl_app.device_ledger import Release
from strategies.mechanisms.accounting import GaussianReleases, bound_epsilon
from strategies.mechanisms.exchange import count_rare_draws, exchange_epsilon


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
        Of an exchange of a record, or of all the client's data (`exchange_epsilon`). Infinite for
        a release without noise, or with noise that somebody can draw again.
    delta : float
    noise_at : {"client", "server"}
        Whose noise it counts; the server's is a promise.
    is_mixed : bool
        Whether its releases were not all alike: the number of records has changed.
    declared_epsilon : float
        Of `neighboring_relation`.
    least_noise : float
        The smallest z of a release.
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
    declared_epsilon: float = 0.0
    least_noise: float = math.inf


def spend_by_run(releases: Iterable[Release]) -> list[RunSpending]:
    """Return what each run has taken from each client, in the order of their first releases."""
    grouped: dict[tuple[str, int, str], Counter[str]] = {}
    for each in releases:
        key = (each.run, each.client, each.method)
        grouped.setdefault(key, Counter())[each.description] += 1
    return [_spend(*key, descriptions) for key, descriptions in grouped.items()]


def _spend(run: str, client: int, method: str, descriptions: Counter[str]) -> RunSpending:
    """Compose equal releases by their accountant, and unequal ones by adding up."""
    epsilon = declared = delta = 0.0
    units, relations, places = set(), set(), set()
    least_noise = math.inf
    for text, count in descriptions.items():
        values = _read_description(text)
        places.add(values.pop("noise_at", "client"))
        least_noise = min(least_noise, values.get("noise_multiplier") or 0.0)
        if not values.get("noise_multiplier"):
            epsilon = declared = math.inf
            continue
        each = values.pop("delta")
        delta += each + count * values.pop("failure", 0.0)
        values["num_releases"] *= count
        releases = GaussianReleases(**values)
        epsilon += exchange_epsilon(releases, each)
        declared += bound_epsilon(count_rare_draws(releases, each), each).epsilon
        units.add(releases.unit)
        relations.add(releases.neighboring_relation)
    return RunSpending(
        *(run, client, method, descriptions.total()),
        unit=units.pop() if len(units) == 1 else None,
        neighboring_relation=relations.pop() if len(relations) == 1 else None,
        epsilon=epsilon,
        delta=min(1.0, delta),
        noise_at="server" if "server" in places else "client",
        is_mixed=len(descriptions) > 1,
        declared_epsilon=declared,
        least_noise=least_noise,
    )


def _read_description(text: str) -> dict[str, Any]:
    return dict(json.loads(text)) if text else {}
