"""A round of mode `paper` between clients: cancelling, variances, the attack, refusals."""

import math
from dataclasses import replace

import numpy as np
import pytest

from strategies.mechanisms.fixed_point import unwrap, wrap
from strategies.mechanisms.key_agreement import sign_card
from strategies.mechanisms.linear_attack import attack, share_covariance
from strategies.mechanisms.pairwise_noise import gaussian_pair_noise
from strategies.niss.parameters import ParameterError
from strategies.niss.peers import PeerError
from strategies.niss.published import published_noise_std
from strategies.niss.published_round import RECORD_BYTES, PublishedNoise
from tests.niss.published_clients import RUN_TAG, Clients, build_parameters, make_clients
from tests.niss.test_published import has_variance

SIZE = 20_000


def draw_updates(num_ready: int, size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    updates = [rng.standard_normal(size) for _ in range(num_ready)]
    return [update / np.linalg.norm(update) for update in updates]


def sum_of(uploads: list[np.ndarray]) -> np.ndarray:
    total = np.zeros_like(uploads[0])
    for upload in uploads:
        total = total + upload
    return total


def noise_of(clients: Clients, client: int, update: np.ndarray) -> np.ndarray:
    """Return the noise in an upload, a sum of shares and factors, in the unit of an update."""
    grid = clients.plan.grid
    words = clients.upload(client, update) - wrap(
        grid.encode(update * clients.told(client)["weight"])
    )
    return grid.decode(unwrap(words))


@pytest.mark.parametrize(
    "fields",
    [{}, {"unit_noise_std": 10.0}, {"weighting": "examples"}, {"client_epsilons": ((1, 3.0),)}],
)
def test_with_tau_0_the_sum_is_that_of_the_rounded_contributions_bit_for_bit(fields):
    records = {client: 100 * (client + 1) for client in range(5)}
    clients = make_clients(build_parameters(5, tau=0.0, **fields), 5, records)
    updates = draw_updates(5, 500)
    uploads = [clients.upload(client, update) for client, update in enumerate(updates)]
    weights = clients.plan.weights
    rounded = [
        wrap(clients.plan.grid.encode(update * weights[client]))
        for client, update in enumerate(updates)
    ]
    np.testing.assert_array_equal(sum_of(uploads), sum_of(rounded))
    assert clients.plan.residual_std(range(5)) == 0.0
    # Of each upload alone, and of all but one, it holds nowhere near.
    assert np.mean(uploads[0] == rounded[0]) < 0.01
    assert np.mean(sum_of(uploads[1:]) == sum_of(rounded[1:])) < 0.01


def test_the_weights_are_those_of_the_numbers_of_records():
    parameters = build_parameters(3, weighting="examples", tau=0.0)
    plan = make_clients(parameters, 3, {0: 100, 1: 300, 2: 200}).plan
    assert plan.weights == pytest.approx({0: 0.5, 1: 1.5, 2: 1.0})
    assert plan.weight_of([0, 1, 2]) == pytest.approx(3.0)
    assert plan.weight_of([1, 2]) == pytest.approx(2.5)
    # Sensitivity, and noise with it, grows as the weight does.
    sigma = published_noise_std(parameters, 0, 1)
    assert plan.noise_stds == pytest.approx({0: 0.5 * sigma, 1: 1.5 * sigma, 2: sigma})


def test_what_is_left_has_the_variance_of_theorem_2():
    """Given the shares, the sum's noise is N(0, tau^2 sum of all n^2), coordinate by coordinate."""
    tau = 0.3
    clients = make_clients(build_parameters(5, tau=tau), 5)
    zero = np.zeros(SIZE)
    left = sum(noise_of(clients, client, zero) for client in range(5))
    unit = clients.plan.grid.step
    squares = np.zeros(SIZE)
    for client in range(5):
        noise = clients.accept(client)
        for key in noise.keys:
            squares += (gaussian_pair_noise(key, SIZE) * float(noise.multiple) * unit) ** 2
    assert has_variance(left, tau**2 * squares)
    assert not has_variance(left, (1.1 * tau) ** 2 * squares)
    # Those squares, over a share's variance, are those of independent Gaussian numbers.
    variances = sum(published_noise_std(clients.parameters, c, 1) ** 2 for c in range(5))
    shares = np.concatenate(
        [
            gaussian_pair_noise(key, SIZE) * float(noise.multiple) * unit
            for client in range(5)
            for noise in [clients.accept(client)]
            for key in noise.keys
        ]
    )
    assert has_variance(shares, variances / 20)
    assert not has_variance(shares, 1.1 * variances / 20)
    expected = tau * math.sqrt(variances)
    assert clients.plan.residual_std(range(5)) == pytest.approx(expected, rel=1e-3)


def test_an_upload_has_the_variance_2_plus_tau_squared_on_average():
    """Given the received shares r: own shares N(0, sigma_k^2), factors N(0, tau^2 sum r^2)."""
    tau, size = 0.5, SIZE
    clients = make_clients(build_parameters(5, tau=tau), 5)
    sigma = published_noise_std(clients.parameters, 0, 1)
    noise = noise_of(clients, 2, np.zeros(size))
    received = [
        gaussian_pair_noise(key, size) * (float(c) * clients.plan.grid.step)
        for key, c in clients.accept(2).received
    ]
    assert len(received) == 4
    squares = sum(share * share for share in received)
    given = noise + sum(received)
    assert has_variance(given, sigma**2 + tau**2 * squares)
    assert not has_variance(given, sigma**2 + (tau + 0.2) ** 2 * squares)
    assert not has_variance(given, 1.1 * sigma**2 + tau**2 * squares)
    assert has_variance(sum(received), sigma**2)
    # So in all (2 + tau^2) sigma_k^2; kurtosis at most 9 bounds how its estimate scatters.
    scatter = 4.9 * math.sqrt(8 / size)
    assert abs(np.mean(noise**2) / ((2 + tau**2) * sigma**2) - 1) < scatter
    assert abs(np.mean(noise**2) / ((1 + tau**2) * sigma**2) - 1) > scatter


def test_with_rho_and_tau_1_the_variance_is_that_without_offsetting():
    offset = make_clients(build_parameters(5, tau=1.0), 5).plan
    whole = make_clients(build_parameters(5, pair_noise="none"), 5).plan
    sigma = published_noise_std(build_parameters(5), 0, 1)
    assert whole.residual_std(range(5)) == pytest.approx(math.sqrt(5) * sigma, rel=1e-12)
    assert whole.residual_std([1, 3]) == pytest.approx(math.sqrt(2) * sigma, rel=1e-12)
    assert offset.residual_std(range(5)) == pytest.approx(whole.residual_std(range(5)), rel=1e-3)
    half = make_clients(build_parameters(5, tau=0.5), 5).plan
    assert half.residual_std(range(5)) == pytest.approx(whole.residual_std(range(5)) / 2, rel=1e-3)


def test_the_published_dp_fedavg_has_noise_of_its_own_only():
    clients = make_clients(build_parameters(3, pair_noise="none"), 3)
    sigma = published_noise_std(clients.parameters, 0, 1)
    assert clients.told(0)["shares"] == b""
    noises = [noise_of(clients, client, np.zeros(SIZE)) for client in range(3)]
    assert all(has_variance(noise, sigma**2) for noise in noises)
    assert has_variance(sum(noises), 3 * sigma**2)
    assert not has_variance(noises[0], 1.1 * sigma**2)


def test_dropouts_leave_what_the_plan_says():
    """One of three clients with two shares each is lost: of four shares one end is left."""
    clients = make_clients(build_parameters(3, tau=0.0), 3)
    sigma = published_noise_std(clients.parameters, 0, 1)
    noises = [noise_of(clients, client, np.zeros(SIZE)) for client in range(3)]
    left = clients.plan.residual_std([0, 2])
    assert left == pytest.approx(math.sqrt(4 / 2) * sigma, rel=1e-3)
    assert has_variance(noises[0] + noises[2], left**2)
    assert not has_variance(noises[0] + noises[2], 1.1 * left**2)
    assert not np.any(sum(noises))


@pytest.mark.parametrize("unit", [None, 12.0])
def test_with_tau_0_the_linear_attack_recovers_an_update_exactly(unit):
    """The server knows the other updates, and has this one as it was uploaded; not with tau > 0."""
    num_ready, size, target = 6, 300, 2
    updates = draw_updates(num_ready, size)
    errors = []
    for tau in (0.0, 0.5):
        clients = make_clients(build_parameters(num_ready, tau=tau, unit_noise_std=unit), num_ready)
        grid = clients.plan.grid
        residuals = np.stack(
            [
                grid.decode(unwrap(clients.upload(client, update)))
                for client, update in enumerate(updates)
            ]
        )
        for client in range(num_ready):
            if client != target:
                residuals[client] -= grid.decode(grid.encode(updates[client]))
        shares = next(iter(clients.plan.neighbours.values()))
        sigma = published_noise_std(clients.parameters, target, 1)
        _, covariance = share_covariance(clients.plan.neighbours, sigma**2 / len(shares), tau)
        exact = grid.decode(grid.encode(updates[target]))
        found = attack(residuals, covariance, target, update=exact, sigma_eff=sigma)
        errors.append((found.error_std, found.predicted_std, sigma))
    error, predicted, sigma = errors[0]
    assert predicted == 0.0
    assert error < 1e-9 * sigma < 1e-6 * np.std(updates[target])
    error, predicted, sigma = errors[1]
    assert 0.1 * sigma < predicted < 1.2 * sigma < math.sqrt(2.25) * sigma
    assert error == pytest.approx(predicted, rel=0.3)


def test_both_ends_of_a_share_have_its_key_and_no_key_is_used_twice():
    clients = make_clients(build_parameters(4, tau=0.0, unit_noise_std=12.0), 4)
    noises = [clients.accept(client) for client in range(4)]
    sent = [(key, noise.multiple) for noise in noises for key in noise.keys]
    received = [share for noise in noises for share in noise.received]
    assert sorted(sent) == sorted(received)
    assert len(set(sent)) == len(sent) == sum(map(len, clients.plan.neighbours.values()))


def test_a_client_is_told_nothing_of_shares_between_others():
    clients = make_clients(build_parameters(5, tau=0.0, unit_noise_std=12.0), 5)
    plan = clients.plan
    fewer = {
        client: [p for p in found if 0 in (p, client)] for client, found in plan.neighbours.items()
    }
    others = replace(plan, neighbours={client: tuple(found) for client, found in fewer.items()})
    assert others.describe_shares(0, [1, 2, 3, 4]) == plan.describe_shares(0, [1, 2, 3, 4])
    assert any(plan.neighbours[client] != others.neighbours[client] for client in range(5))


def _flip(shares: bytes, at: int, value: int) -> bytes:
    return shares[:at] + bytes([value]) + shares[at + 1 :]


def test_a_tracker_that_names_another_number_of_neighbours_is_refused():
    clients = make_clients(build_parameters(5, tau=0.0, unit_noise_std=15.0), 5)
    shares = clients.told(0)["shares"]
    flags = [shares[at] for at in range(0, len(shares), RECORD_BYTES)]
    assert len(clients.plan.neighbours[0]) == 3
    free = flags.index(next(each for each in flags if not each & 1)) * RECORD_BYTES
    taken = flags.index(next(each for each in flags if each & 1)) * RECORD_BYTES
    clients.accept(0)
    for changed in (
        _flip(shares, free, shares[free] | 1),
        _flip(shares, taken, shares[taken] & 2),
    ):
        with pytest.raises(PeerError):
            clients.accept(0, shares=changed)


@pytest.mark.parametrize(
    "change",
    [
        lambda shares: shares[:-1],
        lambda shares: shares + bytes(RECORD_BYTES),
        lambda shares: b"",
        lambda shares: _flip(shares, 0, 4 | shares[0]),  # a flag that there is not
        lambda shares: _flip(shares, 0, 1),  # c without a share
        lambda shares: shares[:1] + bytes(4) + shares[5:],  # a share without c
        lambda shares: shares[:1] + b"\xff\xff\xff\xff" + shares[5:],  # c out of range
    ],
)
def test_shares_that_cannot_be_read_are_refused(change):
    clients = make_clients(build_parameters(4, tau=0.0), 4)
    with pytest.raises(PeerError):
        clients.accept(0, shares=change(clients.told(0)["shares"]))


@pytest.mark.parametrize(
    "changes",
    [
        {"weight": 0.0},
        {"weight": math.nan},
        {"weight": math.inf},
        {"weight": 2.0},
        {"weight": 1.0 + 1e-9},
        {"own_multiple": 0},
    ],
)
def test_a_weight_or_size_that_the_noise_does_not_have_is_refused(changes):
    clients = make_clients(build_parameters(4, tau=0.0), 4)
    with pytest.raises(PeerError):
        clients.accept(0, **changes)


def test_c_may_be_off_by_one_as_machines_round_differently():
    clients = make_clients(build_parameters(4, tau=0.0), 4)
    c = clients.told(0)["own_multiple"]
    assert [clients.accept(0, own_multiple=each).multiple for each in (c - 1, c + 1)] == [
        c - 1,
        c + 1,
    ]
    for each in (c - 2, c + 2):
        with pytest.raises(PeerError):
            clients.accept(0, own_multiple=each)


def test_with_weights_by_records_one_up_to_the_number_of_clients_is_accepted():
    clients = make_clients(
        build_parameters(3, weighting="examples", tau=0.0), 3, {0: 1, 1: 8, 2: 9}
    )
    assert clients.accept(2).weight == pytest.approx(1.5)
    with pytest.raises(PeerError):
        clients.accept(2, weight=3.1)


def test_a_share_with_somebody_who_is_not_accepted_is_refused():
    clients = make_clients(build_parameters(4, tau=0.0), 4)
    ready = clients.ready_set(0)
    with pytest.raises(PeerError):
        clients.accept(0, accepted=ready[1:])


def test_nor_is_one_counted_in_place_of_an_accepted_one():
    clients = make_clients(build_parameters(4, tau=0.0, unit_noise_std=18.0), 4)
    first, second = clients.plan.neighbours[0]
    for refused in (first, second):
        accepted = [p for p in clients.ready_set(0) if p.card.number != refused]
        with pytest.raises(PeerError):
            clients.accept(0, accepted=accepted)


def test_shares_where_there_are_none_are_refused():
    clients = make_clients(build_parameters(3, pair_noise="none"), 3)
    assert isinstance(clients.accept(0), PublishedNoise)
    with pytest.raises(PeerError):
        clients.accept(0, shares=bytes(2 * RECORD_BYTES))


def test_other_keys_nonces_rounds_and_attempts_give_other_shares():
    clients = make_clients(build_parameters(3, tau=0.0), 3)
    base = set(clients.accept(0).keys)
    ready = clients.ready_set(0)
    other_nonce = [replace(ready[0], nonce=bytes(16)), *ready[1:]]
    assert len(base & set(clients.accept(0, ready=other_nonce).keys)) == 1
    card = sign_card(1, RUN_TAG, bytes([7]) * 32, bytes([8]) * 32)
    assert (
        len(base & set(clients.accept(0, ready=[replace(ready[0], card=card), ready[1]]).keys)) == 1
    )


def test_a_target_of_a_client_decides_over_its_number_of_shares():
    parameters = build_parameters(6, tau=0.0, unit_noise_std=22.0, client_epsilons=((1, 5.0),))
    clients = make_clients(parameters, 6)
    assert [len(clients.plan.neighbours[client]) for client in range(3)] == [1, 4, 1]
    assert len(clients.accept(1).keys) == 4


def test_paper_parameters_without_a_target_are_refused():
    with pytest.raises(ParameterError, match="target_epsilon"):
        build_parameters(target_epsilon=None, noise_multiplier=1.0)


def test_the_tracker_draws_from_its_own_stream():
    plans = [make_clients(build_parameters(8, unit_noise_std=15.0), 8, seed=s).plan for s in "aab"]
    assert plans[0].neighbours == plans[1].neighbours != plans[2].neighbours
