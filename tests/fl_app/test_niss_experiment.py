"""The published setting of DP-FedAvg beside NISS: what the file says, and that it runs."""

from dataclasses import replace

import numpy as np
import pytest

from fl_app.config import compose_settings
from fl_app.data.flwr_partition import partition_by_flwr_datasets
from fl_app.registry import build_strategy
from strategies.dp_fedpaq.cohort import CohortPlan
from strategies.niss import Niss
from strategies.niss.published import published_noise_std
from tests.fl_app.test_mnist import encode, make_contents, write

EXPERIMENT = "experiment=niss_mnist"
SMALL = (
    *("num_clients=10", "num_sampled_clients=4", "num_rounds=5", "strategy.batch_size=40"),
    "data.partition.arguments={num_shards_per_partition: 2, shard_size: 20}",
)


def test_the_file_says_what_was_published():
    made = compose_settings([EXPERIMENT])
    chosen = made.strategy
    assert (made.num_clients, made.num_sampled_clients, made.rounds) == (100, 20, 100)
    assert (made.participation, made.model.name) == ("round_robin", "cnn_small")
    assert (chosen.name, chosen.mode, chosen.pair_noise) == ("niss", "paper", "none")
    assert (chosen.target_epsilon, chosen.target_delta) == (10.0, 1e-5)
    assert (chosen.local_steps, chosen.batch_size, chosen.max_grad_norm) == (1, 600, 10.0)
    assert made.published.test_accuracy == 0.8205
    # Pixels less the mean .1307 of MNIST, over its deviation .3081.
    assert pytest.approx(made.data.scale) == 255 * 0.3081
    assert pytest.approx(made.data.offset) == 0.1307 / 0.3081


def test_everybody_takes_part_twenty_times_and_the_rate_falls_with_that():
    made = compose_settings([EXPERIMENT])
    strategy = build_strategy(made)
    assert isinstance(strategy, Niss)
    update = strategy.parameters.update
    cohorts = CohortPlan(20, participation=made.participation)
    assert cohorts.participations(100, 100) == 20
    taken = [0] * 100
    for server_round in range(1, 101):
        for client in cohorts.draw(range(100), None, server_round):
            expected = 0.1 * 0.995 ** taken[client]
            assert update.learning_rate_in_round(server_round) == pytest.approx(expected)
            taken[client] += 1
    assert set(taken) == {20}


def test_the_noise_is_the_published_one_and_clipping_the_update_changes_none():
    """2 lr C / 600 sqrt(2 ln(1.25 / (1e-5 / 20))) / (10 / 20) = .0361869, of the first round."""
    strategy = build_strategy(compose_settings([EXPERIMENT]))
    assert isinstance(strategy, Niss)
    parameters = strategy.parameters
    planned = replace(parameters, update=replace(parameters.update, num_participations=20))
    # The sensitivity allows 1e-6 of itself for rounding.
    assert published_noise_std(planned, 0, 1) == pytest.approx(0.0361869, rel=3e-6)
    assert parameters.update.clipping_norm == pytest.approx(0.1 * 10.0)


def test_each_client_has_two_shards_of_300_records_of_few_digits():
    labels = np.repeat(np.arange(10), 6000)
    parts = partition_by_flwr_datasets(
        labels,
        None,
        100,
        np.random.default_rng(0),
        "ShardPartitioner",
        {"num_shards_per_partition": 2, "shard_size": 300},
    )
    assert {len(part) for part in parts} == {600}
    assert max(len(set(labels[part])) for part in parts) <= 2
    assert len(set(np.concatenate(parts))) == 60_000


@pytest.mark.parametrize("strategy", ["niss_dp_fedavg", "niss_paper", "niss"])
def test_it_runs_with_each_of_the_methods(run, tmp_path, strategy):
    write(tmp_path / "there", encode(make_contents(num_train=400, num_test=20)))
    outcome = run(
        *(EXPERIMENT, f"data.root={tmp_path / 'there'}", f"strategy={strategy}", *SMALL),
        "strategy.min_ready=4",
    )
    assert [row["num_replies"] for row in outcome.rows[1:]] == [4] * 5
    assert all(row["residual_noise_std"] > 0.0 for row in outcome.rows[1:])
    valid = [each["valid"] for each in outcome.guarantees]
    assert valid == [False] * 3  # seeded, at least
