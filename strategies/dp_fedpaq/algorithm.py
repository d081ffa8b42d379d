"""One round of DP-FedPaq, in the paper's order: pure functions of arrays, parameters and streams.

The step numbers are those of Algorithm 2 of the paper as this product reads it; `PAPER_MAP` in the
package lists them, with the deviations.
"""

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from strategies.dp_fedpaq.parameters import DpFedPaqParameters
from strategies.dp_fedpaq.published_noise import published_mechanism
from strategies.mechanisms.accounting import GaussianReleases, calibrate_noise_multiplier
from strategies.mechanisms.clipping import clip_by_l2_norm, l2_norm, replace_non_finite
from strategies.mechanisms.exchange import count_rare_draws
from strategies.mechanisms.gaussian import GaussianMechanism
from strategies.mechanisms.layout import ArrayLayout
from strategies.mechanisms.packing import PackingError
from strategies.mechanisms.quantization import (
    dequantize_qsgd,
    pack_qsgd,
    qsgd_num_bits,
    quantize_qsgd,
    unpack_qsgd,
)
from strategies.mechanisms.rng import Randomness, Stream
from strategies.mechanisms.sampling import (
    Batches,
    draw_batches,
    draw_poisson_batches,
    shuffle_epochs,
    split_poisson_sample,
)

Vector = NDArray[np.float64]

MAX_FLOAT32 = float(np.finfo(np.float32).max)


# Alg. 2, step 1: the server picks r clients uniformly without replacement.
def sample_cohort(
    num_clients: int, num_sampled: int, participation: str, stream: Stream
) -> NDArray[np.int64]:
    """Return the round's clients, positions below `num_clients` in increasing order.

    `fixed`: exactly r. `poisson`: each by itself with probability r / M, so possibly nobody.
    """
    if participation == "poisson":
        return np.flatnonzero(stream.uniform(num_clients) < num_sampled / num_clients)
    return np.sort(stream.sample_without_replacement(num_clients, num_sampled))


def plan_participations(num_rounds: int, num_sampled: int, num_clients: int) -> int:
    """Return how often one client may upload in a run.

    The cohorts of different rounds are independent, so a client is drawn in Binomial(K, r/M)
    rounds. The plan is K if everybody takes part, else the smallest number that a client's draws
    exceed with probability below 1%: a client drawn more often sits out, so the plan is a bound.
    """
    if num_sampled >= num_clients:
        return num_rounds
    from scipy.stats import binom  # takes long to import, and not every run samples

    return max(1, int(binom.ppf(0.99, num_rounds, num_sampled / num_clients)))


# Alg. 2, step 2: the client draws this round's records, secretly.
def draw_records(parameters: DpFedPaqParameters, num_records: int, stream: Stream) -> Batches:
    """Return the batches of the local steps, as indices into the client's records."""
    if parameters.sampling == "poisson":
        assert parameters.sample_rate is not None
        assert parameters.local_steps is not None
        draw = draw_poisson_batches if parameters.mechanism == "dp_sgd" else split_poisson_sample
        return draw(num_records, parameters.sample_rate, parameters.local_steps, stream)
    if parameters.local_steps is not None:
        return draw_batches(num_records, parameters.batch_size, parameters.local_steps, stream)
    assert parameters.local_epochs is not None
    return shuffle_epochs(num_records, parameters.batch_size, parameters.local_epochs, stream)


# Alg. 2, step 3: E local steps from x; the update is the difference.
def subtract_models(
    trained: Mapping[str, NDArray[np.generic]], start: Vector, layout: ArrayLayout
) -> Vector:
    """Return x_E - x as a float64 vector of shape (d,)."""
    return layout.subtract(trained, start)


# Alg. 2, step 4: whatever is not a number becomes zero; the whole update is clipped.
def bound_update(update: Vector, clipping_norm: float | None) -> Vector:
    """Bound the update's norm by S, all arrays together.

    A non-finite update becomes the zero vector and goes on like any other, since a failure that
    depends on the data must not be visible. The same holds for a norm beyond float32, which the
    wire cannot carry.
    """
    finite = replace_non_finite(update)
    if clipping_norm is None and l2_norm(finite) > MAX_FLOAT32:
        return np.zeros_like(finite)
    return clip_by_l2_norm(finite, clipping_norm)


