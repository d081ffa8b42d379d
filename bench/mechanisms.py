"""DP-SGD beside noise on the update, on MNIST: accuracy at the same total epsilon.

Ten clients of 6,000 records each, 20 rounds, record-level guarantee at delta = 1e-5 against the
server, three seeds. Writes bench/results/mechanisms.json (`--root FOLDER_WITH_MNIST`); --table
prints it. Each epsilon is counted again with Opacus's own accountants where they apply.
"""

import argparse
import datetime
import json
import logging
import statistics
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "mechanisms.json"
SEEDS = list(range(3))
EPSILONS = (2.0, 4.0, 8.0)
ROUNDS, STEPS, RATE = 20, 20, 0.02
BASE = ["data=mnist", "num_clients=10", f"num_rounds={ROUNDS}"]
DP_SGD = [
    *("strategy=dp_sgd", f"strategy.local_steps={STEPS}", f"strategy.sample_rate={RATE}"),
    *("strategy.batch_size=120", "strategy.feature_norm=null"),
]
# Settings were chosen on seed 100 at epsilon 4.
SETTINGS: dict[str, list[str]] = {
    "noise on the update, softmax (convex bound)": [
        *("strategy.learning_rate=0.5", "strategy.local_steps=40", "strategy.batch_size=64"),
        "strategy.clipping_norm=100",
    ],
    "DP-SGD, softmax": [*DP_SGD, "strategy.learning_rate=2"],
}


def count_with_opacus(noise_multiplier: float) -> dict[str, float]:
    """Return the epsilon of the whole run by Opacus's accountants."""
    from opacus.accountants import PRVAccountant, RDPAccountant

    found = {}
    for name, kind in (("prv", PRVAccountant), ("rdp", RDPAccountant)):
        accountant = kind()
        accountant.history = [(noise_multiplier, RATE, ROUNDS * STEPS)]
        found[name] = float(accountant.get_epsilon(1e-5))
    return found


def measure(root: str) -> dict:
    from single_run import run_once

    from fl_app.run_store import list_versions

    rows = []
    for name, overrides in SETTINGS.items():
        for epsilon in EPSILONS:
            words = [*BASE, f"data.root={root}", *overrides, f"strategy.target_epsilon={epsilon}"]
            runs = [run_once([*words, f"seed={seed}"])[0] for seed in SEEDS]
            accuracy = [run["test_accuracy"] for run in runs]
            row = {
                "setting": name,
                "overrides": [*BASE, *overrides],
                "target_epsilon": epsilon,
                "test_accuracy": accuracy,
                "mean": statistics.mean(accuracy),
                "standard_deviation": statistics.stdev(accuracy),
                "epsilon": runs[0]["epsilon"],
                "sensitivity": runs[0]["sensitivity"],
            }
            if row["sensitivity"] == "dp_sgd":
                # max_grad_norm is 1, so the noise's standard deviation is the multiplier.
                row["opacus"] = count_with_opacus(runs[0]["noise_std"])
            rows.append(row)
            print(name, epsilon, row["mean"], row.get("opacus"), flush=True)
    return {
        "format_version": 1,
        "command": "python bench/mechanisms.py --root FOLDER_WITH_MNIST",
        "seeds": SEEDS,
        "versions": list_versions(),
        "date": datetime.date.today().isoformat(),
        "rows": rows,
    }


def print_table(results: dict) -> None:
    from fl_app.report.formats import format_epsilon

    print("| mechanism | epsilon at 1e-5 | by Opacus (PRV) | test accuracy |")
    print("|---|---|---|---|")
    for row in results["rows"]:
        by_opacus = format_epsilon(row["opacus"]["prv"]) if "opacus" in row else "-"
        print(
            f"| {row['setting']} | {format_epsilon(row['epsilon'])} | {by_opacus} | "
            f"{row['mean']:.3f} ± {row['standard_deviation']:.3f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="folder with MNIST's files: compute")
    parser.add_argument("--table", action="store_true", help="print the table of the last run")
    given = parser.parse_args()
    if given.root:
        logging.disable(logging.CRITICAL)
        results = measure(given.root)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if given.table:
        print_table(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
