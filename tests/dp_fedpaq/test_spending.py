"""What each adversary learns, in numbers: never less than what is proven."""

import dataclasses
import math

import pytest

from strategies.dp_fedpaq import DpFedPaqParameters
from strategies.dp_fedpaq.algorithm import client_noise_multiplier
from strategies.dp_fedpaq.guarantees import spent_epsilon
from strategies.dp_fedpaq.spending import (
    Participation,
    Spent,
    plan_server_noise,
    spend_on_model_user,
)
from strategies.mechanisms.accounting import GaussianReleases, compute_epsilon
from strategies.mechanisms.closed_form import gaussian_epsilon
from tests.softmax_training import SOFTMAX


def parameters(**changes: object) -> DpFedPaqParameters:
    values: dict[str, object] = {
        "num_participations": 20,
        "noise_multiplier": 2.0,
        "local_steps": 8,
        "clipping_norm": 1.0,
        "randomness": "secret",
    }
    return DpFedPaqParameters(**{**values, **changes})  # type: ignore[arg-type]


def run_of(**changes: object) -> Participation:
    values: dict[str, object] = {
        "num_rounds": 20,
        "num_clients": 100,
        "num_sampled": 10,
        "uploads": {0: 4, 1: 2},
        "num_records": {0: 200, 1: 200},
        "fewest_uploads": 10,
        "complete": True,
    }
    return Participation(**{**values, **changes})  # type: ignore[arg-type]


def spent(
    chosen: DpFedPaqParameters, uploads: dict[int, int], sizes: dict[int, int] | None
) -> float | None:
    return spent_epsilon(chosen, Participation(uploads=uploads, num_records=sizes))


def on_user(chosen: DpFedPaqParameters, run: Participation) -> Spent:
    found = spend_on_model_user(chosen, run)
    assert found is not None
    return found


def releases(z: float, num: int, rate: float, **words: str) -> float:
    words = {"unit": "record", "neighboring_relation": "replace_one", "sampling": "fixed", **words}
    return compute_epsilon(
        GaussianReleases(noise_multiplier=z, num_releases=num, sample_rate=rate, **words), 1e-5
    )


class TestServer:
    def test_the_most_exposed_client_is_reported(self) -> None:
        chosen, sizes = parameters(), {0: 128, 1: 150, 2: 1000}
        one = {client: spent(chosen, {client: 5}, sizes) for client in sizes}
        # Fewer records: a larger share of them is drawn, and less is hidden.
        assert one[0] > one[1] > one[2]
        assert spent(chosen, dict.fromkeys(sizes, 5), sizes) == one[0]
        mixed = {0: 1, 1: 2, 2: 20}
        each = [spent(chosen, {client: count}, sizes) for client, count in mixed.items()]
        assert spent(chosen, mixed, sizes) == max(each)
        assert one[0] == pytest.approx(gaussian_epsilon(2.0, 5, 1e-5), rel=5e-3)

    def test_epsilon_follows_the_participations_that_happened(self) -> None:
        chosen, sizes = parameters(noise_multiplier=None, target_epsilon=8.0), {0: 143}
        z = client_noise_multiplier(chosen, 143)
        for count in (1, 7, 20):
            expected = compute_epsilon(chosen.releases(z, 143, count), 1e-5, "pld")
            assert spent(chosen, {0: count}, sizes) == expected
        assert 7.92 <= spent(chosen, {0: 20}, sizes) <= 8.0
        # A client that was asked more often sat out: it counts its participations itself.
        assert spent(chosen, {0: 99}, sizes) == spent(chosen, {0: 20}, sizes)
        assert spent(chosen, {}, sizes) == 0.0

    def test_unknown_sizes_are_counted_at_their_worst(self) -> None:
        target = parameters(noise_multiplier=None, target_epsilon=8.0)
        assert spent(target, {5: 1}, None) == 8.0
        assert spent(parameters(), {5: 4}, None) == pytest.approx(
            gaussian_epsilon(2.0, 4, 1e-5), rel=5e-3
        )

    def test_without_noise_nothing_is_spent_that_could_be_named(self) -> None:
        assert spent(parameters(noise_multiplier=0.0), {0: 3}, {0: 143}) is None

    def test_every_local_step_of_dp_sgd_is_a_release(self) -> None:
        chosen = parameters(
            mechanism="dp_sgd",
            neighboring_relation="add_or_remove_one",
            sampling="poisson",
            sample_rate=0.1,
            max_grad_norm=1.0,
            clipping_norm=None,
        )
        expected = releases(
            2.0, 4 * 8, 0.1, neighboring_relation="add_or_remove_one", sampling="poisson"
        )
        # Whatever the sizes: they are secret, and so is the share that a step draws.
        for sizes in (None, {5: 10}, {5: 10**6}):
            assert spent(chosen, {5: 4}, sizes) == expected

    def test_the_published_noise_is_counted_with_what_is_proven(self) -> None:
        chosen = parameters(
            mode="paper",
            noise_multiplier=None,
            target_epsilon=1.0,
            target_delta=1e-3,
            max_grad_norm=1.0,
            clipping_norm=None,
            local_steps=1,
            learning_rate=0.001,
        )
        # sqrt(8 g^2 ln(1.25 g / delta)) C / (n eps), over 2 C eta, with g = 16 / 400.
        z = math.sqrt(8 * 0.04**2 * math.log(1.25 * 0.04 / 1e-3)) / 400 / (2 * 0.001)
        expected = compute_epsilon(chosen.releases(z, 400, 3), 1e-3, "pld")
        assert spent(chosen, {0: 3}, {0: 400}) == pytest.approx(expected, rel=1e-9)
        assert spent(chosen, {0: 3}, None) == math.inf


