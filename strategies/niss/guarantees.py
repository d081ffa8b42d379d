"""What NISS guarantees, to whom, and under which assumptions."""

from typing import Any

from strategies.dp_fedpaq.guarantees import sensitivity_conditions
from strategies.dp_fedpaq.spending import Participation, Spent
from strategies.mechanisms.guarantee import MAX_DELTA, MAX_EPSILON, SEEDED, Guarantee
from strategies.niss.calibration import circles_of
from strategies.niss.noise_plan import plan_round
from strategies.niss.parameters import SPARSE_FAILURE, NissParameters
from strategies.niss.published_flaws import list_flaws, published_epsilon
from strategies.niss.spending import ADVERSARIES, spend

NO_TRUST_LIST = (
    "no trust list: not every client has one (trusted-peers), so the server itself may stand "
    "behind any number of the clients that it names, and no colluding fraction can be relied on"
)


def spent_epsilon(parameters: NissParameters, run: Participation) -> float | None:
    """Return the epsilon that the most exposed client has spent against server and colluders.

    None if no noise is added, or if mode `paper` gives none.
    """
    if parameters.mode == "paper":
        return published_epsilon(parameters, run)
    spent = spend(parameters, run, "server_and_colluders")
    return None if spent is None else spent.epsilon


def describe_noise(parameters: NissParameters, num_parameters: int) -> dict[str, Any]:
    """Return which bound the noise of round 1 follows, and its standard deviations.

    `noise_std` is that of the noise which hides a client (sigma_eff), `own_noise_std` of what each
    client adds by itself, `pair_noise_std` of what each two share; all in a coordinate of an
    update.
    """
    if not parameters.update.adds_noise or parameters.mode == "paper":
        return {"sensitivity": None, "noise_std": None}
    plan = list(plan_round(parameters, 1, num_parameters).values())[-1]
    return {
        "sensitivity": plan.sensitivity.kind,
        "noise_std": plan.noise_multiplier * plan.sensitivity.value,
        "own_noise_std": plan.own_std(0.0),
        "pair_noise_std": plan.pair_std or None,
    }


def list_guarantees(
    parameters: NissParameters, run: Participation, *, has_trust_lists: bool
) -> list[Guarantee]:
    """Return the guarantees of a run so far, in the order of `ADVERSARIES`.

    Parameters
    ----------
    parameters : NissParameters
    run : Participation
        Who took part in the rounds so far.
    has_trust_lists : bool
        Whether every client says that it masks towards the devices of a trust list only.
    """
    rows = []
    for adversary in ADVERSARIES:
        if parameters.mode == "paper":
            rows.append(_published(parameters, run, adversary))
            continue
        spent = spend(parameters, run, adversary)
        reasons = _why_not(parameters, run, spent)
        if adversary == "server_and_colluders" and spent is not None and not has_trust_lists:
            reasons.append(NO_TRUST_LIST)
        known = spent is not None and spent.epsilon <= MAX_EPSILON
        rows.append(
            Guarantee(
                adversary=adversary,
                colluding_fraction=spent.colluding_fraction if spent else 0.0,
                unit=parameters.update.unit,
                neighboring_relation=parameters.update.neighboring_relation,
                epsilon=spent.epsilon if spent and known else None,
                delta=parameters.target_delta if known else None,
                accountant=spent.accountant if spent and known else None,
                randomness=parameters.update.randomness,
                assumptions=_assumptions(parameters, run, spent, adversary, has_trust_lists)
                if spent and known
                else (),
                valid=not reasons,
                why_not="; ".join(reasons) or None,
            )
        )
    return rows


def _published(parameters: NissParameters, run: Participation, adversary: str) -> Guarantee:
    return Guarantee(
        adversary=adversary,
        colluding_fraction=0.0 if adversary == "server" else parameters.colluding_fraction,
        unit=parameters.update.unit,
        neighboring_relation=parameters.update.neighboring_relation,
        epsilon=None,
        delta=None,
        accountant=None,
        randomness=parameters.update.randomness,
        assumptions=(),
        valid=False,
        why_not="mode=paper: " + "; ".join(list_flaws(parameters, run, adversary)),
    )


