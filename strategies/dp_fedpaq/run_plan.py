"""The plan of a run, before its first round: how often a client takes part, and with what noise."""

from dataclasses import replace

from strategies.dp_fedpaq.cohort import CohortPlan
from strategies.dp_fedpaq.parameters import DpFedPaqParameters
from strategies.dp_fedpaq.spending import Participation, cohort_hides, plan_server_noise


def plan_run(
    parameters: DpFedPaqParameters, cohorts: CohortPlan, plan: Participation
) -> tuple[DpFedPaqParameters, Participation]:
    """Plan the participations of a client, and the server's own noise if it adds any.

    Parameters
    ----------
    parameters : DpFedPaqParameters
    cohorts : CohortPlan
    plan : Participation
        With the planned rounds and the number of clients.

    Returns
    -------
    parameters : DpFedPaqParameters
        With `num_participations`.
    plan : Participation
        With `num_sampled` and `server_noise_multiplier`.
    """
    num_rounds, num_clients = plan.num_rounds, plan.num_clients
    plan = replace(plan, num_sampled=cohorts.num_sampled(num_clients))
    planned = cohorts.participations(num_rounds, num_clients)
    free = replace(parameters, num_participations=max(planned, num_rounds))
    hidden = parameters.noise_at == "server" and cohort_hides(free, plan)
    if cohorts.max_participations is None and (hidden or not parameters.adds_noise):
        # Every round is counted anyway, or nothing is: nobody need sit out.
        planned = free.num_participations
    parameters = replace(parameters, num_participations=planned)
    if parameters.noise_at == "server" and parameters.adds_noise:
        z = plan_server_noise(parameters, replace(plan, uploads={0: planned}))
        plan = replace(plan, server_noise_multiplier=z)
    return parameters, plan