def client_mechanism(
    parameters: DpFedPaqParameters, server_round: int, num_records: int
) -> GaussianMechanism | None:
    """Return the noise mechanism of one client in one round; None if it adds no noise itself.

    The noise multiplier is the configured one, or the smallest for which the client's own total
    epsilon, over all planned participations with its own number of records, meets the target. With
    `dp_sgd` the noise belongs to each step's sum of gradients, else to the update.
    """
    if not parameters.adds_noise or parameters.noise_at == "server":
        return None
    if parameters.mode == "paper":
        return published_mechanism(parameters, num_records)
    return GaussianMechanism(
        sensitivity=parameters.sensitivity_in_round(server_round),
        noise_multiplier=client_noise_multiplier(parameters, num_records),
    )


def client_noise_multiplier(parameters: DpFedPaqParameters, num_records: int) -> float:
    """Return z of a client with `num_records` records (see `client_mechanism`)."""
    if parameters.noise_multiplier is not None:
        return parameters.noise_multiplier
    planned = parameters.releases(1.0, num_records, parameters.num_participations)
    return calibrate(parameters, planned)


def calibrate(parameters: DpFedPaqParameters, planned: GaussianReleases) -> float:
    """Return the least z with which the planned releases meet the target."""
    assert parameters.target_epsilon is not None
    counted = count_rare_draws(planned, parameters.target_delta)
    return calibrate_noise_multiplier(
        parameters.target_epsilon,
        parameters.target_delta,
        num_releases=counted.num_releases,
        unit=counted.unit,
        neighboring_relation=counted.neighboring_relation,
        sampling=counted.sampling,
        sample_rate=counted.sample_rate,
        accountant=parameters.accountant,
    )


# Alg. 2, step 5: Gaussian noise in every coordinate, after clipping.
def privatize_update(
    update: Vector,
    parameters: DpFedPaqParameters,
    mechanism: GaussianMechanism | None,
    stream: Stream,
) -> Vector:
    """Return the bounded update (step 4) with the mechanism's noise added."""
    bounded = bound_update(update, parameters.clipping_norm)
    if mechanism is None or not parameters.client_adds_noise:
        return bounded
    return mechanism.add_noise(bounded, stream)


def gradient_noise(mechanism: GaussianMechanism, size: int, stream: Stream) -> Vector:
    """Draw the noise of one local step's sum of clipped gradients (`dp_sgd`)."""
    return mechanism.add_noise(np.zeros(size), stream)


# Alg. 2, step 6: quantise after the noise, without bias.  Alg. 2, step 7: pack and upload.
def encode_update(update: Vector, parameters: DpFedPaqParameters, stream: Stream) -> bytes:
    """Return the upload's bytes: packed QSGD codes, or little-endian float32."""
    if parameters.quantizer == "qsgd":
        return pack_qsgd(quantize_qsgd(update, parameters.num_levels, stream))
    return np.clip(update, -MAX_FLOAT32, MAX_FLOAT32).astype("<f4").tobytes()


def decode_update(data: bytes, num_parameters: int, parameters: DpFedPaqParameters) -> Vector:
    """Parse and check an upload; inverse of `encode_update` up to its rounding.

    Raises
    ------
    PackingError
        If the bytes are not an upload of `num_parameters` finite numbers.
    """
    if parameters.quantizer == "qsgd":
        return dequantize_qsgd(unpack_qsgd(data, num_parameters, parameters.num_levels))
    if len(data) != 4 * num_parameters:
        raise PackingError(f"upload of {len(data)} bytes; allowed: {4 * num_parameters}")
    update = np.frombuffer(data, dtype="<f4").astype(np.float64)
    if not np.isfinite(update).all():
        raise PackingError("upload with a number that is not finite")
    return update