class TestModelUser:
    """Noise at the clients."""

    def test_quantised_uploads_show_each_message(self) -> None:
        # Everybody takes part, so nothing hides a client but its own noise.
        run = run_of(num_clients=10)
        found = on_user(parameters(), run)
        assert found.epsilon == spent_epsilon(parameters(), run)
        assert (found.colluding_fraction, found.counts) == (1.0, ("records",))

    @pytest.mark.parametrize(("fraction", "honest"), [(0.0, 10), (0.02, 8), (0.05, 5)])
    def test_noises_add_over_the_honest_uploads(self, fraction: float, honest: int) -> None:
        chosen = parameters(quantizer="none")
        run = run_of(colluding_fraction=fraction, complete=False)
        found = on_user(chosen, run)
        assert found.epsilon == releases(2.0 * math.sqrt(honest), 4, 128 / 200)
        assert found.colluding_fraction == fraction
        assert found.counts == ("records", "sum")
        # No more than a client's own noise is left if the others may all collude.
        alone = on_user(chosen, dataclasses.replace(run, colluding_fraction=0.2))
        assert alone.epsilon == spent_epsilon(chosen, run)

    def test_the_noise_of_the_others_is_counted_at_its_least(self) -> None:
        chosen = parameters(quantizer="none", noise_multiplier=None, target_epsilon=4.0)
        run = run_of(num_records={0: 150, 1: 600}, complete=False)
        small, large = (client_noise_multiplier(chosen, n) for n in (150, 600))
        assert small > large
        own = {0: math.hypot(small, 3.0 * large), 1: math.sqrt(10.0) * large}
        expected = max(releases(own[0], 4, 128 / 150), releases(own[1], 2, 128 / 600))
        assert on_user(chosen, run).epsilon == pytest.approx(expected, rel=1e-12)
        unknown = on_user(chosen, dataclasses.replace(run, num_records=None))
        assert unknown.epsilon == 4.0

    def test_a_secret_cohort_counts_every_round(self) -> None:
        run = run_of(uploads={0: 20}, num_rounds=20)
        found = on_user(parameters(), run)
        assert found.counts == ("records", "cohort")
        assert found.epsilon == releases(2.0, 20, 0.1 * 128 / 200)
        assert found.epsilon < 0.5 * spent_epsilon(parameters(), run)  # type: ignore[operator]
        client = on_user(parameters(unit="client"), run)
        assert client.epsilon == releases(2.0, 20, 0.1, unit="client")
        assert client.counts == ("cohort",)

    def test_colluders_leave_fewer_places_to_hide(self) -> None:
        run = run_of(uploads={0: 20}, colluding_fraction=0.5)
        assert run.num_colluders == 50
        assert on_user(parameters(), run).epsilon == releases(2.0, 20, 10 / 50 * 128 / 200)
        assert run_of(colluding_fraction=1.0).num_colluders == 99
        assert run_of(colluding_fraction=1.0).client_rate == 1.0

    def test_sum_and_cohort_are_counted_together(self) -> None:
        run = run_of(uploads={0: 20})
        found = on_user(parameters(quantizer="none"), run)
        assert found.counts == ("records", "sum", "cohort")
        assert found.epsilon == releases(2.0 * math.sqrt(10), 20, 0.1 * 128 / 200)

    @pytest.mark.parametrize(
        ("chosen", "run"),
        [
            ({}, {"complete": False}),
            ({}, {"kind": "poisson"}),
            ({}, {"num_clients": 10}),
            ({"num_participations": 19}, {}),
            ({"accountant": "closed_form"}, {}),
            ({"noise_multiplier": None, "target_epsilon": 8.0}, {"num_records": {0: 200, 1: 400}}),
            ({"unit": "client", "neighboring_relation": "zero_out"}, {}),
            (
                {"sensitivity": "one_step", "local_steps": 1, "max_grad_norm": 1.0},
                {},
            ),
        ],
    )
    def test_a_cohort_does_not_count_where_it_is_not_proven(
        self, chosen: dict[str, object], run: dict[str, object]
    ) -> None:
        if "sensitivity" in chosen:
            chosen = {**chosen, "training": SOFTMAX}
        values = parameters(**chosen)
        happened = run_of(**{"uploads": {0: 20}, **run})
        found = on_user(values, happened)
        assert "cohort" not in found.counts
        assert found.epsilon == spent_epsilon(values, happened)

    def test_neither_sums_nor_cohorts_count_for_steps_or_the_published_noise(self) -> None:
        steps = parameters(
            mechanism="dp_sgd",
            neighboring_relation="add_or_remove_one",
            sampling="poisson",
            sample_rate=0.1,
            max_grad_norm=1.0,
            quantizer="none",
        )
        paper = parameters(
            mode="paper",
            noise_multiplier=None,
            target_epsilon=1.0,
            max_grad_norm=1.0,
            local_steps=1,
            learning_rate=1e-6,
            quantizer="none",
        )
        for chosen in (steps, paper):
            found = on_user(chosen, run_of(uploads={0: 20}))
            assert not {"sum", "cohort"} & set(found.counts)
            assert found.epsilon == spent_epsilon(chosen, run_of(uploads={0: 20}))

    def test_updates_that_are_not_clipped_are_not_counted_as_a_sum(self) -> None:
        chosen = parameters(
            quantizer="none",
            sensitivity="one_step",
            local_steps=1,
            max_grad_norm=1.0,
            clipping_norm=None,
            training=SOFTMAX,
        )
        assert on_user(chosen, run_of(complete=False)).counts == ("records",)


