"""Test accuracy on digits over ten seeds, for each setting in the README's table.

Writes bench/results/digits.json with the command, seeds, versions and date; --table prints it.
"""

import argparse
import datetime
import json
import logging
import statistics
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "digits.json"
SEEDS = list(range(10))
NO_QUANTIZER = ["strategy.quantizer=none", "strategy.num_levels=null"]
NO_NOISE = ["strategy.target_epsilon=null", "strategy.noise_multiplier=0"]
SETTINGS: dict[str, list[str]] = {
    "DP-FedPaq, epsilon 8 (default)": [],
    "the same, not quantised": NO_QUANTIZER,
    "the same, sampling not counted": ["strategy.accountant=closed_form"],
    "the same, whole_update bound, S = 0.1": [
        "strategy.sensitivity=whole_update",
        "strategy.clipping_norm=0.1",
    ],
    "DP-FedPaq, epsilon 4": ["strategy.target_epsilon=4"],
    "DP-FedPaq, epsilon 16": ["strategy.target_epsilon=16"],
    "DP-FedPaq, no noise": NO_NOISE,
    "FedPaq, step size 5": ["strategy=fedpaq", "strategy.learning_rate=5"],
    "FedAvg, step size 5": ["strategy=fedavg", "strategy.learning_rate=5"],
}


def measure() -> dict:
    from single_run import run_once

    from fl_app.run_store import list_versions

    rows = []
    for name, overrides in SETTINGS.items():
        runs = [run_once([*overrides, f"seed={seed}"])[0] for seed in SEEDS]
        accuracy = [run["test_accuracy"] for run in runs]
        rows.append(
            {
                "setting": name,
                "overrides": overrides,
                "test_accuracy": accuracy,
                "mean": statistics.mean(accuracy),
                "standard_deviation": statistics.stdev(accuracy),
                "epsilon": runs[0]["epsilon"],
                "uplink_bits_per_parameter": runs[0]["uplink_bits_per_parameter"],
            }
        )
        print(f"{name}: {rows[-1]['mean']:.4f} +- {rows[-1]['standard_deviation']:.4f}", flush=True)
    return {
        "format_version": 1,
        "command": "python bench/accuracy.py",
        "seeds": SEEDS,
        "versions": list_versions(),
        "date": datetime.date.today().isoformat(),
        "rows": rows,
    }


def print_table(results: dict) -> None:
    from fl_app.report.formats import format_epsilon

    print("| setting | epsilon at 1e-5 | bits a parameter | test accuracy |")
    print("|---|---|---|---|")
    for row in results["rows"]:
        print(
            f"| {row['setting']} | {format_epsilon(row['epsilon'])} | "
            f"{row['uplink_bits_per_parameter']:.2f} | "
            f"{row['mean']:.3f} ± {row['standard_deviation']:.3f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="print the table of the last run")
    if not parser.parse_args().table:
        logging.disable(logging.CRITICAL)
        results = measure()
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print_table(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
