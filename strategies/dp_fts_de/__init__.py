"""DP-FTS-DE: federated Bayesian optimisation with distributed exploration, for many agents.

Each agent maximises a function of its own. It models what it has seen by Bayesian linear regression
on features that all agents share, and sends the weights; the server clips, sums and noises them,
and broadcasts the sums, one a sub-region, as functions that are worth a query.

References
----------
"Differentially Private Federated Bayesian Optimization with Distributed Exploration", NeurIPS 2021,
arXiv 2110.14153: Algorithm 1 (the server), Algorithm 2 (an agent).
"""

from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.mechanisms.parameter_checks import ParameterError

__all__ = ["DpFtsDeParameters", "ParameterError"]
