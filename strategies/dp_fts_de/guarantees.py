"""What DP-FTS-DE guarantees, to whom, and under which assumptions."""

from dataclasses import replace
from typing import Any

from strategies.dp_fts_de.algorithm import release_mechanism, weigh_agents
from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.dp_fts_de.spending import spend, spend_without_sampling
from strategies.mechanisms.accounting import EpsilonBound
from strategies.mechanisms.guarantee import MAX_DELTA, MAX_EPSILON, SEEDED, Guarantee

TRUSTED_SERVER = (
    "the server is trusted: it is sent the agents' vectors without noise and adds the noise itself "
    "(the curator model)"
)
# Of a run without sharing, whose agents send no vector.
TOLD_SERVER = (
    "in this seeded simulation agents report their values, queries and regret to the server"
)
_TIMING = (
    "timing: how long an agent takes to answer, and with it how long a round takes, is not covered"
)
_FAILURES = "failures: that a step ended in an error, and sent no word, is seen and not covered"


def spent_epsilon(parameters: DpFtsDeParameters, num_releases: int) -> float | None:
    """Return the epsilon spent so far, the same for each agent; None without noise."""
    spent = spend(parameters, num_releases)
    return None if spent is None else spent.epsilon


def describe_noise(parameters: DpFtsDeParameters) -> dict[str, Any]:
    """Return the kind of bound, and the largest noise std of a number of the first release.

    Weights only ever become more equal, so no later release has a larger one.
    """
    if not parameters.adds_noise or parameters.control == "no_sharing":
        return {"sensitivity": None, "noise_std": None}
    first = parameters.release_rounds[0] if parameters.release_rounds else 1
    mechanism = release_mechanism(parameters, first)
    largest = float(weigh_agents(parameters, first).largest.max())
    return {"sensitivity": mechanism.sensitivity.kind, "noise_std": largest * mechanism.noise_std}


def list_guarantees(parameters: DpFtsDeParameters, num_releases: int) -> list[Guarantee]:
    """Return the guarantees of a run so far in the order of privacy.json: model_user, server.

    Parameters
    ----------
    parameters : DpFtsDeParameters
        Planned.
    num_releases : int
        T, sums that were released.
    """
    spent = spend(parameters, num_releases)
    known = spent is not None and spent.epsilon <= MAX_EPSILON
    why_not = _why_not(parameters, spent)
    user = Guarantee(
        adversary="model_user",
        colluding_fraction=1.0,
        unit="client",
        neighboring_relation="zero_out",
        epsilon=spent.epsilon if spent and known else None,
        delta=float(parameters.target_delta) if known else None,
        accountant=spent.accountant if spent and known else None,
        randomness=parameters.randomness,
        assumptions=_assumptions(parameters, num_releases) if known else (),
        valid=why_not is None,
        why_not=why_not,
    )
    if parameters.control == "no_sharing" and parameters.randomness == "secret":
        # The server is sent no more than anybody else: word that steps are done.
        return [user, replace(user, adversary="server")]
    is_alone = parameters.control == "no_sharing"
    server = replace(
        user,
        adversary="server",
        epsilon=None,
        delta=None,
        accountant=None,
        assumptions=(),
        valid=False,
        why_not=TOLD_SERVER if is_alone else TRUSTED_SERVER,
    )
    return [user, server]


def _why_not(parameters: DpFtsDeParameters, spent: EpsilonBound | None) -> str | None:
    """Say why this run may not be called a release with its guarantee; None if it may."""
    if spent is None:
        return "no noise is added: every broadcast shows the agents' vectors"
    reasons = []
    if spent.epsilon > MAX_EPSILON:
        reasons.append(f"epsilon is {spent.epsilon:.3g}: the noise hides nothing")
    elif parameters.randomness == "seeded":
        reasons.append(SEEDED)
    delta, count = parameters.target_delta, parameters.num_agents
    if delta >= 1.0 / count or delta > MAX_DELTA:
        reasons.append(
            f"delta = {delta:g} is not below one over the number of agents, {count}, or above "
            f"{MAX_DELTA:g}: it would allow publishing an agent outright with a probability that "
            "matters"
        )
    return "; ".join(reasons) or None


