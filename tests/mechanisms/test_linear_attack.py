"""The calibration judged by the best linear attacker: simulated rounds, and servers that lie."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from strategies.mechanisms.linear_attack import (
    AttackResult,
    attack,
    best_linear_estimate,
    share_covariance,
    summed_clients,
    upload_covariance,
)
from strategies.mechanisms.offset_noise import (
    OffsetNoise,
    calibrate_offset_noise,
    count_colluders,
    star_variance,
)
from strategies.mechanisms.parameter_checks import ParameterError

# d: at a rate of 1e-6 the standard deviation is known to within 8 %.
COORDINATES = 2000


@dataclass
class Round:
    """One simulated round, complete graph; colluders are the last clients, those who drop first."""

    updates: np.ndarray
    uploads: np.ndarray
    known: np.ndarray
    covariance: np.ndarray
    order: tuple[int, ...]


def simulate(
    noise: OffsetNoise, ready: int, *, dropped: int = 0, known_pairs: bool = True, seed: int = 0
) -> Round:
    rng = np.random.default_rng(seed)
    updates = rng.uniform(-1, 1, (ready, COORDINATES))
    uploads = updates + math.sqrt(noise.own_variance) * rng.normal(size=updates.shape)
    known = np.zeros_like(updates)
    for i in range(ready):
        for j in range(i + 1, ready):
            pair = math.sqrt(noise.pair_variance) * rng.standard_normal(COORDINATES)
            uploads[i] += pair
            uploads[j] -= pair
            if j >= noise.num_honest and known_pairs:
                known[i] += pair
                known[j] -= pair
    uploaded = range(dropped, ready)
    order, covariance = upload_covariance(
        {i: range(ready) for i in range(ready)},
        uploaded,
        range(noise.num_honest, ready),
        dict.fromkeys(range(ready), noise.own_variance),
        noise.pair_variance,
    )
    assert order == tuple(range(dropped, noise.num_honest))
    return Round(updates, uploads, known, covariance, order)


def attack_first(played: Round, noise: OffsetNoise) -> AttackResult:
    rows = list(played.order)
    residuals = played.uploads[rows] - played.known[rows] - played.updates[rows]
    residuals[0] += played.updates[rows[0]]
    return attack(
        residuals,
        played.covariance,
        0,
        update=played.updates[rows[0]],
        sigma_eff=math.sqrt(noise.effective_variance),
    )


# Cohorts of the golden table (niss.md): M, rho, expected dropouts.
COHORTS = [(10, 0.0, 0), (10, 0.3, 0), (10, 0.3, 1), (30, 0.1, 2), (100, 0.5, 0), (100, 0.3, 5)]


@pytest.mark.parametrize(("ready", "rho", "dropouts"), COHORTS)
def test_the_simulated_attack_has_the_error_that_was_calibrated(ready, rho, dropouts):
    noise = calibrate_offset_noise(
        1.0, min_ready=ready, colluding_fraction=rho, expected_dropouts=dropouts
    )
    played = simulate(noise, ready)
    result = attack_first(played, noise)
    assert result.predicted_std == pytest.approx(1.0, rel=1e-9)
    assert result.num_coordinates == COORDINATES
    assert result.agrees()
    assert not result.beats_promise()
    assert not result.breaks_promise
    # The attack is the best: leaving the others' uploads out is far worse.
    alone = played.uploads[0] - played.known[0] - played.updates[0]
    assert alone.std() > 1.05 * result.error_std
    # The sum of all uploads, without and after dropouts.
    for gone in {0, dropouts}:
        residual = (played.uploads - played.updates)[gone:].sum(axis=0)
        statistic = float((residual**2).sum()) / noise.sum_variance(ready, gone)
        assert chi2.ppf(5e-7, COORDINATES) < statistic < chi2.ppf(1 - 5e-7, COORDINATES)


@pytest.mark.parametrize(("ready", "rho", "dropouts"), COHORTS)
def test_twins_with_less_noise_than_calibrated_are_caught(ready, rho, dropouts):
    noise = calibrate_offset_noise(
        1.0, min_ready=ready, colluding_fraction=rho, expected_dropouts=dropouts
    )
    less = replace(
        noise,
        own_variance=0.7 * noise.own_variance,
        pair_variance=0.7 * noise.pair_variance,
    )
    result = attack_first(simulate(less, ready), noise)
    assert result.breaks_promise
    assert result.beats_promise()
    assert result.agrees()
    assert not replace(result, predicted_std=1.0).agrees()


def test_a_twin_whose_known_noise_stays_in_disagrees():
    noise = calibrate_offset_noise(1.0, min_ready=10, colluding_fraction=0.3)
    assert not attack_first(simulate(noise, 10, known_pairs=False), noise).agrees()


@pytest.mark.parametrize(("ready", "rho", "dropouts"), [*COHORTS, (1000, 0.3, 0), (1000, 0.3, 50)])
def test_the_whole_covariance_gives_what_the_formula_says(ready, rho, dropouts):
    noise = calibrate_offset_noise(
        1.0, min_ready=ready, colluding_fraction=rho, expected_dropouts=dropouts
    )
    honest = range(noise.num_honest)
    order, covariance = upload_covariance(
        dict.fromkeys(honest, range(ready)),
        honest,
        range(noise.num_honest, ready),
        dict.fromkeys(honest, noise.own_variance),
        noise.pair_variance,
    )
    _, std = best_linear_estimate(np.zeros((len(order), 1)), covariance, 3)
    assert std**2 == pytest.approx(noise.effective_variance, rel=1e-9)


@pytest.mark.parametrize("dropped", [1, 3, 6])
def test_dropouts_only_hide_the_others_better(dropped):
    noise = calibrate_offset_noise(1.0, min_ready=10, colluding_fraction=0.2, expected_dropouts=3)
    result = attack_first(simulate(noise, 10, dropped=dropped), noise)
    assert result.predicted_std > 1.01
    assert result.agrees()


@st.composite
def lying_rounds(draw):
    """Draw ready sets that differ, with what every client checks: size, and rho in each of them."""
    least = draw(st.integers(2, 8))
    rho = draw(st.sampled_from([0.0, 0.1, 0.29, 0.3, 0.5]))
    num_colluders = count_colluders(rho, least)
    honest = least - num_colluders
    if honest < 2:
        rho, num_colluders, honest = 0.0, 0, least
    clients = range(draw(st.integers(honest, honest + 5)))
    colluders = range(100, 100 + num_colluders)
    masked = {}
    for client in clients:
        others = draw(st.permutations([c for c in clients if c != client]))
        peers = others[: draw(st.integers(honest - 1, len(others)))]
        needed = max(0, least - 1 - len(peers))
        most = max(m for m in range(len(colluders) + 1) if m <= rho * (1 + len(peers) + m) + 1e-9)
        masked[client] = {*peers, *colluders[: draw(st.integers(needed, max(needed, most)))]}
    uploaded = {0, *draw(st.sets(st.sampled_from(list(clients))))}
    dropouts = draw(st.integers(0, honest - 2))
    extra = {c: draw(st.floats(0, 3)) for c in clients}
    return least, rho, dropouts, masked, uploaded, colluders, extra


@settings(max_examples=300, deadline=None)
@given(lying_rounds())
def test_no_ready_sets_and_no_dropouts_hide_a_client_less(played):
    least, rho, dropouts, masked, uploaded, colluders, extra = played
    keys = {"min_ready": least, "colluding_fraction": rho}
    noise = calibrate_offset_noise(1.0, **keys, expected_dropouts=dropouts)
    own = {c: noise.own_variance + more for c, more in extra.items()}
    order, covariance = upload_covariance(masked, uploaded, colluders, own, noise.pair_variance)
    _, error_std = best_linear_estimate(np.zeros((len(order), 1)), covariance, order.index(0))
    assert error_std**2 >= (noise.effective_variance + extra[0]) * (1 - 1e-9)
    peers = [own[p] for p in masked[0] - set(colluders)]
    assert error_std**2 >= star_variance(own[0], noise.pair_variance, peers) * (1 - 1e-9)
    # Further uploads only help the attacker.
    if len(order) > 1:
        fewer = [row for row, c in enumerate(order) if c != order[-1] or c == 0]
        part = covariance[np.ix_(fewer, fewer)]
        _, without = best_linear_estimate(np.zeros((len(fewer), 1)), part, 0)
        assert without >= error_std * (1 - 1e-9)

    masks = calibrate_offset_noise(1.0, **keys, pair_noise="uniform")
    summed = summed_clients(masked, uploaded, colluders, 0)
    if summed is not None:
        assert len(summed) >= masks.num_honest
        assert len(summed) * masks.own_variance >= masks.effective_variance * (1 - 1e-9)


@pytest.mark.parametrize("peers", [1, 5])
def test_ready_sets_below_the_least_size_are_what_a_client_must_refuse(peers):
    """A twin of the property above: with fewer honest peers the promise is broken."""
    noise = calibrate_offset_noise(1.0, min_ready=10, colluding_fraction=0.2)
    masked = {c: range(peers + 1) for c in range(peers + 1)}
    own = dict.fromkeys(masked, noise.own_variance)
    order, covariance = upload_covariance(masked, masked, (), own, noise.pair_variance)
    _, std = best_linear_estimate(np.zeros((len(order), 1)), covariance, 0)
    assert AttackResult(std, std, 1.0, 1).breaks_promise
    assert std**2 == pytest.approx(noise.effective_variance_against(peers + 1))


def test_revealing_the_pair_secrets_of_a_client_said_to_have_dropped_strips_it_bare():
    """The reason why no pair secret is ever revealed (niss.md, "Dropouts"): 1 falls to .10."""
    noise = calibrate_offset_noise(1.0, min_ready=100, colluding_fraction=0.0)
    own = dict.fromkeys(range(100), noise.own_variance)
    honest = {c: set(range(100)) for c in range(100)}
    revealed = {c: peers - {0} if c else set() for c, peers in honest.items()}
    results = []
    for masked in (honest, revealed):
        _, covariance = upload_covariance(masked, masked, (), own, noise.pair_variance)
        _, std = best_linear_estimate(np.zeros((100, 1)), covariance, 0)
        results.append(AttackResult(std, std, math.sqrt(noise.effective_variance), 1))
    assert results[0].predicted_std == pytest.approx(1.0)
    assert not results[0].breaks_promise
    assert results[1].predicted_std == pytest.approx(0.10, abs=0.003)
    assert results[1].breaks_promise


def test_noise_that_one_end_used_alone_is_not_taken_off():
    masked = {0: {1, 2, 9}, 1: {0}, 2: set(), 3: {0, 1}}
    order, covariance = upload_covariance(masked, [0, 1, 2, 9], [9], {0: 1.0, 1: 2.0, 2: 3.0}, 10.0)
    assert order == (0, 1, 2)
    assert covariance.tolist() == [[21.0, -10.0, 0.0], [-10.0, 12.0, 0.0], [0.0, 0.0, 3.0]]


class TestUniformMasks:
    MASKED = {0: {1, 9}, 1: {0, 2}, 2: {1}, 3: {4}, 4: {3}}  # noqa: RUF012

    def test_a_closed_set_tells_its_sum(self):
        assert summed_clients(self.MASKED, range(5), [9], 0) == {0, 1, 2}
        assert summed_clients(self.MASKED, range(5), [9], 4) == {3, 4}

    def test_a_mask_that_one_end_used_alone_hides_all_connected(self):
        assert summed_clients(self.MASKED, [0, 1, 3, 4], [9], 0) is None
        assert summed_clients(self.MASKED | {2: {1, 3}}, range(5), [9], 0) is None
        assert summed_clients(self.MASKED, range(5), [], 0) is None  # 9 is honest, and vanished

    def test_others_are_refused(self):
        for target in (9, 7):
            with pytest.raises(ParameterError, match="target"):
                summed_clients(self.MASKED, range(5), [9], target)
        with pytest.raises(ParameterError, match="uploaded: 7"):
            upload_covariance(self.MASKED, [7], [9], {7: 1.0}, 1.0)


class TestPublishedAlgorithm:
    @staticmethod
    def draw_shares(seed: int, clients: int, count: int) -> dict[int, list[int]]:
        rng = np.random.default_rng(seed)
        others = {c: [o for o in range(clients) if o != c] for c in range(clients)}
        return {c: rng.choice(others[c], count, replace=False).tolist() for c in range(clients)}

    @given(st.integers(2, 9), st.integers(0, 1000), st.data())
    def test_without_a_random_factor_the_sum_is_exact(self, clients, seed, data):
        shares = self.draw_shares(seed, clients, data.draw(st.integers(1, clients - 1)))
        order, covariance = share_covariance(shares, 2.0, 0.0)
        assert np.linalg.eigvalsh(covariance)[0] == pytest.approx(0.0, abs=1e-9)
        rng = np.random.default_rng(seed)
        updates, residuals = rng.normal(size=(clients, 4)), np.zeros((clients, 4))
        for sender, receivers in shares.items():
            for receiver in receivers:
                share = rng.normal(size=4)
                residuals[sender] += share
                residuals[receiver] -= share
        residuals[0] += updates[0]
        result = attack(residuals, covariance, 0, update=updates[0], sigma_eff=1.0)
        assert order == tuple(range(clients))
        assert result.predicted_std == 0.0
        assert result.error_std < 1e-9
        assert result.agrees()
        assert result.breaks_promise

    @given(st.integers(2, 9), st.integers(0, 1000), st.floats(0, 1))
    def test_variances_of_the_sum_and_of_the_uploads(self, clients, seed, tau):
        # niss.md, "What must hold", 2: tau^2 sum sigma_k^2, and (2 + tau^2) sigma_k^2 on average.
        count, unit = min(3, clients - 1), 0.7
        _, covariance = share_covariance(self.draw_shares(seed, clients, count), unit, tau)
        sigma_2 = count * unit
        assert covariance.sum() == pytest.approx(tau**2 * clients * sigma_2, abs=1e-9)
        assert covariance.trace() / clients == pytest.approx((2 + tau**2) * sigma_2)
        assert np.array_equal(covariance, covariance.T)

    def test_a_random_factor_hides_and_more_of_it_hides_more(self):
        shares = self.draw_shares(3, 8, 3)
        stds = [
            best_linear_estimate(np.zeros((8, 1)), share_covariance(shares, 1.0, tau)[1], 0)[1]
            for tau in (0.0, 0.1, 0.5, 1.0)
        ]
        assert stds[0] == 0.0
        assert stds == sorted(stds)
        # Even so, far from the sigma_k = sqrt(3) that the algorithm claims.
        assert 0.1 < stds[1] < 0.5 * math.sqrt(3)

    def test_clients_that_only_receive_are_there(self):
        order, covariance = share_covariance({5: [2]}, 1.0, 0.5)
        assert order == (2, 5)
        assert covariance.tolist() == [[1.25, -1.0], [-1.0, 1.0]]


class TestEstimate:
    @given(st.integers(1, 8), st.integers(0, 1000))
    def test_it_is_the_inverse_s_diagonal(self, size, seed):
        rng = np.random.default_rng(seed)
        factor = rng.normal(size=(size, size + 3))
        covariance = factor @ factor.T
        target = int(rng.integers(size))
        residuals = rng.normal(size=(size, 5))
        estimate, std = best_linear_estimate(residuals, covariance, target)
        precision = np.linalg.inv(covariance)
        assert std == pytest.approx(1 / math.sqrt(precision[target, target]), rel=1e-6)
        expected = precision[target] @ residuals / precision[target, target]
        assert estimate == pytest.approx(expected, rel=1e-6, abs=1e-6)

    def test_the_false_positive_rate_is_exact(self):
        for degrees in (1, 7, 2000):
            for rate in (1e-6, 1e-3, 0.1):
                low, high = chi2.ppf([rate / 2, 1 - rate / 2], degrees) / degrees
                for statistic, inside in ((low, False), (high, True)):
                    for factor in (1 - 1e-6, 1 + 1e-6):
                        std = 3.0 * math.sqrt(statistic * factor)
                        expected = (factor < 1) is inside
                        assert AttackResult(std, 3.0, 3.0, degrees).agrees(rate) is expected
                edge = 3.0 * math.sqrt(chi2.ppf(rate, degrees) / degrees)
                assert AttackResult(edge * (1 - 1e-6), 3.0, 3.0, degrees).beats_promise(rate)
                assert not AttackResult(edge * (1 + 1e-6), 3.0, 3.0, degrees).beats_promise(rate)
