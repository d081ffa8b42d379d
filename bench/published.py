"""The published table of DP-FedPaq beside ours: seven runs over five seeds, and the series E = r.

Writes bench/results/published.json, run by run: what is there already is not computed again. It
holds the command, seeds, versions and date. --table prints the README's table, --plot draws it.
"""

import argparse
import datetime
import json
import logging
import time
from pathlib import Path
from typing import Any

from single_run import run_once

RESULTS = Path(__file__).parent / "results" / "published.json"
PLOTS = Path(__file__).parents[1] / "docs" / "plots"
SEEDS = list(range(5))
ROWS = {
    "e1_r10": "E = 1, r = 10",
    "e10_r10": "E = 10, r = 10",
    "e100_r10": "E = 100, r = 10",
    "e10_r1": "E = 10, r = 1",
    "e10_r100": "E = 10, r = 100",
    "e10_r10_s1": "E = 10, r = 10, s = 1",
    "e10_r10_s10": "E = 10, r = 10, s = 10",
}
SERIES = (1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)


def list_jobs() -> list[tuple[str, int, list[str]]]:
    """Return a name, a seed and overrides for each run, those of the table first."""
    prefix = "experiment=dp_fedpaq_mnist_"
    table = [(name, seed, [prefix + name]) for seed in SEEDS for name in ROWS]
    return table + [
        (f"local_steps_{epochs}", 0, [f"{prefix}local_steps", f"strategy.local_epochs={epochs}"])
        for epochs in SERIES
    ]


def measure(root: str) -> None:
    """Compute the runs that are missing."""
    results = read_results()
    runs = results["runs"]
    done = {(run["name"], run["seed"]) for run in runs}
    for name, seed, overrides in list_jobs():
        if (name, seed) in done:
            continue
        begin = time.perf_counter()
        summary, metrics = run_once([*overrides, f"seed={seed}", f"data.root={root}"])
        runs.append(
            {
                "name": name,
                "seed": seed,
                "overrides": [*overrides, f"seed={seed}"],
                "seconds": round(time.perf_counter() - begin, 1),
                "test_accuracy": summary["test_accuracy"],
                "model_sha256": summary["model_sha256"],
                "uplink_bits_per_parameter": summary["uplink_bits_per_parameter"],
                "published": summary["published"],
                "global_train_loss": {
                    row["round"]: row["global_train_loss"]
                    for row in metrics
                    if row["global_train_loss"] is not None
                },
            }
        )
        results |= {"versions": summary["versions"], "date": datetime.date.today().isoformat()}
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        print(name, seed, runs[-1]["seconds"], summary["test_accuracy"], flush=True)


def read_results() -> dict[str, Any]:
    if RESULTS.exists():
        return dict(json.loads(RESULTS.read_text()))
    return {
        "format_version": 1,
        "command": "python bench/published.py --root=FOLDER_WITH_MNIST",
        "seeds": SEEDS,
        "runs": [],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="folder with MNIST's files: compute what is missing")
    arguments = parser.parse_args()
    if arguments.root:
        logging.disable(logging.CRITICAL)
        measure(arguments.root)


if __name__ == "__main__":
    main()
