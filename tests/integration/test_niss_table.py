"""The table of NISS beside DP-FedAvg: its runs, what is made of them, and how it prints."""

import pytest

from bench import niss_table
from fl_app.config import compose_settings


def test_each_run_is_named_once_and_composes():
    jobs = niss_table.list_jobs()
    assert len({tuple(job[:3]) for job in jobs}) == len(jobs) == 29
    for name, epsilon, seed, overrides in jobs:
        made = compose_settings(overrides)
        assert (made.strategy.target_epsilon, made.seed) == (epsilon, seed)
        assert (made.rounds, made.strategy.batch_size, made.strategy.local_steps) == (100, 600, 1)
        assert made.strategy.name == ("dp_fedpaq" if name == niss_table.FEDAVG else "niss")
        sound = name.startswith("niss_sound")
        assert (made.strategy.mode == "sound") == (sound or name == niss_table.FEDAVG)
        assert (made.faults.drop_after_ready > 0) == name.endswith("drops")


def test_the_table_has_the_published_figures():
    """A calibrated baseline by the first author of NISS: 90.09; 86.70 86.53 82.05 54.40 11.28."""
    figures = [niss_table.PUBLISHED[epsilon] for epsilon in niss_table.EPSILONS]
    assert figures == [0.8670, 0.8653, 0.8205, 0.5440, 0.1128]
    assert niss_table.PUBLISHED_FEDAVG == 0.9009


def test_gains_are_over_the_baseline_s_mean_at_the_same_epsilon(capsys):
    def run(name, epsilon, accuracy, seed=0):
        return {
            "name": name,
            "epsilon_aimed_at": epsilon,
            "seed": seed,
            "test_accuracy": accuracy,
        }

    runs = [
        *(run("dp_fedavg", 10, 0.80), run("dp_fedavg", 10, 0.84, 1), run("dp_fedavg", 5, 0.5)),
        *(run("niss_sound_rho10", 10, 0.9), run("niss_sound_rho10", 5, 0.8)),
        *(run("niss_sound_rho10", 20, 0.99), run("fedavg", None, 0.91)),
    ]
    judged = niss_table.judge(runs)
    (gain,) = judged["gains"]
    assert gain["gain"] == pytest.approx({10: 0.08, 5: 0.3})
    assert gain["mean"] == pytest.approx(0.19)
    niss_table.print_table({"runs": runs, **judged})
    lines = capsys.readouterr().out.splitlines()
    assert "| no noise (FedAvg): 91.00, published 90.09 |" in lines[2]
    assert lines[3] == "| DP-FedAvg, published | 86.70 | 86.53 | 82.05 | 54.40 | 11.28 |  |"
    assert lines[4] == "| DP-FedAvg, ours |  |  | 82.00 | 50.00 |  |  |"
    assert "| NISS, rho = .1 |  | 99.00 | 90.00 | 80.00 |  | +19.0 |" in lines
