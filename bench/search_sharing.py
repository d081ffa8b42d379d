"""What sharing is worth: DP-FTS-DE beside Thompson sampling and its controls, paired by seed.

Each task is searched by Thompson sampling (nobody sends anything) and by DP-FTS-DE (mode sound);
those that are to show a gain also by its controls: random vectors of the same norm in place of what
was released, and the oracle (the plain average of all agents' vectors, no noise). The others, where
agents have little in common or the kernel is not theirs, are to show that nothing is lost. The seed
decides initial points, draws and noise; of synthetic tasks the functions, too. Numbers of seeds
were fixed before the first run: 40, and 120 for landmine up to t = 10, where the differences are
small. Compared is the best value so far (of tasks whose optimum is
known, the simple regret), mean over the agents, one number a seed: intervals are those of the
seeds' differences, so agents of one seed need not be independent.

`--root FOLDER_WITH_LANDMINE` computes the runs that bench/results/search_sharing.json lacks and
adds each to it as it ends (--part I/N shares the work, --only TASK takes one task); --table prints
the README's table.
"""

import argparse
import math
import statistics
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "search_sharing.json"
# Not those that the defaults were chosen with.
SEEDS = list(range(1000, 1040))
# More of them for the first iterations only, whose runs are short.
EARLY_SEEDS = list(range(1040, 1120))
ITERATIONS = (0, 1, 2, 5, 10, 20, 30, 60)
SYNTHETIC = ["objective=synthetic", "objective.dimension=2", "strategy.target_epsilon=2"]
LONG, SHORT, EARLY = "num_rounds=61", "num_rounds=21", "num_rounds=11"
MANY = "objective.num_agents=200"
TASKS: dict[str, list[str]] = {
    "landmine, epsilon 2": ["objective=landmine", "strategy.target_epsilon=2", LONG],
    "landmine, epsilon 5": ["objective=landmine", "strategy.target_epsilon=5", LONG],
    "30 agents, deviation .3": [*SYNTHETIC, LONG],
    "30 agents, deviation 1": [*SYNTHETIC, "objective.deviation=1", LONG],
    "200 agents, deviation .3": [*SYNTHETIC, MANY, SHORT],
    "200 agents, deviation 1": [*SYNTHETIC, MANY, "objective.deviation=1", SHORT],
    "30 agents, unrelated": [*SYNTHETIC, "objective.deviation=100", LONG],
    "landmine, log axes, epsilon 2": [
        *("objective=landmine", "objective.axes=log", "strategy.target_epsilon=2", LONG),
    ],
    "30 agents, Matern, deviation .3": [*SYNTHETIC, "objective.family=matern", LONG],
    "30 agents, non-stationary, deviation .3": [
        *(*SYNTHETIC, "objective.family=non_stationary", LONG),
    ],
    "30 agents, 1-D, deviation .3": [*SYNTHETIC, "objective.dimension=1", LONG],
}
OURS, ALONE, RANDOM, ORACLE = "DP-FTS-DE", "Thompson sampling", "random vectors", "oracle"
METHODS: dict[str, list[str]] = {
    ALONE: ["strategy=thompson_sampling"],
    OURS: ["strategy=dp_fts_de"],
    RANDOM: ["strategy=dp_fts_de", "strategy.control=random"],
    ORACLE: ["strategy=dp_fts_de", "strategy.control=oracle"],
}
SHOWN = (5, 10, 20, 60)


# What is not private is the same whatever the epsilon.
SAME_AS = {"landmine, epsilon 5": "landmine, epsilon 2"}
WITH_EARLY_SEEDS = ("landmine, epsilon 2", "landmine, epsilon 5")
# The first tasks are to show a gain.
NUM_JUDGED = 6


