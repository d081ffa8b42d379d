"""Private runs of DP-FedPaq on MNIST, two digits a client: what each setting costs.

Around experiment=dp_fedpaq_mnist_private: epsilon against gamma = E b / n_k, then one setting at
a time, over three seeds. `--root FOLDER_WITH_MNIST` computes the runs that
bench/results/sweeps.json lacks and adds each to it as it ends; --table prints the tables, --plot
draws docs/plots/sweep_epsilon.png.
"""

import statistics
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "sweeps.json"
PLOTS = Path(__file__).parents[1] / "docs" / "plots"
SEEDS = list(range(3))
BASE = ["experiment=dp_fedpaq_mnist_private"]
# n_k is near 600 for every client: gamma = 10 b / 600.
BATCH_OF_GAMMA = {0.2: 12, 0.4: 24, 0.6: 36, 0.8: 48}
EPSILONS = (0.5, 1.0, 1.5, 2.0)
# Under the convex bound clipping hardly matters; under whole_update the noise follows S.
WHOLE_UPDATE = "strategy.sensitivity=whole_update"
SWEEPS: dict[str, dict[str, list[str]]] = {
    "clipping norm S (whole_update)": {
        str(norm): [WHOLE_UPDATE, f"strategy.clipping_norm={norm}"]
        for norm in (0.05, 0.1, 0.5, 1.0)
    },
    # E b stays near 360, and so does the privacy of a round.
    "local steps E (E b = 360)": {
        str(steps): [f"strategy.local_steps={steps}", f"strategy.batch_size={360 // steps}"]
        for steps in (1, 4, 10, 36)
    },
    "clients a round r": {
        str(clients): [f"num_sampled_clients={clients}"] for clients in (2, 5, 10, 20, 50)
    },
    "levels s": {
        "1": ["strategy.num_levels=1"],
        "10": ["strategy.num_levels=10"],
        "100": ["strategy.num_levels=100"],
        "not quantised": ["strategy.quantizer=none", "strategy.num_levels=null"],
    },
    # Every client must have the 360 records that a round draws.
    "heterogeneity (Dirichlet alpha)": {
        str(alpha): [
            "data.partition.kind=dirichlet",
            f"data.partition.alpha={alpha}",
            "data.partition.min_records=360",
        ]
        for alpha in (0.1, 1.0, 100.0)
    },
    "lost replies": {str(rate): [f"faults.loss_rate={rate}"] for rate in (0.0, 0.2, 0.5)},
}


def list_jobs() -> list[tuple[str, str, int, list[str]]]:
    """Return a sweep, a value, a seed and overrides for each run."""
    grid = {
        f"{epsilon}, {gamma}": [f"strategy.target_epsilon={epsilon}", f"strategy.batch_size={size}"]
        for epsilon in EPSILONS
        for gamma, size in BATCH_OF_GAMMA.items()
    }
    return [
        (sweep, value, seed, [*BASE, *overrides, f"seed={seed}"])
        for sweep, values in {"epsilon, gamma": grid, **SWEEPS}.items()
        for value, overrides in values.items()
        for seed in SEEDS
    ]


def describe(summary: dict[str, Any], _: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is kept of a run."""
    keys = ("test_accuracy", "test_loss", "epsilon", "noise_std", "sensitivity")
    return {key: summary[key] for key in (*keys, "uplink_bytes_total", "model_sha256")}


def average(results: dict[str, Any], key: str = "test_accuracy") -> dict[str, dict[str, list[Any]]]:
    """Return a mean, a standard deviation and their number for each sweep and value."""
    found: dict[str, dict[str, list[Any]]] = {}
    for run in results["runs"]:
        found.setdefault(run["sweep"], {}).setdefault(run["value"], []).append(run[key])
    return {
        sweep: {
            value: [statistics.mean(each), statistics.stdev(each) if len(each) > 1 else 0.0]
            for value, each in values.items()
        }
        for sweep, values in found.items()
    }


def print_table(results: dict[str, Any]) -> None:
    """Print the README's tables of test accuracy."""
    accuracy = average(results)
    print("| epsilon |" + "".join(f" gamma {gamma} |" for gamma in BATCH_OF_GAMMA))
    print("|---|" + "---|" * len(BATCH_OF_GAMMA))
    grid = accuracy.pop("epsilon, gamma", {})
    for epsilon in EPSILONS:
        cells = [grid.get(f"{epsilon}, {gamma}") for gamma in BATCH_OF_GAMMA]
        print(f"| {epsilon} |" + "".join(f" {write_cell(cell)} |" for cell in cells))
    print("\n| sweep | test accuracy by value |\n|---|---|")
    for sweep, values in accuracy.items():
        words = [f"{value}: {write_cell(cell)}" for value, cell in values.items()]
        print(f"| {sweep} | {'; '.join(words)} |")


def write_cell(cell: list[Any] | None) -> str:
    """Write a mean and its deviation."""
    return "–" if cell is None else f"{cell[0]:.3f} ± {cell[1]:.3f}"


def plot(results: dict[str, Any]) -> None:
    """Draw accuracy against epsilon, a curve for each gamma."""
    from fl_app.report.charts import Chart, Curve
    from fl_app.report.plots import write_png

    grid = average(results)["epsilon, gamma"]
    curves = []
    for place, gamma in enumerate(BATCH_OF_GAMMA):
        known = [e for e in EPSILONS if f"{e}, {gamma}" in grid]
        y = [100 * grid[f"{e}, {gamma}"][0] for e in known]
        curves.append(Curve(place, f"gamma = {gamma}", list(known), y))
    title = "MNIST, two digits a client, DP-FedPaq: mean of three seeds"
    x_label = "Total epsilon against the server (at delta = 0.001)"
    PLOTS.mkdir(parents=True, exist_ok=True)
    chart = Chart("sweeps", title, x_label, "Test accuracy (%)", curves)
    write_png(chart, PLOTS / "sweep_epsilon.png")


def main() -> None:
    """Compute, print or draw."""
    from resumable_bench import ResumableBench

    keys = ("sweep", "value", "seed")
    ResumableBench(RESULTS, keys, SEEDS, list_jobs, describe, print_table, plot).main(__doc__)


if __name__ == "__main__":
    main()
