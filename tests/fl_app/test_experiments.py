"""The files of published experiments: what they set, and that they run on data of MNIST's form."""

import numpy as np
import pytest

from fl_app.conf_folder import find_conf
from fl_app.config import compose_settings, expand_sweep
from fl_app.data.partition import partition_by_label_shards
from strategies.dp_fedpaq import DpFedPaqParameters
from tests.fl_app.test_mnist import encode, make_contents, write

PREFIX = "dp_fedpaq_mnist_"
# Table of the published experiments: E, r, s; loss at 100, 300, 500, 1000 epochs; accuracy.
TABLE = {
    "e1_r10": (1, 10, None, (0.8905, 0.7999, 0.7682, 0.7320), 0.8548),
    "e10_r10": (10, 10, None, (1.0869, 0.9153, 0.8609, 0.8029), 0.8531),
    "e100_r10": (100, 10, None, (2.1743, 1.3105, 1.0946, 0.9601), 0.8191),
    "e10_r1": (10, 1, None, (1.4243, 0.9587, 0.9176, 0.8359), 0.8061),
    "e10_r100": (10, 100, None, (1.0573, 0.9097, 0.8590, 0.8032), 0.8576),
    "e10_r10_s1": (10, 10, 1, (1.1883, 0.9833, 0.9246, 0.8637), 0.7942),
    "e10_r10_s10": (10, 10, 10, (1.0793, 0.9095, 0.8571, 0.8001), 0.8492),
}
SERIES = {
    1: 0.7448, 10: 0.8001, 20: 0.8367, 30: 0.8595, 40: 0.8747, 50: 0.8750, 60: 0.8992, 70: 0.9050,
    80: 0.9118, 90: 0.9240, 100: 0.9232,
}  # fmt: skip
# Images of each digit in MNIST's training set.
DIGITS = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)


def assert_setting(made, epochs: int, sampled: int, levels: int | None) -> None:
    """Check all that the published experiments say of a run."""
    chosen = made.strategy
    assert (made.num_clients, made.num_sampled_clients) == (100, sampled)
    assert (chosen.local_epochs, chosen.local_steps, made.rounds) == (epochs, None, 1000 // epochs)
    assert (chosen.learning_rate, chosen.weight_decay, chosen.batch_size) == (0.1, 1e-3, 64)
    assert (chosen.lr_schedule, chosen.proximal, chosen.feature_norm) == ("inverse_rounds", 0, None)
    assert (chosen.noise_multiplier, chosen.target_epsilon, chosen.clipping_norm) == (0, None, None)
    assert (chosen.quantizer, chosen.num_levels) == ("qsgd" if levels else "none", levels)
    assert (made.data.name, made.data.scale, made.data.offset) == ("mnist", 255.0, 0.0)
    assert (made.data.partition.kind, made.data.partition.labels_per_client) == ("label_shards", 2)
    assert (made.model.name, made.model.dtype) == ("softmax_regression", "float32")


def test_there_is_a_file_for_each_row_the_series_and_the_private_run():
    files = {path.stem for path in (find_conf() / "experiment").glob(f"{PREFIX}*.yaml")}
    assert files == {PREFIX + name for name in (*TABLE, "local_steps", "private")}


@pytest.mark.parametrize("name", TABLE)
def test_a_row_is_set_as_it_was_published(name):
    epochs, sampled, levels, losses, accuracy = TABLE[name]
    made = compose_settings([f"experiment={PREFIX}{name}"])
    assert_setting(made, epochs, sampled, levels)
    published = made.published
    assert [at * epochs for at in published.rounds] == [100, 300, 500, 1000]
    assert (published.global_train_loss, published.test_accuracy) == (losses, accuracy)
    assert all(map(made.evaluates_train_loss, published.rounds))
    assert published.local_epochs == ()


def test_the_series_sweeps_over_what_was_published():
    jobs = expand_sweep([f"experiment={PREFIX}local_steps"])
    found = {}
    for job in jobs:
        made = compose_settings(job)
        assert_setting(made, made.strategy.local_epochs, made.strategy.local_epochs, 10)
        assert made.evaluates_train_loss(made.rounds)
        published = made.published
        found[made.strategy.local_epochs] = dict(
            zip(published.local_epochs, published.final_train_loss, strict=True)
        )
        assert (published.rounds, published.test_accuracy) == ((), None)
    assert found == dict.fromkeys(SERIES, SERIES)


def test_the_learning_rate_falls_as_published():
    """0.1 in the first two rounds, counted from 0, then 0.1 / ((i - 1) E + 1)."""
    parameters = DpFedPaqParameters(
        1, noise_multiplier=0.0, local_epochs=10, lr_schedule="inverse_rounds", learning_rate=0.1
    )
    rates = [parameters.learning_rate_in_round(i + 1) for i in range(5)]
    assert rates == pytest.approx([0.1, 0.1, 0.1 / 11, 0.1 / 21, 0.1 / 31], rel=1e-15)


def test_each_digit_is_cut_in_twenty_near_equal_parts_and_each_client_has_two_digits():
    labels = np.repeat(np.arange(10), DIGITS)
    parts = partition_by_label_shards(labels, 100, np.random.default_rng(0), 2)
    held = np.array([np.bincount(labels[part], minlength=10) for part in parts])
    assert ((held > 0).sum(axis=1) == 2).all()
    assert ((held > 0).sum(axis=0) == 20).all()
    for digit, count in enumerate(DIGITS):
        sizes = held[held[:, digit] > 0, digit]
        assert sizes.sum() == count
        assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("name", ["e10_r10", pytest.param("e10_r10_s1", marks=pytest.mark.slow)])
def test_a_row_runs_and_prints_the_comparison(fl_app, tmp_path, name):
    write(tmp_path / "there", encode(make_contents(num_train=400, num_test=20)))
    ended = fl_app(
        *("run", f"experiment={PREFIX}{name}", "data.root=there", "hydra.run.dir=run"),
        *("total_local_steps=100", "num_clients=20", "strategy.local_epochs=2"),
    )
    assert (ended.code, ended.errors) == (0, "")
    rows = [line.split() for line in ended.output.splitlines() if "Loss on all" in line]
    # The run ends at 50 rounds; what there is no value beside is one line.
    assert [row[5] for row in rows] == ["10", "30", "50"]
    assert [row[6] for row in rows] == [f"{loss:.4f}" for loss in TABLE[name][3][:3]]
    assert all(float(row[7]) > 0.0 for row in rows)
    assert "without a value of ours: round 100" in " ".join(ended.output.split())
    assert any("Test accuracy" in line for line in ended.output.splitlines()[-6:])


def test_without_noise_nobody_sits_out(run, tmp_path):
    write(tmp_path / "there", encode(make_contents(num_train=400, num_test=20)))
    outcome = run(
        *(f"experiment={PREFIX}e10_r1", f"data.root={tmp_path / 'there'}", "num_clients=20"),
        *("strategy.local_epochs=1", "total_local_steps=60", "num_sampled_clients=5"),
    )
    assert [row["num_replies"] for row in outcome.rows[1:]] == [5] * 60