def _why_not(parameters: NissParameters, run: Participation, spent: Spent | None) -> list[str]:
    """Say why this run may not be called a release with its guarantee."""
    update = parameters.update
    if spent is None:
        masked = " (masks alone hide it from the server, not from a user of the models)"
        return ["no noise is added" + (masked if parameters.pair_noise == "uniform" else "")]
    reasons = []
    if spent.epsilon > MAX_EPSILON:
        reasons.append(f"epsilon is {spent.epsilon:.3g}: the noise hides nothing")
    elif update.randomness == "seeded":
        reasons.append(SEEDED + "; keys and masks can be recomputed, too")
    protected, count = "client", run.num_clients
    if update.unit == "record":
        protected, count = "record", max((run.num_records or {0: 1}).values())
    if update.target_delta >= min(MAX_DELTA, 1.0 / count):
        reasons.append(
            f"delta = {update.target_delta:g} is not below {MAX_DELTA:g} and one over the number "
            f"of {protected}s: it would allow publishing a {protected} outright with a probability "
            "that matters"
        )
    return reasons


def _assumptions(
    parameters: NissParameters,
    run: Participation,
    spent: Spent,
    adversary: str,
    has_trust_lists: bool,
) -> tuple[str, ...]:
    """List in words what the guarantee rests on."""
    update = parameters.update
    lines = [
        "code integrity: each client runs this published code; the server ships code and "
        "configuration and could ship other code to a client that does not check it",
        "parameters: a client obeys the parameters of the run that it joined and holds the server "
        "to them; clients that were told others reject each other's keys",
    ]
    lines += _who_is_honest(parameters, adversary, has_trust_lists)
    if adversary == "model_user":
        lines.append(
            f"sums: at least {run.fewest_uploads} uploads were averaged in every published round, "
            "the uploads themselves stay with the server, and the own noises of the honest ones add"
        )
    else:
        uniform = parameters.pair_noise == "uniform"
        pairs = "uniform masks are" if uniform else "Gaussian pair noise is"
        lines.append(
            f"keys: {pairs} drawn from keys that two clients agree on for one attempt of one "
            "round (X25519, HKDF-SHA256, AES-256 in counter mode), which nobody else can compute "
            "as long as no device's memory is read while it keeps the keys of the run; the "
            "adversary may know all other clients' updates, and may name any ready sets and claim "
            "any dropouts"
        )
    if parameters.graph == "sparse":
        lines.append(
            f"sparse graph: delta includes {SPARSE_FAILURE:g} a participation for a graph that "
            "leaves a client with too few to hide among"
        )
    lines += [
        "floating point: a client's own noise is drawn and added in double precision, then "
        "rounded; attacks on the gaps between floating-point numbers are not covered; what "
        "fixed-point pair noise changes is less than the margin that the noise has",
        "the run: this counts one run; several runs on the same data add up",
        f"participations: a client uploads at most {update.num_participations} times in the run, "
        "counts them itself (an upload of a round that is repeated, too), uses no key twice, and "
        "answers a request that is sent again with the same bytes or not at all; its requests are "
        "delivered one at a time, and what it keeps is not lost",
        "data: reading a client's data does not fail because of what a record holds",
        "timing: how long a client takes to answer is not covered",
    ]
    if "records" in spent.counts:
        lines.append("secret draws: nobody but the client knows which records it drew in a round")
    lines += sensitivity_conditions(update, max(1, run.num_rounds))
    lines.append("on the grid, an update's sensitivity grows by a step times the root of its size")
    lines += [
        f"own target: client {client} aims at epsilon {epsilon:g}, and adds the noise for it itself"
        for client, epsilon in parameters.client_epsilons
    ]
    if update.is_size_public:
        lines.append("the number of records of a client is public")
    return tuple(dict.fromkeys(lines))


def _who_is_honest(parameters: NissParameters, adversary: str, has_trust_lists: bool) -> list[str]:
    if adversary == "server":
        lines = [
            "Sybils: no client colludes with the server, and no client of a ready set is the "
            "server's own"
        ]
    else:
        whom = "server" if adversary == "server_and_colluders" else "user of the models"
        lines = [
            f"Sybils: of the {parameters.circle_size(circle)} clients"
            + (f" of coalition {circle.index}" if circle.index else "")
            + f" at most {circle.num_colluders} are false or collude with the {whom}, who may name "
            "all of them in every ready set; among the "
            f"{circle.min_ready} or more clients among which one hides, itself one of them, at "
            f"least {circle.num_honest} are honest"
            for circle in circles_of(parameters)
        ]
    if adversary == "model_user":
        return lines
    if has_trust_lists:
        lines.append("trust lists: each client's list holds the identity keys of real devices")
    else:
        lines.append(
            "trust on first use: when two clients first met, the server passed on their true keys"
        )
    return lines
