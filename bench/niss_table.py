"""NISS beside DP-FedAvg on MNIST at the published setting: accuracy for each total epsilon.

`--root FOLDER_WITH_MNIST` computes the runs that bench/results/niss_table.json lacks and adds each
to it as it ends, the baseline first; it can be stopped and goes on where it was. `--only PREFIX`
computes the runs whose names begin so; --table prints the README's table, --plot draws
docs/plots/niss_table.png.
"""

import argparse
import logging
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "niss_table.json"
PLOT = Path(__file__).parents[1] / "docs" / "plots" / "niss_table.png"
EXPERIMENT = "experiment=niss_mnist"
EPSILONS = (30, 20, 10, 5, 1)
NISS_EPSILONS = (20, 10, 5)
SEEDS = [0, 1, 2]
# Final accuracy of a calibrated DP-FedAvg, and of FedAvg, by the same first author.
PUBLISHED = {30: 0.8670, 20: 0.8653, 10: 0.8205, 5: 0.5440, 1: 0.1128}
PUBLISHED_FEDAVG = 0.9009
# What the text claims for NISS over DP-FedAvg, on average, in a setting that it does not give.
PUBLISHED_GAIN = 0.21
FEDAVG, BASELINE = "fedavg", "dp_fedavg"
# Name: title, overrides.
NISS = {
    "niss_paper_tau0": ("NISS as published, tau = 0", ["strategy=niss_paper", "strategy.tau=0"]),
    "niss_paper_rho10": (
        "NISS as published, tau from rho = .1",
        ["strategy=niss_paper", "strategy.colluding_fraction=0.1"],
    ),
    "niss_paper_rho30": (
        "NISS as published, tau from rho = .3",
        ["strategy=niss_paper", "strategy.colluding_fraction=0.3"],
    ),
    "niss_sound_rho0": ("NISS, rho = 0", ["strategy=niss", "strategy.colluding_fraction=0.0"]),
    "niss_sound_rho10": ("NISS, rho = .1", ["strategy=niss", "strategy.colluding_fraction=0.1"]),
    "niss_sound_rho30": ("NISS, rho = .3", ["strategy=niss", "strategy.colluding_fraction=0.3"]),
    "niss_sound_rho10_drops": (
        "NISS, rho = .1, 5% vanish after they are ready",
        [
            *("strategy=niss", "strategy.colluding_fraction=0.1", "strategy.expected_dropouts=1"),
            "faults.drop_after_ready=0.05",
        ],
    ),
}
# No noise needs none of what its bounds do: neither clipped gradients nor float64.
PLAIN = [
    *("strategy=fedavg", "strategy.target_epsilon=null", "strategy.noise_multiplier=0.0"),
    *("strategy.sensitivity=whole_update", "strategy.max_grad_norm=null"),
    *("strategy.clipping_norm=null", "strategy.local_epochs=null"),
]
Job = tuple[str, int | None, int, list[str]]


def list_jobs() -> list[Job]:
    """Return a name, epsilon, a seed and overrides for each run."""
    jobs: list[Job] = [(FEDAVG, None, 0, [EXPERIMENT, *PLAIN, "seed=0"])]
    for epsilon in (10, 20, 5, 30, 1):
        jobs.append((BASELINE, epsilon, 0, name_run(epsilon, 0, [])))
    for epsilon in NISS_EPSILONS:
        for name, (_, overrides) in NISS.items():
            # In this setting all of the 20 clients of a round are ready.
            ready = ["strategy.min_ready=20"] if name.startswith("niss_sound") else []
            jobs.append((name, epsilon, 0, name_run(epsilon, 0, [*overrides, *ready])))
    return jobs + [(BASELINE, 10, seed, name_run(10, seed, [])) for seed in SEEDS[1:]]


def name_run(epsilon: int, seed: int, overrides: list[str]) -> list[str]:
    """Return the overrides of one run."""
    return [EXPERIMENT, *overrides, f"strategy.target_epsilon={epsilon}", f"seed={seed}"]


def select_jobs(prefix: str) -> Callable[[], list[Job]]:
    """Return what lists the jobs whose names begin with a prefix."""
    return lambda: [job for job in list_jobs() if job[0].startswith(prefix)]


