"""How much privacy a run has spent, against each adversary: numbers, from what happened.

The server sees each upload; a user of the models sees sums. What a sum hides in addition is counted
only where it is proven (`spend_on_model_user`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from strategies.dp_fedpaq.algorithm import calibrate, client_noise_multiplier
from strategies.dp_fedpaq.parameters import DpFedPaqParameters
from strategies.dp_fedpaq.published_noise import proven_sensitivity, published_mechanism
from strategies.mechanisms.accounting import EpsilonBound, GaussianReleases, bound_epsilon
from strategies.mechanisms.gaussian import GaussianMechanism


@dataclass(frozen=True)
class Participation:
    """Who took part in a run so far.

    Attributes
    ----------
    num_rounds : int
        Rounds begun; planned ones, where a plan is asked for.
    num_clients : int
        M.
    num_sampled : int
        r, clients asked in a round (expected, with Poisson participation).
    kind : {"fixed", "poisson", "round_robin"}
        How a round's clients are drawn; with `round_robin` everybody knows them.
    colluding_fraction : float
        Share of the other clients that may help a user of the models.
    uploads : mapping of int to int
        Uploads asked of each client; one that may have been sent counts.
    num_records : mapping of int to int, or None
        n_k of each client, where it may be known (it is public under replace_one).
    fewest_uploads : int
        The smallest number of uploads that a published round summed; 0 before a run.
    complete : bool
        Whether every client that was asked uploaded, in every round.
    server_noise_multiplier : float or None
        z of the server's own noise, with ``noise_at: server``.
    """

    num_rounds: int = 0
    num_clients: int = 1
    num_sampled: int = 1
    kind: str = "fixed"
    colluding_fraction: float = 0.0
    uploads: Mapping[int, int] = field(default_factory=dict)
    num_records: Mapping[int, int] | None = None
    fewest_uploads: int = 0
    complete: bool = False
    server_noise_multiplier: float | None = None

    @property
    def num_colluders(self) -> int:
        """The largest number c of colluding clients, the one attacked not among them."""
        return min(math.ceil(self.colluding_fraction * self.num_clients), self.num_clients - 1)

    @property
    def client_rate(self) -> float:
        """Probability that a round draws a given client, to those who know who colludes.

        A cohort of fixed size leaves at most r places to the M - c others; Poisson draws are
        independent.
        """
        others = self.num_clients - (self.num_colluders if self.kind == "fixed" else 0)
        return min(1.0, self.num_sampled / others)


@dataclass(frozen=True)
class Spent:
    """An epsilon at the run's delta, and what it counts.

    Attributes
    ----------
    epsilon : float
        Of the most exposed client; infinite without noise.
    accountant : str
    colluding_fraction : float
        Share of the other clients that may collude without harm to it.
    counts : tuple of {"records", "sum", "cohort"}
        What it relies on: the secret draw of records, the noise of the other uploads in the sum,
        the secret draw of clients.
    """

    epsilon: float
    accountant: str
    colluding_fraction: float
    counts: tuple[str, ...] = ()


def spend_on_server(parameters: DpFedPaqParameters, run: Participation) -> Spent | None:
    """Return what the server, which sees each upload, has learnt of the most exposed client.

    Where the sizes are unknown: with a target, the target itself, for any client that took part;
    with a given noise multiplier, the epsilon without amplification.

    Returns
    -------
    Spent or None
        None if the server sees updates without noise.
    """
    if not parameters.adds_noise or parameters.noise_at == "server":
        return None
    return _spend_on_uploads(parameters, run, summed=1)


def spend_on_model_user(parameters: DpFedPaqParameters, run: Participation) -> Spent | None:
    """Return what a user of all released models has learnt of the most exposed client.

    The models are functions of the uploads, so what holds for the server holds here. In addition:

    * The noises of the honest uploads in a sum add, if the uploads are not quantised one by one.
      With QSGD they do not: each message can be decoded from the sum.
    * A cohort that only the server knows amplifies, if the bound is that of a clipped update
      (then another client's upload in the same place moves the sum no further), if all clients add
      the same noise, and if all who were asked uploaded. Such a figure counts every round of the
      run, not the participations of a client, and needs a plan that never makes a client sit out.

    Returns
    -------
    Spent or None
        The smallest epsilon of those that hold; None without noise.
    """
    if not parameters.adds_noise:
        return None
    if parameters.noise_at == "server":
        return _spend_on_curator(parameters, run)
    spent = [_spend_on_uploads(parameters, run, summed=1)]
    sound = parameters.mode == "sound"
    multipliers = _noise_multipliers(parameters, run)
    summed = 1
    # Without a clipping norm no upload is too long to be summed (`longest_upload`).
    summable = parameters.quantizer == "none" and parameters.clipping_norm is not None
    if multipliers and summable and parameters.mechanism == "update_noise" and sound:
        summed = max(1, run.fewest_uploads - run.num_colluders)
    if summed > 1:
        spent.append(_spend_on_uploads(parameters, run, summed=summed))
    if (
        multipliers
        and cohort_hides(parameters, run)
        and run.kind == "fixed"
        and run.complete
        and max(multipliers) == min(multipliers)
    ):
        together = _add_noises(multipliers[0], multipliers[0], summed)
        releases = _cohort_releases(parameters, run, together)
        hidden = ("sum", "cohort") if summed > 1 else ("cohort",)
        spent.append(_spend(parameters, run, releases, hidden))
    return min(spent, key=lambda each: each.epsilon)


def cohort_hides(parameters: DpFedPaqParameters, run: Participation) -> bool:
    """Return whether the secret draw of the clients can amplify what the models show."""
    if (
        parameters.sensitivity != "whole_update"
        or parameters.mechanism != "update_noise"
        or parameters.mode != "sound"
        or parameters.accountant == "closed_form"
        or run.num_sampled >= run.num_clients
        or run.kind == "round_robin"
        # A client that sits out after its last upload breaks the draws' independence.
        or parameters.num_participations < run.num_rounds
    ):
        return False
    if parameters.neighboring_relation == "zero_out":
        # An absent client and a zeroed one look alike only if the noise does not come from them.
        return run.kind == "poisson" and parameters.noise_at == "server"
    return parameters.neighboring_relation == "replace_one"


def are_cohorts_secret(parameters: DpFedPaqParameters, plan: Participation) -> bool:
    """Return whether some part of the run counts on cohorts that nobody but the server sees.

    With the clients' own noise a secret cohort counts only if all of it, a fixed number, uploaded:
    that number tells nothing. In the curator model any number may have been there.
    """
    return (
        parameters.randomness == "secret"
        and parameters.adds_noise
        and parameters.noise_at == "server"
        and cohort_hides(parameters, replace(plan, num_rounds=1))
    )


def plan_server_noise(parameters: DpFedPaqParameters, plan: Participation) -> float:
    """Return z of the server's own noise for a planned run (`noise_at: server`)."""
    if parameters.noise_multiplier is not None:
        return parameters.noise_multiplier
    return calibrate(parameters, _curator_releases(parameters, plan, 1.0))


def server_mechanism(
    parameters: DpFedPaqParameters, plan: Participation, server_round: int
) -> GaussianMechanism:
    """Return the mechanism with which the server noises a round's sum (`noise_at: server`)."""
    if plan.server_noise_multiplier is None:
        raise RuntimeError("noise_at=server needs a run whose noise has been planned")
    sensitivity = parameters.sensitivity_in_round(server_round)
    return GaussianMechanism(sensitivity, plan.server_noise_multiplier)


def _spend_on_curator(parameters: DpFedPaqParameters, run: Participation) -> Spent:
    assert run.server_noise_multiplier is not None
    releases = _curator_releases(parameters, run, run.server_noise_multiplier)
    return _spend(parameters, run, releases, ("cohort",) if cohort_hides(parameters, run) else ())


def _curator_releases(
    parameters: DpFedPaqParameters, run: Participation, noise_multiplier: float
) -> GaussianReleases:
    """Say what the curator model releases about the most exposed client.

    With a clipped update and a secret cohort, every round counts with the probability of being
    drawn; otherwise the participations of the client that took part most often.
    """
    if cohort_hides(parameters, run):
        return _cohort_releases(parameters, run, noise_multiplier)
    most = max(run.uploads.values(), default=0)
    return parameters.releases(noise_multiplier, fewest_records(parameters, run), most)


def _cohort_releases(
    parameters: DpFedPaqParameters, run: Participation, noise_multiplier: float
) -> GaussianReleases:
    """Count all rounds, each with the probability that the client and the record are drawn."""
    poisson = parameters.neighboring_relation == "zero_out"
    drawn = parameters.inclusion_probability(fewest_records(parameters, run))
    return GaussianReleases(
        noise_multiplier=noise_multiplier,
        num_releases=run.num_rounds,
        unit=parameters.unit,
        neighboring_relation=parameters.neighboring_relation,
        sampling="poisson" if poisson else "fixed",
        sample_rate=run.client_rate * drawn,
    )


def _spend(
    parameters: DpFedPaqParameters,
    run: Participation,
    releases: GaussianReleases,
    hidden: tuple[str, ...],
) -> Spent:
    if _draw_counts(parameters):
        hidden = ("records", *hidden)
    collude = run.colluding_fraction if {"sum", "cohort"} & set(hidden) else 1.0
    bound = bound_epsilon(releases, parameters.target_delta, parameters.accountant)
    return Spent(bound.epsilon, bound.accountant, collude, hidden)


def _spend_on_uploads(parameters: DpFedPaqParameters, run: Participation, *, summed: int) -> Spent:
    """Count each client's own uploads, hidden among `summed` honest ones with their noise."""
    hidden: tuple[str, ...] = ("records",) if _draw_counts(parameters) else ()
    hidden += ("sum",) if summed > 1 else ()
    collude = run.colluding_fraction if summed > 1 else 1.0
    counts = {client: count for client, count in run.uploads.items() if count > 0}
    known = EpsilonBound(0.0, parameters.resolved_accountant)
    if counts and run.num_records is None and parameters.target_epsilon is not None:
        # Each client meets the target with its own noise; the published noise meets nothing.
        target = parameters.target_epsilon if parameters.mode == "sound" else math.inf
        known = EpsilonBound(target, parameters.resolved_accountant)
    elif counts:
        most: dict[int, int] = {}
        for client, count in counts.items():
            records = parameters.min_records
            if run.num_records is not None:
                records = run.num_records[client]
            # The client counts, too, and uploads no more often than planned.
            uploads = min(count, parameters.num_participations)
            most[records] = max(most.get(records, 0), uploads)
        least = min(_noise_multipliers(parameters, run)) if summed > 1 else 0.0
        bounds = [
            _client_bound(parameters, records, uploads, least, summed)
            for records, uploads in most.items()
        ]
        known = max(bounds, key=lambda bound: bound.epsilon)
    return Spent(known.epsilon, known.accountant, collude, hidden)


@lru_cache(maxsize=4096)
def _client_bound(
    parameters: DpFedPaqParameters, num_records: int, count: int, least: float, summed: int
) -> EpsilonBound:
    noise_multiplier = _add_noises(_noise_multiplier(parameters, num_records), least, summed)
    releases = parameters.releases(noise_multiplier, num_records, count)
    return bound_epsilon(releases, parameters.target_delta, parameters.accountant)


def _add_noises(own: float, least: float, summed: int) -> float:
    """Return z of a sum: a client's own noise and that of `summed` - 1 others, at least."""
    return math.sqrt(own * own + (summed - 1) * least * least)


def _noise_multiplier(parameters: DpFedPaqParameters, num_records: int) -> float:
    if parameters.mode == "paper":
        published = published_mechanism(parameters, num_records)
        return published.noise_std / proven_sensitivity(parameters, num_records)
    return client_noise_multiplier(parameters, num_records)


def _noise_multipliers(parameters: DpFedPaqParameters, run: Participation) -> list[float]:
    """Return the noise multipliers of all clients, each once; none if they are not known."""
    if run.num_records is None:
        return [] if parameters.noise_multiplier is None else [parameters.noise_multiplier]
    return sorted({_noise_multiplier(parameters, size) for size in _sizes(parameters, run)})


def _sizes(parameters: DpFedPaqParameters, run: Participation) -> set[int]:
    """Return the numbers of records of the clients that upload, as far as they are known."""
    least = parameters.min_records
    sizes = set(run.num_records.values()) if run.num_records else set()
    if parameters.is_size_public:
        sizes = {size for size in sizes if size >= least}
    return {max(size, least) for size in sizes} or {least}


def fewest_records(parameters: DpFedPaqParameters, run: Participation) -> int:
    """Return the smallest n_k of a client that uploads; where it is unknown, the least possible."""
    return min(_sizes(parameters, run))


def _draw_counts(parameters: DpFedPaqParameters) -> bool:
    return parameters.record_sampling != "none" and parameters.resolved_accountant != "closed_form"
