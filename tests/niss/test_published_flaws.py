"""What the report says of mode `paper`: figures that are right, and no guarantee."""

import numpy as np
import pytest

from strategies.dp_fedpaq.spending import Participation
from strategies.mechanisms.accounting import bound_epsilon
from strategies.niss.guarantees import list_guarantees, spent_epsilon
from strategies.niss.published import published_noise_multiplier
from strategies.niss.published_flaws import effective_share, list_flaws, published_epsilon
from strategies.niss.spending import ADVERSARIES
from tests.niss.published_clients import build_parameters

RUN = Participation(num_rounds=20, num_clients=6, num_sampled=6, uploads={0: 20, 1: 20, 2: 3})


def test_the_effective_share_is_that_of_the_complete_graph():
    """Sigma = (2 (M I - J) + tau^2 (M - 1) I) / (M - 1), inverted by its two eigenvalues."""
    m, tau = 20, 0.4
    flat, rest = tau**2, (2 * m + tau**2 * (m - 1)) / (m - 1)
    expected = 1 / (1 / (m * flat) + (1 - 1 / m) / rest)
    assert effective_share(m, m - 1, tau) == pytest.approx(expected, rel=1e-9)
    assert expected < 2 + tau**2


def test_with_tau_0_nothing_hides_a_client():
    assert effective_share(20, 19, 0.0) == 0.0
    assert effective_share(20, 3, 0.0, 2) == 0.0


def test_colluders_leave_the_factors_of_what_they_sent():
    """Two honest of m, all sharing: Sigma = ([2, -2; -2, 2] + tau^2 (m - 1) I) / (m - 1)."""
    m, tau = 8, 0.5
    sigma = (2 * np.array([[1.0, -1.0], [-1.0, 1.0]]) + tau**2 * (m - 1) * np.eye(2)) / (m - 1)
    expected = 1 / np.linalg.inv(sigma)[0, 0]
    assert effective_share(m, m - 1, tau, m - 2) == pytest.approx(expected, rel=1e-9)
    shares = [effective_share(m, m - 1, tau, colluders) for colluders in range(m - 1)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 1 < shares[0]


def test_a_client_that_nobody_sends_to_and_that_shares_with_colluders_only_is_bare():
    """With one share each, some client's only neighbour colludes, and it receives nothing."""
    assert effective_share(200, 1, 1.0, 150) == 0.0


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("fields", [{}, {"tau": 0.0}, {"pair_noise": "none"}])
def test_no_guarantee_is_valid_or_has_an_epsilon(adversary, fields):
    rows = list_guarantees(build_parameters(**fields), RUN, has_trust_lists=True)
    (row,) = [row for row in rows if row.adversary == adversary]
    assert (row.valid, row.epsilon, row.delta) == (False, None, None)
    assert row.why_not.startswith("mode=paper: ")


def test_the_flaws_of_tau_0_are_named():
    parameters = build_parameters(tau=0.0)
    text = "; ".join(list_flaws(parameters, RUN, "server"))
    assert "the sum of the uploads is exact" in text
    assert "here 0" in text
    assert "reconstructed" not in text
    assert "none is left" in "; ".join(list_flaws(parameters, RUN, "model_user"))


def test_the_figures_are_those_of_the_run():
    parameters = build_parameters(20, colluding_fraction=0.3)
    text = "; ".join(list_flaws(parameters, RUN, "server_and_colluders"))
    share = effective_share(20, 19, 0.3**0.5, 6)
    assert f"that is {share:.3g} of the published sigma_k^2" in text
    assert "20 clients of 19 shares, 6 of them colluding" in text
    assert "tau = 0.548 is reconstructed" in text
    assert "tau^2 = rho with rho = 0.3" in text
    assert "epsilon' = 0.5" in text
    assert "not proven" not in text
    alone = "; ".join(list_flaws(parameters, RUN, "server"))
    assert f"0 of them colluding, that is {effective_share(20, 19, 0.3**0.5):.3g}" in alone
    released = "; ".join(list_flaws(parameters, RUN, "model_user"))
    assert "tau^2 20 = 6 sigma_k^2 is left" in released


def test_what_else_is_wrong_is_said_where_it_is():
    optimistic = build_parameters(colluding_fraction=0.7, collusion_bound="optimistic")
    text = "; ".join(list_flaws(optimistic, RUN, "server"))
    assert "max(0, 2 rho - 1)" in text
    large = build_parameters(participations=5, target_epsilon=10.0, weighting="examples")
    text = "; ".join(list_flaws(large, RUN, "server"))
    assert "the textbook formula of sigma_k is not proven" in text
    assert "how many records a client has" in text
    for each in ("a share", "noise zero", "vanishes", "float32"):
        assert each in text


def test_the_epsilon_of_the_published_dp_fedavg_is_the_accountant_s():
    parameters = build_parameters(pair_noise="none", client_epsilons=((2, 20.0),))
    spent = published_epsilon(parameters, RUN)
    z = published_noise_multiplier(parameters, 0)
    releases = parameters.update.releases(z, 16, 20)
    assert spent == bound_epsilon(releases, 1e-5, "auto").epsilon == spent_epsilon(parameters, RUN)
    assert 0.5 < spent < 10.0
    # Three uploads of the client with a looser target of its own cost less than 20 of the others'.
    fewer = Participation(num_clients=6, num_sampled=6, uploads={2: 3})
    assert 0.0 < published_epsilon(parameters, fewer) < spent
    assert published_epsilon(parameters, Participation()) == 0.0
    assert f"epsilon {spent:.3g} so far" in "; ".join(list_flaws(parameters, RUN, "server"))


def test_with_shares_there_is_no_epsilon():
    for tau in (0.0, 0.5, 1.0):
        assert published_epsilon(build_parameters(tau=tau), RUN) is None