class TestCurator:
    """Noise at a trusted server."""

    def chosen(self, **changes: object) -> DpFedPaqParameters:
        return parameters(noise_at="server", **changes)

    def test_clients_behind_a_secret_cohort(self) -> None:
        run = run_of(server_noise_multiplier=2.0, complete=False)
        found = on_user(self.chosen(unit="client"), run)
        assert found.epsilon == releases(2.0, 20, 0.1, unit="client")
        assert (found.counts, found.colluding_fraction) == (("cohort",), 0.0)
        # Lost uploads change nothing here: the noise does not come from the clients.
        poisson = on_user(
            self.chosen(unit="client", neighboring_relation="zero_out"),
            dataclasses.replace(run, kind="poisson", colluding_fraction=0.5),
        )
        words = {"unit": "client", "neighboring_relation": "zero_out", "sampling": "poisson"}
        assert poisson.epsilon == releases(2.0, 20, 0.1, **words)

    def test_a_known_cohort_counts_participations(self) -> None:
        run = run_of(server_noise_multiplier=2.0)
        found = on_user(self.chosen(unit="client", neighboring_relation="zero_out"), run)
        assert found.epsilon == gaussian_epsilon(2.0, 4, 1e-5)
        assert found.counts == ()

    def test_records_are_counted_for_the_smallest_client(self) -> None:
        run = run_of(server_noise_multiplier=2.0, num_records={0: 130, 1: 5000, 2: 3})
        expected = releases(2.0, 20, 0.1 * 128 / 130)
        assert on_user(self.chosen(), run).epsilon == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("kind", ["fixed", "poisson"])
    @pytest.mark.parametrize("unit", ["client", "record"])
    def test_the_planned_noise_meets_the_target(self, unit: str, kind: str) -> None:
        chosen = self.chosen(unit=unit, noise_multiplier=None, target_epsilon=2.0)
        plan = run_of(kind=kind, uploads={0: 20})
        run = dataclasses.replace(plan, server_noise_multiplier=plan_server_noise(chosen, plan))
        assert 0.99 * 2.0 <= on_user(chosen, run).epsilon <= 2.0

    def test_nothing_is_spent_before_the_first_round(self) -> None:
        run = run_of(server_noise_multiplier=2.0, num_rounds=0, uploads={})
        for changes in ({"unit": "client"}, {"unit": "client", "neighboring_relation": "zero_out"}):
            assert on_user(self.chosen(**changes), run).epsilon == 0.0