def _assumptions(parameters: DpFtsDeParameters, num_releases: int) -> tuple[str, ...]:
    """List in words what the guarantee rests on."""
    if parameters.control == "no_sharing":
        return (
            "code integrity: each agent runs this published code, which sends no vector, only word "
            "that a step is done",
            _TIMING,
            _FAILURES,
            _stays_with_agents(parameters, "nothing"),
        )
    lines = [
        "code integrity: agents and server run this published code",
        "trusted server: it adds the noise and shows nobody the vectors, which travel encrypted, "
        f"nor anything that follows from them but its broadcast{_shown(parameters)}; of a round "
        "that was interrupted and repeated it had broadcast nothing",
        "Sybils: no matter how many of the other agents are false or collude; which of them were "
        "sampled tells nothing of the others, for each is drawn by itself",
        *_hidden_samples(parameters, num_releases),
        f"releases: {num_releases} broadcasts are counted, delivered or not; all else that an "
        "agent sees is the configuration, whether it is asked for its own vector, and its own "
        "queries, which follow from broadcasts and its own values",
        "settings: they, the number of agents and the lowest value were chosen without looking at "
        "any agent's values",
        "loss: a vector that is lost, late or not finite counts as zero; neighbours differ in one "
        "agent whose vectors are all zero",
        _FAILURES,
        "floating point: vectors arrive in single precision and are clipped again in double, in "
        "which they are summed and noise is drawn and added; the rounding of sums, and attacks on "
        "the gaps between floating-point numbers, are not covered",
        "the run: this counts one run; several runs on the same data add up",
        "objective: what evaluating it shows to others is not covered; an objective that trains "
        "together with other devices is a release of its own, with its own guarantee",
        _stays_with_agents(parameters, "nothing but its vector"),
    ]
    if num_releases > 0:
        lines += release_mechanism(parameters, _last_round(parameters)).sensitivity.conditions
    return tuple(lines)


def _stays_with_agents(parameters: DpFtsDeParameters, what_leaves: str) -> str:
    kept = "values, queries, regret and whether its vector was clipped"
    if parameters.randomness == "seeded":
        return (
            f"side channels: in this seeded simulation agents also report {kept}, to the server "
            f"alone; in a secret run {what_leaves} leaves an agent"
        )
    return (
        f"side channels: {what_leaves} leaves an agent; its {kept} stay on the device (of a "
        "simulation, in checkpoint/devices.sqlite of the run's folder, which holds those of all "
        "agents; which evaluations failed, a value too, in checkpoint/clients.log and on the "
        "terminal: whoever is given those has them)"
    )


def _shown(parameters: DpFtsDeParameters) -> str:
    """Say what else a run tells of a round, where nothing has to be hidden for amplification."""
    if parameters.sample_rate < 1.0 and parameters.upload == "sampled":
        return ""
    return ", how many agents answered and how long that took"


def _hidden_samples(parameters: DpFtsDeParameters, num_releases: int) -> list[str]:
    if parameters.sample_rate == 1.0:
        return [_TIMING]
    exposed = spend_without_sampling(parameters, num_releases)
    assert exposed is not None
    # Of vectors that all send, the number says nothing of who was drawn.
    drawn = "who was drawn and how many"
    if parameters.upload == "sampled":
        drawn = "who was drawn, how many, and how many vectors came"
    lines = [
        f"secret samples: each agent is drawn with probability {parameters.sample_rate:g} in each "
        f"round; an agent learns of itself alone, and nobody but the server of others: {drawn} "
        f"(against whoever sees it, epsilon is {exposed.epsilon:.4g} instead); metrics, report and "
        "log leave that out, and who can read checkpoint/ or the SuperLink's own log counts as "
        "such a one",
        "deadline: a round ends when all agents have answered, sampled or not, or its time is up; "
        "that this takes no less or longer for who was sampled is not covered; " + _TIMING,
    ]
    if parameters.upload == "sampled":
        lines.append(
            "network: nobody watches whose answers carry a vector; where somebody may, "
            "upload=all makes every agent send an equally long one in every round"
        )
    else:
        lines.append("network: every agent sends an equally long vector in every round")
    return lines


def _last_round(parameters: DpFtsDeParameters) -> int:
    """Return a round of which what is said of sensitivity holds for all releases.

    Weights only ever become more equal, so no release is more sensitive than a later one.
    """
    if parameters.release_rounds:
        return parameters.release_rounds[-1]
    return parameters.emphasis_rounds + parameters.emphasis_fall_rounds + 1
