"""DP-FTS-DE: federated Bayesian optimisation with distributed exploration, for many agents.

Each agent maximises a function of its own. It models what it has seen by Bayesian linear regression
on features that all agents share, and sends the weights; the server clips, sums and noises them,
and broadcasts the sums, one a sub-region, as functions that are worth a query.

References
----------
"Differentially Private Federated Bayesian Optimization with Distributed Exploration", NeurIPS 2021,
arXiv 2110.14153: Algorithm 1 (the server), Algorithm 2 (an agent).

Deviations
----------
* A round in which nobody is sampled, or nothing arrives, releases noise: silence would tell.
* Weights are normalised over all N agents, present or not, so that one absence moves one vector.
* In mode `sound` noise follows the exact sensitivity c S / q of all sub-regions' sums together,
  with c <= 1 where the paper has 1.
* In mode `sound` the first round alone releases, with all of epsilon; an agent queries a broadcast
  once and keeps it as the prior mean of its own Gaussian process, and sends a posterior mean of its
  standardised values.
* In mode `sound` the features are the leading eigenfunctions of the kernel, not random ones: as
  many as hold 99% of its variance, 19 in two dimensions where the paper draws 100.
* A factorisation that fails gives the zero vector, never a random one.
* Uploads that are lost or late count as zero; the guarantee stays.

``mode: paper`` is for the published settings, with the published noise.
"""

from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.dp_fts_de.server import DpFtsDe
from strategies.mechanisms.parameter_checks import ParameterError

PAPER_MAP = {
    "Alg. 2, initial points": "strategies.dp_fts_de.algorithm.draw_initial_points",
    "Alg. 2, choice between own and shared function": (
        "strategies.dp_fts_de.algorithm.queries_own_function"
    ),
    "Alg. 2, own function": "strategies.dp_fts_de.algorithm.maximize_own_draw",
    "Alg. 2, line 8": "strategies.dp_fts_de.algorithm.maximize_broadcast",
    "Alg. 2, vector": "strategies.dp_fts_de.algorithm.draw_vector",
    "Alg. 1, subset of agents": "strategies.dp_fts_de.algorithm.sample_agents",
    "Alg. 1, line 9": "strategies.dp_fts_de.algorithm.clip_vector",
    "Alg. 1, weights": "strategies.dp_fts_de.algorithm.weigh_agents",
    "Alg. 1, weighted average": "strategies.dp_fts_de.algorithm.release_sums",
    "Alg. 1, line 11": "strategies.dp_fts_de.algorithm.release_sums",
}

__all__ = ["PAPER_MAP", "DpFtsDe", "DpFtsDeParameters", "ParameterError"]
