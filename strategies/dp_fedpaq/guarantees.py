"""What DP-FedPaq guarantees, to whom, and under which assumptions."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from strategies.dp_fedpaq.algorithm import client_noise_multiplier
from strategies.dp_fedpaq.parameters import DpFedPaqParameters
from strategies.mechanisms.accounting import compute_epsilon

# Beyond these a number is no protection worth the name.
MAX_EPSILON = 1000.0
MAX_DELTA = 0.01
SEEDED = (
    "seeded run: noise and draws can be recomputed from the configuration, so this is not a "
    "release; epsilon is what the mechanism gives with secret randomness"
)


@dataclass(frozen=True)
class Guarantee:
    """One row of privacy.json: who learns how little, and what must hold for it.

    Attributes
    ----------
    adversary : str
        Who tries to learn: ``"server"`` (and whoever reads its traffic) or ``"model_user"``.
    colluding_fraction : float
        Share of the other clients that may help the adversary.
    unit, neighboring_relation : str
        What is hidden, and what neighbouring data sets differ in.
    epsilon : float or None
        Total over the run, of the most exposed client; None: no guarantee.
    delta : float or None
    accountant : str or None
    randomness : str
    assumptions : tuple of str
    valid : bool
        Whether this run may be called a release with this guarantee.
    why_not : str or None
    """

    adversary: str
    colluding_fraction: float
    unit: str
    neighboring_relation: str
    epsilon: float | None
    delta: float | None
    accountant: str | None
    randomness: str
    assumptions: tuple[str, ...]
    valid: bool
    why_not: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return {**asdict(self), "assumptions": list(self.assumptions)}


def spent_epsilon(
    parameters: DpFedPaqParameters,
    participations: Mapping[int, int],
    num_records: Mapping[int, int] | None,
) -> float | None:
    """Return the epsilon spent so far by the most exposed client.

    Parameters
    ----------
    parameters : DpFedPaqParameters
    participations : mapping of int to int
        Uploads asked of each client; one that may have been sent counts.
    num_records : mapping of int to int, or None
        n_k of each client, where it may be known (it is public under replace_one). None: with
        a target, the target itself is returned for any client that took part; with a given noise
        multiplier, the epsilon without amplification.

    Returns
    -------
    float or None
        None if no noise is added; 0.0 before any upload.
    """
    if not parameters.adds_noise:
        return None
    counts = {client: count for client, count in participations.items() if count > 0}
    if not counts:
        return 0.0
    if num_records is None and parameters.target_epsilon is not None:
        return parameters.target_epsilon
    most: dict[int, int] = {}
    for client, count in counts.items():
        records = parameters.min_records if num_records is None else num_records[client]
        # The client counts, too, and uploads no more often than planned.
        uploads = min(count, parameters.num_participations)
        most[records] = max(most.get(records, 0), uploads)
    return max(_client_epsilon(parameters, records, count) for records, count in most.items())


@lru_cache(maxsize=4096)
def _client_epsilon(parameters: DpFedPaqParameters, num_records: int, count: int) -> float:
    noise_multiplier = client_noise_multiplier(parameters, num_records)
    if noise_multiplier == 0.0:
        return math.inf
    releases = parameters.releases(noise_multiplier, num_records, count)
    return compute_epsilon(releases, parameters.target_delta, parameters.resolved_accountant)


def list_guarantees(
    parameters: DpFedPaqParameters,
    epsilon: float | None,
    *,
    num_rounds: int = 1,
    most_records: int | None = None,
) -> list[Guarantee]:
    """Return the guarantees of a run in the order of privacy.json: server, model_user.

    Parameters
    ----------
    parameters : DpFedPaqParameters
    epsilon : float or None
        What the most exposed client spent (`spent_epsilon`).
    num_rounds : int
        Rounds so far, whose conditions are listed.
    most_records : int or None
        Largest n_k, where it may be known: delta must be below its inverse.
    """
    delta_limit = MAX_DELTA
    if parameters.unit == "record" and most_records:
        delta_limit = min(MAX_DELTA, 1.0 / most_records)
    why_not = None
    if epsilon is None or not math.isfinite(epsilon):
        epsilon, why_not = None, "no noise is added: every upload shows the client's update"
    elif epsilon > MAX_EPSILON:
        epsilon, why_not = None, f"epsilon is {epsilon:.3g}: the noise hides nothing"
    elif parameters.randomness == "seeded":
        why_not = SEEDED
    elif parameters.target_delta >= delta_limit:
        why_not = (
            f"delta = {parameters.target_delta:g} is not below {delta_limit:.3g}: it would allow "
            "publishing a record outright with a probability that matters"
        )
    known = epsilon is not None
    rows = []
    for adversary in ("server", "model_user"):
        rows.append(
            Guarantee(
                adversary=adversary,
                colluding_fraction=1.0,
                unit=parameters.unit,
                neighboring_relation=parameters.neighboring_relation,
                epsilon=epsilon,
                delta=parameters.target_delta if known else None,
                accountant=parameters.resolved_accountant if known else None,
                randomness=parameters.randomness,
                assumptions=_assumptions(parameters, adversary, num_rounds) if known else (),
                valid=why_not is None,
                why_not=why_not,
            )
        )
    return rows


def _assumptions(
    parameters: DpFedPaqParameters, adversary: str, num_rounds: int
) -> tuple[str, ...]:
    """List in words what the guarantee rests on."""
    lines = [
        "code integrity: each client runs this published code; the server ships code and "
        "configuration and could ship other code to a client that does not check it",
        "parameters: the server asked every client for the noise, clipping and randomness of this "
        "run; a client obeys the parameters of the run that it joined and holds the server to them",
        "Sybils: no matter how many of the other clients are false or collude, each upload carries "
        "its own noise",
        "floating point: noise is drawn and added in double precision; attacks on the gaps between "
        "floating-point numbers are not covered",
        "the run: this counts one run; several runs on the same data add up",
        f"participations: a client uploads at most {parameters.num_participations} times in the "
        "run, counts them itself and answers no round twice; its requests are delivered one at a "
        "time, and its count is not lost",
        "data: reading a client's data does not fail because of what a record holds",
        "timing: how long a client takes to answer is not covered",
    ]
    if parameters.sampling == "fixed" and parameters.resolved_accountant == "pld":
        lines.append("secret draws: nobody but the client knows which records it drew in a round")
    if adversary == "model_user":
        lines.append(
            "post-processing: the models are functions of the uploads; what averaging and client "
            "sampling hide in addition is not counted"
        )
    lines += _conditions(parameters, max(1, num_rounds))
    if parameters.is_size_public:
        lines.append("the number of records of a client is public")
    return tuple(dict.fromkeys(lines))


def _conditions(parameters: DpFedPaqParameters, num_rounds: int) -> tuple[str, ...]:
    """List the conditions of the sensitivities of all rounds, each kind with its largest value.

    Learning rates never rise, so the convex bound only falls, and once it is the smaller of the
    two it stays so: there are at most two kinds, the second from some round on.
    """
    first, last = (parameters.sensitivity_in_round(t) for t in (1, num_rounds))
    if first.kind == last.kind:
        return first.conditions
    rounds = range(1, num_rounds + 1)
    change = bisect_left(
        rounds, True, key=lambda t: parameters.sensitivity_in_round(t).kind == last.kind
    )
    return (*first.conditions, *parameters.sensitivity_in_round(rounds[change]).conditions)
