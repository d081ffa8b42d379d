"""NISS: noise that cancels in the sum.

Every two clients of a round derive the same noise from a shared secret; one adds it, the other
subtracts it. Each adds a little noise that does not cancel. The server sees uploads that hide each
client as well as a noise of its own would, and a sum that is nearly as accurate as one with the
noise of a single trusted party.

References
----------
[1] "Gain without Pain: Offsetting DP-injected Noises Stealthily in Cross-device Federated
Learning", arXiv 2102.00404, 2021: Algorithm 1 (DP-FedAvg), Algorithm 2 (NISS), Theorems 2 and 3.
[2] Sabater, Bellet, Ramon: "An accurate, scalable and verifiable protocol for federated
differentially private averaging", arXiv 2006.07218, 2022: pairwise noise and independent noise.

Deviations
----------
* What hides a client is 1 / (Sigma^-1)_kk of the noises of all uploads, not the variance in its own
  upload: with shares that cancel exactly, the published mode hides nothing from the server.
* Independent Gaussian noise of each client takes the place of the factors s of variance tau^2: a
  product of Gaussians is none, and vanishes where a share does.
* No share travels: both ends derive it from a key that they agree on through the server.
* Every client shares noise with every other of the round (or with a secret sample of them), so that
  nobody chooses neighbours.
* Weights are uniform: how many records a client has is private.
* Noise is calibrated over all participations, retried rounds included.

``mode: paper`` reproduces Algorithms 1 and 2 (`published`), for comparison, and the report says why
they are no guarantee. Of the sound mode are `derive_edges` and `mask_update`.
"""

from strategies.mechanisms.parameter_checks import ParameterError
from strategies.niss.circles import Coalition
from strategies.niss.key_memory import DeviceTrust
from strategies.niss.parameters import NissParameters
from strategies.niss.server import Niss

PAPER_MAP = {
    "Alg. 1, noise of a client": "strategies.niss.published.published_noise_multiplier",
    "Alg. 1, weights": "strategies.niss.published.weigh",
    "Alg. 1, upload": "strategies.niss.published.noise_update",
    "Alg. 2, number of shares": "strategies.niss.published.plan_shares",
    "Alg. 2, tracker": "strategies.niss.published.draw_neighbours",
    "Alg. 2, shares": "strategies.niss.published.sum_shares",
    "Alg. 2, factors": "strategies.niss.published.sum_received",
    "Alg. 2, upload": "strategies.niss.published.offset_update",
    "Alg. 2, offsetting": "strategies.niss.algorithm.derive_edges",
    "Alg. 2, masked upload": "strategies.niss.algorithm.mask_update",
    "Alg. 2, aggregation": "strategies.niss.algorithm.sum_uploads",
    "Theorem 2": "strategies.niss.published.residual_variance",
    "Theorem 3": "strategies.niss.published.resolve_tau",
}

__all__ = ["PAPER_MAP", "Coalition", "DeviceTrust", "Niss", "NissParameters", "ParameterError"]
