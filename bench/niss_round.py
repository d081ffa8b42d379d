"""A round of NISS against the same round of DP-FedAvg: seconds, and bytes for each neighbour.

The work: MNIST, 100 clients of which 20 take part in a round, the CNN of 21,840 parameters, one
epoch over a client's 600 records in batches of 16, updates clipped to norm 1; complete graph. The
methods run in turns, in process, on one thread; the first two rounds of each turn, in which clients
register, are left out of the median. Bytes for a neighbour: what the control bytes of a client grow
by for each further client of a round.

`--root FOLDER_WITH_MNIST` measures and writes bench/results/niss_round.json; --table prints it.
"""

import argparse
import datetime
import json
import logging
import os
import statistics
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

RESULTS = Path(__file__).parent / "results" / "niss_round.json"
TURNS, ROUNDS, LEFT_OUT = 3, 7, 2
WORK = [
    "data=mnist",
    "model=cnn_small",
    "num_clients=100",
    "strategy.local_steps=null",
    "strategy.local_epochs=1",
    "strategy.batch_size=16",
    "strategy.learning_rate=0.05",
    "strategy.clipping_norm=1.0",
    "strategy.feature_norm=null",
    # Hardly any: what is timed does not depend on how much it is.
    "strategy.target_epsilon=null",
    "strategy.noise_multiplier=0.01",
]
METHODS = {
    "dp_fedavg": ["strategy=dp_fedpaq", "strategy.quantizer=none", "strategy.num_levels=null"],
    "niss, Gaussian pairs": ["strategy=niss"],
    "niss, uniform masks": ["strategy=niss", "strategy.pair_noise=uniform"],
}


def run_rounds(root: str, method: str, num_sampled: int, rounds: int) -> list[dict[str, Any]]:
    """Return the metrics of each round of a run, the registration's among them."""
    from single_run import run_once

    chosen = [f"data.root={root}", f"num_sampled_clients={num_sampled}", f"num_rounds={rounds}"]
    return run_once([*METHODS[method], *WORK, *chosen])[1][1:]


def measure(root: str) -> dict[str, Any]:
    """Run the methods in turns; return medians, their ratios and bytes for a neighbour."""
    from fl_app.run_store import list_versions

    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(TURNS):
        for method, found in seconds.items():
            rows = run_rounds(root, method, 20, ROUNDS)
            found += [row["seconds"] for row in rows[LEFT_OUT:]]
    medians = {method: statistics.median(found) for method, found in seconds.items()}
    # Of the second round on, a client that registers now is not counted.
    few, many = (
        min(
            (row["control_bytes"] - row["registration_bytes"]) / size
            for row in run_rounds(root, "niss, Gaussian pairs", size, 2)
        )
        for size in (10, 20)
    )
    return {
        "format_version": 1,
        "command": "python bench/niss_round.py --root=FOLDER_WITH_MNIST",
        "seeds": [0],
        "versions": list_versions(),
        "date": datetime.date.today().isoformat(),
        "median_seconds": {method: round(value, 4) for method, value in medians.items()},
        "ratio": {
            method: round(value / medians["dp_fedavg"], 3) for method, value in medians.items()
        },
        "spread": {
            method: [round(min(found), 4), round(max(found), 4)]
            for method, found in seconds.items()
        },
        "bytes_a_neighbour": round((many - few) / 10, 1),
    }


def print_table(results: dict[str, Any]) -> None:
    """Print the README's table."""
    print("| round of 20 clients, 21,840 parameters | time over DP-FedAvg's |\n|---|---|")
    for method, ratio in results["ratio"].items():
        print(f"| {method} | {ratio:.2f} |")
    print(f"\nControl bytes for each neighbour and round: {results['bytes_a_neighbour']:g}.")


def main() -> None:
    """Measure or print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="folder with MNIST's files: measure")
    parser.add_argument("--table", action="store_true", help="print the README's table")
    arguments = parser.parse_args()
    if arguments.root:
        logging.disable(logging.CRITICAL)
        RESULTS.write_text(json.dumps(measure(arguments.root), indent=1) + "\n")
    if arguments.table:
        print_table(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