def list_jobs(chosen: str = "") -> list[tuple[str, str, int, list[str]]]:
    """Return task, method, seed and overrides for each run of the tasks whose names begin so.

    All methods of a seed come together: whatever is there is paired.
    """
    jobs = []
    for place, (task, setting) in enumerate(TASKS.items()):
        early = EARLY_SEEDS if task in WITH_EARLY_SEEDS else []
        for seed in [*SEEDS, *early] if task.startswith(chosen) else []:
            length = [EARLY if seed in early and each == LONG else each for each in setting]
            for method, overrides in METHODS.items():
                if method in (ALONE, ORACLE) and task in SAME_AS:
                    continue
                if method in (RANDOM, ORACLE) and place >= NUM_JUDGED:
                    continue
                # The oracle is what sharing could give at best, and judges nothing.
                if method == ORACLE and seed not in SEEDS[:10]:
                    continue
                jobs.append((task, method, seed, [*overrides, *length, f"seed={seed}"]))
    return jobs


def describe(summary: dict[str, Any], metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is kept of a run: the mean over the agents after some of the iterations."""
    # Iteration t is round t + 1.
    rows = {row["round"] - 1: row for row in metrics}
    at = [t for t in ITERATIONS if t in rows]
    return {
        "best_value": {str(t): round(rows[t]["best_value_mean"], 6) for t in at},
        "simple_regret": {
            str(t): round(rows[t]["simple_regret_mean"], 6)
            for t in at
            if rows[t]["simple_regret_mean"] is not None
        },
        "epsilon": summary["epsilon"],
        "noise_std": summary["noise_std"],
    }


def interval(differences: list[float]) -> tuple[float, float]:
    """Return the mean, and half its 95% interval by Student's t."""
    from scipy.stats import t

    count = len(differences)
    half = float(t.ppf(0.975, count - 1)) * statistics.stdev(differences) / math.sqrt(count)
    return statistics.mean(differences), half


def compare(
    runs: list[dict[str, Any]], task: str, other: str, iteration: int
) -> tuple[float, float, int] | None:
    """Return how much better DP-FTS-DE is than another: mean, half interval, seeds."""
    found: dict[tuple[str, int], float] = {}
    base = SAME_AS.get(task, task)
    for run in runs:
        is_ours = run["task"] == (base if run["method"] in (ALONE, ORACLE) else task)
        if is_ours and str(iteration) in run["best_value"]:
            regret = run["simple_regret"].get(str(iteration))
            value = run["best_value"][str(iteration)]
            found[run["method"], run["seed"]] = value if regret is None else -regret
    pairs = [
        found[OURS, seed] - found[other, seed]
        for seed in [*SEEDS, *EARLY_SEEDS]
        if (OURS, seed) in found and (other, seed) in found
    ]
    return (*interval(pairs), len(pairs)) if len(pairs) > 1 else None


def print_table(results: dict[str, Any]) -> None:
    """Print the README's table."""
    print("| task | against |" + "".join(f" t = {t} |" for t in SHOWN) + " seeds |")
    print("|---|---|" + "---:|" * (len(SHOWN) + 1))
    for task in TASKS:
        for other in (ALONE, RANDOM, ORACLE):
            cells, counts = [], []
            for t in SHOWN:
                found = compare(results["runs"], task, other, t)
                cells.append("" if found is None else f"{found[0]:+.4f} ± {found[1]:.4f}")
                counts += [] if found is None else [found[2]]
            if counts:
                # Of the first and of the last iterations, if they differ.
                seeds = ", ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
                print(f"| {task} | {other} | " + " | ".join(cells) + f" | {seeds} |")


def main() -> None:
    """Compute or print."""
    from resumable_bench import ResumableBench

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", default="", help="compute tasks whose names begin so")
    arguments, rest = parser.parse_known_args()
    sys.argv = [sys.argv[0], *rest]
    ResumableBench(
        file=RESULTS,
        keys=("task", "method", "seed"),
        seeds=SEEDS,
        list_jobs=lambda: list_jobs(arguments.only),
        describe=describe,
        print_table=print_table,
        plot=lambda results: None,
        root_key="objective.root",
        root_of="landmine",
        rooted=lambda overrides: "objective=landmine" in overrides,
    ).main(__doc__)


if __name__ == "__main__":
    main()
