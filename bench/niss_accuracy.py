"""NISS beside noise of each client's own and a trusted server's, at the same epsilon.

Four ways to train on digits (20 clients) and on MNIST (100, 20 a round), over five seeds: without
noise; DP-FedPaq without quantiser, where each client hides itself; NISS with a colluding fraction
of .1; and noise at a trusted server. `--root FOLDER_WITH_MNIST` computes the runs that
bench/results/niss_accuracy.json lacks and adds each to it as it ends; --table prints the README's
table, with paired intervals.
"""

import math
import statistics
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "niss_accuracy.json"
SEEDS = list(range(5))
LOCAL = ["strategy=dp_fedpaq", "strategy.quantizer=none", "strategy.num_levels=null"]
DATA: dict[str, list[str]] = {
    "digits, epsilon 2": [
        "data=digits",
        "num_clients=20",
        "num_rounds=20",
        "strategy.local_steps=4",
        "strategy.batch_size=16",
        "strategy.target_epsilon=2",
    ],
    "MNIST, epsilon 1": [
        "data=mnist",
        "num_clients=100",
        "num_sampled_clients=20",
        "num_rounds=40",
        "strategy.local_steps=8",
        "strategy.batch_size=32",
        "strategy.target_epsilon=1",
        "strategy.feature_norm=10",
        "strategy.learning_rate=0.02",
        "strategy.clipping_norm=1.0",
    ],
}
METHODS: dict[str, list[str]] = {
    "no noise": [*LOCAL, "strategy.target_epsilon=null", "strategy.noise_multiplier=0"],
    "DP-FedPaq, each client's own": LOCAL,
    # Nobody vanishes here, so all of a round's 20 clients can be asked to be ready.
    "NISS, colluding fraction .1": [
        *("strategy=niss", "strategy.colluding_fraction=0.1", "strategy.min_ready=20"),
    ],
    "trusted server": [*LOCAL, "strategy.noise_at=server"],
}
# Two-sided 95% quantile of Student's t with 4 degrees of freedom.
T_QUANTILE = 2.776


def list_jobs() -> list[tuple[str, str, int, list[str]]]:
    """Return data, method, seed and overrides for each run."""
    return [
        (data, method, seed, [*_merge(setting, overrides), f"seed={seed}"])
        for data, setting in DATA.items()
        for method, overrides in METHODS.items()
        for seed in SEEDS
    ]


def _merge(setting: list[str], overrides: list[str]) -> list[str]:
    """Return both; of two values of a key the method's counts."""
    keys = {word.partition("=")[0] for word in overrides}
    return [*overrides, *(word for word in setting if word.partition("=")[0] not in keys)]


def describe(summary: dict[str, Any], _: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is kept of a run."""
    keys = ("test_accuracy", "test_loss", "epsilon", "noise_std", "sensitivity")
    return {key: summary[key] for key in (*keys, "uplink_bytes_total", "model_sha256")}


def compare(results: dict[str, Any], data: str, first: str, second: str) -> tuple[float, float]:
    """Return the mean of first - second over the seeds, in points, and half its 95% interval."""
    accuracy = {
        (run["method"], run["seed"]): 100.0 * run["test_accuracy"]
        for run in results["runs"]
        if run["data"] == data
    }
    differences = [accuracy[first, seed] - accuracy[second, seed] for seed in SEEDS]
    half = T_QUANTILE * statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.mean(differences), half


def print_table(results: dict[str, Any]) -> None:
    """Print the README's table: mean accuracy, and what NISS gains and lacks."""
    _, local, niss, central = METHODS
    print("| |" + "".join(f" {method} |" for method in METHODS) + " NISS - own | NISS - server |")
    print("|---|" + "---|" * (len(METHODS) + 2))
    for data in DATA:
        cells = []
        for method in METHODS:
            values = [
                100.0 * run["test_accuracy"]
                for run in results["runs"]
                if (run["data"], run["method"]) == (data, method)
            ]
            cells.append(f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}")
        for other in (local, central):
            mean, half = compare(results, data, niss, other)
            cells.append(f"{mean:+.1f} ± {half:.1f}")
        print(f"| {data} | " + " | ".join(cells) + " |")


def main() -> None:
    """Compute or print."""
    from resumable_bench import ResumableBench

    ResumableBench(
        file=RESULTS,
        keys=("data", "method", "seed"),
        seeds=SEEDS,
        list_jobs=list_jobs,
        describe=describe,
        print_table=print_table,
        plot=lambda results: None,
    ).main(__doc__)


if __name__ == "__main__":
    main()
