"""What runs of NISS report: colluders, cohorts in turn, bounds."""

import json

from fl_app.registry import build_strategy, update_of
from fl_app.update_settings import explain_sensitivity
from tests.conftest import read_outcome
from tests.fl_app.test_niss_settings import make


def test_a_run_reports_server_and_colluders(fl_app, tmp_path):
    ended = fl_app(
        *("run", "strategy=niss", "num_rounds=2", "num_clients=5", "hydra.run.dir=run"),
        "strategy.colluding_fraction=0.3",
    )
    assert ended.code == 0
    words = " ".join(ended.output.split())
    # 30 % of five are one whole client.
    assert "false or colluding clients" in words
    outcome = read_outcome(tmp_path / "run")
    adversaries = [row["adversary"] for row in outcome.guarantees]
    assert adversaries == ["server_and_colluders", "server", "model_user"]
    assert outcome.summary["epsilon"] == outcome.guarantees[0]["epsilon"]
    assert outcome.summary["own_noise_std"] < outcome.summary["noise_std"]
    assert outcome.summary["pair_noise_std"] > 0
    assert outcome.summary["uplink_bits_per_parameter"] == 32
    for row in outcome.rows[1:]:
        assert row["num_dropped_after_ready"] == 0
        assert row["num_attempts"] == 1
        # Own noise of five, averaged: well below that of one client's upload.
        assert 0 < row["residual_noise_std"] < outcome.summary["noise_std"] / 2
    first, second = outcome.rows[1:]
    assert first["registration_bytes"] > second["registration_bytes"] == 0
    report = (tmp_path / "run" / "report.html").read_text()
    assert "false or colluding clients (colluding_fraction: 20 %)" in " ".join(report.split())
    assert "no trust list" in report


def test_two_runs_in_one_process_are_the_same_to_the_bit(run):
    one, other = (run("strategy=niss", "num_rounds=3", "num_clients=4") for _ in range(2))
    assert one.sha256 == other.sha256
    different = run("strategy=niss", "num_rounds=3", "num_clients=4", "seed=1")
    assert different.sha256 != one.sha256


def test_in_turn_the_cohort_amplifies_nothing(run):
    """dp_fedpaq: who is drawn in secret hides from users of the models, who is in turn does not."""
    common = (
        *("num_rounds=1", "num_clients=6", "num_sampled_clients=2", "randomness=secret"),
        *("strategy.sensitivity=whole_update", "strategy.max_participations=1"),
        *("strategy.target_epsilon=null", "strategy.noise_multiplier=2"),
        "strategy.colluding_fraction=0",
    )
    drawn, turn = run(*common), run(*common, "participation=round_robin")
    assert drawn.guarantees[1]["epsilon"] < drawn.guarantees[0]["epsilon"]
    assert turn.guarantees[1]["epsilon"] == turn.guarantees[0]["epsilon"]
    assert json.dumps(turn.guarantees).count("cohort") == 0


def test_niss_in_turn_asks_and_charges_everybody_alike(run):
    outcome = run(
        *("strategy=niss", "num_rounds=6", "num_clients=6", "num_sampled_clients=3"),
        *("participation=round_robin", "randomness=secret"),
    )
    assert [row["num_replies"] for row in outcome.rows[1:]] == [3] * 6
    # Three participations of each; a fourth is planned for, should a round be interrupted.
    assert 6.0 < outcome.summary["epsilon"] <= 8.0


def test_whoever_clips_gradients_is_not_told_of_a_bound_that_is_not_used():
    """`auto` takes one_step then, which is no larger noise to warn of."""
    one_step = make("strategy.max_grad_norm=1", "strategy.local_steps=1")
    update = update_of(build_strategy(one_step))
    assert update.sensitivity == "one_step"
    assert explain_sensitivity(one_step, update) is None
    network = make("model=mlp")
    assert "not convex" in str(explain_sensitivity(network, update_of(build_strategy(network))))
