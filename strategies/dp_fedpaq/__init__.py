"""DP-FedPaq: private, periodic and quantised averaging with partial participation.

Each client trains on secretly drawn records, clips its update, adds Gaussian noise, quantises and
uploads packed bits; the server averages. Nobody but the client ever sees an update without noise.

References
----------
"Differential Privacy Meets Federated Learning under Communication Constraints", arXiv 2101.12240,
2021: Algorithm 1 (the general loop), Algorithm 2 (privacy-aware FedPaq), equation (12) (the
communication budget).

Deviations
----------
* Noise is calibrated with the analytic Gaussian mechanism and composed over all rounds; the paper's
  formula is proven for epsilon < 1 and one round only.
* The inclusion probability of E disjoint batches is E b / n; the paper's 1 - (1 - b/n)^E is too
  small.
* The sensitivity is that of the clipped update (twice the clipping norm), or the proven bound for
  convex models; the published C / n_k bounds neither.
* A non-finite update is replaced by zero before the noise; the paper is silent.

``mode: paper`` reproduces the published noise, for comparison, and the report says why it is no
guarantee. Equation (12), the communication budget, is `uplink_budget`.
"""

from strategies.dp_fedpaq.parameters import DpFedPaqParameters
from strategies.dp_fedpaq.server import DpFedPaq
from strategies.mechanisms.parameter_checks import ParameterError

PAPER_MAP = {
    "Alg. 2, step 1": "strategies.dp_fedpaq.algorithm.sample_cohort",
    "Alg. 2, step 2": "strategies.dp_fedpaq.algorithm.draw_records",
    "Alg. 2, step 3": "strategies.dp_fedpaq.algorithm.subtract_models",
    "Alg. 2, step 4": "strategies.dp_fedpaq.algorithm.bound_update",
    "Alg. 2, step 5": "strategies.dp_fedpaq.algorithm.privatize_update",
    "Alg. 2, step 6": "strategies.dp_fedpaq.algorithm.encode_update",
    "Alg. 2, step 7": "strategies.dp_fedpaq.algorithm.encode_update",
    "Alg. 2, step 8": "strategies.dp_fedpaq.algorithm.aggregate_updates",
    "section II, curator model": "strategies.dp_fedpaq.algorithm.aggregate_with_noise",
}

__all__ = ["PAPER_MAP", "DpFedPaq", "DpFedPaqParameters", "ParameterError"]
