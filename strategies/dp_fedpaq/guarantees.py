"""What DP-FedPaq guarantees, to whom, and under which assumptions."""

import math
from bisect import bisect_left
from typing import Any

from strategies.dp_fedpaq.algorithm import client_mechanism
from strategies.dp_fedpaq.parameters import DpFedPaqParameters
from strategies.dp_fedpaq.published_noise import list_flaws
from strategies.dp_fedpaq.spending import (
    Participation,
    Spent,
    fewest_records,
    server_mechanism,
    spend_on_model_user,
    spend_on_server,
)
from strategies.mechanisms.guarantee import MAX_DELTA, MAX_EPSILON, SEEDED, Guarantee


def spent_epsilon(parameters: DpFedPaqParameters, run: Participation) -> float | None:
    """Return the epsilon that the most exposed client has spent so far.

    Against the server; in the curator model, where the server is trusted, against a user of the
    models. None if no noise is added.
    """
    spend = spend_on_model_user if parameters.noise_at == "server" else spend_on_server
    spent = spend(parameters, run)
    return None if spent is None else spent.epsilon


def describe_noise(parameters: DpFedPaqParameters, run: Participation) -> dict[str, Any]:
    """Return which bound the noise of round 1 follows, and its largest standard deviation."""
    mechanism = client_mechanism(parameters, 1, fewest_records(parameters, run))
    if parameters.noise_at == "server" and parameters.adds_noise:
        mechanism = server_mechanism(parameters, run, 1)
    if mechanism is None:
        return {"sensitivity": None, "noise_std": None}
    return {"sensitivity": mechanism.sensitivity.kind, "noise_std": mechanism.noise_std}


def list_guarantees(parameters: DpFedPaqParameters, run: Participation) -> list[Guarantee]:
    """Return the guarantees of a run so far in the order of privacy.json: server, model_user.

    Parameters
    ----------
    parameters : DpFedPaqParameters
    run : Participation
        Who took part in the rounds so far.
    """
    spending = {
        "server": spend_on_server(parameters, run),
        "model_user": spend_on_model_user(parameters, run),
    }
    rows = []
    for adversary, spent in spending.items():
        why_not = _why_not(parameters, run, spent)
        known = spent is not None and spent.epsilon <= MAX_EPSILON
        assert spent is not None or not known
        rows.append(
            Guarantee(
                adversary=adversary,
                colluding_fraction=spent.colluding_fraction if spent else 1.0,
                unit=parameters.unit,
                neighboring_relation=parameters.neighboring_relation,
                epsilon=spent.epsilon if spent and known else None,
                delta=parameters.target_delta if known else None,
                accountant=spent.accountant if spent and known else None,
                randomness=parameters.randomness,
                assumptions=_assumptions(parameters, adversary, run, spent)
                if spent and known
                else (),
                valid=why_not is None,
                why_not=why_not,
            )
        )
    return rows


def _why_not(parameters: DpFedPaqParameters, run: Participation, spent: Spent | None) -> str | None:
    """Say why this run may not be called a release with its guarantee; None if it may."""
    if spent is None and parameters.adds_noise:
        return (
            "noise_at=server: the server sees each client's update without noise and is trusted "
            "(the curator model)"
        )
    if spent is None or (math.isinf(spent.epsilon) and parameters.mode == "sound"):
        return "no noise is added: every upload shows the client's update"
    reasons = []
    if parameters.mode == "paper":
        reasons.append("mode=paper, the published noise: " + "; ".join(_flaws(parameters, run)))
    if spent.epsilon > MAX_EPSILON:
        reasons.append(f"epsilon is {spent.epsilon:.3g}: the noise hides nothing")
    elif parameters.randomness == "seeded":
        reasons.append(SEEDED)
    protected, count = "client", run.num_clients
    if parameters.unit == "record":
        protected, count = "record", max((run.num_records or {0: 1}).values())
    if parameters.target_delta >= min(MAX_DELTA, 1.0 / count):
        # The largest client's number of records may be secret, so it is not named.
        reasons.append(
            f"delta = {parameters.target_delta:g} is not below {MAX_DELTA:g} and one over the "
            f"number of {protected}s: it would allow publishing a {protected} outright with a "
            "probability that matters"
        )
    return "; ".join(reasons) or None


def _flaws(parameters: DpFedPaqParameters, run: Participation) -> list[str]:
    sizes = run.num_records.values() if run.num_records else ()
    return list_flaws(parameters, max(min(sizes, default=0), parameters.min_records))


def _assumptions(
    parameters: DpFedPaqParameters, adversary: str, run: Participation, spent: Spent
) -> tuple[str, ...]:
    """List in words what the guarantee rests on."""
    by_client = parameters.noise_at == "client"
    lines = [
        "code integrity: each client runs this published code; the server ships code and "
        "configuration and could ship other code to a client that does not check it",
    ]
    if by_client:
        lines.append(
            "parameters: the server asked every client for the noise, clipping and randomness of "
            "this run; a client obeys the parameters of the run that it joined and holds the "
            "server to them"
        )
    else:
        lines.append(
            "trusted server: it adds the noise and shows nobody the uploads, nor anything but "
            "the models; the uploads travel encrypted; of a round that was interrupted and "
            "repeated it had shown nothing"
        )
    if spent.colluding_fraction == 1.0:
        carrier = "each upload carries its own noise" if by_client else "the noise is the server's"
        lines.append(
            f"Sybils: no matter how many of the other clients are false or collude, {carrier}"
        )
    else:
        lines.append(
            f"Sybils: at most {run.num_colluders} of the {run.num_clients} clients are false or "
            "collude with a user of the models"
        )
    lines += [
        "floating point: noise is drawn and added in double precision; attacks on the gaps between "
        "floating-point numbers are not covered",
        "the run: this counts one run; several runs on the same data add up",
        f"participations: a client uploads at most {parameters.num_participations} times in the "
        "run, counts them itself, and answers a round that is asked again with the same bytes or "
        "not at all; its requests are delivered one at a time, and its count is not lost",
        "data: reading a client's data does not fail because of what a record holds",
        "timing: how long a client takes to answer is not covered",
    ]
    if "records" in spent.counts:
        lines.append("secret draws: nobody but the client knows which records it drew in a round")
    if "cohort" in spent.counts:
        lines.append(
            "secret cohorts: nobody but the server knows which clients were asked in a round; all "
            f"{run.num_rounds} rounds are counted, each with the probability of being drawn from "
            f"the {run.num_clients} clients that the run began with"
        )
        if by_client:
            lines.append(
                "no loss: every client that was asked uploaded, all add equal noise, and each of "
                f"the {run.num_clients} clients could be reached in every round, asked or not"
            )
    if "sum" in spent.counts:
        lines.append(
            f"sums: at least {run.fewest_uploads} uploads were summed in every published round, "
            "the uploads themselves stay with the server, and the noises of the honest ones add"
        )
    if adversary == "model_user" and not {"sum", "cohort"} & set(spent.counts) and by_client:
        lines.append(
            "post-processing: the models are functions of the uploads; what averaging and client "
            "sampling hide in addition is not counted"
        )
    if parameters.mode == "sound":
        lines += sensitivity_conditions(parameters, max(1, run.num_rounds))
    if parameters.is_size_public:
        lines.append("the number of records of a client is public")
    return tuple(dict.fromkeys(lines))


def sensitivity_conditions(parameters: DpFedPaqParameters, num_rounds: int) -> tuple[str, ...]:
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
