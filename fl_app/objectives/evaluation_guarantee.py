"""What the trainings of a search over whole runs guarantee together."""

from fl_app.niss_keys import read_epsilons
from fl_app.settings import RunSettings
from fl_app.strategy_settings import NissSettings
from strategies.mechanisms.guarantee import MAX_DELTA, MAX_EPSILON, SEEDED, Guarantee

# Ends the name of an adversary: whoever it is in one training, in all of them.
IN_EVALUATIONS = "_in_evaluations"


def add_up_evaluations(settings: RunSettings, num_evaluations: int) -> Guarantee:
    """Return what the trainings of one agent guarantee its own clients, by basic composition.

    Epsilons and deltas add up, whichever point is tried next after seeing the last values.

    Parameters
    ----------
    settings : RunSettings
        Of one training; those of the others have the same target.
    num_evaluations : int
        Trainings that the search has planned for an agent, >= 1.
    """
    chosen = settings.training
    targets = [] if chosen.target_epsilon is None else [float(chosen.target_epsilon)]
    adversary, colluding = "server", 1.0
    if chosen.noise_at == "server":
        adversary, colluding = "model_user", chosen.colluding_fraction
    elif isinstance(chosen, NissSettings):
        adversary, colluding = "server_and_colluders", chosen.colluding_fraction
        targets += [epsilon for _, epsilon in read_epsilons(chosen)] if targets else []
    noisy = chosen.clipping_norm is not None
    epsilon = num_evaluations * max(targets) if targets and noisy else None
    delta = None if epsilon is None else num_evaluations * float(chosen.target_delta)
    why_not = _why_not(settings, epsilon, delta)
    return Guarantee(
        adversary=f"{adversary}{IN_EVALUATIONS}",
        colluding_fraction=colluding,
        unit=chosen.unit,
        neighboring_relation=chosen.neighboring_relation,
        epsilon=epsilon,
        delta=None if delta is None else min(1.0, delta),
        accountant=None if epsilon is None else "basic composition",
        randomness=settings.randomness,
        assumptions=(
            () if epsilon is None else _assumptions(settings, num_evaluations, max(targets))
        ),
        valid=why_not is None,
        why_not=why_not,
    )


def _why_not(settings: RunSettings, epsilon: float | None, delta: float | None) -> str | None:
    chosen = settings.training
    if epsilon is None or delta is None:
        return (
            "the evaluations: their trainings have no clipping norm or no target for epsilon, so "
            "nothing is known of what they show of the agents' clients"
        )
    reasons = []
    if chosen.mode == "paper":
        reasons.append("the evaluations: mode=paper, the published noise")
    if epsilon > MAX_EPSILON:
        reasons.append(f"the evaluations: epsilon is {epsilon:.3g}: the noise hides nothing")
    elif settings.randomness == "seeded":
        reasons.append(SEEDED)
    if delta >= MAX_DELTA:
        reasons.append(f"the evaluations: delta = {delta:.3g} is not below {MAX_DELTA:g}")
    elif chosen.unit == "client" and delta >= 1.0 / (settings.num_clients or 1):
        reasons.append(
            f"the evaluations: delta = {delta:.3g} is not below one over the number of an agent's "
            f"clients, {settings.num_clients}"
        )
    return "; ".join(reasons) or None


def _assumptions(settings: RunSettings, num_evaluations: int, target: float) -> tuple[str, ...]:
    chosen = settings.training
    lines = [
        f"evaluations: {num_evaluations} trainings of each agent are counted, those that the "
        f"search has planned, each with epsilon {target:g} and delta "
        f"{chosen.target_delta:g}, its targets; "
        "one that was interrupted and is repeated adds as much again, which is not counted here",
        "each training: what its method assumes (code integrity, Sybils, floating point, timing; "
        "fl-app run with objective.run lists it) holds in every one of them",
        "scores: the records that an agent scores on are its own, and what its queries show of "
        "them is not counted",
        "parties: this is about an agent's clients and whoever collects their uploads for the "
        "agent; that of the search is about an agent and the other agents",
    ]
    if chosen.noise_at == "server":
        lines.append(
            "trusted agent: it is sent its clients' updates without noise and adds the noise "
            "itself; it shows nobody the updates, nor who took part"
        )
    elif isinstance(chosen, NissSettings):
        lines.append("dropouts: no training has more of them than its noise was planned for")
    return tuple(lines)