def upload_bits(num_parameters: int, parameters: DpFedPaqParameters) -> int:
    """Return beta, the bits of one upload before padding to bytes."""
    if parameters.quantizer == "qsgd":
        return qsgd_num_bits(num_parameters, parameters.num_levels)
    return 32 * num_parameters


def longest_upload(parameters: DpFedPaqParameters, server_round: int, num_parameters: int) -> float:
    """Return an L2 norm that no honest upload exceeds, but with probability below exp(-50).

    The clipped update, and the noise of the client that adds most. Infinite where the server
    cannot know: without clipping, or with published noise.
    """
    if parameters.clipping_norm is None:
        return math.inf
    longest = parameters.clipping_norm
    if parameters.client_adds_noise:
        if parameters.mode == "paper":
            return math.inf
        most = client_mechanism(parameters, server_round, parameters.min_records)
        assert most is not None
        longest += most.noise_std * (math.sqrt(num_parameters) + 10.0)
    if parameters.quantizer == "qsgd":
        # Rounding moves each coordinate by less than scale / s.
        longest *= 1.0 + math.sqrt(num_parameters) / parameters.num_levels
    # Numbers travel in float32.
    return longest * (1.0 + 1e-6) + 1e-30


# Alg. 2, step 8: x <- x + (1/r) sum of the updates; uniform weights.
def aggregate_updates(start: Vector, updates: Iterable[Vector]) -> Vector:
    """Average the updates, summed in the order given, and add them to the model.

    Returns
    -------
    ndarray of float64, shape (d,)
        `start` itself if there is no update.
    """
    total = np.zeros_like(start)
    count = 0
    for update in updates:
        total += update
        count += 1
    return start + total / count if count else start


# section II, curator model: the trusted server adds the noise, to the sum.
def aggregate_with_noise(
    start: Vector,
    updates: Iterable[Vector],
    mechanism: GaussianMechanism,
    *,
    clipping_norm: float,
    num_expected: float,
    stream: Stream,
) -> Vector:
    """Clip each update, add noise to the sum, divide by a constant, add to the model.

    Formal guarantees: one client moves the sum by at most the mechanism's sensitivity, whatever it
    uploads; the noise and the divisor do not depend on who answered, an empty cohort included.

    Parameters
    ----------
    start : ndarray of float64, shape (d,)
    updates : iterable of ndarray of float64, shape (d,)
        Finite, as decoded.
    mechanism : GaussianMechanism
    clipping_norm : float
        S > 0; rounding by a quantiser may have lengthened an update.
    num_expected : float
        r > 0, the clients expected in a round.
    stream : Stream
        The server's own.
    """
    total = np.zeros_like(start)
    for update in updates:
        total += clip_by_l2_norm(update, clipping_norm)
    return start + mechanism.add_noise(total, stream) / num_expected


def local_round(
    start: Vector,
    trained: Mapping[str, NDArray[np.generic]],
    layout: ArrayLayout,
    parameters: DpFedPaqParameters,
    mechanism: GaussianMechanism | None,
    streams: "UploadStreams",
) -> bytes:
    """Turn a trained model into the upload: steps 3 to 7 after the local training."""
    update = subtract_models(trained, start, layout)
    private = privatize_update(update, parameters, mechanism, streams.noise)
    return encode_update(private, parameters, streams.rounding)


class UploadStreams:
    """The streams of one client in one round; noise and rounding share nothing.

    Parameters
    ----------
    randomness : Randomness
        Seeded or secret.
    server_round, client : int
        Names of the streams of a seeded run.
    attempt : int
        From 1; above 1 of a round that is repeated with fresh draws.
    """

    def __init__(
        self, randomness: Randomness, server_round: int, client: int, attempt: int = 1
    ) -> None:
        labels = (server_round, client) if attempt == 1 else (server_round, client, attempt)
        self.records = randomness.stream("records", *labels)
        self.training = randomness.stream("training", *labels)
        self.noise = randomness.stream("noise", *labels)
        self.rounding = randomness.stream("rounding", *labels)
