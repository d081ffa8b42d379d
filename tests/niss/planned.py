"""Parameters of planned runs, without a run."""

from typing import Any

from strategies.dp_fedpaq.cohort import CohortPlan
from strategies.dp_fedpaq.spending import Participation
from strategies.niss.parameters import NissParameters, unplanned_parameters
from strategies.niss.run_plan import plan_run
from tests.niss.small_runs import FIELDS

COHORT = (
    *("num_sampled_clients", "fraction_train", "participation", "max_participations"),
    "min_replies",
)


def plan(
    num_clients: int = 10,
    num_rounds: int = 4,
    min_ready: int | None = None,
    num_records: dict[int, int] | None = None,
    **changes: Any,
) -> tuple[NissParameters, Participation]:
    """Return the parameters and the participations of a run that is planned."""
    cohorts = CohortPlan(**{key: changes.pop(key) for key in COHORT if key in changes})
    given = Participation(num_rounds=num_rounds, num_clients=num_clients, num_records=num_records)
    return plan_run(unplanned_parameters(**{**FIELDS, **changes}), cohorts, given, min_ready)