def describe(summary: dict[str, Any], metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is kept of a run."""
    rounds = metrics[1:]
    stds = [row["residual_noise_std"] for row in rounds if row.get("residual_noise_std")]
    return {
        **{key: summary[key] for key in ("test_accuracy", "epsilon", "model_sha256")},
        "accuracies": {row["round"]: row["test_accuracy"] for row in rounds[9::10]},
        "median_round_seconds": round(statistics.median(row["seconds"] for row in rounds), 3),
        "mean_residual_noise_std": statistics.mean(stds) if stds else None,
        "num_dropped_after_ready": sum(row.get("num_dropped_after_ready") or 0 for row in rounds),
    }


def judge(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the runs come to: mean accuracies, and the gain over the baseline."""
    cells: dict[tuple[str, int | None], list[float]] = {}
    for run in runs:
        cells.setdefault((run["name"], run["epsilon_aimed_at"]), []).append(run["test_accuracy"])
    means = [
        {"name": name, "epsilon": epsilon, "runs": len(found), "accuracy": statistics.mean(found)}
        for (name, epsilon), found in cells.items()
    ]
    base = {row["epsilon"]: row["accuracy"] for row in means if row["name"] == BASELINE}
    gains = []
    for name in NISS:
        mine = {row["epsilon"]: row["accuracy"] for row in means if row["name"] == name}
        both = [epsilon for epsilon in NISS_EPSILONS if epsilon in mine and epsilon in base]
        if both:
            gained = {epsilon: mine[epsilon] - base[epsilon] for epsilon in both}
            gains.append({"name": name, "gain": gained, "mean": statistics.mean(gained.values())})
    return {"means": means, "gains": gains, "published_gain": PUBLISHED_GAIN}


def print_table(results: dict[str, Any]) -> None:
    """Print the README's table."""
    found = {(row["name"], row["epsilon"]): row["accuracy"] for row in results["means"]}
    gains = {row["name"]: row["mean"] for row in results["gains"]}
    print("| | " + " | ".join(f"epsilon {e}" for e in EPSILONS) + " | gain |")
    print("|---|" + "---|" * (len(EPSILONS) + 1))
    plain = found.get((FEDAVG, None))
    print(
        f"| no noise (FedAvg): {write_percent(plain)}, published "
        f"{write_percent(PUBLISHED_FEDAVG)} |" + " |" * (len(EPSILONS) + 1)
    )
    print(write_row("DP-FedAvg, published", PUBLISHED))
    titles = {BASELINE: "DP-FedAvg, ours", **{name: title for name, (title, _) in NISS.items()}}
    for name, title in titles.items():
        mine = {e: found[name, e] for e in EPSILONS if (name, e) in found}
        print(write_row(title, mine, gains.get(name)))


def write_row(title: str, accuracies: dict[int, float], gain: float | None = None) -> str:
    """Write a row of the table in percent; what was not run stays empty."""
    cells = [write_percent(accuracies.get(epsilon)) for epsilon in EPSILONS]
    return f"| {title} | {' | '.join(cells)} | {'' if gain is None else f'{100 * gain:+.1f}'} |"


def write_percent(accuracy: float | None) -> str:
    """Write an accuracy in percent; nothing for none."""
    return "" if accuracy is None else f"{100 * accuracy:.2f}"


def plot(results: dict[str, Any]) -> None:
    """Draw the accuracies over epsilon."""
    from fl_app.report.charts import Chart, Curve
    from fl_app.report.plots import write_png

    PLOT.parent.mkdir(parents=True, exist_ok=True)
    shown = {
        BASELINE: "DP-FedAvg",
        "niss_paper_rho10": "NISS as published, rho = .1 (no guarantee)",
        "niss_sound_rho10": "NISS, rho = .1",
    }
    curves = []
    for place, (name, title) in enumerate(shown.items()):
        rows = {r["epsilon"]: r["accuracy"] for r in results["means"] if r["name"] == name}
        x = sorted(rows)
        curves.append(Curve(place, title, [float(at) for at in x], [rows[at] for at in x]))
    x = sorted(PUBLISHED)
    published = [float(at) for at in x], [PUBLISHED[at] for at in x]
    curves.append(Curve(0, "DP-FedAvg, published", *published, points=True))
    write_png(Chart(PLOT.stem, "MNIST, label shards", "Epsilon", "Test accuracy", curves), PLOT)


def main() -> None:
    """Compute, print or draw."""
    from resumable_bench import ResumableBench

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="folder with MNIST's files: compute what is missing")
    parser.add_argument("--only", default="", help="compute runs whose names begin so")
    parser.add_argument("--table", action="store_true", help="print the README's table")
    parser.add_argument("--plot", action="store_true", help="draw into docs/plots")
    arguments = parser.parse_args()
    jobs: Callable[[], Iterable[tuple[Any, ...]]] = select_jobs(arguments.only)
    keys = ("name", "epsilon_aimed_at", "seed")
    bench = ResumableBench(RESULTS, keys, SEEDS, jobs, describe, print_table, plot, judge)
    if arguments.root:
        logging.disable(logging.CRITICAL)
        bench.measure(arguments.root)
    if arguments.table:
        print_table(bench.read_results())
    if arguments.plot:
        plot(bench.read_results())


if __name__ == "__main__":
    main()
